"""EM in two processes, each with half of the rows; on one machine here, on many it is the same.

    python tests/support/two_processes.py 0 & python tests/support/two_processes.py 1 & wait

Every process runs these lines on the same data; of a memory map each reads its own rows only.
"""

import json
import sys

import jax


def main(rank, address="127.0.0.1:9876"):
    jax.distributed.initialize(address, num_processes=2, process_id=int(rank))

    import numpy as np
    from jax import random

    from inference import TruncatedEM
    from ppl_models import binary_sparse_coding
    from ppl_models.data import bars

    data = np.asarray(bars(random.key(1), 53, size=2).data)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    em = TruncatedEM(binary_sparse_coding, num_candidates=3)
    result = em.run(random.key(0), 8, data, num_causes=3, mesh=mesh)
    weights = np.asarray(result.params["weights"]).tolist()
    counts = {"devices": jax.device_count(), "here": jax.local_device_count()}
    print(json.dumps({**counts, "losses": result.losses.tolist(), "weights": weights}))


if __name__ == "__main__":
    main(*sys.argv[1:])

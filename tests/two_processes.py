"""EM in two processes, each with half of the rows; on one machine here, on many it is the same.

    python tests/two_processes.py 0 & python tests/two_processes.py 1 & wait

Every process runs these lines on the same data; of a memory map each reads its own rows only.
"""

import json
import sys

import jax

rank, address = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:9876"
jax.distributed.initialize(address, num_processes=2, process_id=rank)

import numpy as np  # noqa: E402
from jax import random  # noqa: E402

from inference import TruncatedEM  # noqa: E402
from ppl_models import binary_sparse_coding  # noqa: E402
from ppl_models.data import bars  # noqa: E402

data = np.asarray(bars(random.key(1), 53, size=2).data)
mesh = jax.make_mesh((jax.device_count(),), ("data",))
em = TruncatedEM(binary_sparse_coding, num_candidates=3)
result = em.run(random.key(0), 3, data, num_causes=3, mesh=mesh)
weights = np.asarray(result.params["weights"]).tolist()
print(json.dumps({"devices": jax.device_count(), "here": jax.local_device_count(),
                  "losses": result.losses.tolist(), "weights": weights}))  # fmt: skip

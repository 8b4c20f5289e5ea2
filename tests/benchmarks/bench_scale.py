"""How an iteration of EM shrinks with the number of devices, measured beside a prediction.

    python tests/benchmarks/bench_scale.py [--rows 400000] [--devices 1,2] [--json FILE]

Each number of devices runs in a process of its own, on the GPUs that are there, or with
``JAX_PLATFORMS=cpu`` on as many virtual devices. These share the cores, which one device uses
already: they show that it runs, not what is gained. An iteration on k devices is predicted to take

    seconds(k) = fixed + row · N / k + reduce(k)

where `fixed` and `row` come from two table sizes on one device, and `reduce` is the time of adding
up as many bytes as the sufficient statistics of binary sparse coding have, measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

NUM_CAUSES, SIZE = 10, 5
STEPS = 8


def measure(num_rows: int, num_devices: int) -> dict[str, float]:
    """Seconds an iteration, and seconds to add up its statistics; in this process."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax, random
    from jax.sharding import PartitionSpec as P

    from inference import EM
    from ppl_models import binary_sparse_coding
    from ppl_models.data import bars

    mesh = jax.make_mesh((num_devices,), ("data",), devices=jax.devices()[:num_devices])
    data = np.asarray(jax.jit(lambda key: bars(key, num_rows, size=SIZE).data)(random.key(0)))
    em = EM(binary_sparse_coding)

    def seconds(steps: int) -> float:
        return em.run(random.key(1), steps, data, num_causes=NUM_CAUSES, mesh=mesh).seconds

    seconds(1)
    each = min((seconds(1 + STEPS) - seconds(1)) / STEPS for _ in range(2))
    floats = NUM_CAUSES * (NUM_CAUSES + SIZE * SIZE) + 4

    def add(x):
        return lax.fori_loop(0, 200, lambda _, x: lax.psum(x, "data") / num_devices, x)

    spread = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))
    x = jnp.ones(floats)
    spread(x).block_until_ready()
    began = time.perf_counter()
    spread(x).block_until_ready()
    reduce = (time.perf_counter() - began) / 200
    kind = jax.devices()[0].device_kind
    return {"seconds": each, "reduce": reduce, "bytes": 4 * floats, "kind": kind}


def apart(num_rows: int, num_devices: int) -> dict[str, float]:
    """`measure` in a process with so many devices."""
    environment = dict(os.environ)
    if environment.get("JAX_PLATFORMS") == "cpu":
        environment["XLA_FLAGS"] = (
            f"--xla_force_host_platform_device_count={num_devices} "
            "--xla_cpu_multi_thread_eigen=false"
        )
    done = subprocess.run(
        [sys.executable, __file__, "--one", f"{num_rows},{num_devices}"],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--devices", default="1,2")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*map(int, given.one.split(",")))))
        return
    counts = [int(x) for x in given.devices.split(",")]
    few, many = apart(given.rows // 8, 1), apart(given.rows, 1)
    row = (many["seconds"] - few["seconds"]) / (given.rows - given.rows // 8)
    fixed = max(0.0, many["seconds"] - row * given.rows)
    found = {1: many} | {k: apart(given.rows, k) for k in counts if k > 1}
    print(f"{given.rows} rows on {many['kind']}; {many['bytes']} bytes added up an iteration")
    print(f"fixed {1e3 * fixed:.2f} ms, {1e9 * row:.1f} ns a row")
    print("devices  measured ms  predicted ms  reduce ms  speed-up")
    table = []
    for k in counts:
        predicted = fixed + row * given.rows / k + found[k]["reduce"]
        speed = many["seconds"] / found[k]["seconds"]
        table.append({"devices": k, "predicted": predicted, "speedup": speed, **found[k]})
        print(
            f"{k:7d}  {1e3 * found[k]['seconds']:11.2f}  {1e3 * predicted:12.2f}"
            f"  {1e3 * found[k]['reduce']:9.3f}  {speed:8.2f}"
        )
    if given.json:
        out = {"rows": given.rows, "fixed": fixed, "row": row, "devices": table}
        given.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()

"""How an iteration of truncated EM shrinks with the number of devices, beside a prediction.

    python benchmarks/bench_scale.py [--full] [--rows N] [--devices 1,2,4,8] [--json FILE]

An iteration over N rows on k devices is predicted to take

    seconds(k) = fixed + row · N / k + reduce(k)

`row` and `fixed` come from two table sizes on one device; `reduce` adds up as many bytes as the
sufficient statistics of binary sparse coding have, measured alone on those k devices. With
``JAX_PLATFORMS=cpu`` a device is a process with a core of its own, joined to the others by
`jax.distributed`, so ask for no more than there are cores. On GPUs one process has them all; where
there are fewer than asked for, what one of the k would have to do is measured on a single one: an
iteration over N / k rows. `--full` is the size of the paper's patches (200 000 rows of 26×26
pixels, 700 causes) and wants a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

STEPS = 32


def measure(num_rows: int, num_devices: int, full: bool) -> dict:
    """Seconds an iteration, and seconds to add up its statistics; in this process."""
    import jax
    import numpy as np
    from bench_states import problem
    from jax import lax, random
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from inference import TruncatedEM
    from inference.reading.log_joint import Structure
    from ppl_models import binary_sparse_coding

    columns, causes, active, candidates = (676, 700, 8, 10) if full else (144, 100, 5, 7)
    devices = jax.devices()
    if len(devices) < num_devices:  # the share of one of them
        num_rows, num_devices = num_rows // num_devices, 1
    mesh = jax.make_mesh((num_devices,), ("data",), devices=devices[:num_devices])
    data, params = problem(num_rows, columns, causes)
    rows = np.asarray(data)
    del data
    em = TruncatedEM(
        binary_sparse_coding, max_active=active, num_candidates=candidates, keep=False,
        structure=Structure.SHARED,
    )  # fmt: skip

    def taken(steps: int) -> float:
        given = {"num_causes": causes, "init_params": params, "mesh": mesh}
        return em.run(random.key(1), steps, rows, **given).seconds

    taken(2)
    each = min(taken(STEPS) for _ in range(3)) / STEPS
    floats = causes * (causes + columns) + 4

    def add(x):
        return lax.fori_loop(0, 100, lambda _, x: lax.psum(x, "data") / num_devices, x)

    spread = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))
    ones = np.ones(floats, np.float32)
    x = jax.make_array_from_callback(ones.shape, NamedSharding(mesh, P()), lambda part: ones[part])
    spread(x).block_until_ready()
    began = time.perf_counter()
    spread(x).block_until_ready()
    reduce = (time.perf_counter() - began) / 100 if num_devices > 1 else 0.0
    return {
        "seconds": each, "reduce": reduce, "bytes": ones.nbytes, "rows": num_rows,
        "on": num_devices, "kind": devices[0].device_kind,
    }  # fmt: skip


def joined(rank: int, address: str, *what: int) -> dict:
    """`measure` in one of several processes, each with a core of its own."""
    import jax

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    if what[1] > 1:
        jax.distributed.initialize(address, num_processes=what[1], process_id=rank)
    return measure(*what)


def apart(num_rows: int, num_devices: int, full: bool) -> dict:
    """`measure` in processes of their own."""
    cpu = os.environ.get("JAX_PLATFORMS") == "cpu"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    what = [num_rows, num_devices, full]
    calls = [[rank, address, *what] for rank in range(num_devices)] if cpu else [what]
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--one", json.dumps(call)], stdout=subprocess.PIPE, text=True
        )
        for call in calls
    ]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{num_devices} devices: a process failed, see above")
    return max((json.loads(text.splitlines()[-1]) for text in said), key=lambda x: x["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--devices", default="1,2")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        call = json.loads(options.one)
        print(json.dumps(joined(*call) if len(call) > 3 else measure(*call)))
        return
    rows = options.rows or (200_000 if options.full else 32_000)
    counts = [int(x) for x in options.devices.split(",")]
    few, many = apart(rows // 8, 1, options.full), apart(rows, 1, options.full)
    row = (many["seconds"] - few["seconds"]) / (rows - rows // 8)
    fixed = max(0.0, many["seconds"] - row * rows)
    timings = {1: many} | {k: apart(rows, k, options.full) for k in counts if k > 1}
    print(f"{rows} rows on {many['kind']}; {many['bytes']} bytes added up an iteration")
    print(f"fixed {1e3 * fixed:.3f} ms, {1e9 * row:.1f} ns a row")
    print("devices  rows each  measured ms  predicted ms  reduce ms  speed-up")
    table = []
    for k in counts:
        part = timings[k]
        line = {
            "devices": k, "predicted": fixed + row * rows / k + part["reduce"],
            "speedup": many["seconds"] / part["seconds"], "share": part["on"] < k, **part,
        }  # fmt: skip
        table.append(line)
        print(
            f"{k:7d}  {rows // k:9d}  {1e3 * part['seconds']:11.3f}"
            f"  {1e3 * line['predicted']:12.3f}  {1e3 * part['reduce']:9.3f}"
            f"  {line['speedup']:8.2f}" + ("   its share, on one device" if line["share"] else "")
        )
    if options.json:
        out = {"rows": rows, "fixed": fixed, "row": row, "devices": table}
        options.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()

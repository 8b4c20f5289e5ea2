"""Reference posteriors of the examples: a long chain each, kept with its settings and its checks.

A file holds the log predictive density of the first fresh rows of an example under a chain of NUTS
that passed strict checks (`reference.strict_doubts`), so that every comparison on it can say how
far a method is from the posterior, without a long chain of its own. To make them, in minutes each,
with JAX, NumPyro and NumPy alone:

    python benchmarks/references.py --jobs 4 --out FOLDER NAME ...

A chain that fails is not written; the line says why.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import random

import ppl_models as models
from inference.baselines.samplers import Draws
from inference.baselines.starts import climbs_of
from inference.comparison.reference import (
    GOLDEN,
    NUM_KEPT,
    NUM_WARMUP,
    TARGET_ACCEPT,
    long_draws,
    long_judged,
    strict_doubts,
)
from inference.comparison.scoring import Field, Setup, field_of
from inference.comparison.side_by_side import Workers
from inference.files.cards import example, known_of
from inference.files.output import versions, write_whole
from inference.reading.anatomy import inspect


class Effort(NamedTuple):
    """How a long chain is made."""

    seconds: float = 900.0
    chains: int = 4
    warmup: int = NUM_WARMUP
    target_accept: float = TARGET_ACCEPT
    seed: int = 0
    jobs: int = 1  # processes that share the chains


def make(name: str, which: str, effort: Effort) -> dict[str, Any]:
    """A long chain on an example's first data set; raises ValueError if it cannot be trusted."""
    draws = _all_chains(name, which, effort)
    field = _field(name, which)
    judged = long_judged(field, draws)
    chains, count = draws.stats["lp"].shape
    problems = strict_doubts(judged.row)
    if problems:
        raise ValueError(
            f"the chain of {chains} × {count} draws in {draws.seconds:.0f} s is no reference: "
            + ", ".join(problems)
        )
    gates = ("rhat", "rhat_parameters", "ess_bulk", "ess_tail", "divergences")
    return {
        "settings": {
            "program": name, "example": which, "method": "NUTS", **effort._asdict(),
            "draws": count, "seconds": draws.seconds, "rows": len(judged.observed),
            "fresh": len(judged.held_out), **_begin(field), **versions(),
        },
        "gates": {x: judged.row[x] for x in gates},
        "held_out": judged.row["held_out"],
        "excess": [judged.row.get("excess"), judged.row.get("excess_error")],
        "error": float(judged.scores.row_errors().mean()),
        "log_density": [round(float(x), 5) for x in judged.held_out[:NUM_KEPT]],
    }  # fmt: skip


def _begin(field: Field) -> dict[str, str]:
    if climbs_of(field.model, inspect(field.model, *field.train_arguments)) is None:
        return {}
    return {"begin": "begin about the best mode found and explore one labelling of the units"}


def _field(name: str, which: str) -> Field:
    made = example(name, which=which)
    rows = np.arange(len(made.values))
    known = known_of(name, which, 0)
    return field_of(
        Setup(getattr(models, name), made.values, None, rows, rows[:0], made.sizes, **known)
    )


def _all_chains(name: str, which: str, effort: Effort) -> Draws:
    """Those of all processes, as many of each as the slowest has."""
    if effort.jobs == 1:
        return _chains(name, which, effort, 0)
    pool = Workers(effort.jobs)
    for number in range(effort.jobs):
        pool.begin(number, _chains, name, which, effort, number)
    parts = [part for _, part in pool.results(range(effort.jobs))]
    pool.close()
    for part in parts:
        if isinstance(part, Exception):
            raise RuntimeError("a process ended, perhaps for lack of memory") from part
    count = min(len(part.clock) for part in parts)
    params, stats = (
        {x: np.concatenate([v[:, :count] for v in (each[x] for each in some)]) for x in some[0]}
        for some in ([part.params for part in parts], [part.stats for part in parts])
    )
    return parts[0]._replace(
        params=params, stats=stats, clock=parts[0].clock[:count],
        seconds=sum(part.seconds for part in parts),
    )  # fmt: skip


def _chains(name: str, which: str, effort: Effort, number: int) -> Draws:
    """The chains of one process; all begin where the first of them do.

    On a combination machine climbs end in modes hundreds of nats below the one near the truth.
    """
    key, made = random.key(effort.seed), example(name, which=which)
    model, arguments = getattr(models, name), ((jnp.asarray(made.values),), made.sizes)
    draws = long_draws(
        model, arguments, random.fold_in(key, number), effort.seconds,
        effort.chains // effort.jobs, effort.warmup, effort.target_accept, key,
        [made.truth] if made.truth else [],
    )  # fmt: skip
    return draws._replace(snapshots={})  # a second copy


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="make reference posteriors of examples")
    parser.add_argument("names", nargs="+", metavar="NAME[:EXAMPLE]")
    parser.add_argument("--out", type=Path, default=GOLDEN, metavar="FOLDER")
    helps = {
        "seconds": "for each, of every process", "chains": "on a GPU more cost little",
        "warmup": "draws", "target_accept": "of the steps: nearer to 1 where chains diverge",
        "seed": "of the chains", "jobs": "processes, each with its share of the chains",
    }  # fmt: skip
    for field, value in Effort()._asdict().items():
        flag, said = f"--{field.replace('_', '-')}", f"{helps[field]} (%(default)s)"
        parser.add_argument(flag, type=type(value), default=value, metavar="N", help=said)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    effort = Effort(**{x: getattr(options, x) for x in Effort._fields})
    status = 0
    for entry in options.names:
        name, _, which = entry.partition(":")
        try:
            record = make(name, which or "paper", effort)
        except (ValueError, RuntimeError, MemoryError, FloatingPointError) as error:
            print(f"{entry}: {' '.join(str(error).split())}", flush=True)
            status = 1
            continue
        file = options.out / f"{name}-{which or 'paper'}.json"
        write_whole(file, f"{json.dumps(record, indent=1)}\n".encode(), "--out")
        print(f"{entry}: {record['gates']}", flush=True)
    return status


if __name__ == "__main__":
    raise SystemExit(main())

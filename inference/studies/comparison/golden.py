"""Reference posteriors of the examples: a long chain each, kept with its settings and its checks.

A file holds the log predictive density of the first fresh rows of an example under a chain of NUTS
that passed strict checks (`reference.strict_doubts`), so that every comparison on it can say how
far a method is from the posterior, without a long chain of its own. To make them, in minutes each,
with JAX, NumPyro and NumPy alone:

    python -m latentbits.inference.studies.comparison.golden --seconds 900 --out FOLDER NAME ...

A chain that fails is not written; the line says why.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .reference import Reference

NUM_KEPT = 200
"""Fresh rows whose density is kept."""
HERE = Path(__file__).parent / "golden"


def load(name: str, which: str = "paper", folder: Path = HERE) -> Reference | None:
    """The reference of an example's first data set, if there is one."""
    file = folder / f"{name}-{which}.json"
    if not file.is_file():
        return None
    kept = json.loads(file.read_text())
    gates, made = kept["gates"], kept["settings"]
    words = (
        f"Distances are from a long chain, kept with the program: NUTS of {made['chains']} × "
        f"{made['draws']} draws in {made['seconds']:.0f} s, R̂ {gates['rhat']:.3f}, of the "
        f"parameters {gates['rhat_parameters']:.3f}, {gates['ess_bulk']:.0f} effective draws, none "
        f"divergent; its own Monte-Carlo error is {kept['error']:.4f} nats per row."
    )
    return Reference(words, np.array(kept["log_density"]), kept["error"])


def make(
    name: str,
    which: str,
    seconds: float,
    num_chains: int = 4,
    num_warmup: int = 500,
    seed: int = 0,
) -> dict[str, Any]:
    """A long chain on an example's first data set; raises ValueError if it cannot be trusted."""
    from jax import random

    from latentbits import models

    from ..cards import CARDS
    from ..examples import example, fresh_rows, true_density
    from ..output import versions
    from .field import Setup, field_of
    from .reference import long_judged, strict_doubts

    made = example(name, which=which)
    density = CARDS[name].examples[which]().density
    rows = np.arange(len(made.values))
    field = field_of(
        Setup(
            getattr(models, name), made.values, None, rows, rows[:0], made.sizes,
            made.truth or None, partial(fresh_rows, name, which, 0),
            None if density is None else partial(true_density, name, which),
        )
    )  # fmt: skip
    judged = long_judged(field, random.key(seed), seconds, num_chains, num_warmup)
    problems = strict_doubts(judged.row)
    if problems:
        raise ValueError(f"{name}: the chain is no reference: {', '.join(problems)}")
    chains, draws = next(iter(judged.draws.params.values())).shape[:2]
    gates = ("rhat", "rhat_parameters", "ess_bulk", "ess_tail", "divergences")
    return {
        "settings": {
            "program": name, "example": which, "method": "NUTS", "seed": seed, "chains": chains,
            "warmup": num_warmup, "draws": draws, "seconds": judged.draws.seconds,
            "rows": len(made.values), "fresh": len(judged.held_out), **versions(),
        },
        "gates": {x: judged.row[x] for x in gates},
        "held_out": judged.row["held_out"],
        "excess": [judged.row.get("excess"), judged.row.get("excess_error")],
        "error": float(judged.scores.row_errors().mean()),
        "log_density": [round(float(x), 5) for x in judged.held_out[:NUM_KEPT]],
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="make reference posteriors of examples")
    parser.add_argument("names", nargs="+", metavar="NAME[:EXAMPLE]")
    parser.add_argument("--seconds", type=float, default=900.0, help="for each (%(default)g)")
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER")
    parser.add_argument(
        "--chains", type=int, default=4, metavar="N", help="on a GPU more cost little (%(default)s)"
    )
    parser.add_argument("--warmup", type=int, default=500, metavar="N", help="(%(default)s)")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for entry in options.names:
        name, _, which = entry.partition(":")
        try:
            how = options.seconds, options.chains, options.warmup
            record = make(name, which or "paper", *how)
        except (ValueError, RuntimeError, MemoryError, FloatingPointError) as error:
            print(f"{entry}: {' '.join(str(error).split())}", flush=True)
            status = 1
            continue
        file = options.out / f"{name}-{which or 'paper'}.json"
        file.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{entry}: {record['gates']}", flush=True)
    return status


if __name__ == "__main__":
    raise SystemExit(main())

"""What distances are measured from: the posterior predictive of a sampler that can be trusted.

Parameters have no exact posterior here, so the reference is a chain, with its own error beside
every distance: by default the sampler of the run itself that passes the rules of
`verdict` with most effective draws; on request a longer chain of NUTS on the same
program, latents summed out where they are discrete, which is taken only if it passes stricter ones:
R̂ of the log joint and of the parameters after relabelling ≤ 1.01, at least 1000 effective draws in
bulk and tail, no divergence. Long chains on the examples are kept in the folder `golden`, with
their settings and their checks (`benchmarks/references.py` makes them).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax import Array, random

from ..baselines.samplers import Draws, nuts
from ..baselines.starts import climb, climbs_of
from ..evaluation.diagnostics import RHAT, every
from ..posterior.chains import chains
from ..posterior.draws import best_mode
from ..reading.anatomy import inspect
from ..rows.devices import one_device
from ..types import Arguments
from .checks import FEW, Mark, Rows, wrong
from .contenders import contenders
from .judge import Judged, judge
from .scoring import Field

NUM_WARMUP = 500
NUM_DRAWS = 30000
"""Of each of four chains at most: it is the seconds that end it."""
TARGET_ACCEPT = 0.9
"""Shorter steps than NUTS takes by default: no divergence is allowed."""
ESS = 1000.0
MOST_FRESH = 1000
"""Fresh rows that a long chain is judged by."""
MOST_JUDGED = 2000
"""Of all chains, evenly spaced: of more, the likelihoods of rows take longer than the chains."""
MOST_ALIGNED = 8000
"""Of all chains, whose parameters R̂ is of."""
NUM_KEPT = 200
"""Fresh rows whose density is kept."""
GOLDEN = Path(__file__).parent / "golden"


class Reference(NamedTuple):
    """The log predictive density of each held-out row, and how far off it may be."""

    words: str
    held_out: np.ndarray | None = None  # (num_test,)
    error: float | None = None  # mean Monte-Carlo standard error of a row


def load(name: str, which: str = "paper", folder: Path = GOLDEN) -> Reference | None:
    """The reference of an example's first data set, if one is kept."""
    file = folder / f"{name}-{which}.json"
    if not file.is_file():
        return None
    return _of_a_chain(json.loads(file.read_text()), ", kept with the program")


def _of_a_chain(kept: dict[str, Any], where: str = "") -> Reference:
    """The reference that a long chain is.

    :param kept: its settings, what its checks found, log densities of rows, and their error.
    """
    checks, made = kept["gates"], kept["settings"]
    words = (
        f"Distances are from a long chain{where}: {_length(**made)}, R̂ {checks['rhat']:.3f}, of "
        f"the parameters {checks['rhat_parameters']:.3f}, {checks['ess_bulk']:.0f} effective "
        f"draws, none divergent{_own_error(kept['error'])}"
    )
    words += f" Its chains {made['begin']}." if "begin" in made else ""
    return Reference(words, np.asarray(kept["log_density"]), kept["error"])


def _length(chains: int, draws: int, seconds: float, **_: Any) -> str:
    return f"NUTS of {chains} × {draws} draws in {seconds:.0f} s"


def _own_error(error: float) -> str:
    return f"; its own Monte-Carlo error is {error:.4f} nats per row."


def long_draws(
    model: Callable,
    arguments: Arguments,
    rng_key: Array,
    seconds: float,
    num_chains: int = 4,
    num_warmup: int = NUM_WARMUP,
    target_accept: float = TARGET_ACCEPT,
    start: Array | None = None,
    known: Sequence[dict[str, Any]] = (),
) -> Draws:
    """NUTS for longer.

    Where hidden units are summed out its chains begin together, about the best mode that was found
    (`posterior.draws`), and stay in one labelling of the units: a program has lesser modes in
    which a chain would stay, and that hold next to no mass (`baselines.starts`).

    :param start: the key of the climbs to that mode; by default that of the chains.
    :param known: parameters that may be nearer to it than the ends of the climbs, as the truth.
    """
    args, kwargs = arguments
    start = rng_key if start is None else start
    climbs, spent = climbs_of(model, inspect(model, args, kwargs)), 0.0
    begun: dict[str, Any] = {}
    if climbs is not None:
        device = one_device(args, kwargs)
        places, _, spent = climb(climbs, device, random.split(start, num_chains), seconds, None)
        about = best_mode(model, places, known, args, kwargs)
        rng = np.random.default_rng(np.asarray(random.key_data(rng_key)))
        begun = {"places": about.starts(rng, num_chains), "metric": about.metric()}
        spent += about.seconds
    draws = nuts(
        model, rng_key, *args, num_warmup=num_warmup, num_samples=NUM_DRAWS, budget=seconds - spent,
        target_accept=target_accept, num_chains=num_chains, **begun, **kwargs,
    )  # fmt: skip
    return draws._replace(seconds=draws.seconds + spent)


def long_judged(field: Field, draws: Draws) -> Judged:
    """Long chains, judged as all are; by the first of fresh rows alone, but by more draws."""
    if field.judges.fresh:
        judges = field.judges.first(MOST_FRESH)._replace(most_train=1)
        true = None if field.true_scores is None else field.true_scores[: judges.num_test]
        field = field._replace(judges=judges, true_scores=true)
    entry = contenders(inspect(field.model, *field.train_arguments))[0]["NUTS"]
    num_chains = len(draws.stats["lp"])
    step = max(1, len(draws.clock) * num_chains // MOST_JUDGED)
    some = draws._replace(
        params=every(draws.params, step), stats=every(draws.stats, step), snapshots={},
        clock=draws.clock[step - 1 :: step],
    )  # fmt: skip
    judged = judge(field, entry, some, None)
    # Of a few, R̂ is noise at the gate.
    judged.row.update(chains(field.model, field.train_arguments, draws, MOST_ALIGNED))
    return judged._replace(draws=draws)


def long_chain(field: Field, rng_key: Array, seconds: float) -> Reference:
    """The same as a reference; without `held_out`, and with the reason, if it is not trusted."""
    try:
        draws = long_draws(field.model, field.train_arguments, rng_key, seconds)
        judged = long_judged(field, draws)
    except Exception as error:
        return Reference(f"The long chain failed: {' '.join(str(error).split())[:200]}.")
    chains, count = draws.stats["lp"].shape
    made = {"chains": chains, "draws": count, "seconds": draws.seconds}
    wrong = strict_doubts(judged.row)
    if wrong:
        return Reference(f"The long chain ({_length(**made)}) is not taken: {', '.join(wrong)}.")
    return _of_a_chain({
        "settings": made, "gates": judged.row, "log_density": judged.held_out,
        "error": float(judged.scores.row_errors().mean()),
    })  # fmt: skip


def strict_doubts(row: dict[str, Any]) -> list[str]:
    """Why a long chain is no reference; empty: it is one.

    >>> row = {"rhat": 1.0, "rhat_parameters": 1.03, "ess_bulk": 2000.0, "ess_tail": 900.0}
    >>> strict_doubts({**row, "divergences": 0})
    ['R̂ of the parameters 1.030', '900 effective draws in the tail']
    """
    limits = (
        ("rhat", "R̂ of the log joint {:.3f}", lambda x: x <= RHAT),
        ("rhat_parameters", "R̂ of the parameters {:.3f}", lambda x: x <= RHAT),
        ("ess_bulk", "{:.0f} effective draws in the bulk", lambda x: x >= ESS),
        ("ess_tail", "{:.0f} effective draws in the tail", lambda x: x >= ESS),
        ("divergences", "{} divergences", lambda x: not x),
    )
    if row.get("few_draws") is not None:
        return [*wrong(row, (FEW,)).values()]
    return [words.format(row[x]) for x, words, holds in limits if not holds(row[x])]


def of_the_run(rows: Rows, held_out: dict[str, np.ndarray], tried: Reference | None) -> Reference:
    """The sampler of the run whose uncertainty arrived with most effective draws, if any did."""
    before = "" if tried is None else f"{tried.words} "
    arrived = [x for x in held_out if rows[x].get("uncertainty") == Mark.ARRIVED.name]
    fit = [x for x in arrived if rows[x]["kind"] == "sampler"]
    if not fit:
        none = "No sampler has arrived, so there is no reference to measure distance from"
        return Reference(f"{before}{none}.")
    chief = max(fit, key=lambda x: rows[x]["ess_bulk"])
    error = rows[chief]["row_error"]
    words = f"Distances are from {chief}, the sampler of this run with most effective draws"
    return Reference(f"{before}{words}{_own_error(error)}", held_out[chief], error)


def refer(rows: Rows, held_out: dict[str, np.ndarray], reference: Reference) -> None:
    """Put into the rows how far each is from the reference, row by row, and the latter's error."""
    if reference.held_out is None:
        return
    for name, own in held_out.items():
        some = own[: len(reference.held_out)]  # of a long chain the first rows may be kept
        gap = float(np.abs(some - reference.held_out[: len(own)]).mean())
        rows[name] |= {"distance": gap, "distance_error": reference.error}

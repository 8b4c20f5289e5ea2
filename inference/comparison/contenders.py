"""Who takes part in a comparison: every bespoke method that admits the program, and the generic.

A contender runs on (model, key, args, kwargs) within a budget of seconds and hands out draws of the
parameters: one of them if it estimates a point, many if it samples.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np

from ..baselines.pacing import BudgetError
from ..files.catalogue import methods
from ..reading.anatomy import Anatomy
from ..reading.arguments import rows_of
from ..reading.small_scales import ScaleWarning
from ..running import clock
from ..running.algorithm import Algorithm
from ..running.contract import Starts
from ..running.restarts import Restarts
from ..types import Arguments
from .checks import CLOSE

if TYPE_CHECKING:
    from ..baselines.samplers import Draws

Kind = Literal["point", "sampler", "variational"]


class Limits(NamedTuple):
    """How long a contender may take."""

    seconds: float | None = None  # of running, compilation left out
    num_draws: int | None = 1000  # of each of a sampler's four chains; None: until it is trusted
    memory: float | None = None  # bytes that the compiled steps of a method may take


class Contender(NamedTuple):
    """One method, ready to run."""

    name: str
    bespoke: bool
    kind: Kind
    run: Callable[..., tuple[Draws, Algorithm | None]]
    posterior_mode: bool = False  # a point that maximises the posterior, not the likelihood

    @property
    def objective(self) -> str:
        """What it finds."""
        if self.kind != "point":
            return "posterior"
        return "posterior mode" if self.posterior_mode else "likelihood"


WITH_PRIOR = ("EM", "QuadratureEM")
"""Methods that also run with the program's priors, as NUTS, SVI and MAP do, in a row of its own:
for each kind of latent the one whose E-step is exact."""
NUM_STARTS = 4
TOLERANCE = 1e-6
"""A point method stops when less than this share of its loss is left to gain."""
MANY_CELLS, SHARE = 30_000, 16
"""Cells of a table from which on a step over continuous latents is timed on a part of the rows."""
FEWEST_STEPS = 4
"""Steps that a budget must have room for: fewer end nowhere, and all rows, which do not fit into a
cache, take up to twice as long as a part of them says."""

TIMED, LITTLE = 5, 0.1
"""Times that a start is measured that takes fewer seconds than this: one such measurement is off by
a factor of two."""


def contenders(anatomy: Anatomy) -> tuple[dict[str, Contender], dict[str, str]]:
    """Those that apply, by name, and why the others do not."""
    from ..baselines.samplers import DISCRETE, LATENT, nuts
    from ..baselines.variational import svi

    admitted: list[Contender] = []
    refused: dict[str, str] = {}
    run: Callable[..., Any]
    for name, method in methods().items():
        reason = method.admits(anatomy) if hasattr(method, "admits") else None
        reason = reason or getattr(method, "why_not_compared", None)
        if reason is not None:
            refused[name] = reason
        elif issubclass(method, Algorithm):
            run = partial(_bespoke, method, anatomy, False)
            admitted.append(Contender(name, True, "point", run))
            if name in WITH_PRIOR:
                run = partial(_bespoke, method, anatomy, True)
                admitted.append(Contender(f"{name} MAP", True, "point", run, True))
                admitted += _followers(name, method, anatomy)
        elif anatomy.binary:
            run = partial(_generic, partial(nuts, bits=LATENT), True)
            admitted.append(Contender(name, True, "sampler", run))
        else:
            refused[name] = "it is compared on programs with binary latents alone"
    admitted.append(Contender("NUTS", False, "sampler", partial(_generic, nuts, True)))
    for guide in ("mean_field", "low_rank", "flow"):
        run = partial(_generic, partial(svi, guide=guide), False)
        admitted.append(Contender(f"SVI {guide}", False, "variational", run))
    run = partial(_generic, partial(svi, guide="map"), False)
    admitted.append(Contender("MAP", False, "point", run, posterior_mode=True))
    run = partial(_generic, partial(nuts, bits=DISCRETE), True)
    admitted.append(Contender("DiscreteGibbs", False, "sampler", run))
    return {x.name: x for x in admitted}, refused


def _followers(name: str, method: type[Algorithm], anatomy: Anatomy) -> list[Contender]:
    """Posteriors that begin at the optimum of a point method.

    NUTS is one where latents are discrete: of continuous ones its density is a quadrature.
    """
    kinds: dict[str, Kind] = {"Laplace": "variational", "NUTS": "sampler"}
    if any(x.num_values is None for x in anatomy.latents):
        del kinds["NUTS"]
    return [
        Contender(f"{name}, {x}", True, kind, partial(_followed, method, anatomy, x == "NUTS"))
        for x, kind in kinds.items()
    ]


def _followed(
    method: type[Algorithm], anatomy: Anatomy, by_nuts: bool, model: Callable, key: Any,
    arguments: Arguments, limits: Limits, **more: Any,
) -> tuple[Draws, None]:  # fmt: skip
    """Draws about the optimum of a point method, whose seconds count."""
    from ..baselines.samplers import Draws
    from ..posterior.draws import about_fit, posterior_draws

    args, kwargs = arguments
    first, _ = _bespoke(method, anatomy, False, model, key, arguments, limits)
    params = {x: v[0, 0] for x, v in first.params.items()}
    if not by_nuts:
        made = posterior_draws(model, params, *args, rng_key=key, fall_back=False, **kwargs)
        seconds, compiling = made.seconds + first.seconds, made.compile_seconds
        draws = Draws(
            made.params, made.stats, np.empty(0), {}, np.array([seconds]), seconds,
            compiling + first.compile_seconds, str(made), starts=first.starts,
            weighed={x: getattr(made, x) for x in ("pareto_k", "effective", "num_weighed")},
        )  # fmt: skip
        return draws, None
    about = about_fit(model, params, args, kwargs)
    before = first.seconds + about.seconds
    room = None if limits.seconds is None else max(0.0, limits.seconds - before)
    count = limits.num_draws or 1000
    draws = about.nuts(model, key, args, kwargs, num_samples=count, budget=room, **more)
    return draws._replace(
        clock=draws.clock + before, seconds=draws.seconds + before,
        compile_seconds=draws.compile_seconds + about.compile_seconds + first.compile_seconds,
    ), None  # fmt: skip


def _generic(
    function: Callable, sampler: bool, model: Callable, key: Any, arguments: Arguments,
    limits: Limits, **more: Any,
) -> tuple[Draws, None]:  # fmt: skip
    (args, kwargs), (seconds, num_draws, memory) = arguments, limits
    if sampler:
        count = num_draws or 1000
        more |= {"num_warmup": 3 * count // 10, "num_samples": count}
    elif num_draws is None:
        more["gain"] = CLOSE * len(args[0])
    return function(model, key, *args, budget=seconds, memory=memory, **more, **kwargs), None


def _bespoke(
    method: type[Algorithm], anatomy: Anatomy, prior: bool, model: Callable, key: Any,
    arguments: Arguments, limits: Limits,
) -> tuple[Draws, Algorithm]:  # fmt: skip
    """A run of a point method from several starts; reading the program and compiling apart."""
    from ..baselines.samplers import Draws

    args, kwargs = arguments
    began = time.perf_counter()
    engine: Any = method.of(model, anatomy)
    engine = dataclasses.replace(engine, prior=True) if prior else engine
    steps, search, one = engine.default_steps(anatomy), engine.search, engine.starts is Starts.ONE
    searches = search is not None and steps >= search.least_steps
    count = search.num_lineages if searches else 1 if one else NUM_STARTS
    if limits.seconds is not None and steps > 1:
        check_room(engine, key, arguments, anatomy, limits.seconds, count)
    runner = engine if searches or one else Restarts(engine, NUM_STARTS)
    state, start_seconds = None, 0.0
    if not searches:  # a search finds its starts by itself
        state, start_seconds = _begin(runner, key, args, kwargs, steps == 1)
    ready_seconds = time.perf_counter() - began - start_seconds  # to read the program, compile
    budget = None if limits.seconds is None else max(0.0, limits.seconds - start_seconds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScaleWarning)  # the checks say it
        result = runner.run(
            key, steps, *args, progress_bar=False, record=dict, budget=budget,
            tolerance=None if engine.staged else TOLERANCE, init_state=state, **kwargs,
        )  # fmt: skip
    if result.interrupted:  # the comparison ends here too, with what is finished
        raise KeyboardInterrupt
    starts = np.asarray(result.state.losses) if runner is not engine else np.empty(0)
    starts = starts if result.optima is None else result.optima.values
    done, before = len(result.losses), start_seconds + result.search_seconds
    clock_of_steps = (result.seconds - result.search_seconds) * np.arange(1, done + 1) / done
    draws = Draws(
        {site: np.asarray(value)[None, None] for site, value in result.params.items()}, {},
        np.asarray(result.losses),
        {site: np.asarray(value)[:, None] for site, value in result.history.items()},
        before + clock_of_steps, start_seconds + result.seconds,
        ready_seconds + result.compile_seconds, result.reason, result.stop, starts,
    )  # fmt: skip
    return draws, engine


def check_room(
    engine: Any, key: Any, arguments: Arguments, anatomy: Anatomy, budget: float, count: int
) -> None:
    """Refuse a method of which a few steps from `count` starts take longer than the budget.

    Once begun, a step cannot be ended. Where latents are summed, steps are quick or timed by the
    run itself; over continuous ones a step has a loop within, and on a large table takes minutes.
    """
    rows = rows_of(anatomy, *arguments)
    cells = sum(np.size(x) for x in rows.leaves)
    if cells < MANY_CELLS or all(x.num_values is not None for x in anatomy.latents):
        return
    few = max(rows.num_data // SHARE, 1)
    args, kwargs = rows.slice(0, few)
    state = jax.jit(lambda key: engine.init(key, *args, **kwargs))(key)
    step = jax.jit(lambda state: engine.update(state, *args, **kwargs)).lower(state).compile()
    jax.block_until_ready(step(state))
    began = clock.seconds()
    jax.block_until_ready(step(state))
    seconds = count * (clock.seconds() - began) * rows.num_data / few
    if FEWEST_STEPS * seconds > budget:
        raise BudgetError(
            f"one step from each of {count} starts takes about {seconds:.2g} s, and the budget of "
            f"{budget:g} s has no room for {FEWEST_STEPS}"
        )


def _begin(
    runner: Algorithm, key: Any, args: tuple, kwargs: dict[str, Any], at_once: bool
) -> tuple[Any, float]:
    """The state that a method starts from, and the seconds that took, compilation left out.

    In one compiled piece: operation by operation a start takes longer than all steps. A method
    that does its work there and compiles that by itself (`at_once`) is run again to be timed, and
    where that takes milliseconds several times: the least counts.
    """
    if at_once:
        runner.init(key, *args, **kwargs)
        taken: list[float] = []
        while not taken or (len(taken) < TIMED and taken[-1] < LITTLE):
            began = clock.seconds()
            state = jax.block_until_ready(runner.init(key, *args, **kwargs))
            taken.append(clock.seconds() - began)
        return state, min(taken)
    start = jax.jit(lambda key: runner.init(key, *args, **kwargs)).lower(key).compile()
    began = clock.seconds()
    state = jax.block_until_ready(start(key))
    return state, clock.seconds() - began


def chosen(anatomy: Anatomy, wanted: list[str] | None) -> tuple[list[Contender], dict[str, str]]:
    """The contenders asked for, by default all; and why some do not apply."""
    admitted, refused = contenders(anatomy)
    if wanted is None:
        return list(admitted.values()), refused
    names = {_plain(name): name for name in (*admitted, *refused)}
    for word in wanted:
        if _plain(word) not in names:
            known = ", ".join(sorted(names.values(), key=str.lower))
            raise ValueError(f"there is no method {word.strip()!r}: choose from {known}")
    asked = [names[_plain(word)] for word in wanted]
    picked = [admitted[name] for name in asked if name in admitted]
    return picked, {name: refused[name] for name in asked if name in refused}


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", " ").replace(",", "")

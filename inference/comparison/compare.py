"""Bespoke and generic inference on one program and one table, judged alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from jax import random
from numpyro.distributions import Distribution

from ..evaluation.symmetry import align
from ..files.output import words
from ..reading.anatomy import Anatomy, inspect
from ..running.memory import default_limit
from ..types import Arguments
from .checks import Status
from .contenders import Contender, Limits, chosen
from .field import Setup, arguments_of, field_of
from .judge import Judged
from .reference import Reference, long_chain, of_the_run, refer
from .side_by_side import Workers, hand_out, portable
from .turns import beside, in_turn, no_row, tasks_of
from .verdict import certainty, cut_short, headline, settle, verdict

HELD_OUT = 0.25
BUDGET = 20.0
"""Seconds of running that each method has by default; compiling is not counted."""
FEW_TRAIN = 48
"""Draws by which training rows are scored on further data sets, of which no file is written."""
MOST_SHOWN = 500
"""Rows of the table that figures show, such as a map."""


class Comparison(NamedTuple):
    """All that a report shows."""

    model: str
    about: dict[str, Any]
    rows: dict[str, dict[str, Any]]  # method -> numbers
    held_out: dict[str, np.ndarray]  # method -> (num_test,) log predictive densities
    paths: dict[str, tuple[np.ndarray, np.ndarray]]  # method -> held-out score and its seconds
    reliability: dict[str, dict[str, Any]]  # method -> calibration of single cells
    params: dict[str, dict[str, np.ndarray]]  # method -> mean parameters, brought together
    table: dict[str, np.ndarray]  # some rows: values, mask, held_out; the names of columns
    truth: dict[str, np.ndarray]  # true parameters, where they are known

    @property
    def headline(self) -> str:
        return headline(self.rows)

    @property
    def certainty(self) -> str:
        return certainty(self.about) + cut_short(self.rows, self.about)

    @property
    def verdict(self) -> list[tuple[str, str]]:
        return verdict(self.rows)


def compare(
    model: Callable,
    data: Any,
    methods: Iterable[str] | None = None,
    *,
    rng_key: Any = None,
    mask: Any = None,
    budget: float | None = BUDGET,
    limit: float | None = None,
    num_draws: int = 1000,
    held_out: float = HELD_OUT,
    reference: float | Reference | None = None,
    truth: dict[str, Any] | None = None,
    fresh: Callable[[int], np.ndarray] | None = None,
    density: Callable[[np.ndarray], np.ndarray] | None = None,
    num_fresh: int | None = None,
    replicate: int = 0,
    name: str | None = None,
    on_result: Callable[[str, dict[str, Any]], None] | None = None,
    keep: dict[str, Judged] | None = None,
    pool: Workers | None = None,
    then: Callable[[], None] | None = None,
    **sizes: Any,
) -> Comparison:
    """Run methods on one program and one table, and judge all of them alike.

    :param data: (num_data, num_features).
    :param methods: names; by default all that apply.
    :param budget: seconds that each may run, by `running.clock`.
    :param limit: bytes that the compiled steps of a method may take; by default 60 % of the
        machine's memory.
    :param num_draws: of each of a sampler's four chains, after three tenths as many of warm-up.
    :param held_out: share of the rows that no method sees, drawn at random.
    :param reference: seconds for a long chain to measure distances from
        (`reference`), or one that was kept; by default they are from the best sampler of the run.
    :param truth: true parameters by site, where they are known: then every score is also
        reported as an excess over theirs, row by row.
    :param fresh: from a count to so many rows of what made the data. Then all rows are learned
        from, and methods are judged by fresh ones: 20 000, or 1000 where a row needs quadrature.
    :param density: log density of fresh rows under what made them, where that is no program.
    :param num_fresh: fewer rows to judge by, where that is enough.
    :param replicate: number of this comparison among several: methods have other random numbers,
        and of a table without fresh rows other rows are held out, in turn, as in cross-validation.
    :param on_result: called with a method's name and row as soon as it is done.
    :param keep: filled with all draws, by method, to be saved.
    :param pool: processes that run methods side by side (`side_by_side`).
    :param then: called when they have all methods: what it hands out comes after these.
    """
    setup, order, key_run = set_up(
        model, data, rng_key, mask, held_out, truth, fresh, density, num_fresh, replicate, sizes
    )
    values, cut = setup.values, len(setup.train)
    apart = pool is not None and portable(*setup)
    field = None if apart else field_of(setup)  # which others make for themselves
    args, kwargs = arguments_of(values, mask, setup.train, sizes)
    anatomy = inspect(model, args, kwargs)
    picked, refused = chosen(anatomy, None if methods is None else [*methods])
    keys = keys_of(key_run, picked, anatomy)
    limits = Limits(budget, num_draws, default_limit() if limit is None else limit)
    judged: dict[str, Judged] = {} if keep is None else keep
    rows: dict[str, dict[str, Any]] = {}
    interrupted = False
    if field is not None:
        ending = in_turn(field, picked, keys, limits)
    else:
        assert pool is not None
        ending = beside(pool, tasks_of(setup, picked, keys, limits, replicate), then)
    try:
        for method, (row, one) in ending:
            rows[method] = row
            if one is not None:
                judged[method] = one
            if on_result is not None:
                on_result(method, row)
    except KeyboardInterrupt:
        interrupted = True
    for x in picked:  # nothing is said of what did not run to its end
        rows.setdefault(x.name, no_row(Status.INTERRUPTED, "it did not run to its end"))
        rows[x.name]["bespoke"] = x.bespoke
    rows = {x.name: rows[x.name] for x in picked}
    for method, reason in refused.items() if methods is not None else ():
        rows[method] = no_row(Status.DOES_NOT_APPLY, reason)

    standard: Reference | None = None
    if isinstance(reference, Reference):
        standard = reference
    elif reference is not None and not interrupted:
        try:
            standard = long_chain(
                field or field_of(setup), random.fold_in(key_run, len(picked)), reference
            )
        except KeyboardInterrupt:
            interrupted = True
    paths = {x: (j.path, j.clock) for x, j in judged.items()}
    settle(rows, {x: j.held_out for x, j in judged.items()}, paths)
    if standard is None or standard.held_out is None:
        standard = of_the_run(rows, judged, standard)
    refer(rows, judged, standard)
    how, exact = next((x.scored_by for x in judged.values()), ("none was needed", True))
    about = {
        "num_data": len(values), "num_train": cut, "fresh": fresh is not None,
        "num_test": next((len(x.held_out) for x in judged.values()), len(values) - cut),
        "num_features": values.shape[1],
        "missing": 0.0 if mask is None else float(1 - np.mean(mask)),
        "likelihood": how, "likelihood_exact": exact,
        "budget": budget, "reference": standard.words, "refused": refused,
        "interrupted": interrupted, "sizes": {x: _written(v) for x, v in sizes.items()},
    }  # fmt: skip
    return Comparison(
        name or str(getattr(model, "__name__", "program")), about, rows,
        {x: j.held_out for x, j in judged.items()}, paths,
        {x: j.reliability for x, j in judged.items() if j.reliability is not None},
        _means(model, (args, kwargs), judged, rows, truth), _some_rows(values, mask, order, cut),
        {} if truth is None else {x: np.asarray(v) for x, v in truth.items()},
    )  # fmt: skip


def set_up(
    model: Callable,
    data: Any,
    rng_key: Any,
    mask: Any,
    held_out: float,
    truth: dict[str, Any] | None,
    fresh: Callable[[int], np.ndarray] | None,
    density: Callable[[np.ndarray], np.ndarray] | None,
    num_fresh: int | None,
    replicate: int,
    sizes: dict[str, Any],
) -> tuple[Setup, np.ndarray, Any]:
    """What is learned from and what judges; the order of the rows, and the key of all runs."""
    values = np.asarray(data, np.float32)
    if values.ndim != 2:
        raise ValueError(f"data must be a table (num_data, num_features), found {values.shape}")
    if not 0.0 < held_out < 1.0:
        raise ValueError(f"held_out is a share of the rows, between 0 and 1: found {held_out}")
    key_split, key_run = random.split(random.key(0) if rng_key is None else rng_key)
    again, fold = divmod(replicate, max(1, round(1 / held_out)))
    if again:
        key_split = random.fold_in(key_split, again)
    if replicate:
        key_run = random.fold_in(key_run, replicate)
    order = np.asarray(random.permutation(key_split, len(values)))
    num_test = max(1, round(held_out * len(values)))
    order = np.roll(order, fold * num_test)
    cut = len(values) - num_test
    if cut < 2 or cut > len(values) - 2:
        raise ValueError(f"{len(values)} rows are too few to hold some of them out")
    if fresh is not None:
        if mask is not None:
            raise ValueError("fresh rows have no missing cells: leave out mask")
        cut = len(values)  # all of them are learned from
    train, test = np.sort(order[:cut]), np.sort(order[cut:])
    setup = Setup(
        model, values, mask, train, test, sizes, truth or None, fresh, density, num_fresh,
        FEW_TRAIN if replicate and fresh is not None else None,
    )  # fmt: skip
    return setup, order, key_run


def keys_of(key: Any, picked: list[Contender], anatomy: Anatomy) -> list[Any]:
    """That of each method, whichever others run."""
    place = {x.name: number for number, x in enumerate(chosen(anatomy, None)[0])}
    return [random.fold_in(key, place[x.name]) for x in picked]


def ahead(
    pool: Workers,
    model: Callable,
    data: Any,
    methods: list[str],
    *,
    rng_key: Any,
    budget: float | None,
    limit: float | None,
    replicate: int,
    mask: Any = None,
    truth: dict[str, Any] | None = None,
    fresh: Callable[[int], np.ndarray] | None = None,
    density: Callable[[np.ndarray], np.ndarray] | None = None,
    first: bool = False,
    **sizes: Any,
) -> None:
    """Hand methods to processes that may be idle; `compare` with the same arguments takes what they
    found, and what it does not ask for is lost.

    :param first: before what they have not begun yet.
    """
    setup, _, key_run = set_up(
        model, data, rng_key, mask, HELD_OUT, truth, fresh, density, None, replicate, sizes
    )
    if not portable(*setup):
        return
    anatomy = inspect(model, *arguments_of(setup.values, mask, setup.train, sizes))
    picked = chosen(anatomy, methods)[0]
    limits = Limits(budget, memory=default_limit() if limit is None else limit)
    keys = keys_of(key_run, picked, anatomy)
    hand_out(pool, tasks_of(setup, picked, keys, limits, replicate), first)


def _written(value: Any) -> str:
    """A size, or a prior, as it is written."""
    return words(value) if isinstance(value, Distribution) else repr(value)


def _some_rows(values: np.ndarray, mask: Any, order: np.ndarray, cut: int) -> dict[str, np.ndarray]:
    """What figures show of the table. The rows are in a random order, so the first are a sample."""
    held_out = np.arange(len(values)) >= cut
    # Both kinds in their shares.
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_SHOWN)).astype(int))
    observed = np.ones(values.shape, bool) if mask is None else np.asarray(mask, bool)
    rows = order[chosen]
    return {"values": values[rows], "mask": observed[rows], "held_out": held_out[chosen]}


def _means(
    model: Callable,
    arguments: Arguments,
    judged: dict[str, Judged],
    rows: dict[str, dict[str, Any]],
    truth: Any,
) -> dict[str, dict[str, np.ndarray]]:
    """Mean parameters of each, after its draws, and then the methods, were brought together."""
    means: dict[str, dict[str, np.ndarray]] = {}
    goal = truth or None
    order = sorted(judged, key=lambda x: -rows[x]["held_out"])
    for name in order:
        params = judged[name].draws.params
        last = {x: np.asarray(v)[-1, -1] for x, v in params.items()}
        goal = last if goal is None else goal
        some = {x: np.asarray(v)[:, :: max(1, v.shape[1] // 50)] for x, v in params.items()}
        same = all(np.shape(goal[x]) == v.shape for x, v in last.items())
        aligned = align(model, some, goal if same else last, arguments)
        means[name] = {x: v.mean((0, 1)) for x, v in aligned.items()}
    return {name: means[name] for name in judged}

"""Bespoke and generic inference on one program and one table, judged alike."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.distributions import Distribution

from ..baselines.samplers import Chains, Draws
from ..evaluation.symmetry import align_to
from ..files.output import words
from ..reading.anatomy import inspect
from ..running.memory import default_limit
from .checks import CLOSE, Mark, Status
from .contenders import WITH_PRIOR, Contender, Limits, chosen, contenders
from .judge import Ended, Judged, no_row, run
from .reference import Reference, long_chain, of_the_run, refer
from .scoring import Field, Setup, field_of
from .side_by_side import Workers, packed
from .verdict import certainty, headline, settle, verdict

HELD_OUT = 0.25
LIMIT = 120.0
"""Seconds of running after which a method is ended; compiling is not counted."""
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
        return headline(self.rows, self.about)

    @property
    def certainty(self) -> str:
        return certainty(self.about)

    @property
    def verdict(self) -> list[tuple[str, str]]:
        return verdict(self.rows)


UNSCORED = {"likelihood": "none was needed", "likelihood_exact": True}
"""Of a comparison without a score: how it was found, and whether exactly."""
NOTHING = Comparison("", {}, {}, {}, {}, {}, {}, {}, {})
"""Before any method ran."""


class Plan(NamedTuple):
    """Which methods run, on what."""

    setup: Setup
    order: np.ndarray  # of the rows: those learned from, then those held out
    key: Any  # of all runs
    methods: list[tuple[Contender, Any]]  # with the key of each
    refused: dict[str, str]  # method -> why it does not apply
    limits: Limits
    replicate: int


def plan(
    model: Callable,
    data: Any,
    methods: Iterable[str] | None = None,
    *,
    rng_key: Any = None,
    mask: Any = None,
    limit: float | None = LIMIT,
    memory: float | None = None,
    num_draws: int | None = None,
    held_out: float = HELD_OUT,
    truth: dict[str, Any] | None = None,
    fresh: Callable[[int], np.ndarray] | None = None,
    density: Callable[[np.ndarray], np.ndarray] | None = None,
    num_fresh: int | None = None,
    replicate: int = 0,
    **sizes: Any,
) -> Plan:
    """What a comparison runs.

    :param data: (num_data, num_features).
    :param methods: names; by default all that apply.
    :param limit: seconds that each may run at most, by `running.clock`: a method ends when it is
        trusted.
    :param memory: bytes that the compiled steps of a method may take; by default 60 % of the
        machine's memory.
    :param num_draws: of each of a sampler's four chains, after three tenths as many of warm-up,
        in place of as many as it takes.
    :param held_out: share of the rows that no method sees, drawn at random.
    :param truth: true parameters by site, where they are known: then every score is also
        reported as an excess over theirs, row by row.
    :param fresh: from a count to so many rows of what made the data. Then all rows are learned
        from, and methods are judged by fresh ones: 20 000, or 1000 where a row needs quadrature.
    :param density: log density of fresh rows under what made them, where that is no program.
    :param num_fresh: fewer rows to judge by, where that is enough.
    :param replicate: number of this comparison among several: methods have other random numbers,
        and of a table without fresh rows other rows are held out, in turn, as in cross-validation.
    :param sizes: keyword arguments of the program.
    """
    values = np.asarray(data, np.float32)
    if values.ndim != 2:
        raise ValueError(f"data must be a table (num_data, num_features), found {values.shape}")
    if not 0.0 < held_out < 1.0:
        raise ValueError(f"held_out is a share of the rows, between 0 and 1: found {held_out}")
    if fresh is not None and mask is not None:
        raise ValueError("fresh rows have no missing cells: leave out mask")
    key_split, key = random.split(random.key(0) if rng_key is None else rng_key)
    again, fold = divmod(replicate, max(1, round(1 / held_out)))
    key_split = random.fold_in(key_split, again) if again else key_split
    key = random.fold_in(key, replicate) if replicate else key
    num_test = max(1, round(held_out * len(values)))
    order = np.roll(np.asarray(random.permutation(key_split, len(values))), fold * num_test)
    cut = len(values) - num_test
    if cut < 2 or cut > len(values) - 2:
        raise ValueError(f"{len(values)} rows are too few to hold some of them out")
    cut = len(values) if fresh is not None else cut
    setup = Setup(
        model, values, mask, np.sort(order[:cut]), np.sort(order[cut:]), sizes, truth or None,
        fresh, density, num_fresh, FEW_TRAIN if replicate and fresh is not None else None,
    )  # fmt: skip
    anatomy = inspect(model, *setup.arguments(setup.train))
    picked, refused = chosen(anatomy, None if methods is None else [*methods])
    # The key of a method is the same whichever others run.
    known = [x.name for x in chosen(anatomy, None)[0]]
    keyed = [(x, random.fold_in(key, known.index(x.name))) for x in picked]
    limits = Limits(limit, num_draws, default_limit() if memory is None else memory)
    return Plan(setup, order, key, keyed, refused, limits, replicate)


def compare(
    model: Callable,
    data: Any,
    methods: Iterable[str] | None = None,
    *,
    reference: float | Reference | None = None,
    name: str | None = None,
    on_result: Callable[[str, dict[str, Any]], None] | None = None,
    keep: dict[str, Judged] | None = None,
    pool: Workers | None = None,
    earlier: Comparison | None = None,
    chains: dict[str, Draws | Chains] | None = None,
    **settings: Any,
) -> Comparison:
    """Run methods on one program and one table, and judge all of them alike.

    :param reference: seconds for a long chain to measure distances from
        (`reference`), or one that was kept; by default they are from the best sampler of the run.
    :param on_result: called with a method's name and row as soon as it is done.
    :param keep: filled with all draws, by method, to be saved.
    :param pool: processes that run methods side by side (`side_by_side`).
    :param earlier: what was found on the same data: methods that are not yet there go on, and the
        others are not run again.
    :param chains: where samplers stopped before; filled with where they stop.
    :param settings: those of `plan`, with the keyword arguments of the program.
    """
    planned, earlier = plan(model, data, methods, **settings), earlier or NOTHING
    setup, refused = planned.setup, planned.refused
    judged: dict[str, Judged] = {} if keep is None else keep
    chains = {} if chains is None else chains
    wanted, table = [x.name for x, _ in planned.methods], _some_rows(planned)
    if earlier.table and not np.array_equal(table["values"], earlier.table["values"]):
        raise ValueError("the table is not the one that was compared: give that one")
    rows = {x: dict(row) for x, row in earlier.rows.items() if not waiting(row)}
    planned = planned._replace(methods=[x for x in planned.methods if x[0].name not in rows])
    standard = reference if isinstance(reference, Reference) else None
    interrupted = False
    try:
        for method, ended in _ending(planned, pool, chains):
            rows[method] = ended.row
            if ended.judged is not None:
                judged[method] = ended.judged
            if ended.chains is not None:
                chains[method] = ended.chains
            if on_result is not None:
                on_result(method, ended.row)
        if reference is not None and not isinstance(reference, Reference):
            key = random.fold_in(planned.key, len(planned.methods))
            standard = long_chain(field_of(setup), key, reference)
    except KeyboardInterrupt:
        interrupted = True
    missing = no_row(Status.INTERRUPTED, "it did not run to its end")
    # What was interrupted is where it was before.
    rows = {x: rows.get(x) or dict(earlier.rows.get(x, missing)) for x in wanted}
    for x, _ in planned.methods:
        rows[x.name]["bespoke"] = x.bespoke
    if methods is not None:
        rows |= {x: no_row(Status.DOES_NOT_APPLY, reason) for x, reason in refused.items()}
    kept = {x for x in earlier.held_out.keys() - judged.keys() if "held_out" in rows.get(x, {})}
    both: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({x: j.held_out for x, j in judged.items()}, earlier.held_out),
        ({x: (j.path, j.clock) for x, j in judged.items()}, earlier.paths),
        ({x: j.reliability for x, j in judged.items() if j.reliability}, earlier.reliability),
        (_means(setup, judged, earlier), earlier.params),
    ]
    held_out, paths, reliability, means = (
        new | {x: old[x] for x in kept & old.keys()} for new, old in both
    )
    settle(rows, held_out, paths)
    if standard is None or standard.held_out is None:
        standard = of_the_run(rows, held_out, standard)
    refer(rows, held_out, standard)
    known = [earlier.about.get(x, y) for x, y in UNSCORED.items()]
    how, exact = next((x.scored_by for x in judged.values()), known)
    about = {
        "num_data": len(setup.values), "num_train": len(setup.train),
        "fresh": setup.fresh is not None,
        "num_test": len(next(iter(held_out.values()), setup.test)),
        "num_features": setup.values.shape[1],
        "missing": 0.0 if setup.mask is None else float(1 - np.mean(setup.mask)),
        "likelihood": how, "likelihood_exact": exact, "limit": planned.limits.seconds,
        "mark": max([CLOSE, *(row.get("allowance", 0.0) for row in rows.values())]),
        "reference": standard.words, "refused": refused, "interrupted": interrupted,
        "sizes": {
            x: words(v) if isinstance(v, Distribution) else repr(v) for x, v in setup.sizes.items()
        },
    }  # fmt: skip
    return Comparison(
        name or str(getattr(model, "__name__", "program")), about, rows, held_out, paths,
        reliability, means, table,
        {x: np.asarray(v) for x, v in (setup.truth or {}).items()},
    )  # fmt: skip


def waiting(row: dict[str, Any]) -> bool:
    """Whether more time would answer a question about a method, or it was not asked."""
    late = row.get("status") == Status.INTERRUPTED.value
    return late or Mark.NOT_YET.name in (row.get("score"), row.get("uncertainty"))


def _ending(
    planned: Plan, pool: Workers | None, chains: dict[str, Draws | Chains]
) -> Iterator[tuple[str, Ended]]:
    """Methods as they end: in turn, or side by side where that is possible."""
    if not planned.methods:
        return
    if pool is None or not begin(pool, planned, chains):
        field = field_of(planned.setup)
        for contender, key in planned.methods:
            ended = run(field, contender, key, planned.limits, chains.get(contender.name))
            chains.pop(contender.name, None)
            yield contender.name, ended
        return
    names = [(planned.replicate, x.name) for x, _ in planned.methods]
    for (_, method), ended in pool.results(names):
        chains.pop(method, None)
        if isinstance(ended, Exception):
            lost = "its process ended, perhaps for lack of memory"
            ended = Ended(no_row(Status.FAILED, lost))
        yield method, ended


def begin(
    pool: Workers, planned: Plan, chains: Mapping[str, Draws | Chains] = MappingProxyType({})
) -> bool:
    """Hand methods to processes; False if the program cannot be sent to them.

    `compare` with the same arguments takes what they find, also if it is called later; what it
    does not ask for is lost.
    """
    setup = packed(planned.setup)
    for one, key in sorted(planned.methods, key=lambda x: longest_first(x[0])):
        if setup is not None:
            data = np.asarray(random.key_data(key))
            name = planned.replicate, one.name
            before = chains.get(one.name)
            pool.begin(name, _run_in_worker, setup, one.name, data, planned.limits, before)
    return setup is not None


def longest_first(contender: Contender) -> tuple[int, bool]:
    """Sorts methods by how long they take, of point estimates an exact E-step first: what takes
    longest must not begin last."""
    kind = ("sampler", "variational", "point").index(contender.kind)
    return kind, contender.name.removesuffix(" MAP") not in WITH_PRIOR


def _run_in_worker(
    setup: bytes, method: str, key: np.ndarray, limits: Limits, before: Draws | Chains | None
) -> Ended:
    field, known = _field_in_worker(setup)
    return run(field, known[method], random.wrap_key_data(jnp.asarray(key)), limits, before)


@lru_cache(maxsize=2)  # the next data set is begun before the last method of one is done
def _field_in_worker(setup: bytes) -> tuple[Field, dict[str, Contender]]:
    field = field_of(pickle.loads(setup))
    return field, contenders(inspect(field.model, *field.train_arguments))[0]


def _some_rows(planned: Plan) -> dict[str, np.ndarray]:
    """What figures show of the table: rows of both kinds in their shares, in a random order."""
    setup, count = planned.setup, len(planned.setup.values)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_SHOWN)).astype(int))
    rows = planned.order[chosen]
    observed = np.ones(setup.values.shape, bool) if setup.mask is None else setup.mask
    return {
        "values": setup.values[rows],
        "mask": np.asarray(observed, bool)[rows],
        "held_out": chosen >= len(setup.train),
    }


def _means(
    setup: Setup, judged: dict[str, Judged], earlier: Comparison
) -> dict[str, dict[str, np.ndarray]]:
    """Mean parameters of each, after its draws, and then the methods, were brought together."""
    means: dict[str, dict[str, np.ndarray]] = {}
    goal = setup.truth or next(iter(earlier.params.values()), None)
    arguments = setup.arguments(setup.train)
    for name in sorted(judged, key=lambda x: -judged[x].row["held_out"]):
        params = {x: np.asarray(v) for x, v in judged[name].draws.params.items()}
        last = {x: v[-1, -1] for x, v in params.items()}
        goal = last if goal is None else goal
        same = all(np.shape(goal[x]) == v.shape for x, v in last.items())
        some = {x: v[:, :: max(1, v.shape[1] // 50)] for x, v in params.items()}
        aligned = align_to(setup.model, some, goal if same else last, arguments)
        means[name] = {x: v.mean((0, 1)) for x, v in aligned.items()}
    return {name: means[name] for name in judged}

"""Which of the papers' programs a program is, whatever its sites and arguments are called.

A closed form belongs to a form, not to a name. A program is recognised if, under some naming of its
parameters, it has the log joint of one of `latentbits.models`:

1. its sites are read where the latents are zero: what a site's distribution has there and how it
   changes with the latents are the biases and weights of the form, if it has that form;
2. at random parameters, which are all different, each of these numbers is found again among the
   parameters: that says which site holds what, transposed or in pieces as it may be. Every number
   of every parameter must be found exactly once;
3. the judge is the log joint: on random parameters, latents, observations and masks, in float64,
   it must be that of our program.

`READERS` has a reader for each form. Methods then run their closed forms on the numbers by the
form's own names (`Known.read`), and hand them back under the program's (`Known.write`). What is not
recognised runs by the general way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.distribution import validation_enabled

from latentbits import models

from ...rows.chunks import Rows
from ...types import Arguments, Params
from ..anatomy import Anatomy, ProgramError, inspect
from ..handlers import states
from ..log_joint import anywhere, few_rows, log_joint
from ..probe import probe
from ..reader import examined, findings
from ..tracing import innermost, run_abstractly, unseen
from .sites import (
    KINDS,
    Column,
    NotThisError,
    Seen,
    Site,
    cells_of,
    codes,
    columns,
    columns_of,
    observed,
    observed_sites,
    run_program,
    taken,
)


class Form(Enum):
    """Our program of which another one is a copy.

    >>> Form.MIXTURE.value
    'bernoulli_mixture'
    """

    TRAIT = "mixed_trait"
    GUESSING = "latent_trait"
    GRADED = "graded_trait"
    CLIPPED = "clipped_gaussian"
    SPARSE_CODING = "binary_sparse_coding"
    MIXTURE = "bernoulli_mixture"
    CLASSES = "categorical_mixture"
    MACHINE = "combination_machine"
    REAL_MACHINE = "real_combination_machine"
    NOISY_OR = "noisy_or_network"


def _part(value: Any, size: int, event_dim: int, last: bool = False) -> Array:
    """A parameter of a site's distribution for each state and column: (states × rows, columns).

    :param last: there is one more axis behind the columns, that of levels.
    """
    value = jnp.asarray(value)
    if not event_dim:
        value = value[..., None, :] if last else value[..., None]
    tail = (size, value.shape[-1]) if last else (size,)
    return jnp.broadcast_to(value, jnp.broadcast_shapes(value.shape, tail)).reshape(-1, *tail)


Read = tuple[Params, dict[str, Any]]
"""The parameters by our names, and the settings of our program."""


class Run(NamedTuple):
    """A program at some parameters, whose form is to be read."""

    model: Callable
    anatomy: Anatomy
    params: Params
    arguments: Arguments
    sites: tuple[Site, ...]  # observed

    @property
    def kinds(self) -> tuple[Any, ...]:
        return tuple(kind for site in self.sites for kind in site.kinds)

    def naturals(self, points: Array) -> dict[str, dict[str, Array]]:
        """Site -> what its distribution has, for each state of (S, 1, bits) and column."""
        program = states(self.model, self.anatomy.unpack(points))
        trace = run_program(program, self.arguments, self.params)
        naturals: dict[str, dict[str, Array]] = {}
        for name in (*self.anatomy.names, *self.anatomy.observed):
            fn = trace[name]["fn"]
            base = innermost(fn)
            size = fn.event_shape[-1] if fn.event_dim else 1
            part = partial(_part, size=size, event_dim=fn.event_dim)
            kind = KINDS.get(type(base).__name__)
            if kind in ("real", "clipped"):
                naturals[name] = {"at": part(base.loc), "scale": part(base.scale)}
            elif kind == "binary":
                naturals[name] = {"at": part(base.logits), "probs": part(base.probs)}
            elif kind == "levels":
                logits = part(base.logits, last=True)
                naturals[name] = {"at": logits[..., 1:] - logits[..., :1]}
                naturals[name]["probs"] = part(base.probs, last=True)
            elif kind == "ordered":
                naturals[name] = {"at": part(base.predictor)}
                naturals[name]["cutpoints"] = part(base.cutpoints, last=True)
            elif kind == "noisy-or":
                naturals[name] = {"at": part(base.causal_input)}
        return naturals

    def affine(self) -> tuple[dict[str, dict[str, Array]], dict[str, Array]]:
        """What the sites have where all latents are zero; the slopes of `at`, (bits, columns)."""

        def read(point: Array) -> tuple[dict[str, Array], Any]:
            naturals = self.naturals(point[None, None])
            naturals = {
                name: {k: v[0] for k, v in parts.items()} for name, parts in naturals.items()
            }
            return {name: parts["at"].ravel() for name, parts in naturals.items()}, naturals

        slopes, naturals = jax.jacfwd(read, has_aux=True)(jnp.zeros(self.anatomy.num_bits))
        return naturals, {name: value.T for name, value in slopes.items()}


def _joined(parts: list[Array]) -> Array:
    return jnp.concatenate(parts, -1)


def _read_trait(run: Run) -> Read:
    at, slope = run.affine()
    values = {
        "weights": _joined([slope[site.name] for site in run.sites]),
        "bias": _joined([at[site.name]["at"].ravel() for site in run.sites]),
    }
    shared = False
    if run.sites[0].kind == "real":
        noise = _joined([at[s.name]["scale"] for s in run.sites if s.kind == "real"])
        # One noise for all columns, or one of each: as many numbers as the program has.
        count = sum(x.size for x in run.params.values())
        shared = noise.size > 1 and count == values["weights"].size + values["bias"].size + 1
        values["noise"] = noise[0] if shared else noise
    return values, {"num_factors": run.anatomy.num_bits, "kinds": run.kinds, "shared_noise": shared}


def _read_graded(run: Run) -> Read:
    at, slope = run.affine()
    values = {"weights": _joined([slope[site.name] for site in run.sites])}
    cutpoints = {site.name: at[site.name]["cutpoints"] for site in run.sites}
    values |= _by_levels("cutpoints", cutpoints, run.sites, 0)
    return values, {"num_factors": run.anatomy.num_bits, "levels": run.kinds}


def _read_guessing(run: Run) -> Read:
    """Far away on either side of zero, a probability is at its asymptotes, of which one is 1."""
    way = jnp.sin(1.0 + jnp.arange(run.anatomy.num_bits))
    points = jnp.stack([FAR * way, -FAR * way])[:, None]
    far = run.naturals(points)
    at, slope = run.affine()
    low, prob, bend = [], [], []
    for site in run.sites:
        ends = far[site.name]["probs"]
        low.append(jnp.minimum(ends[0], ends[-1]))
        prob.append(at[site.name]["probs"].ravel())
        bend.append(slope[site.name] * (prob[-1] * (1.0 - prob[-1])))
    guess, own = _joined(low), _joined(prob)
    share = (own - guess) / (1.0 - guess)
    values = {
        "weights": _joined(bend) / ((1.0 - guess) * share * (1.0 - share)),
        "bias": jnp.log(share) - jnp.log1p(-share),
        "guessing": guess,
    }
    return values, {"num_factors": run.anatomy.num_bits, "guessing": True}


FAR = 1e6
"""Of a point at which a logistic curve is 0 or 1 to all digits."""


def _read_clipped(run: Run) -> Read:
    values, _ = _read_trait(run)
    at, _ = run.affine()
    scale = _joined([at[site.name]["scale"] for site in run.sites])
    return values, {"num_factors": run.anatomy.num_bits, "noise": scale}


def _read_sparse_coding(run: Run) -> Read:
    at, slope = run.affine()
    prior = at.get(run.anatomy.names[0], {})
    if "probs" not in prior:
        raise NotThisError
    weights, num_causes = _joined([slope[site.name] for site in run.sites]), run.anatomy.num_bits
    # One prior for all causes, or one of each: as many numbers as the program has.
    count = sum(x.size for x in run.params.values())
    shared = num_causes == 1 or count != weights.size + 1 + num_causes
    values = {
        "weights": weights,
        "noise": at[run.sites[0].name]["scale"][0],
        "sparsity": prior["probs"][0] if shared else prior["probs"],
    }
    return values, {"num_causes": num_causes, "shared_sparsity": shared}


def _read_machine(run: Run) -> Read:
    _, slope = run.affine()
    half = 1.0 if run.sites[0].kind == "real" else 0.5
    # The biases show in the prior of the causes alone: what has their shape is tried.
    bias = [value for value in run.params.values() if value.shape == (run.anatomy.num_bits,)]
    if len(run.params) != 2 or not bias:
        raise NotThisError
    weights = half * _joined([slope[site.name] for site in run.sites])
    return {"weights": weights, "bias": bias[-1]}, {"num_causes": run.anatomy.num_bits}


def _read_mixture(run: Run) -> Read:
    count = run.anatomy.latents[0].num_values
    assert count is not None
    table = jnp.arange(count)[:, None, None]
    naturals = run.naturals(table)

    def by_state(x: Array) -> Array:
        """The first row of each state, or what all of them share: (states, columns, ...)."""
        first = x.reshape(count if len(x) > 1 else 1, -1, *x.shape[1:])[:, 0]
        return jnp.broadcast_to(first, (count, *x.shape[1:]))

    probs = {site.name: by_state(naturals[site.name]["probs"]) for site in run.sites}
    mixing = naturals[run.anatomy.names[0]]["probs"].ravel()
    if len(mixing) != count:  # a bit: it has one probability, and no simplex
        raise NotThisError
    values, settings = {"mixing": mixing}, {"num_components": count}
    if not run.sites[0].levels:
        return {**values, "probs": _joined(list(probs.values()))}, settings
    return values | _by_levels("probs", probs, run.sites, 1), settings | {"levels": run.kinds}


def _by_levels(name: str, parts: dict[str, Array], sites: Any, axis: int) -> Params:
    """The numbers of columns that have as many levels, in one."""
    return {
        f"{name}_{k}": jnp.concatenate([parts[x.name] for x in sites if x.levels == k], axis)
        for k in dict.fromkeys(site.levels for site in sites)
    }


def _read_noisy_or(run: Run) -> Read:
    at, slope = run.affine()
    layers = run.anatomy.latents[::-1]  # the lowest first
    if set(at) != {*run.anatomy.names, *run.anatomy.observed}:
        raise NotThisError
    values = {"leak_0": _joined([at[site.name]["at"] for site in run.sites])}
    end, below = run.anatomy.num_bits, [site.name for site in run.sites]
    for level, layer in enumerate(layers, 1):
        start = end - layer.size
        values[f"leak_{level}"] = at[layer.name]["at"]
        values[f"weights_{level}"] = _joined([slope[name][start:end] for name in below])
        end, below = start, [layer.name]
    return values, {"layers": tuple(layer.size for layer in layers)}


READERS: dict[Form, Callable[[Run], Read]] = {
    Form.TRAIT: _read_trait,
    Form.GUESSING: _read_guessing,
    Form.GRADED: _read_graded,
    Form.CLIPPED: _read_clipped,
    Form.SPARSE_CODING: _read_sparse_coding,
    Form.MIXTURE: _read_mixture,
    Form.CLASSES: _read_mixture,
    Form.MACHINE: _read_machine,
    Form.REAL_MACHINE: _read_machine,
    Form.NOISY_OR: _read_noisy_or,
}


Numbers = TypeVar("Numbers", Array, np.ndarray)


class Place(NamedTuple):
    """Where the numbers of one parameter of the form stand in the program."""

    positions: np.ndarray  # in all parameters of the program, laid end to end
    site: str | None  # the site that holds them and nothing else
    turned: bool  # it holds them transposed


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """A program that is one of ours. It holds no array of JAX's, and is part of no computation."""

    form: Form
    shapes: dict[str, tuple[int, ...]]  # of the program's parameters
    places: dict[str, Place]  # by the form's names
    sites: tuple[str, ...]  # observed, in the order of the form
    kinds: tuple[Any, ...]  # of each observed column: 'real', 'binary', or its number of levels
    columns: tuple[Column, ...] | None  # None where they are not plain columns of the arguments
    masked: bool  # whether some cells may be missing
    by_row: tuple[int, ...]  # which of the arguments have an entry for each row

    def __repr__(self) -> str:
        names = {role: place.site or "..." for role, place in self.places.items()}
        return f"Known({self.form.value}, {names})"

    def read(self, params: dict[str, Numbers]) -> dict[str, Numbers]:
        """The parameters by the form's names, in its shapes."""
        xp = _library(params)
        flat = xp.concatenate([xp.ravel(params[name]) for name in self.shapes])
        return {role: _taken(flat, place.positions) for role, place in self.places.items()}

    def write(self, values: dict[str, Numbers]) -> dict[str, Numbers]:
        """The program's parameters, from those by the form's names."""
        xp = _library(values)
        index = np.concatenate([np.ravel(place.positions) for place in self.places.values()])
        flat = xp.concatenate([xp.ravel(values[role]) for role in self.places])
        flat = _taken(flat, np.argsort(index))
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])
        parts = zip(self.shapes.items(), xp.split(flat, ends[:-1]), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}

    def seen(self, model: Callable, arguments: Arguments) -> Seen:
        """What the program observes in these rows."""
        ones = {name: jnp.ones(shape) for name, shape in self.shapes.items()}
        trace = run_program(model, arguments, ones)
        return observed([trace[name] for name in self.sites])

    def cells(self, model: Callable, arguments: Arguments) -> Seen:
        """The same numbers, of whichever type, as they lie in the arguments where they do: not to
        run the program is less to trace."""
        if self.columns is None:
            return self.seen(model, arguments)
        leaves = jax.tree.leaves(arguments)
        return Seen(*taken(self.columns, [leaves[i] for i in self.by_row]))


def recall(model: Callable, params: Mapping[str, Array | np.ndarray]) -> Known | None:
    """What a program with parameters of these shapes was recognised as before, if it was."""
    shapes = {name: np.shape(value) for name, value in params.items()}
    matches = [x for x in findings(model) if isinstance(x, Known) and x.shapes == shapes]
    return matches[0] if matches else None


def _library(params: Mapping[str, Array | np.ndarray]) -> Any:
    """NumPy where all are its own: JAX would round them."""
    return np if all(isinstance(x, np.ndarray | np.generic) for x in params.values()) else jnp


def _taken(flat: Any, positions: np.ndarray) -> Any:
    """Some numbers by their places, which are all from 0 up: JAX need not look for others."""
    if isinstance(flat, np.ndarray):
        return flat[positions]
    return flat.at[positions].get(mode="promise_in_bounds", wrap_negative_indices=False)


def recognise(
    model: Callable,
    anatomy: Anatomy,
    rows: Rows,
    among: Collection[Form] = tuple(Form),
    under: Callable[[Callable], Callable] | None = None,
) -> Known | None:
    """Which of our programs this one is, None if it is none; tested once for each program.

    :param among: the forms that are of interest.
    :param under: the handler that the program is read under: ours is compared under it too.
    """
    unknown = any(isinstance(x, jax.core.Tracer) for x in rows.rest)
    if unknown or anatomy.nesting != 1 or not anatomy.observed:
        return None
    for form in _candidates(anatomy):
        if form in among:
            ours: Any = getattr(models, form.value)
            test = partial(_recognise, form, ours if under is None else under(ours))
            name = f"recognise {form.value} {under and under.__name__}"
            known = examined(test, model, anatomy, rows, name=name)
            if known is not None:
                return known
    return None


def _candidates(anatomy: Anatomy) -> list[Form]:
    """What a program can be at all, by its latents and the kinds of its observed sites."""
    kinds = {KINDS.get(name, "other") for name in anatomy.likelihoods}
    values = {latent.num_values for latent in anatomy.latents}
    factors = values == {None} and not any(latent.odd for latent in anatomy.latents)
    classes, bits = anatomy.num_bits == 1 and None not in values, values == {2}
    possible = {
        Form.TRAIT: factors and kinds <= {"real", "binary", "levels"},
        Form.GUESSING: factors and kinds == {"binary"} and len(anatomy.parameters) > 2,
        Form.GRADED: factors and kinds == {"ordered"},
        Form.CLIPPED: factors and kinds == {"clipped"},
        Form.MIXTURE: classes and kinds == {"binary"},
        Form.CLASSES: classes and kinds == {"levels"},
        Form.SPARSE_CODING: bits and kinds == {"real"},
        Form.REAL_MACHINE: bits and kinds == {"real"},
        Form.MACHINE: bits and kinds == {"binary"},
        Form.NOISY_OR: bits and kinds == {"noisy-or"},
    }
    return [form for form, fits in possible.items() if fits and anatomy.parameters]


def _recognise(
    form: Form, ours: Callable, model: Callable, anatomy: Anatomy, rows: Rows
) -> Known | None:
    num_rows = min(rows.num_data, 5)
    with jax.enable_x64(True), validation_enabled(False):
        leaves, few = few_rows(model, anatomy, rows, num_rows)
        if few.num_data != num_rows:
            return None
        try:
            read = partial(observed_sites, few)
            sites = unseen(lambda x: run_abstractly(model, *rows.join(x), read), leaves)
            return _try(form, ours, model, few, rows, leaves, sites)
        except (NotThisError, ProgramError):
            return None


class _Trial(NamedTuple):
    """What one run at random parameters shows."""

    params: Params
    values: Params  # by the form's names, as they were read
    error: Array  # of the log joint
    inside: dict[str, Array]  # whether each parameter may take the values of `PROBES`
    coded: Array  # what is observed where each cell of the arguments holds the number of its column
    seen: Seen  # and where they hold what they do


PROBES = (-1e4, 1e4, 1e-6, 1.0 - 1e-6)
REACH = {"noise": (2, 1), "sparsity": (2, 3), "probs": (2, 3), "guessing": (2, 3), "mixing": ()}
"""Which of the probes a parameter of the form must be able to take; those not named, the first two,
of noisy-OR networks the second and third. A program with a narrower support is another one."""


def _try(
    form: Form,
    ours: Callable,
    model: Callable,
    anatomy: Anatomy,
    rows: Rows,
    leaves: list[np.ndarray],
    sites: tuple[Site, ...],
) -> Known | None:
    zeros = {x.name: np.zeros(x.shape, int if x.num_values else float) for x in anatomy.latents}

    def trial(
        seed: Array, leaves: list[Array], codes: list[Array], drawn: list[Array], points: Array
    ) -> _Trial:
        arguments = rows.join(leaves)
        params = anywhere(model, anatomy, random.key(seed), arguments)
        values, settings = READERS[form](Run(model, anatomy, params, arguments, sites))
        still = handlers.substitute(model, data={**params, **zeros})
        trace = run_program(still, arguments)
        seen = observed([trace[site.name] for site in sites])
        own = handlers.substitute(
            model, data={site.name: cells_of(x, site) for site, x in zip(sites, drawn, strict=True)}
        )
        direct = log_joint(own, anatomy, params, points, arguments)
        table = jnp.concatenate([jnp.asarray(x, float) for x in drawn], -1)
        our_arguments = ((table,), {**settings, "mask": seen.mask})
        wanted = log_joint(ours, inspect(ours, *our_arguments), values, points, our_arguments)
        gap = jnp.where(wanted == direct, 0.0, jnp.abs(wanted - direct))
        size = jnp.where(jnp.isfinite(wanted), jnp.abs(wanted), 0.0).max()
        coded = run_program(still, rows.join(codes))
        return _Trial(
            params,
            values,
            gap.max() / (1.0 + size),
            {name: _inside(trace[name]) for name in anatomy.parameters},
            jnp.concatenate([columns_of(coded[site.name]["value"], site) for site in sites], -1),
            seen,
        )

    inputs = [(np.int32(i), leaves, codes(leaves, i), *_draw(i, anatomy, sites)) for i in range(2)]
    trials = probe(trial, inputs)
    if not all(trial.error <= 1e-9 for trial in trials):  # also when NaN
        return None
    shapes = {name: value.shape for name, value in trials[0].params.items()}
    places = _places(form, shapes, trials)
    if places is None:
        return None
    return Known(
        form,
        shapes,
        places,
        tuple(site.name for site in sites),
        tuple(kind for site in sites for kind in site.kinds),
        columns(leaves, [t.coded for t in trials], trials[0].seen.mask),
        trials[0].seen.mask is not None,
        tuple(i for i, x in enumerate(rows.rest) if x is None),
    )


def _places(
    form: Form, shapes: dict[str, tuple[int, ...]], trials: list[_Trial]
) -> dict[str, Place] | None:
    """Find the numbers of the form among the parameters; None unless each is there once."""
    flats = [np.concatenate([np.ravel(t.params[name]) for name in shapes]) for t in trials]
    order = np.argsort(flats[0])
    ranked = flats[0][order]
    positions: dict[str, np.ndarray] = {}
    for role, value in trials[0].values.items():
        right = np.clip(np.searchsorted(ranked, value), 1, len(ranked) - 1)
        nearer = np.abs(ranked[right] - value) < np.abs(ranked[right - 1] - value)
        positions[role] = order[
            np.where(nearer, right, right - 1) if len(ranked) > 1 else 0 * right
        ]
    used = np.concatenate([np.ravel(index) for index in positions.values()])
    if len(used) != len(order) or (np.sort(used) != np.arange(len(order))).any():
        return None
    for flat, trial in zip(flats, trials, strict=True):
        for role, index in positions.items():
            if not np.allclose(flat[index], trial.values[role], rtol=1e-9, atol=1e-12):
                return None
    ends = dict(zip(shapes, np.cumsum([int(np.prod(x)) for x in shapes.values()]), strict=True))
    places = {}
    for role, index in positions.items():
        places[role] = Place(index, None, False)
        reach = (1, 2) if form is Form.NOISY_OR else REACH.get(role, (0, 1))
        reach = () if form is Form.CLASSES else reach  # shares of a whole, as `mixing`
        for name, end in ends.items():
            start = end - int(np.prod(shapes[name]))
            mine = np.arange(start, end)
            if np.isin(index, mine).any() and not trials[0].inside[name][list(reach)].all():
                return None  # its support is narrower than what the closed form may give
            if index.size == len(mine) and (np.ravel(index) == mine).all():
                places[role] = Place(index, name, False)
            elif index.shape == shapes[name][::-1] and (np.ravel(index.T) == mine).all():
                places[role] = Place(index, name, True)
    return places


# --- what a run of the program shows


def _draw(
    seed: int, anatomy: Anatomy, sites: tuple[Site, ...]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Values for the observed sites, (n, columns) each, and states (S, n, bits)."""
    rng = np.random.default_rng(seed)
    drawn: list[np.ndarray] = []
    for site in sites:
        shape = (anatomy.num_data, site.size)
        if site.kind == "real":
            drawn.append(rng.normal(size=shape))
        elif site.levels:
            drawn.append(rng.integers(0, site.levels, shape))
        else:
            drawn.append(rng.integers(0, 2, shape).astype(float))
    wanted = (6, anatomy.num_data, anatomy.num_bits)
    values = anatomy.latents[0].num_values
    points = rng.normal(size=wanted) if values is None else rng.integers(0, values, wanted)
    return drawn, points


def _inside(site: dict) -> Array:
    if site["type"] == "sample":
        support = site["fn"].support
    else:
        support = site["kwargs"].get("constraint", constraints.real)
    shape = jnp.shape(site["value"])
    # They rise a little, for what must be in order.
    ramp = np.linspace(0.0, 1e-7, shape[-1]) if shape else 0.0
    values = np.reshape(PROBES, (-1,) + (1,) * len(shape)) + np.broadcast_to(ramp, shape)
    return jnp.asarray(support(jnp.asarray(values))).reshape(len(PROBES), -1).all(1)

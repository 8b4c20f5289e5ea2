"""`posterior_draws`: draws of the parameters of any program, from a fit of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.infer.util import constrain_fn, log_density
from scipy.linalg import null_space

from ..baselines.pacing import BudgetError
from ..baselines.samplers import Draws, nuts
from ..compiling import executable
from ..evaluation.symmetry import Group, align_to, form_of, group_of
from ..reading.anatomy import ProgramError
from ..reading.arguments import as_double, check_data, check_params
from ..rows.devices import one_device
from ..running import clock
from ..types import Params
from .chains import advise, chains, faults
from .collapsed import Density, collapsed, density_of, of_rows
from .laplace import Hill, Mode, Weighted, distinct, find_mode, importance

MOST_PARAMETERS = 2000
"""Unconstrained parameters whose curvature is computed and inverted."""
NUM_CHAINS, NUM_WARMUP = 4, 150
"""Of NUTS from the draws about a mode: only the length of a step is to be learned."""
TOLD_APART = 0.9
"""Share of the draws about a mode that must be nearest to it among its images."""


class PosteriorDraws(NamedTuple):
    """Draws of equal weight, and how far they can be trusted.

    >>> from latentbits import posterior_draws
    >>> from latentbits.models import bernoulli_product
    >>> data = np.array([[1.0], [0.0], [1.0], [1.0]])
    >>> found = posterior_draws(bernoulli_product, {"probs": np.array([0.75])}, data, num_draws=200)
    >>> found.params["probs"].shape, found.sound
    ((1, 200, 1), True)
    """

    params: dict[str, np.ndarray]  # (num_chains, num_draws, ...) by site
    stats: dict[str, np.ndarray]  # (num_chains, num_draws): lp, and of weighted draws log_ratio
    how: str  # 'Laplace', 'Student t', 'mixture' of these, or 'NUTS'
    sound: bool  # whether k̂ or the checks of the sampler passed
    pareto_k: float  # of the importance weights, also where NUTS followed
    effective: float  # effective draws
    num_weighed: int  # of which weights were taken: k̂ is held to its limit for so many
    log_evidence: float  # log ∫ p(data, θ) dθ over all equal modes; NaN of NUTS
    evidence_error: float
    mode: dict[str, np.ndarray]  # where the density in unconstrained coordinates is largest
    notes: tuple[str, ...]  # what is to be known, a sentence each
    seconds: float  # by `running.clock`
    compile_seconds: float

    def __str__(self) -> str:
        count = f"{self.effective:.0f} effective draws"
        doubt = "" if self.sound else ", not to be trusted"
        if self.how == "NUTS":
            return f"NUTS from the mode: {count}{doubt}"
        return f"{self.how} with importance weights: k̂ {self.pareto_k:.2f}, {count}{doubt}"


def posterior_draws(
    model: Callable,
    params: Params,
    *args: Any,
    others: Params | None = None,
    num_draws: int = 1000,
    rng_key: Array | None = None,
    budget: float | None = 600.0,
    fall_back: bool = True,
    **kwargs: Any,
) -> PosteriorDraws:
    r"""Draws of the posterior of all parameters, about the optimum that a method has found.

    Latents of rows are summed or integrated out (`collapsed`), those of a chain, or such as are
    read through an index, are summed (`of_rows`). Newton's method finds the mode of
    log prior + log likelihood + log Jacobian in unconstrained coordinates, in float64; draws of
    the normal there have Pareto-smoothed importance weights and are resampled to equal weight.
    While k̂ says that the weights cannot be trusted, or fewer than 400 draws are effective, blocks
    of a Student t and of adapted ones are added. Where k̂ fails all the same, or fewer than a fifth
    are effective, NUTS begins at these draws, with the inverse curvature as its metric, and runs
    until its checks pass. `how` says which it was.

    Labels and signs that can be exchanged are one mode; their number counts in `log_evidence`.
    Factors that can be rotated are drawn on a slice (`evaluation.symmetry.Group`).

    :param params: an optimum, of maximum likelihood or of the posterior; it may lie at a bound.
    :param others: further optima on a leading axis, as `result.optima.others`: draws about each of
        their modes are weighed in one mixture. Where factors rotate they are not.
    :param budget: seconds that NUTS may take at most.
    :param fall_back: whether NUTS runs where importance weights cannot be trusted.

    >>> import jax.numpy as jnp
    >>> from latentbits.models import bernoulli_product
    >>> data = jnp.array([[1.0], [0.0], [1.0], [1.0]])
    >>> posterior = posterior_draws(bernoulli_product, {"probs": jnp.array([0.75])}, data)
    >>> round(float(posterior.params["probs"].mean()), 1)  # of Beta(4, 2)
    0.7
    """
    check_data(args, kwargs)
    model, args, kwargs = of_rows(model, args, kwargs)
    check_params(model, params, args, kwargs)
    key = random.key(0) if rng_key is None else rng_key
    rng = np.random.default_rng(np.asarray(random.key_data(key)))
    about = about_fit(model, params, args, kwargs, num_draws, others)
    with jax.enable_x64(True):
        began = clock.seconds()
        found = importance(about.log_density, about.modes, rng, num_draws)
        result = about.result(found, rng, num_draws, about.seconds + clock.seconds() - began)
    if found.sound or not fall_back:
        return result
    until = lambda draws, plan: advise(chains(model, (args, kwargs), draws), draws, plan)  # noqa: E731
    try:
        draws = about.nuts(model, key, args, kwargs, budget=budget, until=until)
    except BudgetError as error:
        return result._replace(notes=(*result.notes, f"NUTS did not follow: {error}"))
    row = chains(model, (args, kwargs), draws)
    aligned = align_to(model, draws.params, about.reference, (args, kwargs))
    return result._replace(
        params=aligned, stats=draws.stats, how="NUTS", sound=not faults(row),
        effective=float(row.get("ess_bulk", math.nan)), log_evidence=math.nan,
        evidence_error=math.nan, seconds=result.seconds + draws.seconds,
        compile_seconds=result.compile_seconds + draws.compile_seconds,
    )  # fmt: skip


class Slice(NamedTuple):
    """The points that stand for their orbits under rotations; the whole space where none rotate."""

    base: Any  # (p,) unconstrained
    basis: Any = None  # (p, q) orthonormal directions of the slice; None: all
    normal: Any = None  # (p, p - q) the others

    def place(self, short: Any) -> Any:
        """Unconstrained parameters (..., p) of points of the slice (..., q)."""
        return short if self.basis is None else self.base + short @ self.basis.T


class Compiled(NamedTuple):
    """What is compiled for tables of one shape, as functions of their arrays."""

    hill: Hill  # of which the mode is sought
    evaluate: Callable  # log densities and parameters of many points
    constrain: Callable  # parameters of many points
    prior: Callable  # curvature of the log prior


def _compile(
    density: Density, prior: Density, group: Group, arrays: list[Array], slice_: Slice,
    first: np.ndarray, num_draws: int,
) -> Compiled:  # fmt: skip
    def at(short: Array, arrays: list[Array], slice_: Slice) -> Array:
        """The log density on the slice: that of the parameters times the volume of their orbit."""
        flat = slice_.place(short)
        value = density(flat, arrays)
        if slice_.normal is None:
            return value
        orbit = group.generators(density.constrain(flat, arrays)) @ slice_.normal
        return value + jnp.linalg.slogdet(orbit)[1]

    def constrain(draws: Array, arrays: list[Array], slice_: Slice) -> Params:
        return lax.map(lambda x: density.constrain(slice_.place(x), arrays), draws)

    def evaluate(draws: Array, arrays: list[Array], slice_: Slice) -> tuple[Array, Params]:
        values = lax.map(lambda x: at(x, arrays, slice_), draws)
        return values, constrain(draws, arrays, slice_)

    def curvature(short: Array, arrays: list[Array], slice_: Slice) -> Array:
        return -jax.hessian(lambda x: prior(slice_.place(x), arrays))(short)

    many = np.zeros((num_draws, len(first)))
    inputs = {evaluate: many, constrain: many, curvature: first}
    others = (jax.jit(f).lower(x, arrays, slice_).compile() for f, x in inputs.items())
    return Compiled(Hill.of(at, first, arrays, slice_), *others)


class Neighbourhood(NamedTuple):
    """Modes of the density on a slice."""

    density: Density
    arrays: list[Array]
    compiled: Compiled
    group: Group
    slice: Slice
    modes: list[Mode]  # (q,) on the slice, the highest first
    reference: dict[str, np.ndarray]  # parameters at the start: at the mode units may be equal
    seconds: float
    compile_seconds: float

    @property
    def mode(self) -> Mode:
        """The highest."""
        return self.modes[0]

    def log_density(self, draws: np.ndarray) -> np.ndarray:
        """Of points of the slice, (count, q); -inf where another image is nearer."""
        found = self.compiled.evaluate(draws, self.arrays, self.slice)
        values, params = jax.device_get(found)
        inside = self.group.inside(params, self.reference)
        return np.where(inside & np.isfinite(values), values, -np.inf)

    def params(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters by site of as many points of the slice."""
        return jax.device_get(self.compiled.constrain(draws, self.arrays, self.slice))

    def nuts(
        self, model: Callable, rng_key: Array, args: tuple, kwargs: dict[str, Any], **how: Any
    ) -> Draws:
        """NUTS from draws about the mode, in the metric of the curvature there.

        :param how: further arguments of `baselines.samplers.nuts`.
        """
        rng = np.random.default_rng(np.asarray(random.key_data(rng_key)))
        return nuts(
            model, rng_key, *args, num_warmup=NUM_WARMUP, num_chains=NUM_CHAINS,
            places=self.starts(rng, NUM_CHAINS), metric=self.metric(),
            program=collapsed(model, args, kwargs), **how, **kwargs,
        )  # fmt: skip

    def starts(self, rng: np.random.Generator, count: int) -> Params:
        """A draw of the normal about each mode in turn, unconstrained, on a leading axis."""
        modes = [self.modes[i % len(self.modes)] for i in range(count)]
        short = [x.place + x.root @ rng.normal(size=len(x.place)) for x in modes]
        flat = self.slice.place(np.stack(short))
        with jax.enable_x64(True):
            return jax.device_get(jax.vmap(self.density.unravel)(jnp.asarray(flat)))

    def metric(self) -> np.ndarray:
        """The covariance of unconstrained parameters; along an orbit the largest on the slice."""
        covariance, (_, basis, normal) = self.mode.root @ self.mode.root.T, self.slice
        if basis is None:
            return covariance
        along = np.linalg.eigvalsh(covariance)[-1] * normal @ normal.T
        return basis @ covariance @ basis.T + along

    def result(
        self, found: Weighted, rng: np.random.Generator, count: int, seconds: float
    ) -> PosteriorDraws:
        """Weighted draws as draws of equal weight."""
        chosen = found.resampled(rng, count)
        params = self.params(found.draws[chosen])
        top = self.params(np.repeat(self.mode.place[None], count, 0))
        stats = {"lp": found.log_p, "log_ratio": found.log_p - found.log_q, "weight": found.weights}
        evidence, error = found.log_mean
        return PosteriorDraws(
            {x: v[None] for x, v in params.items()},
            {x: v[chosen][None] for x, v in stats.items()}, found.how, found.sound,
            found.pareto_k, found.effective, len(found.draws),
            evidence + self.group.log_size, error,
            {x: v[0] for x, v in top.items()}, self.notes(found), seconds, self.compile_seconds,
        )  # fmt: skip

    def notes(self, found: Weighted) -> tuple[str, ...]:
        """What is to be known of the draws, a sentence each."""
        notes = [self.group.words] if self.group.blocks else []
        if len(self.modes) > 1:
            notes.append(f"drawn about {len(self.modes)} modes, weighed in one mixture")
        apart = float(np.isfinite(found.log_p).mean())
        if apart < TOLD_APART:
            notes.append(
                f"{1.0 - apart:.0%} of the draws exchange units or axes: the data do not tell all "
                "of them apart; take fewer"
            )
        shares, names = self.by_prior()
        lost = int((shares > 0.5).sum())
        if lost:
            notes.append(
                f"{lost} of {len(shares)} directions are determined by the prior more than by the "
                f"data, most of all in {names}"
            )
        return tuple(notes)

    def by_prior(self) -> tuple[np.ndarray, str]:
        """The share of the prior in the curvature along each axis of the normal at the mode, and
        the sites where the axes with more than half are longest."""
        root = self.mode.root
        curvature = np.asarray(self.compiled.prior(self.mode.place, self.arrays, self.slice))
        shares, axes = np.linalg.eigh(root.T @ curvature @ root)
        length = root @ axes if self.slice.basis is None else self.slice.basis @ root @ axes
        spread = np.sqrt((length**2).sum(1))
        part = np.sqrt((length[:, shares > 0.5] ** 2).sum(1)) / np.maximum(spread, 1e-300)
        by_site = {x: float(np.max(v)) for x, v in self.density.unravel(jnp.asarray(part)).items()}
        return shares, " and ".join(repr(x) for x, v in by_site.items() if v > 0.5)


def about_fit(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any], num_draws: int = 1,
    others: Params | None = None,
) -> Neighbourhood:  # fmt: skip
    """The modes near the parameters of a fit and others, with their symmetries; in float64."""
    with jax.enable_x64(True):
        args, kwargs = as_double((args, kwargs))
        params, others = as_double((dict(params), others))
        return _open(model, params, args, kwargs, num_draws, others)


def _open(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any], num_draws: int,
    others: Params | None = None,
) -> Neighbourhood:  # fmt: skip
    began, device = time.perf_counter(), one_device(args, kwargs)
    arrays, settings = device.arrays, (model, device.static, device.tree)

    def begin() -> tuple[Any, ...]:
        density, prior = density_of(model, args, kwargs, params)
        inside, constrain = jax.jit(density.inside), jax.jit(density.constrain)
        return density, prior, inside, constrain, jax.jit(prior.log_joint)

    begun = executable(begin, (params, arrays), "density", *settings)
    density, prior, inside, constrain, log_prior = begun
    start = np.asarray(inside(params, arrays))
    if len(start) > MOST_PARAMETERS:
        raise ProgramError(
            f"the program has {len(start)} parameters, and the curvature of at most "
            f"{MOST_PARAMETERS} is inverted: run NUTS or SVI"
        )
    reference = jax.device_get(constrain(start, arrays))
    # The form says which symmetries the likelihood has; whether the prior keeps them is asked.
    known = form_of(model, (args, kwargs))
    group = group_of(known, lambda params: log_prior(params, arrays), reference)
    tangents = np.asarray(group.generators(reference))
    slice_, first = Slice(start), start
    if len(tangents):
        normal = np.linalg.qr(tangents.T)[0]
        slice_ = Slice(start, null_space(normal.T), normal)
        first = np.zeros(slice_.basis.shape[1])
    make = partial(_compile, density, prior, group, arrays, slice_, first, num_draws)
    inputs = first, arrays, slice_
    compiled = executable(make, inputs, "mode", *settings, repr(group.blocks), num_draws)
    ready, running = time.perf_counter() - began, clock.seconds()
    places = [first]
    if others is not None and slice_.basis is None:
        near = align_to(model, jax.device_get(others), reference, (args, kwargs))
        count = len(next(iter(near.values())))
        places += [np.asarray(inside({x: v[i] for x, v in near.items()}, arrays))
                   for i in range(count)]  # fmt: skip
    modes = distinct([find_mode(compiled.hill, x, arrays, slice_) for x in places])
    modes.sort(key=lambda x: float(compiled.hill.slope(x.place, arrays, slice_)[0]))
    spent = clock.seconds() - running
    return Neighbourhood(
        density, arrays, compiled, group, slice_, modes, reference, spent, ready
    )  # fmt: skip


def best_mode(
    model: Callable, places: Params, known: Sequence[Params], args: tuple, kwargs: dict[str, Any]
) -> Neighbourhood:
    """The mode near the best of several places.

    :param places: unconstrained, by site, with a leading axis.
    :param known: parameters that may be better, as the truth.
    """
    with jax.enable_x64(True):
        args, kwargs = as_double((args, kwargs))
        program = collapsed(model, args, kwargs)
        count = len(jax.tree.leaves(places)[0])
        free = [jax.tree.map(lambda x: x[i], as_double(places)) for i in range(count)]  # noqa: B023
        found = [constrain_fn(program, args, kwargs, x) for x in free] + as_double(list(known))
        score = jax.jit(lambda params: log_density(program, args, kwargs, params)[0])
        values = np.array([score(x) for x in found])
        best = found[int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))]
        return _open(model, best, args, kwargs, 1)

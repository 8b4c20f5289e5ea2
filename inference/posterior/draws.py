"""`posterior_draws`: draws of the parameters of any program, from a fit of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.infer.util import constrain_fn, log_density
from scipy.linalg import null_space
from scipy.special import logsumexp

from ..baselines.samplers import nuts
from ..evaluation.symmetry import Group, align_to, form_of, group_of
from ..reading.anatomy import ProgramError
from ..reading.arguments import check_data
from ..running import clock
from ..types import Params
from .chains import advise, chains, faults
from .collapsed import Density, collapsed, density_of
from .laplace import Mode, Weighted, find_mode, importance

MOST_PARAMETERS = 2000
"""Unconstrained parameters whose curvature is computed and inverted."""
NUM_CHAINS, NUM_WARMUP = 4, 150
"""Of NUTS from the draws about a mode: only the length of a step is to be learned."""
TOLD_APART = 0.9
"""Share of the draws about a mode that must be nearest to it among its images."""


class PosteriorDraws(NamedTuple):
    """Draws of equal weight, and how far they can be trusted.

    >>> import jax.numpy as jnp
    >>> from jax import random
    >>> from latentbits import EM, posterior_draws
    >>> from latentbits.models import bernoulli_product
    >>> data = random.bernoulli(random.key(0), 0.3, (100, 2)).astype(float)
    >>> params = EM(bernoulli_product).run(random.key(1), 5, data).params
    >>> posterior = posterior_draws(bernoulli_product, params, data, num_draws=500)
    >>> posterior.params["probs"].shape, posterior.how, posterior.sound
    ((1, 500, 2), 'Laplace', True)
    """

    params: dict[str, np.ndarray]  # (num_chains, num_draws, ...) by site
    stats: dict[str, np.ndarray]  # (num_chains, num_draws): lp, and of weighted draws log_ratio
    how: str  # 'Laplace', 'Student t', 'mixture' of these, or 'NUTS'
    sound: bool  # whether k̂ or the checks of the sampler passed
    pareto_k: float  # of the importance weights, also where NUTS followed
    effective: float  # effective draws
    log_evidence: float  # log ∫ p(data, θ) dθ over all equal modes; NaN of NUTS
    evidence_error: float
    mode: Params  # where the density in unconstrained coordinates is largest
    notes: tuple[str, ...]  # what is to be known, a sentence each
    seconds: float  # by `running.clock`
    compile_seconds: float

    def __str__(self) -> str:
        count = f"{self.effective:.0f} effective draws"
        if self.how == "NUTS":
            return f"NUTS from the mode: {count}" + ("" if self.sound else ", its checks fail")
        return f"{self.how} with importance weights: k̂ {self.pareto_k:.2f}, {count}"


def posterior_draws(
    model: Callable,
    params: Params,
    *args: Any,
    num_draws: int = 1000,
    rng_key: Array | None = None,
    budget: float | None = None,
    fall_back: bool = True,
    **kwargs: Any,
) -> PosteriorDraws:
    r"""Draws of the posterior of all parameters, about the optimum that a method has found.

    Latents of rows are summed or integrated out (`collapsed`). Newton's method finds the mode of
    log prior + log likelihood + log |Jacobian| in unconstrained coordinates, in float64; draws of
    the normal there have Pareto-smoothed importance weights and are resampled to equal weight.
    Where k̂ says that the weights cannot be trusted, a Student t is tried, then mixtures, then NUTS
    begins at these draws, with the inverse curvature as its metric, and runs until its checks pass.
    `how` says which it was.

    Labels and signs that can be exchanged are one mode; their number counts in `log_evidence`.
    Factors that can be rotated are drawn on a slice (`evaluation.symmetry.Group`).

    :param params: an optimum, of maximum likelihood or of the posterior; it may lie at a bound.
    :param budget: seconds that NUTS may take.
    :param fall_back: whether NUTS runs where importance weights cannot be trusted.

    >>> import jax.numpy as jnp
    >>> from latentbits.models import bernoulli_product
    >>> data = jnp.array([[1.0], [0.0], [1.0], [1.0]])
    >>> posterior = posterior_draws(bernoulli_product, {"probs": jnp.array([0.75])}, data)
    >>> round(float(posterior.params["probs"].mean()), 1)  # of Beta(4, 2)
    0.7
    """
    check_data(args, kwargs)
    key = random.key(0) if rng_key is None else rng_key
    rng = np.random.default_rng(np.asarray(random.key_data(key)))
    with jax.enable_x64(True):
        about = open_mode(model, _wide(dict(params)), *_wide((args, kwargs)))
        began = clock.seconds()
        found = importance(about.log_density, about.mode, rng, num_draws)
        result = about.result(found, rng, num_draws, about.seconds + clock.seconds() - began)
        metric, starts = about.metric(), about.starts(rng, NUM_CHAINS)
    if found.sound or not fall_back:
        return result
    draws = nuts(
        model, key, *args, num_warmup=NUM_WARMUP, num_chains=NUM_CHAINS, budget=budget,
        places=starts, metric=metric, program=collapsed(model, args, kwargs),
        until=lambda draws, plan: advise(chains(model, (args, kwargs), draws), draws, plan),
        **kwargs,
    )  # fmt: skip
    row = chains(model, (args, kwargs), draws)
    aligned = align_to(model, draws.params, about.reference, (args, kwargs))
    return result._replace(
        params=aligned, stats=draws.stats, how="NUTS", sound=not faults(row),
        effective=float(row.get("ess_bulk", math.nan)), log_evidence=math.nan,
        evidence_error=math.nan, seconds=result.seconds + draws.seconds,
        compile_seconds=result.compile_seconds + draws.compile_seconds,
    )  # fmt: skip


def _wide(tree: Any) -> Any:
    """Numbers in float64, as arrays of NumPy's."""
    real = lambda x: isinstance(x, np.ndarray | Array) and jnp.issubdtype(x.dtype, jnp.floating)  # noqa: E731
    return jax.tree.map(lambda x: np.asarray(x, np.float64) if real(x) else x, tree)


class Neighbourhood(NamedTuple):
    """A mode of a density on the slice that its rotations leave, or on the whole space."""

    density: Density
    prior: Density
    arrays: list[Array]
    group: Group
    base: np.ndarray  # (p,) unconstrained, a point of the slice
    basis: np.ndarray | None  # (p, q) orthonormal directions of the slice; None: all
    normal: np.ndarray | None  # (p, p - q) the others
    mode: Mode  # (q,) on the slice
    reference: Params  # parameters at the base
    seconds: float
    compile_seconds: float

    def place(self, short: Any) -> Any:
        """Unconstrained parameters (..., p) of points of the slice (..., q)."""
        return short if self.basis is None else self.base + short @ self.basis.T

    def log_density(self, draws: np.ndarray) -> np.ndarray:
        """Of points of the slice, (count, q); -inf where another image is nearer to the mode."""
        sliced, params = jax.device_get(self._both(jnp.asarray(draws), self.arrays))
        inside = self.group.inside(params, self.reference)
        return np.where(inside & np.isfinite(sliced), sliced, -np.inf)

    def _both(self, draws: Array, arrays: list[Array]) -> tuple[Array, Params]:
        def one(short: Array) -> tuple[Array, Params]:
            return self.at(short, arrays), self.density.constrain(self.place(short), arrays)

        return jax.jit(lambda draws: lax.map(one, draws))(draws)

    def at(self, short: Array, arrays: list[Array]) -> Array:
        """The log density on the slice: that of the parameters times the volume of their orbit."""
        flat = self.place(short)
        value = self.density(flat, arrays)
        if self.normal is None:
            return value
        orbit = self.group.generators(self.density.constrain(flat, arrays)) @ self.normal
        return value + jnp.linalg.slogdet(orbit)[1]

    def starts(self, rng: np.random.Generator, count: int) -> Params:
        """Draws of the normal about the mode, unconstrained, a leading axis of so many."""
        steps = rng.normal(size=(count, len(self.mode.place)))
        flat = self.place(np.asarray(self.mode.place) + steps @ np.asarray(self.mode.root).T)
        with jax.enable_x64(True):
            return jax.device_get(jax.vmap(self.density.unravel)(jnp.asarray(flat)))

    def metric(self) -> np.ndarray:
        """The covariance of unconstrained parameters; along an orbit the largest on the slice."""
        root = np.asarray(self.mode.root)
        covariance = root @ root.T
        if self.basis is None or self.normal is None:
            return covariance
        along = np.linalg.eigvalsh(covariance)[-1] * self.normal @ self.normal.T
        return self.basis @ covariance @ self.basis.T + along

    def result(
        self, found: Weighted, rng: np.random.Generator, count: int, seconds: float
    ) -> PosteriorDraws:
        """Weighted draws as draws of equal weight."""
        chosen = found.resampled(rng, count)
        flat = jnp.asarray(self.place(found.draws[chosen]))
        constrain = jax.jit(jax.vmap(lambda x: self.density.constrain(x, self.arrays)))
        params = {x: np.asarray(v)[None] for x, v in constrain(flat).items()}
        stats = {"lp": found.log_p, "log_ratio": found.log_p - found.log_q, "weight": found.weights}
        evidence, error = found.log_mean
        top = constrain(jnp.asarray(self.place(np.asarray(self.mode.place)))[None])
        return PosteriorDraws(
            params, {x: v[chosen][None] for x, v in stats.items()}, found.how, found.sound,
            found.pareto_k, found.effective, evidence + self.group.log_size, error,
            {x: np.asarray(v)[0] for x, v in top.items()}, self.notes(found), seconds,
            self.compile_seconds,
        )  # fmt: skip

    def notes(self, found: Weighted) -> tuple[str, ...]:
        """What is to be known of the draws, a sentence each."""
        notes = [self.group.words] if self.group.blocks else []
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
        prior = lambda short: -self.prior(self.place(short), self.arrays)  # noqa: E731
        curvature = np.asarray(jax.jit(jax.hessian(prior))(self.mode.place))
        root = np.asarray(self.mode.root)
        shares, axes = np.linalg.eigh(root.T @ curvature @ root)
        length = root @ axes
        length = length if self.basis is None else self.basis @ length
        spread = np.sqrt((length**2).sum(1))
        part = np.sqrt((length[:, shares > 0.5] ** 2).sum(1)) / np.maximum(spread, 1e-300)
        by_site = {x: float(np.max(v)) for x, v in self.density.unravel(jnp.asarray(part)).items()}
        return shares, " and ".join(repr(x) for x, v in by_site.items() if v > 0.5)


def open_mode(
    model: Callable, params: Params, args: tuple, kwargs: dict[str, Any]
) -> Neighbourhood:
    """Find the mode near some parameters, and its symmetries; in float64."""
    began = time.perf_counter()
    density, prior, arrays = density_of(model, args, kwargs, params)
    start = np.asarray(jax.jit(density.inside)(params, arrays))
    if len(start) > MOST_PARAMETERS:
        raise ProgramError(
            f"the program has {len(start)} parameters, and the curvature of at most "
            f"{MOST_PARAMETERS} is inverted: run NUTS or SVI"
        )
    reference = jax.device_get(jax.jit(density.constrain)(start, arrays))
    # The form says which symmetries the likelihood has; whether the prior keeps them is asked.
    group = group_of(
        form_of(model, (args, kwargs)),
        jax.jit(lambda params: prior.log_joint(params, arrays)), reference,
    )  # fmt: skip
    here = Neighbourhood(
        density, prior, arrays, group, start, None, None, None, reference, 0.0, 0.0
    )  # fmt: skip
    tangents = np.asarray(group.generators(reference))
    first = start
    if len(tangents):
        normal = np.linalg.qr(tangents.T)[0]
        here = here._replace(basis=null_space(normal.T), normal=normal)
        first = np.zeros(here.basis.shape[1])
    find = jax.jit(lambda x, arrays: find_mode(lambda y: here.at(y, arrays), x))
    ready = find.lower(first, arrays).compile()
    compiled, running = time.perf_counter() - began, clock.seconds()
    mode = jax.device_get(ready(first, arrays))
    return here._replace(mode=mode, seconds=clock.seconds() - running, compile_seconds=compiled)


def best_mode(
    model: Callable, places: Params, known: Sequence[Params], args: tuple, kwargs: dict[str, Any]
) -> Neighbourhood:
    """The mode near the best of several places.

    :param places: unconstrained, by site, with a leading axis.
    :param known: parameters that may be better, as the truth.
    """
    with jax.enable_x64(True):
        args, kwargs = _wide((args, kwargs))
        program = collapsed(model, args, kwargs)
        count = len(jax.tree.leaves(places)[0])
        free = [jax.tree.map(lambda x: x[i], _wide(places)) for i in range(count)]  # noqa: B023
        found = [constrain_fn(program, args, kwargs, x) for x in free] + [_wide(x) for x in known]
        score = jax.jit(lambda params: log_density(program, args, kwargs, params)[0])
        values = np.array([score(x) for x in found])
        best = found[int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))]
        return open_mode(model, best, args, kwargs)


def weigh_modes(posteriors: Sequence[PosteriorDraws]) -> np.ndarray | None:
    """The posterior probability of each of several modes; None where one cannot be weighed.

    Each counts by its evidence, all of its equal images included. Optima whose posteriors are the
    same mode must be handed over once.
    """
    if not all(x.sound and math.isfinite(x.log_evidence) for x in posteriors):
        return None
    logs = np.array([x.log_evidence for x in posteriors])
    return np.exp(logs - logsumexp(logs))

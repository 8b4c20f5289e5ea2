"""Latent counts: sites without a largest value, listed up to a count that the data suggest.

An N-mixture has ``n ~ Poisson(rate)`` animals at a site and ``y ~ Binomial(n, p)`` of them seen.
Summed over n = 0, ..., most the evidence is a lower bound; what is left out has at most the prior
probability P(n > most), and of the posterior at most that over the evidence, since no probability
of what is observed is larger than one (`left_out`).

The list has to be chosen before the parameters are known. The means of what is observed tell how
many are counted for each that is seen, where parameters lie at the ends of the box from which
NumPyro's samplers start: the list ends 100 beyond so many times the largest datum. Whether that is
enough shows at run time: whoever sums over a list looks at the posterior probability of its last
count, and doubles the list or warns.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.primitives import Messenger

from ..types import Params
from .anatomy import ProgramError, bounds_of, unlisted, values_of
from .arguments import without_missing
from .distributions import map_base
from .tracing import at_place, each_value, innermost, is_latent, run_abstractly, trace_of

BEYOND = 100
"""Counts that are listed beyond the largest in the data (as in pcount of R's unmarked)."""
MOST_COUNTS = 1 << 14
"""That are listed without being asked for."""
MOST_RATIO = 20.0
"""Counts for each that is observed, in the choice of a list."""
MOST_STATES = 1 << 16
"""Joint states of all counts of a row up to which a list is made longer than the data are large."""
CORNERS = -2.0, 2.0
"""Of the box from which NumPyro's samplers start, on the real line."""
LAST = 1e-4
"""Posterior probability of the last count of a list from which on it is said to be too short."""


class BoundedCounts(dist.Distribution):
    """A distribution of whole numbers, of which some in a row are listed.

    Its log probabilities are those of the numbers themselves: over the list they sum to less than
    one. It draws without a bound.

    :param extra: added to the log probability of the last number.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("base",)
    pytree_aux_fields = ("values", "extra")

    def __init__(self, base: dist.Distribution, values: range, extra: float = 0.0):
        self.base, self.values, self.extra = base, values, extra
        super().__init__(base.batch_shape, base.event_shape)

    @property
    def support(self) -> Any:
        return constraints.integer_interval(self.values[0], self.values[-1])

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        return self.base.sample(key, sample_shape)

    def log_prob(self, value: Array) -> Array:
        inside = self.base.support(value)
        safe = jnp.where(inside, value, each_value(self.base.support).lower_bound)
        log_prob = jnp.where(inside, self.base.log_prob(safe), -jnp.inf)
        return log_prob + self.extra * (value == self.values[-1]) if self.extra else log_prob


class up_to(Messenger):  # noqa: N801
    """List latent counts up to a largest one, so that they can be summed out.

    Sites whose elements all have the same bounds are left as they are. Where elements have bounds
    of their own, all values from the least to the largest of these are listed.

    :param fn: the program.
    :param most: the largest count.
    :param extra: added to the log probability of the largest count, to see how much that matters.

    >>> import numpyro
    >>> from latentbits import inspect
    >>> def animals(seen):
    ...     with numpyro.plate("sites", len(seen)):
    ...         number = numpyro.sample("number", dist.Poisson(3.0))
    ...         numpyro.sample("seen", dist.Binomial(number, 0.5), obs=seen)
    >>> inspect(up_to(animals, 30), (jnp.array([1, 0, 4]),)).latents[0].num_values
    31
    """

    def __init__(self, fn: Callable, most: int, *, extra: float = 0.0):
        if not 1 <= most < MOST_COUNTS:
            raise ValueError(f"most must be from 1 to {MOST_COUNTS - 1}, found {most}")
        self.most, self.extra = most, extra
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if unbounded(msg):
            values = _listed(msg["name"], msg["fn"], self.most)
            extra = self.extra if endless(msg["fn"]) else 0.0
            msg["fn"] = map_base(msg["fn"], lambda base: BoundedCounts(base, values, extra))


def unbounded(site: dict[str, Any]) -> bool:
    """Whether a site is a latent count without a fixed largest value.

    What a scan has recorded of its sites does not tell: the bounds of all steps are traced there.
    """
    scanned = site.get("_control_flow_done")
    return not scanned and is_latent(site) and values_of(site["fn"]) is None


def endless(fn: dist.Distribution) -> bool:
    """Whether the largest value of a discrete distribution does not exist, or is not known."""
    return bounds_of(fn)[1] is None


def _listed(name: str, fn: dist.Distribution, most: int) -> range:
    low, high = bounds_of(fn)
    if low is None:
        raise ProgramError(f"the values of site {name!r} cannot be listed: {unlisted(fn)}")
    return range(int(low.min()), (most if high is None else int(high.max())) + 1)


def with_counts(model: Callable, args: tuple, kwargs: dict) -> Callable:
    """The program without missing responses, its latent counts listed as far as the data suggest.

    Itself if it has neither.
    """
    if isinstance(model, up_to):
        inside = without_missing(model.fn, args, kwargs)
        return model if inside is model.fn else up_to(inside, model.most, extra=model.extra)
    model = without_missing(model, args, kwargs)

    def read(trace: dict[str, dict]) -> tuple[bool, dict[str, int]]:
        observed = any(x["type"] == "sample" and x["is_observed"] for x in trace.values())
        sites = [x for x in trace.values() if observed and unbounded(x)]
        sizes = {x["name"]: math.prod(x["fn"].event_shape) for x in sites if endless(x["fn"])}
        return bool(sites), sizes

    found, sizes = run_abstractly(model, args, kwargs, read)
    if not found:
        return model
    return up_to(model, _largest(model, sizes, args, kwargs) if sizes else 1)


def _largest(model: Callable, sizes: dict[str, int], args: tuple, kwargs: dict) -> int:
    """The largest count to list.

    :param sizes: elements of each site that counts.
    """
    name = next(iter(sizes))
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
        raise ProgramError(
            f"site {name!r} counts without bound, and the data are not known yet where its "
            "values are to be listed: pass up_to(model, most)"
        )
    with jax.ensure_compile_time_eval():
        least = [_observed(model, sizes, 1, place, args, kwargs) for place in CORNERS]
        more = [_observed(model, sizes, 1 + BEYOND, place, args, kwargs) for place in CORNERS]
    ratios = {}
    for site in least[0]:
        slopes = [(b[site][1] - a[site][1]) / BEYOND for a, b in zip(least, more, strict=True)]
        if rising := [x for x in slopes if x > 0]:
            ratios[site] = min(1.0 / min(rising), MOST_RATIO)
    ratios = ratios or dict.fromkeys(least[0], 1.0)  # counts show in no mean
    wanted = max(ratio * least[0][site][0] for site, ratio in ratios.items())
    largest = max(min(1.0, ratio) * least[0][site][0] for site, ratio in ratios.items())
    if largest + BEYOND >= MOST_COUNTS:
        raise ProgramError(
            f"site {name!r} counts without bound, and the data are as large as {largest:g}: "
            "pass up_to(model, most) with the largest count that is to be listed"
        )
    longest = max(largest + BEYOND, min(MOST_STATES ** (1 / sum(sizes.values())), MOST_COUNTS) - 1)
    return int(min(wanted + BEYOND, longest))


def _observed(
    model: Callable, names: Container[str], count: int, place: float, args: tuple, kwargs: dict
) -> dict[str, tuple[float, float]]:
    """The largest value of each observed site, and its largest mean where all counts are equal.

    :param place: of the continuous sites, on the real line that each is mapped to.
    """

    def given(site: dict[str, Any]) -> Array | None:
        if site["type"] == "sample" and site["name"] in names:
            return jnp.full(site["fn"].shape(), count)
        return at_place(site, partial(jnp.full, fill_value=place))

    trace = trace_of(handlers.substitute(model, substitute_fn=given), (args, kwargs))
    found = {}
    for site in trace.values():
        if site["type"] == "sample" and site["is_observed"]:
            mean: Any = 0.0
            with suppress(NotImplementedError):
                mean = site["fn"].mean
            found[site["name"]] = _finite_max(site["value"]), _finite_max(mean)
    return found


def _finite_max(values: Any) -> float:
    each = np.asarray(values, float)
    return float(each[np.isfinite(each)].max(initial=0.0))


def warn_of_end(program: up_to, names: Iterable[str]) -> None:
    """Say that the lists of these counts are too short."""
    sites, more = ", ".join(map(repr, names)), min(2 * program.most, MOST_COUNTS - 1)
    warnings.warn(
        f"the posterior of {sites} reaches its last count, {program.most}, at parameters that were "
        "met: larger counts matter there and are left out; pass up_to(model, most) with a larger "
        f"most, such as {more}",
        stacklevel=3,
    )


def at_end(
    program: up_to, probabilities: Mapping[str, Array], args: tuple, kwargs: dict
) -> list[str]:
    """The sites whose posterior reaches the last count of their list.

    :param probabilities: site -> of each of its values, on the last axis.
    """
    names = [name for name in counted(program, args, kwargs) if name in probabilities]
    return [name for name in names if probabilities[name][..., -1].max() > LAST]


def counted(program: up_to, args: tuple, kwargs: dict) -> list[str]:
    """The sites whose lists the program cuts."""

    def read(trace: dict[str, dict]) -> list[str]:
        sites = [(x["name"], innermost(x["fn"])) for x in trace.values() if is_latent(x)]
        return [x for x, fn in sites if isinstance(fn, BoundedCounts) and endless(fn.base)]

    return run_abstractly(program, args, kwargs, read)


def left_out(model: Callable, params: Params, *args: Any, **kwargs: Any) -> dict[str, Array]:
    """The prior probability of the counts that are not listed, by site: P(count > most).

    :param model: the program, or ``up_to(program, most)``; by default counts are listed as far as
        the data suggest.
    :param params: values of the other unobserved sites.

    For a site whose distribution depends on other counts it is the larger of the two with all of
    these at 0 and at `most`.

    >>> import numpyro
    >>> def animals(seen):
    ...     rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    ...     with numpyro.plate("sites", len(seen)):
    ...         number = numpyro.sample("number", dist.Poisson(rate))
    ...         numpyro.sample("seen", dist.Binomial(number, 0.5), obs=seen)
    >>> missed = left_out(up_to(animals, 3), {"rate": 1.0}, jnp.array([1, 0]))["number"]
    >>> [round(float(x), 4) for x in missed]  # 1 − (1 + 1 + 1/2 + 1/6) / e
    [0.019, 0.019]
    """
    program = with_counts(model, args, kwargs)

    def find(params: Params, last: bool) -> dict[str, Array]:
        values = {name: jnp.asarray(value) for name, value in params.items()}
        ends = _Ends(program, last)
        with handlers.block(), handlers.seed(rng_seed=0):
            handlers.substitute(ends, data=values)(*args, **kwargs)
        return ends.missed

    both = jax.jit(lambda params: (find(params, False), find(params, True)))(params)
    return {name: jnp.maximum(*(tails[name] for tails in both)) for name in both[0]}


class _Ends(Messenger):
    """All counts at one end of their lists; what lies beyond each is noted."""

    def __init__(self, fn: Callable, last: bool):
        self.last = last
        self.missed: dict[str, Array] = {}
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        fn = msg["fn"] if msg["type"] == "sample" else None
        while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
            fn = fn.base_dist
        if not isinstance(fn, BoundedCounts):
            return
        grid = jnp.asarray(fn.values).reshape(-1, *(1,) * len(fn.batch_shape + fn.event_shape))
        mass = jnp.exp(fn.log_prob(grid)).sum(0)
        shape = msg["fn"].batch_shape + msg["fn"].event_shape
        self.missed[msg["name"]] = jnp.broadcast_to(jnp.clip(1.0 - mass, 0.0), shape)
        msg["value"] = jnp.full(shape, fn.values[-1 if self.last else 0])

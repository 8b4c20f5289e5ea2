"""Latent counts: sites without a largest value, listed up to a count that the data suggest.

An N-mixture has ``n ~ Poisson(rate)`` animals at a site and ``y ~ Binomial(n, p)`` of them seen.
Summed over n = 0, ..., most the evidence is a lower bound; what is left out has at most the prior
probability P(n > most), and of the posterior at most that over the evidence, since no probability
of what is observed is larger than one (`left_out`).
"""

from __future__ import annotations

from collections.abc import Callable
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
from .abstract import each_value, is_latent, run_abstractly
from .anatomy import ProgramError, bounds_of, unlisted, values_of
from .bounds import map_base

BEYOND = 100
"""Counts that are listed beyond the largest in the data (as in pcount of R's unmarked)."""
MOST_COUNTS = 1 << 14
"""That are listed without being asked for."""


class BoundedCounts(dist.Distribution):
    """A distribution of whole numbers, of which some in a row are listed.

    Its log probabilities are those of the numbers themselves: over the list they sum to less than
    one. It draws without a bound.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("base",)
    pytree_aux_fields = ("values",)

    def __init__(self, base: dist.Distribution, values: range):
        self.base, self.values = base, values
        super().__init__(base.batch_shape, base.event_shape)

    @property
    def support(self) -> Any:
        return constraints.integer_interval(self.values[0], self.values[-1])

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        return self.base.sample(key, sample_shape)

    def log_prob(self, value: Array) -> Array:
        inside = self.base.support(value)
        safe = jnp.where(inside, value, each_value(self.base.support).lower_bound)
        return jnp.where(inside, self.base.log_prob(safe), -jnp.inf)


class up_to(Messenger):  # noqa: N801
    """List latent counts up to a largest one, so that they can be summed out.

    Sites whose elements all have the same bounds are left as they are. Where elements have bounds
    of their own, all values from the least to the largest of these are listed.

    :param fn: the program.
    :param most: the largest count.

    >>> import numpyro
    >>> from latentbits import inspect
    >>> def animals(seen):
    ...     with numpyro.plate("sites", len(seen)):
    ...         number = numpyro.sample("number", dist.Poisson(3.0))
    ...         numpyro.sample("seen", dist.Binomial(number, 0.5), obs=seen)
    >>> inspect(up_to(animals, 30), (jnp.array([1, 0, 4]),)).latents[0].num_values
    31
    """

    def __init__(self, fn: Callable, most: int):
        if not 1 <= most < MOST_COUNTS:
            raise ValueError(f"most must be from 1 to {MOST_COUNTS - 1}, found {most}")
        self.most = most
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if unbounded(msg):
            values = _listed(msg["name"], msg["fn"], self.most)
            msg["fn"] = map_base(msg["fn"], lambda base: BoundedCounts(base, values))


def unbounded(site: dict[str, Any]) -> bool:
    """Whether a site is a latent count without a fixed largest value.

    What a scan has recorded of its sites does not tell: the bounds of all steps are traced there.
    """
    scanned = site.get("_control_flow_done")
    return not scanned and is_latent(site) and values_of(site["fn"]) is None


def _listed(name: str, fn: dist.Distribution, most: int) -> range:
    low, high = bounds_of(fn)
    if low is None:
        raise ProgramError(f"the values of site {name!r} cannot be listed: {unlisted(fn)}")
    return range(int(low.min()), (most if high is None else int(high.max())) + 1)


def with_counts(model: Callable, args: tuple, kwargs: dict) -> Callable:
    """The program, its latent counts listed as far as the data suggest; itself if it has none."""

    def read(trace: dict[str, dict]) -> tuple[bool, list[str]]:
        observed = any(x["type"] == "sample" and x["is_observed"] for x in trace.values())
        sites = [x for x in trace.values() if observed and unbounded(x)]
        endless = [x["name"] for x in sites if bounds_of(x["fn"])[1] is None]
        return bool(sites), endless

    found, endless = run_abstractly(model, args, kwargs, read)
    if not found:
        return model
    return up_to(model, _largest(endless[0], args, kwargs) + BEYOND if endless else 1)


def _largest(name: str, args: tuple, kwargs: dict) -> int:
    """The largest whole number among the arguments."""
    largest = 0
    for leaf in jax.tree.leaves((args, kwargs)):
        if isinstance(leaf, jax.core.Tracer):
            raise ProgramError(
                f"site {name!r} counts without bound, and the data are not known yet where its "
                "values are to be listed: pass up_to(model, most)"
            )
        if not hasattr(leaf, "dtype") or leaf.dtype == bool or not leaf.size:
            continue
        values = np.asarray(leaf)
        if values.dtype.kind in "iu" or (values.dtype.kind == "f" and (values % 1 == 0).all()):
            largest = max(largest, int(values.max()))
    if largest + BEYOND >= MOST_COUNTS:
        raise ProgramError(
            f"site {name!r} counts without bound, and the largest number in the data is {largest}: "
            "pass up_to(model, most) with the largest count that is to be listed"
        )
    return largest


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

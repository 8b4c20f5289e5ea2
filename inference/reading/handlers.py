"""The readings, as effect handlers: `states`, `marginal`, `quadratic_bound`.

The program stays as it is; each handler changes what one of its sites means.

    states            a latent site takes many values at once, on a new leading axis
    marginal          the latent site is summed out, the observed one becomes a mixture
    quadratic_bound   an observed Bernoulli or category becomes a quadratic lower bound of itself

By the time a message reaches a handler outside the program, the plates inside have acted on it:
`fn` is expanded, `scale` is final. Both facts are used below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from numpyro import handlers
from numpyro.primitives import Messenger

from .affine import unwrapped
from .anatomy import Anatomy, Latent, ProgramError, explained, inspect, run_abstractly
from .bounds import BoundedBernoulli, BoundedCategorical, map_base
from .mixture import StateMixture
from .states import AllStates, StateSet
from .sums import Part, log_prior_of


# `states` gives a latent site a whole table of values instead of one draw. The program broadcasts,
# so a single run yields the log probability of every candidate for every datum. Nothing else is
# changed: outer handlers see the site as if it had been sampled so.
class states(Messenger):  # noqa: N801
    """Let latent sites take every candidate at once, on a leading axis beyond all plates.

    :param fn: the program.
    :param values: site name -> values, (S, ...) to the left of the site's own shape.

    >>> from jax import random
    >>> from numpyro.handlers import seed, trace
    >>> from latentbits.models import binary_sparse_coding
    >>> both = jnp.array([[[0.0, 0.0]], [[1.0, 0.0]]])  # two states for one datum each
    >>> program = states(binary_sparse_coding, {"causes": both})
    >>> sites = trace(seed(program, random.key(0))).get_trace(jnp.ones((5, 3)), num_causes=2)
    >>> sites["observed"]["fn"].log_prob(jnp.ones((5, 3))).shape
    (2, 5)
    """

    def __init__(self, fn: Callable | None = None, values: dict[str, Array] | None = None):
        self.values = values or {}
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.values:
            if msg["is_observed"]:
                raise ProgramError(f"site {msg['name']!r} is observed: it has no other states")
            msg["value"] = self.values[msg["name"]]


# `marginal` is the same table read outward. A latent site disappears (it is stopped here, so that
# samplers outside never meet a discrete site), and its log probabilities become the weights of a
# mixture over candidates: the distribution of the observed site. With several observed sites the
# chain rule holds, each is a mixture under the posterior given those before it.
class marginal(Messenger):  # noqa: N801
    """Sum latents out of a program, exactly or over a truncated set of states.

    ``NUTS(marginal(model))``, ``SVI(marginal(model), ...)``, ``Predictive`` and ``log_likelihood``
    then see a program without discrete latents.

    :param fn: the program.
    :param states: which states to sum over; a truncated set gives a lower bound.
    :param sites: the latent sites to sum out; by default every discrete one in the data plate.
    :param plate: the data plate, where it cannot be found by itself.

    >>> from jax import random
    >>> from numpyro.infer.util import log_density
    >>> from latentbits.models import binary_sparse_coding
    >>> params = {"weights": jnp.eye(2, 3), "noise": 1.0, "sparsity": 0.3}
    >>> value, _ = log_density(
    ...     marginal(binary_sparse_coding), (jnp.ones((1, 3)),), {"num_causes": 2}, params)
    >>> bool(jnp.isfinite(value))
    True
    """

    def __init__(
        self,
        fn: Callable,
        states: StateSet = AllStates(),
        *,
        sites: Sequence[str] | None = None,
        plate: str | None = None,
    ):
        self.states, self.sites, self.plate = states, sites, plate
        self._run: _Run | None = None
        super().__init__(fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        anatomy = inspect(self.fn, args, kwargs, plate=self.plate, sites=self.sites)
        if self.sites is None:
            anatomy = anatomy._replace(latents=self._discrete(anatomy, args, kwargs))
        if not anatomy.latents:
            raise ProgramError(
                "the program has no discrete latent site in its data plate to sum out"
            )
        self._run = _Run(
            anatomy,
            table_of(anatomy, self.states),
            cache(lambda: masks_are_alike(self.fn, anatomy, args, kwargs)),
        )
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._run = None  # its arrays may be tracers of a trace that is over

    def _discrete(self, anatomy: Anatomy, args: tuple, kwargs: dict) -> tuple[Latent, ...]:
        """The discrete latents; without data the observed site looks like one, but is a leaf."""
        discrete = [x for x in anatomy.latents if x.num_values is not None]
        if not anatomy.observed:
            discrete = [x for x in discrete if self._has_children(anatomy, x, args, kwargs)]
        return tuple(discrete)

    def _has_children(self, anatomy: Anatomy, latent: Latent, args: tuple, kwargs: dict) -> bool:
        gap = (1,) * (anatomy.nesting - latent.batch_ndim)
        twice = jnp.zeros((2, *gap, *latent.shape), jnp.int32)

        def deepest(trace: dict[str, dict]) -> int:
            sites = [site for site in trace.values() if site["type"] == "sample"]
            return max(len(site["fn"].batch_shape) for site in sites)

        program = states(self.fn, {latent.name: twice})
        return run_abstractly(program, args, kwargs, deepest) > anatomy.nesting

    def process_message(self, msg: dict[str, Any]) -> None:
        run = self._run
        if run is None:
            raise ProgramError("marginal works as marginal(model)(...), not as a context manager")
        if msg["type"] not in ("sample", "deterministic"):
            return
        if all(frame.name != run.anatomy.plate for frame in msg["cond_indep_stack"]):
            return
        if msg["type"] == "deterministic":
            # It would be recorded with a candidate axis that nobody outside expects.
            msg["stop"] = True
        elif msg["name"] in run.values:
            run.enter(msg)
        elif run.depends(msg["fn"]):
            run.mix(msg)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if self._run is not None and msg.get("name") in self._run.pending:
            self._run.condition(msg)


class _Run:
    """The running weights log p(s, sites so far) of one call of a marginal program."""

    def __init__(self, anatomy: Anatomy, table: Array, masks_are_alike: Callable[[], bool]):
        self.anatomy, self.masks_are_alike = anatomy, masks_are_alike
        self.values = anatomy.unpack(table)
        self.log_weights: Array | None = None  # (S, rows)
        self.scale: Any = None
        self.before: tuple[Part, ...] = ()  # the observed sites so far
        self.pending: dict[str, StateMixture] = {}
        self.seen_observed = False
        self.waiting = set(self.values)

    def depends(self, fn: dist.Distribution) -> bool:
        return len(fn.batch_shape) > self.anatomy.nesting

    def enter(self, msg: dict[str, Any]) -> None:
        """A latent site: give it all its states and count their prior probability."""
        if self.seen_observed:
            raise ProgramError(
                f"site {msg['name']!r} is sampled after an observed site of the same datum: "
                "sample every latent of a datum before its observations"
            )
        msg["value"], msg["stop"] = self.values[msg["name"]], True
        log_prob = self.anatomy.per_datum(log_prior_of(msg["fn"], msg["value"]))
        if self.log_weights is None:
            self.log_weights, self.scale = log_prob, msg["scale"]
        else:
            self.log_weights += scale_ratio(msg["scale"], self.scale) * log_prob
        self.waiting.discard(msg["name"])

    def mix(self, msg: dict[str, Any]) -> None:
        """An observed site, or one to be simulated: it becomes the mixture over states."""
        if self.anatomy.observed and not msg["is_observed"]:
            raise ProgramError(
                f"the unobserved site {msg['name']!r} hangs on sites that are summed out: it would "
                "need one value per state; sum it out too, or sample it first"
            )
        if any(frame.dim < self.anatomy.plate_dim for frame in msg["cond_indep_stack"]):
            raise ProgramError(
                f"site {msg['name']!r} is in a plate around the plate {self.anatomy.plate!r}: a "
                "datum's states are summed for all of it at once; put the data plate outermost"
            )
        if self.waiting:
            raise ProgramError(
                f"site {msg['name']!r} comes before the latents {sorted(self.waiting)} of its "
                "datum: sample every latent of a datum before its observations"
            )
        power = scale_ratio(msg["scale"], self.scale)
        assert self.log_weights is not None
        alike = unwrapped(msg["fn"])[1] is None or self.masks_are_alike()
        msg["fn"] = StateMixture(
            msg["fn"], self.log_weights, self.before, power, self.anatomy, alike
        )
        self.pending[msg["name"]] = msg["fn"]
        msg["scale"] = self.scale
        msg["cond_indep_stack"] = [
            frame for frame in msg["cond_indep_stack"] if frame.dim <= self.anatomy.plate_dim
        ]
        self.seen_observed = True

    def condition(self, msg: dict[str, Any]) -> None:
        """The observed site has its value: update the weights for the sites that follow."""
        mixture = self.pending.pop(msg["name"])
        self.before = (*self.before, mixture.part(msg["value"]))


def masks_are_alike(model: Callable, anatomy: Anatomy, args: tuple, kwargs: dict) -> bool:
    """Whether the masks of the observed sites depend on no latent: `vmap` refuses if they do."""

    def masks(bits: Array) -> list[Array | None]:
        program = states(model, anatomy.unpack(bits))
        with handlers.block(), handlers.trace() as trace, handlers.seed(rng_seed=0), explained():
            program(*args, **kwargs)
        sites = (trace[name] for name in anatomy.observed)
        return [unwrapped(site["fn"])[1] for site in sites]

    some = jax.ShapeDtypeStruct((2, 1, 1, anatomy.num_bits), jnp.int32)
    try:
        jax.eval_shape(jax.vmap(masks, out_axes=None), some)
    except ValueError:
        return False
    return True


# `quadratic_bound` swaps the likelihood for a bound that is quadratic in the logits: the log joint
# becomes quadratic in whatever enters the logits linearly: Gaussian latents then have a
# Gaussian posterior, binary ones the matrix-product path.
class quadratic_bound(Messenger):  # noqa: N801
    """Replace an observed site by a bound that is quadratic in its logits.

    A Bernoulli site takes Jaakkola and Jordan's, a categorical one Böhning's:
    `inference.reading.bounds`.

    :param fn: the program.
    :param site: the observed Bernoulli or categorical site.
    :param xi: variational parameters, broadcast against the site's logits: (num_data, num_features)
        for Bernoulli, where the bound touches at logits ±xi; (num_data, num_features, num_levels)
        for categorical, where it touches at logits xi.

    >>> from jax import random
    >>> from numpyro.handlers import seed, trace
    >>> from latentbits.models import latent_trait
    >>> data = jnp.ones((5, 3))
    >>> def log_prob(program):
    ...     site = trace(seed(program, random.key(0))).get_trace(data)["observed"]
    ...     return site["fn"].log_prob(data)
    >>> bool((log_prob(quadratic_bound(latent_trait, xi=1.0)) <= log_prob(latent_trait)).all())
    True
    """

    def __init__(self, fn: Callable | None = None, site: str = "observed", xi: Array | float = 0.0):
        self.site, self.xi = site, xi
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] == self.site:
            msg["fn"] = map_base(msg["fn"], self._bounded)

    def _bounded(self, fn: dist.Distribution) -> dist.Distribution:
        xi = jnp.asarray(self.xi)
        if isinstance(fn, dist.BernoulliLogits | dist.BernoulliProbs):
            return BoundedBernoulli(fn.logits, xi)
        if isinstance(fn, dist.CategoricalLogits | dist.CategoricalProbs):
            return BoundedCategorical(fn.logits, xi)
        raise ProgramError(
            f"site {self.site!r} is {type(fn).__name__}: the bound is for Bernoulli and "
            "categorical sites"
        )


def table_of(anatomy: Anatomy, states: StateSet) -> Array:
    """The states of a set for this program, (S, num_data or 1, num_bits)."""
    for latent in anatomy.latents:
        if latent.num_values is None:
            raise ProgramError(f"site {latent.name!r} is not discrete: its states cannot be listed")
    num_values = [x.num_values or 0 for x in anatomy.latents for _ in range(x.size)]
    table = jnp.asarray(states.table(num_values))
    if table.ndim == 2:
        table = table[:, None, :]
    if table.shape[1] not in (1, anatomy.num_data):
        raise ProgramError(
            f"the states are given for {table.shape[1]} rows, but the plate {anatomy.plate!r} "
            f"has {anatomy.num_data}"
        )
    return table.astype(jnp.int32)


def scale_ratio(scale: Any, reference: Any) -> Any:
    """How much more a site is scaled than the first latent of its datum: a power of it."""
    if scale is reference:
        return 1.0
    return (1.0 if scale is None else scale) / (1.0 if reference is None else reference)


# `tempered` raises the likelihood to a power. The scale of a site is what its log probability is
# multiplied with, so that nothing else has to change.
class tempered(Messenger):  # noqa: N801
    """Raise the likelihood of the named observed sites to a power: 0 is the prior."""

    def __init__(self, fn: Callable, sites: tuple[str, ...], power: Array | float):
        self.sites, self.power = sites, power
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.sites:
            msg["scale"] = self.power * (1.0 if msg["scale"] is None else msg["scale"])
            # An impossible value costs nothing at power 0, where 0 times -inf would be NaN.
            msg["fn"] = msg["fn"].mask(jnp.asarray(self.power) > 0)

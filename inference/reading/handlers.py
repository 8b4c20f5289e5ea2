"""The readings as effect handlers: `states` and `quadratic_bound`; `marginal` has its own file.

The program stays as it is; each handler changes what one of its sites means.

    states            a latent site takes many values at once, on a new leading axis
    marginal          the latent site is summed out, the observed one becomes a mixture
    quadratic_bound   an observed Bernoulli or category becomes a quadratic lower bound of itself
    weighted          a row of the data plate counts as often as an argument says

By the time a message reaches a handler outside the program, the plates inside have acted on it:
`fn` is expanded, `scale` is final. Both facts are used below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from numpyro.primitives import Messenger

from .anatomy import Anatomy, ProgramError
from .distributions import BoundedBernoulli, BoundedCategorical, map_base
from .states import Given, StateSet


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


# `quadratic_bound` swaps the likelihood for a bound that is quadratic in the logits: the log joint
# becomes quadratic in whatever enters the logits linearly: Gaussian latents then have a
# Gaussian posterior, binary ones the matrix-product path.
class quadratic_bound(Messenger):  # noqa: N801
    """Replace an observed site by a bound that is quadratic in its logits.

    A Bernoulli site takes Jaakkola and Jordan's, a categorical one Böhning's:
    `inference.reading.distributions`.

    :param fn: the program.
    :param site: the observed Bernoulli or categorical site.
    :param xi: variational parameters, broadcast against the site's logits: (num_data, num_features)
        for Bernoulli, where the bound touches at logits ±xi; (num_data, num_features, num_levels)
        for categorical, where it touches at logits xi.

    >>> import jax
    >>> from numpyro.handlers import seed, trace
    >>> from latentbits.models import latent_trait
    >>> data = jnp.ones((5, 3))
    >>> def log_prob(program):
    ...     site = trace(seed(program, jax.random.key(0))).get_trace(data)["observed"]
    ...     return site["fn"].log_prob(data)
    >>> bounded = quadratic_bound(latent_trait, xi=1.0)
    >>> bool(jax.jit(lambda: (log_prob(bounded) <= log_prob(latent_trait)).all())())
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
    """The states of a set for this program, (S, num_data or 1, num_bits).

    Those of each row are left in the type that they are given in: there are many of them.
    """
    for latent in anatomy.latents:
        if latent.num_values is None:
            raise ProgramError(f"site {latent.name!r} is not discrete: its states cannot be listed")
    table = jnp.asarray(states.table(anatomy.num_values))
    if anatomy.lowest.any() and not isinstance(states, Given):  # other sets count values from 0
        table = table.astype(jnp.int32) + anatomy.lowest
    if table.ndim == 2:
        table = table[:, None, :]
    if table.shape[1] not in (1, anatomy.num_data):
        raise ProgramError(
            f"the states are given for {table.shape[1]} rows, but the plate {anatomy.plate!r} "
            f"has {anatomy.num_data}"
        )
    return table if table.shape[1] > 1 else table.astype(jnp.int32)


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
            msg["fn"] = msg["fn"].mask(self.power > 0)


WEIGHTS = "row_weights"
"""The argument that `weighted` adds to a program."""


def weighted(model: Callable, plate: str = "data") -> Callable:
    """The program with an argument ``row_weights``, (num_data,): how often each row counts.

    As if `numpyro.handlers.scale` stood inside the plate. Parameters and their priors stay as they
    are. Weights of a survey need not be whole numbers: `standard_errors` then wants
    ``sandwich=True``.

    :param plate: the plate of the rows.

    >>> from jax import random
    >>> from latentbits import EM
    >>> from latentbits.models import bernoulli_mixture
    >>> rows, counts = jnp.array([[0, 0], [1, 1]]), jnp.array([1.0, 3.0])
    >>> kwargs = {"num_components": 1, "row_weights": counts}
    >>> result = EM(weighted(bernoulli_mixture)).run(random.key(0), 1, rows, **kwargs)
    >>> [round(float(x), 3) for x in result.params["probs"][0]]
    [0.75, 0.75]
    """

    @functools.wraps(model)
    def program(*args: Any, row_weights: Any = None, **kwargs: Any) -> Any:
        if row_weights is None:
            return model(*args, **kwargs)
        scale = _row_scale(plate, row_weights)
        with scale:
            result = model(*args, **kwargs)
        if not scale.met:
            raise ProgramError(f"the program has no site in a plate {plate!r} to weigh")
        return result

    return program


class _row_scale(Messenger):  # noqa: N801
    """Scale the sites of a plate, entry by entry."""

    def __init__(self, plate: str, weights: Any):
        self.plate, self.weights, self.met = plate, jnp.asarray(weights), False
        super().__init__(None)

    def process_message(self, msg: dict[str, Any]) -> None:
        places = [frame.dim for frame in msg["cond_indep_stack"] if frame.name == self.plate]
        if msg["type"] == "sample" and places:
            each = self.weights.reshape(-1, *(1,) * (-places[0] - 1))
            msg["scale"] = each if msg["scale"] is None else msg["scale"] * each
            self.met = True

"""What was summed out comes back: the latents of each datum given its observations and parameters.

A sampler or a guide that ran on ``marginal(model)`` knows the parameters only. Given one draw of
them, the posterior of a datum's latents is a table again, of the same sums; from it come draws,
probabilities of single values, and the most probable state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Union

import jax
import jax.numpy as jnp
import numpyro
from jax import Array, lax, random
from numpyro import handlers
from numpyro.primitives import Messenger

from ..numerics.log_sums import normalise
from ..types import Arguments, Params
from .anatomy import Anatomy, ProgramError
from .elimination import Chain, Elements, Graph
from .handlers import table_of
from .latent_counts import MOST_COUNTS, at_end, counted, up_to, warn_of_end, with_counts
from .log_joint import Parts, parts_of
from .marginal import marginal
from .state_sums import over_states
from .states import AllStates, StateSet
from .strategy import find_elimination, find_table
from .tracing import outside

Sites = dict[str, Array]
Form = Union["Table", Chain, Graph, Elements]


# `recover` is the way back from `marginal`: the same sum over states, read as a posterior. The
# parameters come from the handlers outside, as for any program, so that `Predictive` draws the
# latents for every draw of the parameters.
class recover(Messenger):  # noqa: N801
    """Give discrete latents values from their posterior given the data and the parameters.

    ``Predictive(recover(model), samples)(rng_key, data)`` draws every latent that ``marginal`` had
    summed out, once for each draw of the parameters.

    :param fn: the program, or ``marginal(program, ...)``, whose settings are then used.
    :param states: which states are possible; all of them by default.
    :param sites: the latent sites to give back; by default every discrete one in the data plate.
    :param plate: the data plate, where it cannot be found by itself.
    :param best: the most probable state of each datum instead of a draw.

    >>> from numpyro.infer import Predictive
    >>> from latentbits.models import bernoulli_mixture
    >>> samples = {"mixing": jnp.array([[0.5, 0.5]]), "probs": jnp.array([[[1.0], [0.0]]])}
    >>> draw = Predictive(recover(bernoulli_mixture), samples)
    >>> compiled = jax.jit(lambda key: draw(key, jnp.array([[1], [0]]), num_components=2))
    >>> compiled(random.key(0))["component"].tolist()
    [[0, 1]]
    """

    def __init__(
        self,
        fn: Callable,
        states: StateSet = AllStates(),
        *,
        sites: Sequence[str] | None = None,
        plate: str | None = None,
        best: bool = False,
    ):
        if isinstance(fn, marginal):
            states, sites, plate = fn.states, fn.sites, fn.plate
            fn = fn.fn
        self.states, self.sites, self.plate, self.most_probable = states, sites, plate, best
        self._given: Params = {}
        super().__init__(fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = numpyro.prng_key()
        if key is None and not self.most_probable:
            raise ProgramError(
                "recover draws latents and needs a key: seed(recover(model), rng_key); or say "
                "best=True"
            )
        listed = self.listing(args, kwargs)
        if listed is not self:
            return listed(*args, **kwargs)
        form = self.form(args, kwargs)
        within = {*form.names, *form.observed}
        _, given, _ = outside(self.fn, within, args, kwargs, kinds=("deterministic",))
        factors: Any = form.factors(self.fn, given, (args, kwargs))
        latents = form.chosen(factors, None if self.most_probable else key)
        if isinstance(self.fn, up_to):
            _watch(self.fn, latents, args, kwargs)
        # NumPyro's scan hands out values in the order of its steps, which may begin at the end.
        back = {x.name for x in form.steps} if isinstance(form, Chain) and form.reverse else ()
        latents = {name: x[::-1] if name in back else x for name, x in latents.items()}
        self._given = given
        try:
            with self:
                return handlers.substitute(self.fn, data=latents)(*args, **kwargs)
        finally:
            self._given = {}  # tracers of a trace that is over

    def _of(self, model: Callable) -> recover:
        """The same of another program."""
        return recover(
            model, self.states, sites=self.sites, plate=self.plate, best=self.most_probable
        )

    def listing(self, args: tuple, kwargs: dict) -> recover:
        """The same with all latent counts listed."""
        listed = with_counts(self.fn, args, kwargs)
        return self if listed is self.fn else self._of(listed)

    def form(self, args: tuple, kwargs: dict) -> Form:
        """How the latents that are given back depend on each other and on what is observed."""
        form = find_elimination(self.fn, args, kwargs, self.states, self.sites, self.plate)
        if form is not None:
            if not (form.observed or form.silent):
                raise ProgramError(
                    "nothing that depends on the latents is observed: their posterior would be "
                    "their prior; pass the data (obs=...)"
                )
            return form
        anatomy, whole = find_table(self.fn, args, kwargs, self.sites, self.plate)
        if not anatomy.latents:
            raise ProgramError("the program has no discrete latent in its data plate to give back")
        if not anatomy.observed:
            raise ProgramError(
                f"nothing is observed inside the plate {anatomy.plate!r}: the posterior of its "
                "latents would be their prior; pass the data (obs=...)"
            )
        anatomy.check_rows_are_apart()
        others = tuple(x for x in whole.names if x not in anatomy.names)
        return Table(anatomy, self.states, (*whole.parameters, *others))

    def process_message(self, msg: dict[str, Any]) -> None:
        # What the handlers outside have met in the first run they must not meet again.
        if msg.get("name") in self._given:
            msg["value"], msg["stop"] = self._given[msg["name"]], True


class LatentPosterior(NamedTuple):
    """Latents given back, for each draw of the parameters: site -> values.

    >>> LatentPosterior({}, {}, {}).draws
    {}
    """

    draws: Sites  # one draw of the latents for each draw of the parameters
    probabilities: Sites  # of each value, on one more axis at the end
    best: Sites  # the most probable values, of all latents of a datum together


def latent_posterior(
    rng_key: Array,
    model: Callable,
    samples: Params,
    *args: Any,
    batch_ndims: int = 1,
    **kwargs: Any,
) -> LatentPosterior:
    """Draws, probabilities and most probable values of the latents for each posterior draw.

    :param model: the program, or ``marginal(program, ...)`` or ``recover(program, ...)``, whose
        settings are then used.
    :param samples: draws of all other unobserved sites, as a sampler or a guide gives them.
    :param batch_ndims: leading axes of `samples`: 1 for draws, 2 for chains of draws, 0 for a point
        estimate.

    The list of a latent count is doubled until its last count is improbable, unless `up_to` says
    how far it goes.

    >>> from latentbits.models import bernoulli_mixture
    >>> params = {"mixing": jnp.array([0.5, 0.5]), "probs": jnp.array([[0.9], [0.1]])}
    >>> posterior = latent_posterior(random.key(0), bernoulli_mixture, params, jnp.array([[1]]),
    ...     batch_ndims=0, num_components=2)
    >>> posterior.best["component"].tolist(), [round(float(x), 4) for x in
    ...     posterior.probabilities["component"][0]]
    ([0], [0.9, 0.1])
    """
    first = model if isinstance(model, recover) else recover(model)
    program = first.listing(args, kwargs)
    posterior = _posterior(rng_key, program, samples, args, kwargs, batch_ndims)
    if isinstance(program.fn, up_to) and any(map(_traced, jax.tree.leaves(posterior))):
        _watch(program.fn, posterior.draws, args, kwargs)
        return posterior
    while isinstance(listed := program.fn, up_to):
        reached = at_end(listed, posterior.probabilities, args, kwargs)
        if not reached:
            break
        longer = None
        if program is not first and 2 * listed.most < MOST_COUNTS:
            program = program._of(up_to(listed.fn, 2 * listed.most))
            with suppress(ProgramError):  # there are too many states
                longer = _posterior(rng_key, program, samples, args, kwargs, batch_ndims)
        if longer is None:
            warn_of_end(listed, reached)
            break
        posterior = longer
    return posterior


def _posterior(
    rng_key: Array,
    program: recover,
    samples: Params,
    args: tuple,
    kwargs: dict,
    batch_ndims: int,
) -> LatentPosterior:
    form = program.form(args, kwargs)
    wanted = form.parameters
    missing = [name for name in wanted if name not in samples]
    if missing:
        raise ProgramError(
            f"the samples hold no {missing[0]!r}: they have {sorted(samples)}, and the program's "
            f"other unobserved sites are {sorted(wanted)}"
        )
    given = {name: jnp.asarray(samples[name]) for name in wanted}
    batch = jnp.shape(next(iter(given.values())))[:batch_ndims] if given else ()
    flat = {name: x.reshape(-1, *x.shape[batch_ndims:]) for name, x in given.items()}
    leaves, tree = jax.tree.flatten((args, kwargs))
    known = {i: x for i, x in enumerate(leaves) if hasattr(x, "dtype")}

    @jax.jit
    def each(keys: Array, draws: Params, known: dict[int, Array]) -> LatentPosterior:
        arguments = jax.tree.unflatten(tree, [known.get(i, x) for i, x in enumerate(leaves)])

        def one(pair: tuple[Array, Params]) -> LatentPosterior:
            factors: Any = form.factors(program.fn, pair[1], arguments)
            draw, best = form.chosen(factors, pair[0]), form.chosen(factors, None)
            return LatentPosterior(draw, form.probabilities(factors), best)

        return lax.map(one, (keys, draws))

    keys = random.split(rng_key, len(next(iter(flat.values()))) if flat else 1)
    try:
        posterior = each(keys, flat, known)
    except ProgramError as error:
        # A program may take its sizes from values of its arguments, which are then constants.
        if not isinstance(error.__cause__, jax.errors.JAXTypeError | TypeError):
            raise
        posterior = each(keys, flat, {})
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), posterior)


def _traced(x: Any) -> bool:
    return isinstance(x, jax.core.Tracer)


def _watch(program: up_to, latents: Sites, args: tuple, kwargs: dict) -> None:
    """Warn at run time if a count that was chosen is the last of its list."""
    names = [name for name in counted(program, args, kwargs) if name in latents]

    def report(last: dict[str, Array]) -> None:
        reached = [name for name in names if last[name]]
        if reached:
            warn_of_end(program, reached)

    jax.debug.callback(report, {name: (latents[name] == program.most).any() for name in names})


class Table(NamedTuple):
    """The latents of one data plate, of which each datum has a table of joint states."""

    anatomy: Anatomy
    states: StateSet
    parameters: tuple[str, ...]  # all unobserved sites but these latents

    @property
    def names(self) -> tuple[str, ...]:
        return self.anatomy.names

    @property
    def observed(self) -> tuple[str, ...]:
        return self.anatomy.observed

    def factors(self, model: Callable, given: Params, arguments: Arguments) -> tuple[Array, Parts]:
        """The states, (S, num_data or 1, bits), and what their log joints consist of."""
        table = table_of(self.anatomy, self.states)
        return table, parts_of(model, [self.anatomy], given, [table], arguments)

    def chosen(self, factors: tuple[Array, Parts], rng_key: Array | None) -> Sites:
        """A draw of each datum's state; without a key the most probable one."""
        rows = (self.anatomy.num_data,)
        drawn = {} if rng_key is None else {"uniform": random.uniform(rng_key, rows)}

        def pick(logits: Array, extra: dict[str, Array]) -> Array:
            if rng_key is None:
                return _states_of(extra["table"], jnp.argmax(logits, axis=0))
            below = jnp.cumsum(normalise(logits, 0)[1], axis=0)
            return _states_of(extra["table"], (below < extra["uniform"] * below[-1:]).sum(0))

        return self.anatomy.by_site(self._read(factors, pick, **drawn))

    def probabilities(self, factors: tuple[Array, Parts]) -> Sites:
        """Of each value of each latent, on one more axis at the end."""

        def sum_up(logits: Array, extra: dict[str, Array]) -> Sites:
            table = extra["table"]
            states = table[:, None] if table.ndim == 2 else jnp.swapaxes(table, 0, 1)
            return self.anatomy.value_probabilities(states, normalise(logits, 0)[1])

        tables = self._read(factors, sum_up)
        return {x.name: x.by_value(tables[x.name]) for x in self.anatomy.latents}

    def _read(
        self, factors: tuple[Array, Parts], read: Callable[[Array, Any], Any], **extra: Array
    ) -> Any:
        """What `read` makes of the log joints of a chunk of rows and of their states."""
        table, (weights, sites, _) = factors
        rows = {**extra, "count": jnp.zeros(self.anatomy.num_data)}
        if table.shape[1] > 1:
            rows["table"] = jnp.swapaxes(table, 0, 1)

        def chunk(logits: Array, rows: dict[str, Array]) -> Any:
            logits = jnp.broadcast_to(logits, (len(logits), len(rows["count"])))
            return read(logits, {"table": table[:, 0], **rows})

        return over_states(chunk, weights, sites, self.anatomy.num_data, rows)


def _states_of(table: Array, chosen: Array) -> Array:
    """The chosen state of each row, (n, bits), of a table (S, bits) or (n, S, bits)."""
    if table.ndim == 2:
        return table[chosen]
    return jnp.take_along_axis(table, chosen[:, None, None], axis=1)[:, 0]

"""Hidden Markov chains: the discrete latents of a `numpyro.contrib.control_flow.scan`.

A step of the scan is a function of what is carried and of its own latents. How far back a site
looks (its order) follows from the step alone: which of its sites and which leaves of what it
carries depend on which. A chain of order d is then known from its factors φ_t(z_{t-d}, ..., z_t),
and these from S^(d+1) runs of the program in which the states repeat with period d + 1: every
combination of d + 1 neighbours occurs in one of them, at every step. The sums over paths
(`numerics.chain`) are linear in the number of steps; so is the posterior of the paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpyro import handlers
from numpyro.primitives import Messenger

from ..numerics import chain as sums
from ..types import Arguments, Params
from .abstract import ProgramError, improper, is_latent, leave, outside, trace_of
from .anatomy import unlisted, values_of
from .states import AllStates
from .sums import log_prob_of, scale_ratio

MOST_AT_ONCE = 1 << 24
"""Numbers that the steps of all runs may take side by side; beyond that they go one by one."""


class Link(NamedTuple):
    """A discrete latent of one step, or of the start."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]  # of the plates that hold the sequences, in `shape`
    num_values: int
    dtype: Any
    lowest: int  # value

    @classmethod
    def of(cls, site: dict[str, Any], plates: tuple[tuple[str, int, int], ...]) -> Link:
        fn, values = site["fn"], values_of(site["fn"])
        if values is None:
            raise ProgramError(
                f"the values of site {site['name']!r} cannot be listed: {unlisted(fn)}"
            )
        batch = tuple(fn.batch_shape)
        axes = tuple(len(batch) + dim for _, dim, _ in plates)
        shape = batch + tuple(fn.event_shape)
        kind = jnp.result_type(site["value"])
        return cls(site["name"], shape, axes, len(values), kind, values.start)

    @property
    def rest(self) -> tuple[int, ...]:
        """The shape of one sequence's own values."""
        return tuple(n for i, n in enumerate(self.shape) if i not in self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.rest)

    def place(self, values: Array, sizes: tuple[int, ...]) -> Array:
        """What each sequence has, (..., N or 1, size), in the site's shape, (..., *shape)."""
        lead = values.shape[:-2]
        sizes = sizes if values.shape[-2] == math.prod(sizes) else (1,) * len(sizes)
        whole = values.reshape(*lead, *sizes, *self.rest)
        where = range(len(lead), len(lead) + len(sizes))
        whole = jnp.moveaxis(whole, tuple(where), tuple(len(lead) + a for a in self.axes))
        return jnp.broadcast_to(whole, (*lead, *self.shape))

    def values(self, codes: Array, sizes: tuple[int, ...]) -> Array:
        """Numbers of values, (..., N or 1, size), as the value of the site, (..., *shape)."""
        return self.place(codes, sizes).astype(self.dtype) + self.lowest

    def by_value(self, states: Array, labels: Array, sizes: tuple[int, ...]) -> Array:
        """Probabilities of states (..., N, S), whose values are labels (S, size), as those of its
        values, in one more axis of the site's shape."""
        hot = (labels[..., None] == jnp.arange(self.num_values)).astype(states.dtype)
        each = jnp.einsum("...ns,sik->k...ni", states, hot)
        return jnp.moveaxis(self.place(each, sizes), 0, -1)


class Chain(NamedTuple):
    """What a program with a scan over discrete latents consists of. Static: it holds no arrays."""

    links: tuple[Link, ...]  # the discrete latents of a step
    start: tuple[Link, ...]  # those before the first step
    plates: tuple[tuple[str, int, int], ...]  # name, dim and size of those that hold the sequences
    nesting: int
    orders: tuple[tuple[str, int], ...]  # site of a step -> how many steps back it looks
    starters: tuple[str, ...]  # observed sites outside the scan that depend on the start
    observed: tuple[str, ...]  # observed sites of a step that depend on latents
    parameters: tuple[str, ...]  # all other unobserved sites
    hidden: tuple[str, ...]  # deterministic sites of a step, or that depend on latents
    length: int
    reverse: bool
    other: tuple[str, ...] = ()  # observed sites, of a step or not, that depend on no latent
    effects: tuple[str, ...] = ()  # of the parameters, those that are random effects
    reached: tuple[int, ...] = ()  # leaves of what a step carries that latents get into
    steady: tuple[str, ...] = ()  # sites of a step that depend on its latents and on nothing else

    @property
    def order(self) -> int:
        return max(1, *(order for _, order in self.orders))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for _, _, size in self.plates)

    @property
    def num_sequences(self) -> int:
        return math.prod(self.sizes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(link.name for link in (*self.start, *self.links))

    def table(self, links: tuple[Link, ...]) -> np.ndarray:
        """The joint states of some latents, (S, their values)."""
        return AllStates().table([x.num_values for x in links for _ in range(x.size)])

    @property
    def num_states(self) -> int:
        return math.prod(x.num_values**x.size for x in self.links)

    def values(self, links: tuple[Link, ...], codes: Array) -> dict[str, Array]:
        """Numbers of states (..., N or 1) as values of each latent, (..., *shape)."""
        states = jnp.asarray(self.table(links))[codes]
        values, begin = {}, 0
        for link in links:
            part = states[..., begin : begin + link.size]
            values[link.name] = link.values(part, self.sizes)
            begin += link.size
        return values

    def per_sequence(self, log_prob: Array) -> Array:
        """Sum a site's log probability over all that is not a sequence: (N,)."""
        whole = jnp.reshape(log_prob, (1,) * (self.nesting - log_prob.ndim) + log_prob.shape)
        dims = tuple(whole.ndim + dim for _, dim, _ in self.plates)
        rest = tuple(i for i in range(whole.ndim) if i not in dims)
        return jnp.broadcast_to(whole.sum(rest), self.sizes).reshape(-1)

    def site(self, site: dict[str, Any], reference: Any) -> Array:
        """The log probability of a site, (N,)."""
        log_prob = log_prob_of(site, site["name"] in self.names)
        return self.per_sequence(scale_ratio(site["scale"], reference) * log_prob)

    def factors(
        self, model: Callable, given: Params, arguments: Arguments
    ) -> tuple[Array, Array | None]:
        """The log factors, (T, N, S, S^order), and log p(start, what depends on it), (N, S)."""
        count, length, order = self.num_states, self.length, self.order
        total: Array = jnp.zeros(())
        start = None
        kinds = {(order, name in self.steady) for name, order in self.orders}
        for own, steady in sorted(kinds):
            names = {
                name for name, order in self.orders
                if order == own and (name in self.steady) == steady
            }  # fmt: skip
            period = own + 1
            steps_read = min(period, length) if steady else length
            codes = np.indices((count,) * period).reshape(period, -1)  # (colours, runs)
            # The start stands one step before the first.
            path = codes[np.arange(-1, steps_read) % period].T  # (runs, 1 + T)
            run = partial(self._run, model, given, arguments, names)
            steps, begin = jax.vmap(run)(jnp.asarray(path[:, 1:]), jnp.asarray(path[:, 0]))
            steps = steps.reshape(*(count,) * period, steps_read, self.num_sequences)
            whole = jnp.zeros((steps_read, self.num_sequences, *(count,) * period), steps.dtype)
            for phase in range(period):
                axes = [(phase + 1 + i) % period for i in range(period)]
                part = steps[..., phase::period, :].transpose(period, period + 1, *axes)
                whole = whole.at[phase::period].set(part)
            # All later steps are like the first that has as many before it as it looks back.
            more = jnp.broadcast_to(whole[-1:], (length - steps_read, *whole.shape[1:]))
            whole = jnp.concatenate([whole, more])
            whole = whole.reshape(*whole.shape[:2], *(1,) * (order - own), *(count,) * period)
            total = total + whole
            if own == 0 and not steady:
                start = begin.T if self.start else None
        if self.start and start is None:
            every = jnp.arange(count)
            same = jnp.broadcast_to(every[:, None], (count, length))
            start = jax.vmap(partial(self._run, model, given, arguments, set()))(same, every)[1].T
        shape = (length, self.num_sequences, count, count**order)
        return jnp.broadcast_to(total, (*shape[:2], *(count,) * (order + 1))).reshape(shape), start

    def _run(
        self,
        model: Callable,
        given: Params,
        arguments: Arguments,
        names: set[str],
        codes: Array,
        begin: Array,
    ) -> tuple[Array, Array]:
        """Log probabilities of some sites by step, (T, N), and of the start, (N,), on one path."""
        values = self.values(self.start, begin[None]) if self.start else {}
        steps = _Steps(model, self, names, codes)
        trace = trace_of(steps, arguments, {**given, **values})
        assert steps.log_probs is not None
        first = [trace[x] for x in (*(link.name for link in self.start), *self.starters)]
        reference = first[0]["scale"] if first else None
        total = sum((self.site(site, reference) for site in first), jnp.zeros(self.num_sequences))
        return steps.log_probs, total


class _Steps(Messenger):
    """Runs the scan on given states, and keeps the log probabilities of a step's sites."""

    def __init__(self, fn: Callable, chain: Chain, names: set[str], codes: Array):
        self.chain, self.names, self.codes = chain, names, codes
        self.log_probs: Array | None = None
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "control_flow" and has_latents(msg["args"]):
            msg["value"], msg["stop"] = self._scan(*msg["args"]), True

    def _scan(self, f: Callable, init: Any, xs: Any, length: int | None, reverse: bool) -> Any:
        chain, read = self.chain, len(self.codes)
        xs = jax.tree.map(lambda x: (x[::-1] if reverse else x)[:read], xs)
        items = xs, chain.values(chain.links, self.codes[:, None])

        def body(carry: Any, item: tuple[Any, dict[str, Array]]) -> tuple[Any, tuple[Array, Any]]:
            x, values = item
            trace, (carry, y) = traced(handlers.substitute(f, data=values), carry, x)
            reference = trace[chain.links[0].name]["scale"]
            parts = (chain.site(trace[name], reference) for name in sorted(self.names))
            return carry, (sum(parts, jnp.zeros(chain.num_sequences)), y)

        own = max([order for name, order in chain.orders if name in self.names], default=0)
        cells = max(chain.num_sequences, sum(x[0].size for x in jax.tree.leaves(xs)))
        if chain.num_states ** (own + 1) * read * cells <= MOST_AT_ONCE:
            last, (self.log_probs, ys) = self._at_once(body, init, items, own)
        else:
            last, (self.log_probs, ys) = lax.scan(body, init, items)
        # What the scan returns matters by its shape alone.
        ys = jax.tree.map(lambda x: jnp.resize(x, (chain.length, *x.shape[1:])), ys)
        return (length, None, last), (NoSites(), ys)

    def _at_once(self, body: Callable, init: Any, items: Any, own: int) -> Any:
        """All steps side by side, for sites that look `own` steps back.

        What a step carries on depends on the latents of as many steps; all else that is carried (a
        count of the steps, say) depends on none, and is found step by step.
        """
        first, tree = jax.tree.flatten(init)
        free = [i for i in range(len(first)) if i not in self.chain.reached]

        def count(held: list[Array], item: Any) -> tuple[list[Array], list[Array]]:
            whole = [held[free.index(i)] if i in free else x for i, x in enumerate(first)]
            new = jax.tree.leaves(body(jax.tree.unflatten(tree, whole), item)[0])
            return [new[i] for i in free], held

        # Operations of the body that these do not need are removed by the compiler.
        some = jax.tree.map(lambda x: jnp.zeros_like(x), items[1])
        entered = lax.scan(count, [first[i] for i in free], (items[0], some))[1] if free else []
        before = [jnp.broadcast_to(x, (len(self.codes), *jnp.shape(x))) for x in first]
        for i, known in zip(free, entered, strict=True):
            before[i] = known
        for _ in range(own):
            after = jax.tree.leaves(jax.vmap(body)(jax.tree.unflatten(tree, before), items)[0])
            for i, x in enumerate(after):
                if i not in free:
                    before[i] = jnp.concatenate([jnp.asarray(first[i], x.dtype)[None], x[:-1]])
        carry, outputs = jax.vmap(body)(jax.tree.unflatten(tree, before), items)
        return jax.tree.map(lambda x: x[-1], carry), outputs


class NoSites:
    """What NumPyro's scan would record."""

    trace: dict[str, dict] = {}  # noqa: RUF012


def traced(f: Callable, *args: Any) -> tuple[dict[str, dict], Any]:
    filled, at_zero = handlers.substitute(substitute_fn=improper), handlers.seed(rng_seed=0)
    with handlers.block(), handlers.trace() as trace, filled, at_zero:
        returned = f(*args)
    return {name: site for name, site in trace.items() if site["type"] != "plate"}, returned


def first_step(args: tuple) -> tuple[Callable, Any, Any]:
    f, init, xs, _, reverse = args
    return f, init, jax.tree.map(lambda x: x[-1 if reverse else 0], xs)


def has_latents(args: tuple) -> bool:
    return any(map(is_latent, traced(*first_step(args))[0].values()))


def sum_chain(model: Callable, chain: Chain, args: tuple, kwargs: dict) -> Any:
    """Run the program with its chain summed out: one factor per sequence is left of it.

    The factor has the name of the first observed site of a step. Where nothing is observed the
    program runs as it is, and simulates.
    """
    shown = (*chain.observed, *chain.starters)
    if not (shown or chain.other):
        return model(*args, **kwargs)
    within = {*chain.names, *chain.observed, *chain.starters, *chain.hidden}
    trace, given, returned = outside(model, within, args, kwargs)
    if shown:
        evidence = sums.evidence(*chain.factors(model, given, (args, kwargs)))
        left = evidence if chain.plates else evidence[0]
        leave(shown[0], left, trace[chain.links[0].name]["scale"])
    return returned


class ChainPosterior(NamedTuple):
    """The posterior of the paths of a chain, given the parameters."""

    chain: Chain
    factors: Array
    start: Array | None

    def chosen(self, rng_key: Array | None) -> dict[str, Array]:
        """A path of each sequence: a draw, or without a key the most probable one, Viterbi's."""
        return self._sites(*sums.paths(self.factors, self.start, rng_key))

    def probabilities(self) -> dict[str, Array]:
        """Of each value of each latent at each step: (T, ..., num_values)."""
        _, (joined, begin) = sums.statistics(self.factors, self.start)
        length, num_sequences, num_states, _ = joined.shape
        steps = joined.reshape(length, num_sequences, -1, num_states).sum(2)
        probs = self._values(self.chain.links, self._turned(steps))
        return {**self._values(self.chain.start, begin), **probs} if self.chain.start else probs

    def _values(self, links: tuple[Link, ...], states: Array) -> dict[str, Array]:
        """Probabilities of states (..., N, S) as those of each latent's values."""
        table, place, probs = jnp.asarray(self.chain.table(links)), 0, {}
        for link in links:
            labels = table[:, place : place + link.size]
            probs[link.name] = link.by_value(states, labels, self.chain.sizes)
            place += link.size
        return probs

    def _sites(self, codes: Array, begin: Array) -> dict[str, Array]:
        values = self.chain.values(self.chain.links, self._turned(codes))
        start = self.chain.start
        return {**self.chain.values(start, begin), **values} if start else values

    def _turned(self, steps: Array) -> Array:
        return steps[::-1] if self.chain.reverse else steps

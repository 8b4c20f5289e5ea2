"""Sums over all states of a program's discrete latents, by NumPyro's own log density.

Slower and dumber than the code: the whole program runs on every joint assignment.
"""

import itertools
import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jax.scipy.special import logsumexp
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.distribution import validation_enabled
from numpyro.infer.util import log_density
from numpyro.primitives import Messenger
from tools import near

from inference import latent_posterior, marginal
from inference.reading.tracing import innermost, is_masked


def unseen(site):
    """Whether a site is the part of a response that `obs_mask` hides: it integrates to one."""
    return site["name"].endswith("_unobserved") and not site["fn"].support.is_discrete


class own_weight(Messenger):  # noqa: N801
    """A mask on a latent is not applied to it: its states sum to one, as docs/programs.md says.

    Nor does the part of a response that is not seen count.
    """

    def process_message(self, msg):
        if msg["type"] != "sample" or msg["is_observed"]:
            return
        if unseen(msg):
            msg["fn"], msg["value"] = msg["fn"].mask(False), jnp.zeros(msg["fn"].shape())
        elif is_masked(msg["fn"]):
            msg["fn"] = msg["fn"].base_dist


def values_of(fn, most):
    """The values of a discrete site; a count's as far as `most`."""
    support = fn.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    low = int(np.min(getattr(support, "lower_bound", 0)))
    return range(low, 1 + int(np.max(getattr(support, "upper_bound", most or 1))))


def spread(site):
    """A value of a site: continuous ones are spread out on the line that each is mapped to."""
    if site["type"] != "sample" or site["value"] is not None:
        return None
    fn, first = site["fn"], zlib.crc32(site["name"].encode()) % 100
    if fn.support.is_discrete:
        return jnp.zeros(fn.shape(), int)
    place = lambda shape: jnp.sin(first + 2.4 * np.arange(math.prod(shape))).reshape(shape)  # noqa: E731
    if isinstance(innermost(fn), dist.Normal):
        return fn.mean + jnp.sqrt(fn.variance) * place(fn.shape())
    line = biject_to(fn.support)
    return line(place(line.inverse_shape(fn.shape())))


def somewhere(model, args, most=0):
    """Values of the continuous sites; the shape of each discrete one, and its values.

    They are no draws: to compile a generator takes longer than all else.
    """
    latents = {}

    def run():
        filled = handlers.substitute(substitute_fn=spread)
        with handlers.trace() as trace, filled, handlers.seed(rng_seed=1):
            model(*args)
        free = [x for x in trace.values() if x["type"] == "sample" and not x["is_observed"]]
        free = [x for x in free if not unseen(x)]
        for x in free:
            if x["fn"].support.is_discrete:
                latents[x["name"]] = jnp.shape(x["value"]), values_of(x["fn"], most)
        return {x["name"]: x["value"] for x in free if x["name"] not in latents}

    return jax.jit(run)(), latents


def total(model, args, params, latents):
    """The log density, summed over at most 2^14 states of the latents."""
    assert np.prod([float(len(x)) ** np.prod(shape) for shape, x in latents.values()]) <= 1 << 14
    return float(logsumexp(every(own_weight(model), args, params, latents)[1]))


def every(model, args, params, latents):
    """All assignments, site -> (A, *shape), and their log densities, (A,).

    :param latents: site -> (shape, its values, or how many from zero on)
    """
    ranges, parts = [], {}
    for name, (shape, values) in latents.items():
        size = int(np.prod(shape, dtype=int))
        parts[name] = slice(len(ranges), len(ranges) + size), shape
        ranges += [range(values) if isinstance(values, int) else values] * size
    rows = np.array(list(itertools.product(*ranges)))
    values = {name: rows[:, part].reshape(-1, *shape) for name, (part, shape) in parts.items()}
    one = lambda v: log_density(model, args, {}, {**params, **v})[0]  # noqa: E731
    with validation_enabled(False):  # NumPyro compares data of NumPy with a traced largest value
        return values, jax.jit(jax.vmap(one))(values)


def density(model, args, params):
    """The log density of a program whose discrete latents are summed out."""
    return jax.jit(lambda p: log_density(marginal(model), args, {}, p)[0])(params)


def check(model, args, params, latents, draws=1, slopes=False):
    """The evidence, the probability of every value and the best state are those of all states.

    :return: all assignments and their log densities
    """
    values, logs = every(model, args, params, latents)
    if slopes:
        summed = lambda p: log_density(marginal(model), args, {}, p)[0]  # noqa: E731
        total, found = jax.jit(jax.value_and_grad(summed))(params)
        wanted = jax.grad(lambda p: logsumexp(every(model, args, p, latents)[1]))(params)
        for name in params:
            near(found[name], wanted[name])
    else:
        total = density(model, args, params)
    near(total, logsumexp(logs))
    weight = np.asarray(jax.nn.softmax(logs))
    samples = {name: jnp.repeat(jnp.asarray(x)[None], draws, 0) for name, x in params.items()}
    posterior = latent_posterior(random.key(1), model, samples, *args)
    for name, (_, states) in latents.items():
        # A program without parameters has no draws of them.
        first = (lambda x: x[0]) if params else (lambda x: x)
        best, probabilities = first(posterior.best[name]), first(posterior.probabilities[name])
        np.testing.assert_array_equal(best, values[name][weight.argmax()])
        for place, value in enumerate(range(states) if isinstance(states, int) else states):
            wanted = np.tensordot(weight, values[name] == value, 1)
            near(probabilities[..., place], wanted, 1e-4)
        if draws > 1:
            mean = np.tensordot(weight, values[name], 1)
            assert np.abs(posterior.draws[name].mean(0) - mean).max() < 5 * 0.5 / np.sqrt(draws)
    return values, np.asarray(logs)

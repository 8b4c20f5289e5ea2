"""Sums over all states of a program's discrete latents, by NumPyro's own log density.

Slower and dumber than the code: the whole program runs on every joint assignment.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.special import logsumexp
from numpyro.infer.util import log_density
from tools import near

from inference import latent_posterior, marginal


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
    return values, jax.jit(jax.vmap(one))(values)


def density(model, args, params):
    """The log density of a program whose discrete latents are summed out."""
    return jax.jit(lambda p: log_density(marginal(model), args, {}, p)[0])(params)


def check(model, args, params, latents, draws=0, slopes=False):
    """The evidence, the probability of every value and the best state are those of all states."""
    values, logs = every(model, args, params, latents)
    near(density(model, args, params), logsumexp(logs))
    if slopes:
        found = jax.grad(lambda p: density(model, args, p))(params)
        wanted = jax.grad(lambda p: logsumexp(every(model, args, p, latents)[1]))(params)
        for name in params:
            near(found[name], wanted[name])
    weight = np.asarray(jax.nn.softmax(logs))
    posterior = latent_posterior(random.key(0), model, params, *args, batch_ndims=0)
    for name, (_, states) in latents.items():
        np.testing.assert_array_equal(posterior.best[name], values[name][weight.argmax()])
        for place, value in enumerate(range(states) if isinstance(states, int) else states):
            wanted = np.tensordot(weight, values[name] == value, 1)
            near(posterior.probabilities[name][..., place], wanted, 1e-4)
    if draws:
        samples = {name: jnp.repeat(jnp.asarray(x)[None], draws, 0) for name, x in params.items()}
        drawn = latent_posterior(random.key(1), model, samples, *args).draws
        for name in latents:
            mean = np.tensordot(weight, values[name], 1)
            assert np.abs(drawn[name].mean(0) - mean).max() < 5 * 0.5 / np.sqrt(draws)

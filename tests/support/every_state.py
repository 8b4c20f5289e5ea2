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

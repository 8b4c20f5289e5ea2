"""Programs with discrete latents, summed by `marginal` and by NumPyro's own enumeration (funsor).

    python benchmarks/bench_funsor.py

Printed for each program: the largest difference of log density and gradient at three random points
in float64, relative to their size, and the processor milliseconds of one value with gradient by
either, in float64, after compilation.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer import init_to_uniform
from numpyro.infer.util import log_density

from latentbits import marginal

RNG = np.random.default_rng(0)


def hidden_markov(seen, num_states):
    """A chain for each column of `seen`, (steps, sequences)."""
    flat = dist.Dirichlet(jnp.ones(num_states)).expand([num_states])
    move = numpyro.sample("move", flat.to_event(1))
    level = numpyro.sample("level", dist.Normal(0.0, 2.0).expand([num_states]).to_event(1))

    def step(state, now):
        with numpyro.plate("sequences", seen.shape[1]):
            state = numpyro.sample("state", dist.Categorical(move[state]))
            numpyro.sample("seen", dist.Normal(level[state], 0.8), obs=now)
        return state, None

    scan(step, jnp.zeros(seen.shape[1], int), seen)


def latent_classes(answers, num_classes):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(num_classes)))
    prior = dist.Beta(1.0, 1.0).expand([num_classes, answers.shape[1]])
    probs = numpyro.sample("probs", prior.to_event(2))
    with numpyro.plate("data", len(answers)):
        kind = numpyro.sample("kind", dist.Categorical(share))
        numpyro.sample("answers", dist.Bernoulli(probs[kind]).to_event(1), obs=answers)


def dawid_skene(positions, annotations):
    """NumPyro's own example: annotators in the outer plate, items in the inner one."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("annotator", annotations.shape[1], dim=-2), numpyro.plate("class", 3):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("item", len(annotations), dim=-1):
        kind = numpyro.sample("kind", dist.Categorical(share))
        with numpyro.plate("position", annotations.shape[1], dim=-2):
            shown = beta[positions[:, None], kind, :]
            numpyro.sample("y", dist.Categorical(shown), obs=annotations.T)


def nested(heights):
    """A bit for each group and one for each member that depends on it."""
    rate = numpyro.sample("rate", dist.Beta(2.0, 2.0))
    gap = numpyro.sample("gap", dist.Normal(0.0, 2.0))
    with numpyro.plate("groups", heights.shape[1], dim=-1):
        tall = numpyro.sample("tall", dist.Bernoulli(rate))
        with numpyro.plate("members", heights.shape[0], dim=-2):
            own = numpyro.sample("own", dist.Bernoulli(0.2 + 0.5 * tall))
            numpyro.sample("heights", dist.Normal(gap * own + tall, 1.0), obs=heights)


def spike_and_slab(design, response):
    """Indicators that all rows share."""
    on = [numpyro.sample(f"on {i}", dist.Bernoulli(0.3)) for i in range(design.shape[1])]
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([len(on)]).to_event(1))
    mean = sum(design[:, i] * effect[i] * on[i] for i in range(len(on)))
    with numpyro.plate("data", len(response)):
        numpyro.sample("response", dist.Normal(mean, 1.0), obs=response)


def classes_of_a_trait(answers):
    """A continuous latent beside a discrete one."""
    gap = numpyro.sample("gap", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", len(answers)):
        kind = numpyro.sample("kind", dist.Categorical(jnp.array([0.5, 0.3, 0.2])))
        trait = numpyro.sample("trait", dist.Normal(gap * kind, 1.0))
        logits = trait[..., None] + jnp.arange(answers.shape[1])
        numpyro.sample("answers", dist.Bernoulli(logits=logits).to_event(1), obs=answers)


def bits(*shape):
    return jnp.asarray(RNG.integers(0, 2, shape))


CASES = {
    "hidden Markov chain, 1000 steps, 3 states": (hidden_markov, RNG.normal(size=(1000, 1)), 3),
    "20 chains, 1000 steps, 4 states": (hidden_markov, RNG.normal(size=(1000, 20)), 4),
    "100 chains, 200 steps, 8 states": (hidden_markov, RNG.normal(size=(200, 100)), 8),
    "latent classes, 2000 × 10, 5 classes": (latent_classes, bits(2000, 10), 5),
    "Dawid–Skene, 500 items, 5 annotators": (
        dawid_skene, np.arange(5), RNG.integers(0, 3, (500, 5)),
    ),
    "nested plates, 100 groups of 20": (nested, RNG.normal(size=(20, 100))),
    "spike and slab, 8 shared bits": (
        spike_and_slab, RNG.normal(size=(200, 8)), RNG.normal(size=200),
    ),
    "trait with three classes, 1000 × 8": (classes_of_a_trait, bits(1000, 8)),
}  # fmt: skip


def points(program, arguments, count=3):
    """Random points, uniform on the real line that each parameter is mapped to."""

    def draw(key):
        seeded = handlers.substitute(handlers.seed(program, key), substitute_fn=init_to_uniform)
        trace = handlers.trace(seeded).get_trace(*arguments)
        free = [x for x in trace.values() if x["type"] == "sample" and not x["is_observed"]]
        return {x["name"]: x["value"] for x in free}

    return [jax.jit(draw)(random.key(i)) for i in range(count)]


def milliseconds(function, params, least=1.0):
    """Of the processor, for one call: many of them, for at least so many seconds."""
    count, began = 0, time.process_time()
    while (taken := time.process_time() - began) < least or count < 5:
        jax.block_until_ready(function(params))
        count += 1
    return 1e3 * taken / count


def main():
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor import log_density as enumerated

    numpyro.enable_x64()
    print(f"{'':42} {'density':>8} {'gradient':>9} {'ms':>8} {'funsor ms':>10}")
    for name, (program, *given) in CASES.items():
        arguments = tuple(jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in given)
        ours = lambda p: log_density(marginal(program), arguments, {}, p)[0]  # noqa: B023, E731
        listed = enum(config_enumerate(program), first_available_dim=-3)
        theirs = lambda p: enumerated(listed, arguments, {}, p)[0]  # noqa: B023, E731
        summed, wanted = (jax.jit(jax.value_and_grad(f)) for f in (ours, theirs))
        value = slope = 0.0
        for params in points(marginal(program), arguments):
            (a, da), (b, db) = summed(params), wanted(params)
            value = max(value, abs(float((a - b) / b)))
            size = max(float(jnp.abs(x).max()) for x in db.values())
            slope = max(slope, *(float(jnp.abs(da[k] - db[k]).max()) / size for k in db))
        times = [milliseconds(function, params) for function in (summed, wanted)]
        print(f"{name:42} {value:8.0e} {slope:9.0e} {times[0]:8.2f} {times[1]:10.2f}", flush=True)


if __name__ == "__main__":
    main()

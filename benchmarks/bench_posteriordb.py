"""Programs of posteriordb with their discrete sites, summed out, beside sums by hand.

    python benchmarks/bench_posteriordb.py PATH [--draws 1000]

PATH holds the data and reference draws of posteriordb (M0, Mb and Mt data, low_dim_gauss_mix and
hmm_example, as .json.zip). Printed for each program: the largest difference of log density and
gradient from the sum over states written by hand, at five random points in float64; the same of
NumPyro's own enumeration (funsor), the time of one value with gradient by either; and the largest
distance of a posterior mean from the reference draws in Monte-Carlo standard errors of both.
"""

import argparse
import json
import time
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from jax.scipy.special import log_ndtr, logsumexp
from latentbits.inference.evaluation.diagnostics import mcse
from numpyro.contrib.control_flow import scan
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

from latentbits import marginal


def load(path, name):
    with zipfile.ZipFile(path / f"{name}.json.zip") as file:
        return json.loads(file.read(file.namelist()[0]))


# Each program has a `rows` function for its discrete sites, and a sum by hand in its place.
def capture(detection, by_hand):
    """Capture histories of M animals, some of which never were: M0, Mb and Mt."""

    def program(y):
        omega = numpyro.sample("omega", dist.Uniform(0.0, 1.0))
        probability = jnp.broadcast_to(detection(y), y.shape)
        if by_hand:
            seen = dist.Bernoulli(probability).to_event(1).log_prob(y)
            absent = jnp.where(y.sum(1) > 0, -jnp.inf, jnp.log1p(-omega))
            numpyro.factor("evidence", jnp.logaddexp(jnp.log(omega) + seen, absent))
            return
        with numpyro.plate("animals", len(y)):
            here = numpyro.sample("here", dist.Bernoulli(omega))
            seen = dist.Bernoulli(here[..., None] * probability).to_event(1)
            numpyro.sample("seen", seen, obs=y)

    return program


def constant(y):
    del y
    return numpyro.sample("p", dist.Uniform(0.0, 1.0))


def by_occasion(y):
    return numpyro.sample("p", dist.Uniform(0.0, 1.0).expand([y.shape[1]]).to_event(1))


def by_trap(y):
    p, c = (numpyro.sample(name, dist.Uniform(0.0, 1.0)) for name in ("p", "c"))
    before = jnp.pad(y[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(before == 1, c, p)


def above(name, loc, scale, low):
    """A normal number known to be above another, of which the constant is left out as Stan does."""
    value = numpyro.sample(name, dist.TruncatedNormal(loc, scale, low=low))
    numpyro.factor(f"{name}_above", log_ndtr((loc - low) / scale))
    return value


def mixture(by_hand):
    def program(y):
        first = numpyro.sample("mu[1]", dist.Normal(0.0, 2.0))
        mu = jnp.stack([first, above("mu[2]", 0.0, 2.0, first)])
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
        theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
        mixing = jnp.stack([theta, 1.0 - theta])
        if by_hand:
            each = jnp.log(mixing) + dist.Normal(mu, sigma).log_prob(y[:, None])
            numpyro.factor("evidence", logsumexp(each, axis=1))
            return
        with numpyro.plate("data", len(y)):
            kind = numpyro.sample("kind", dist.Categorical(mixing))
            numpyro.sample("y", dist.Normal(mu[kind], sigma[kind]), obs=y)

    return program


def chain(by_hand):
    def program(y):
        theta = jnp.stack(
            [numpyro.sample(f"theta{k}", dist.Dirichlet(jnp.ones(2))) for k in (1, 2)]
        )
        first = above("mu[1]", 3.0, 1.0, 0.0)
        mu = jnp.stack([first, above("mu[2]", 10.0, 1.0, first)])
        if by_hand:
            shown = dist.Normal(mu, 1.0).log_prob(y[:, None])

            def forward(gamma, now):
                return logsumexp(gamma[:, None] + jnp.log(theta), axis=0) + now, None

            gamma, _ = jax.lax.scan(forward, jnp.log(0.5) + shown[0], shown[1:])
            numpyro.factor("evidence", logsumexp(gamma))
            return
        state = numpyro.sample("first", dist.Categorical(jnp.array([0.5, 0.5])))
        numpyro.sample("begun", dist.Normal(mu[state], 1.0), obs=y[0])

        def step(state, now):
            state = numpyro.sample("state", dist.Categorical(theta[state]))
            numpyro.sample("shown", dist.Normal(mu[state], 1.0), obs=now)
            return state, None

        scan(step, state, y[1:])

    return program


def points(program, y, count=5):
    """Random points, uniform on the real line that each parameter is mapped to."""
    from numpyro import handlers
    from numpyro.infer import init_to_uniform

    def draw(key):
        seeded = handlers.substitute(handlers.seed(program, key), substitute_fn=init_to_uniform)
        trace = handlers.trace(seeded).get_trace(y)
        kinds = [x for x in trace.values() if x["type"] == "sample" and not x["is_observed"]]
        return {x["name"]: x["value"] for x in kinds}

    return [jax.jit(draw)(random.key(i)) for i in range(count)]


def differences(function, wanted, where):
    """Largest difference of value and gradient, and milliseconds of both."""
    both = jax.jit(jax.value_and_grad(function))
    by_hand = jax.jit(jax.value_and_grad(wanted))
    value = slope = 0.0
    for params in where:
        (a, da), (b, db) = both(params), by_hand(params)
        value = np.maximum(value, abs(float(a - b)))
        apart = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), da, db)
        slope = np.maximum(slope, np.max([*apart.values()]))
    start = time.perf_counter()
    for _ in range(200):
        jax.block_until_ready(both(where[0]))
    return value, slope, 1e3 * (time.perf_counter() - start) / 200


def against_reference(program, y, draws, num_draws):
    """The largest distance of a mean from the reference, in standard errors of both."""
    mcmc = MCMC(
        NUTS(marginal(program)), num_warmup=1000, num_samples=num_draws, num_chains=4,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    mcmc.run(random.key(0), y)
    samples = {}
    for name, value in mcmc.get_samples(group_by_chain=True).items():
        if value.ndim == 2:
            samples[name] = np.asarray(value)
        else:
            samples |= {
                f"{name}[{i + 1}]": np.asarray(value[..., i]) for i in range(value.shape[-1])
            }
    worst = 0.0
    for name in draws[0]:
        if name not in samples:
            continue
        theirs = np.array([one[name] for one in draws])
        error = np.hypot(mcse(samples[name][..., None])[0], mcse(theirs[..., None])[0])
        worst = max(worst, abs(samples[name].mean() - theirs.mean()) / error)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--draws", type=int, default=1000, help="of each of four chains")
    options = parser.parse_args()
    numpyro.enable_x64()
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor import log_density as enumerated

    capture_data = {name: jnp.asarray(load(options.path, f"{name}_data")["y"]) for name in
                    ("M0", "Mb", "Mt")}  # fmt: skip
    kinds = {"M0": constant, "Mb": by_trap, "Mt": by_occasion}
    programs = {
        name: (capture(kind, False), capture(kind, True), capture_data[name], None)
        for name, kind in kinds.items()
    }
    for name, make in (("low_dim_gauss_mix", mixture), ("hmm_example", chain)):
        y = jnp.asarray(load(options.path, name)["y"])
        programs[name] = make(False), make(True), y, load(options.path, f"{name}-{name}.draws")
    print(f"{'':18} {'density':>8} {'gradient':>9} {'ms':>7}   {'funsor':>8} {'gradient':>9} "
          f"{'ms':>7}   {'means (MCSE)':>12}")  # fmt: skip
    for name, (program, by_hand, y, draws) in programs.items():
        where = points(by_hand, y)
        hand = lambda p: log_density(by_hand, (y,), {}, p)[0]  # noqa: B023, E731
        ours = lambda p: log_density(marginal(program), (y,), {}, p)[0]  # noqa: B023, E731
        theirs = enum(config_enumerate(program), first_available_dim=-2)
        funsor = lambda p: enumerated(theirs, (y,), {}, p)[0]  # noqa: B023, E731
        gaps = differences(ours, hand, where)
        try:
            other = differences(funsor, hand, where)
        except Exception as error:
            print(f"{name}: funsor: {type(error).__name__}: {str(error)[:60]}")
            other = (np.nan, np.nan, np.nan)
        means = against_reference(program, y, draws, options.draws) if draws else np.nan
        print(f"{name:18} {gaps[0]:8.1e} {gaps[1]:9.1e} {gaps[2]:7.2f}   {other[0]:8.1e} "
              f"{other[1]:9.1e} {other[2]:7.2f}   {means:12.2f}")  # fmt: skip


if __name__ == "__main__":
    main()

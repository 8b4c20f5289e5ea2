"""Gibbs sampling and learning of noisy-OR networks: how fast, against NumPyro's DiscreteGibbs.

    python benchmarks/bench_gibbs.py [--json FILE] [--only NAME ...]

`updates` draws the bits of a 25-10-5 network for 1000 patterns of lines, by `LatentGibbs` and by
NumPyro 0.22's `DiscreteGibbs`, on the same parameters and data. The latter refuses sites whose bits
are one event (``Independent`` cannot list its support), so that it gets the same program with
plates in place of events; `same` checks that both have one log density, and compares the means of
all bits on a few rows under both kernels, in standard errors of their chains.
CPU seconds are those of the process, all threads, after a first call that compiles.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from bench_bars import mismatch
from jax import lax, random
from measuring import cpu_of, fitted, rival, row, timed
from numpyro.diagnostics import effective_sample_size
from numpyro.handlers import condition
from numpyro.infer.util import log_density

from inference import EM, GibbsEM, LatentGibbs, likelihood
from inference.papers.noisy_or_lines import true_network
from inference.reading.log_joint import Structure
from inference.running.restarts import Restarts
from ppl_models import noisy_or_network
from ppl_models.data import lines
from ppl_models.data.strokes import stroke_masks
from ppl_models.distributions import NoisyOr

LAYERS = (10, 5)
# Softer than the network that draws lines without a flaw, so that bits change in all rows.
SOFT = {name: jnp.clip(value, 0.05, 2.0) for name, value in true_network().items()}


def sweeps_of(kernel, count, data):
    """A compiled function of a state: `count` sweeps of a kernel."""
    kwargs = {"layers": LAYERS}
    state = kernel.init(random.key(0), 0, None, (data,), kwargs)
    step = lambda _, s: kernel.sample(s, (data,), kwargs)  # noqa: E731
    return jax.jit(lambda s: lax.fori_loop(0, count, step, s)), state


def by_plates(data, *, layers):
    """`noisy_or_network` with a plate of units in place of each vector of bits."""
    units = (data.shape[1], *layers)
    top = len(layers)
    gamma = dist.Gamma(1.0, 1.0)
    leak = [
        numpyro.sample(f"leak_{i}", gamma.expand((n,)).to_event(1)) for i, n in enumerate(units)
    ]
    shapes = [(units[i + 1], units[i]) for i in range(top)]
    weights = [
        numpyro.sample(f"weights_{i + 1}", dist.Gamma(1.0, 1.5).expand(shape).to_event(2))
        for i, shape in enumerate(shapes)
    ]
    with numpyro.plate("data", len(data), dim=-2):
        causal_input = leak[top]
        for level in reversed(range(top)):
            with numpyro.plate(f"units_{level + 1}", units[level + 1], dim=-1):
                layer = numpyro.sample(f"layer_{level + 1}", NoisyOr(causal_input))
            causal_input = layer @ weights[level] + leak[level]
        with numpyro.plate("columns", units[0], dim=-1):
            numpyro.sample("observed", NoisyOr(causal_input), obs=data)


def updates(num_data=1000, sweeps=20):
    """Bit updates a second, and how many times those of DiscreteGibbs."""
    model = condition(noisy_or_network, data=SOFT)
    data = lines(random.key(0), num_data).data
    bits = num_data * sum(LAYERS)
    out = {}
    for name, by_network in (("equations (6), (7)", True), ("two readings a bit", False)):
        run, state = sweeps_of(LatentGibbs(model, by_network=by_network), sweeps, data)
        out[name] = timed(run, state)[1]._asdict()
        out[name]["updates a cpu second"] = bits * sweeps / out[name]["cpu"]
    if not hasattr(numpyro.infer, "DiscreteGibbs"):
        return {**out, "DiscreteGibbs": "NumPyro 0.22 brought it"}
    # It visits one bit of one row at a time, with a run of the program on all rows for each: a
    # sweep of 1000 rows is 15 000 of them.
    plates = condition(by_plates, data=SOFT)
    run, state = sweeps_of(numpyro.infer.DiscreteGibbs(plates), 1, data)
    out["DiscreteGibbs"] = timed(run, state)[1]._asdict()
    out["DiscreteGibbs"]["updates a cpu second"] = bits / out["DiscreteGibbs"]["cpu"]
    slow = out["DiscreteGibbs"]["updates a cpu second"]
    for name in ("equations (6), (7)", "two readings a bit"):
        out[name]["times DiscreteGibbs"] = out[name]["updates a cpu second"] / slow
    return out


def same(num_data=6, draws=2000, chains=4):
    """Largest distance of the means of bits under both kernels, in standard errors."""
    if not hasattr(numpyro.infer, "DiscreteGibbs"):
        return {"DiscreteGibbs": "NumPyro 0.22 brought it"}
    model = condition(noisy_or_network, data=SOFT)
    data = lines(random.key(3), num_data).data
    moments = {}
    for name, kernel in (
        ("LatentGibbs", LatentGibbs(model)),
        ("DiscreteGibbs", numpyro.infer.DiscreteGibbs(condition(by_plates, data=SOFT))),
    ):
        mcmc = numpyro.infer.MCMC(
            kernel, num_warmup=200, num_samples=draws, num_chains=chains,
            chain_method="sequential", progress_bar=False,
        )  # fmt: skip
        mcmc.run(random.key(1), data, layers=LAYERS)
        samples = mcmc.get_samples(group_by_chain=True)
        joined = np.concatenate([samples["layer_2"], samples["layer_1"]], axis=-1).astype(float)
        flat = joined.reshape(chains, draws, -1)
        deviation = flat.std((0, 1))
        moved = deviation > 0  # a bit that is certain never changes
        error = np.full(deviation.shape, 1.0 / (chains * draws))
        error[moved] = deviation[moved] / np.sqrt(effective_sample_size(flat[:, :, moved]))
        moments[name] = flat.mean((0, 1)), error
    (a, ea), (b, eb) = moments.values()
    gap = np.abs(a - b) / np.sqrt(ea**2 + eb**2)
    last = {name: value[0, -1] for name, value in samples.items()}
    one, other = (
        float(log_density(condition(m, data=SOFT), (data,), {"layers": LAYERS}, last)[0])
        for m in (noisy_or_network, by_plates)
    )
    return {
        "log densities differ by": one - other,
        "means compared": len(gap),
        "largest gap in standard errors": float(gap.max()),
    }


def words(num_data=100_000, num_features=100, layers=(20, 5)):
    """Seconds of an epoch of learning (sampling and new weights) on 100 000 rows of 100 words."""
    generator = np.random.default_rng(0)
    topics = generator.random((8, num_features)) ** 6
    data = np.zeros((num_data, num_features), np.float32)
    for start in range(0, num_data, 10_000):
        probability = topics[generator.integers(0, 8, 10_000)] * 0.5 + 0.01
        data[start : start + 10_000] = generator.random(probability.shape) < probability
    out = {}
    for sweeps in (1, 15):
        em = GibbsEM(noisy_or_network, schedule="joint", block_size=2000, max_sweeps=sweeps)
        state = em.init(random.key(0), data, layers=layers)
        step = jax.jit(lambda s, x, em=em: em.update(s, x, layers=layers)[0])
        _, taken = timed(step, state, jnp.asarray(data))
        out[f"at most {sweeps} sweeps a row"] = taken._asdict()
    return out


def gibbs(full: bool) -> dict[str, Any]:
    """Noisy-OR network: draws of its bits, beside NumPyro's DiscreteGibbs, against the exact means.

    The exact posterior is that of all 32 768 states of a row.
    """
    # DiscreteGibbs runs the program on all rows for each bit of each row: the square of the rows.
    num_data, sweeps = (20, 2000) if full else (10, 1000)
    data = lines(random.key(3), num_data).data
    model = condition(noisy_or_network, data=SOFT)
    em = EM(noisy_or_network, structure=Structure.GENERAL)
    exact = jax.jit(lambda x: em.posterior(SOFT, x, layers=LAYERS).mean)(data)

    def draw(kernel: Any) -> tuple[Any, dict[str, float]]:
        kwargs = {"layers": LAYERS}

        def step(carry: Any, _: None) -> Any:
            state = kernel.sample(carry, (data,), kwargs)
            drawn = jnp.concatenate([state.z["layer_2"], state.z["layer_1"]], axis=-1)
            return state, drawn

        def run(state: Any) -> Any:
            return lax.scan(step, state, None, length=sweeps)[1][sweeps // 10 :].mean(0)

        state = jax.jit(lambda key: kernel.init(key, 0, None, (data,), kwargs))(random.key(0))
        mean, taken = timed(jax.jit(run), state)
        return taken, {"error": float(np.abs(np.asarray(mean) - exact).mean())}

    def theirs() -> dict[str, float]:
        taken, scores = draw(numpyro.infer.DiscreteGibbs(condition(by_plates, data=SOFT)))
        return {"cpu": taken.cpu, "compile": taken.compile, **scores}

    rows = []
    for name, by_network in (("equations (6), (7)", True), ("two readings a bit", False)):
        taken, scores = draw(LatentGibbs(model, by_network=by_network))
        rows.append(row(f"LatentGibbs, {name}", taken, **scores))
    rows.append(rival("numpyro", "DiscreteGibbs", theirs))
    return {
        "title": f"gibbs: {sweeps} sweeps over the 15 bits of {num_data} rows of a 25-10-5 network;"
        " error: mean |mean of a bit − exact|",
        "rows": rows,
    }


def network(full: bool) -> dict[str, Any]:
    """Noisy-OR network: lines that overlap, learned, beside scikit-learn's NMF and BernoulliRBM.

    A layer of ten causes, each a row or a column of 25 pixels. Neither rival has a noisy OR: NMF
    adds causes up, the RBM adds up their log odds, and only what they draw can be compared.
    """
    num_data = 5000 if full else 500
    draw = lambda key: lines(key, num_data, 0.3, jnp.zeros(4)).data  # noqa: E731
    train, test, masks = draw(random.key(0)), draw(random.key(1)), stroke_masks(5)
    evidence = likelihood(noisy_or_network, test, layers=(10,))

    def judge(params: Any) -> dict[str, float]:
        error = mismatch(-np.expm1(-params["weights_1"]), masks)
        return {"log_likelihood": float(evidence(params).value.mean()), "error": error}

    def by_parts() -> dict[str, float]:
        from sklearn.decomposition import NMF

        fit = lambda seed: NMF(10, init="random", max_iter=500, random_state=seed).fit(train)  # noqa: E731
        estimator, cpu = cpu_of(
            lambda: min(map(fit, range(4)), key=lambda x: x.reconstruction_err_)
        )
        return {"cpu": cpu, "error": mismatch(estimator.components_, masks)}

    def by_machine() -> dict[str, float]:
        from sklearn.neural_network import BernoulliRBM

        def fit(rate: float) -> tuple[float, float]:
            machine = BernoulliRBM(10, learning_rate=rate, n_iter=100, random_state=0)
            estimator, cpu = cpu_of(lambda: machine.fit(train))
            return mismatch(estimator.components_, masks), cpu

        error, cpu = min(fit(rate) for rate in (0.01, 0.05, 0.2))
        return {"cpu": cpu, "error": error}

    em = GibbsEM(noisy_or_network)
    return {
        "title": f"network: {num_data} images of 5×5, 10 lines, each on with probability 0.3; "
        f"best of 4 starts; nats of {num_data} others; error: 1 − |cosine| of matched lines",
        "rows": [
            fitted("GibbsEM", Restarts(em, 4), 30, train, judge, layers=(10,)),
            rival("scikit-learn", "NMF", by_parts),
            rival("scikit-learn", "BernoulliRBM, 100 epochs, best of 3 rates", by_machine),
        ],
    }


BENCHMARKS = {"gibbs": gibbs, "network": network}
PARTS = {"updates": updates, "same": same, "words": words}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    chosen = parser.parse_args()
    parts = {}
    for name in chosen.only:
        parts[name] = PARTS[name]()
        print(name)
        for key, value in parts[name].items():
            print(f"  {key}: {value}")
    if chosen.json:
        chosen.json.write_text(json.dumps(parts, indent=2) + "\n")


if __name__ == "__main__":
    main()

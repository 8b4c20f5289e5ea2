"""Binary sparse coding: bars that add up, learned here, by NumPyro with funsor, by scikit-learn.

    latentbits bench --only sparse-coding

Funsor sums out sites of one bit each, so that it gets the same program with a site for each cause;
the maximum is then climbed by Adam. Scikit-learn has no binary causes: `FactorAnalysis` is the
Gaussian model of these data, with a density of its own, `FastICA` looks for independent causes and
has none. The error is 1 − |cosine| of a true bar and the learned one that is matched to it, on
average.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from measuring import cpu_of, fitted, rival, timed, true_row
from numpyro.infer import SVI
from scipy.optimize import linear_sum_assignment

from inference import EM, TruncatedEM, likelihood
from inference.running.restarts import Restarts
from ppl_models import binary_sparse_coding
from ppl_models.data import bars

ADAM_STEPS = 300
STARTS = 4


def separate(data: Any, *, num_causes: int) -> None:
    """`binary_sparse_coding` with a site for each cause."""
    shape = (num_causes, data.shape[1])
    weights = numpyro.sample("weights", dist.Normal(0.0, 10.0).expand(shape).to_event(2))
    noise = numpyro.sample("noise", dist.HalfNormal(10.0))
    sparsity = numpyro.sample("sparsity", dist.Uniform(0.0, 1.0))
    with numpyro.plate("data", len(data)):
        mean = 0.0
        for h in range(num_causes):
            cause = numpyro.sample(
                f"cause_{h}", dist.Bernoulli(sparsity), infer={"enumerate": "parallel"}
            )
            mean = mean + cause[..., None] * weights[h]
        numpyro.sample("observed", dist.Normal(mean, noise).to_event(1), obs=data)


def mismatch(learned: Any, truth: Any) -> float:
    """1 − |cosine| of matched weights, on average over the true causes."""
    learned, truth = np.asarray(learned), np.asarray(truth)
    lengths = np.linalg.norm(truth, axis=1)[:, None] * np.linalg.norm(learned, axis=1)
    cosine = np.abs(truth @ learned.T) / np.maximum(lengths, 1e-12)
    return float(1 - cosine[linear_sum_assignment(-cosine)].mean())


def enumerated(train: Any, count: int) -> tuple[Any, Any]:
    """Parameters by NumPyro: funsor's sum over the causes, a point guide, Adam."""
    from numpyro.contrib.funsor import config_enumerate
    from numpyro.infer import TraceEnum_ELBO
    from numpyro.infer.autoguide import AutoDelta
    from numpyro.optim import Adam

    hidden = numpyro.handlers.block(separate, hide=[f"cause_{h}" for h in range(count)])
    guide = AutoDelta(hidden, init_loc_fn=numpyro.infer.init_to_sample)
    svi = SVI(config_enumerate(separate), guide, Adam(0.1), TraceEnum_ELBO(max_plate_nesting=1))
    start = lambda key: svi.init(key, train, num_causes=count)  # noqa: E731
    states = jax.jit(jax.vmap(start))(random.split(random.key(1), STARTS))

    def climb(state: Any) -> Any:
        step = lambda state, _: svi.update(state, train, num_causes=count)  # noqa: E731
        return jax.lax.scan(step, state, None, length=ADAM_STEPS)

    (ends, losses), taken = timed(jax.jit(jax.vmap(climb)), states)
    best = jax.tree.map(lambda x: x[losses[:, -1].argmin()], ends)
    return guide.median(svi.get_params(best)), taken


def sparse_coding(full: bool) -> dict[str, Any]:
    """Binary sparse coding: bars, beside enumeration by funsor and scikit-learn."""
    size, num_data = (5, 1000) if full else (4, 500)
    count = 2 * size
    truth = bars(random.key(0), 2 * num_data, size=size)
    train, test = truth.data[:num_data], truth.data[num_data:]
    evidence = likelihood(binary_sparse_coding, test, num_causes=count)

    def judge(params: Any) -> dict[str, float]:
        known = {name: params[name] for name in ("weights", "noise", "sparsity")}
        return {
            "log_likelihood": float(evidence(known).value.mean()),
            "error": mismatch(params["weights"], truth.weights),
        }

    def by_funsor() -> dict[str, float]:
        params, taken = enumerated(train, count)
        return {"cpu": taken.cpu, "compile": taken.compile, **judge(params)}

    def by_factors() -> dict[str, float]:
        from sklearn.decomposition import FactorAnalysis

        estimator, cpu = cpu_of(lambda: FactorAnalysis(count, rotation="varimax").fit(train))
        error = mismatch(estimator.components_, truth.weights)
        return {"cpu": cpu, "log_likelihood": estimator.score(test), "error": error}

    def by_components() -> dict[str, float]:
        from sklearn.decomposition import FastICA

        estimator, cpu = cpu_of(lambda: FastICA(count, random_state=0).fit(np.asarray(train)))
        return {"cpu": cpu, "error": mismatch(estimator.mixing_.T, truth.weights)}

    known = {"weights": truth.weights, "noise": truth.noise, "sparsity": truth.sparsity}
    exact = Restarts(EM(binary_sparse_coding), STARTS)
    truncated = Restarts(TruncatedEM(binary_sparse_coding), STARTS)
    return {
        "title": f"sparse coding: {num_data} images of {size}×{size}, {count} bars; "
        f"best of {STARTS} starts; nats of {num_data} others; error: 1 − |cosine| of matched bars",
        "rows": [
            true_row(judge(known)),
            fitted("EM, all states", exact, 100, train, judge, num_causes=count),
            fitted("TruncatedEM", truncated, 100, train, judge, num_causes=count),
            rival("funsor", f"NumPyro's enumeration, Adam, {ADAM_STEPS} steps", by_funsor),
            rival("scikit-learn", "FactorAnalysis, varimax", by_factors),
            rival("scikit-learn", "FastICA", by_components),
        ],
    }


BENCHMARKS = {"sparse-coding": sparse_coding}

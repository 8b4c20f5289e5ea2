"""Two-parameter and graded items to the maximum of the likelihood: whole runs, beside mirt on PyPI.

    latentbits bench --only items-1000,items-10000,items-graded

Processor seconds of a second run in the same process, all its starts included; the nats per row are
those of the rows fitted, by one estimator for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import random
from measuring import cpu_of, rival

from inference import QuadratureEM, likelihood
from ppl_models import graded_trait, latent_trait

STEPS, TOLERANCE = 500, 1e-7
"""Those of `latentbits fit`."""


def items(num_data: int, num_items: int) -> dict[str, Any]:
    """A contest on rows of the model itself, the discriminations log-normal about one."""
    generator = np.random.default_rng(0)
    slope, bias = np.exp(generator.normal(0, 0.4, num_items)), generator.normal(size=num_items)
    chance = 1.0 / (1.0 + np.exp(-slope * generator.normal(size=(num_data, 1)) - bias))
    data = (generator.random(chance.shape) < chance).astype(np.float32)
    evidence = likelihood(latent_trait, data, num_factors=1)

    def judge(weights: Any, bias: Any) -> dict[str, float]:
        params: Any = {"weights": np.reshape(weights, (1, -1)), "bias": np.asarray(bias)}
        return {"log_likelihood": float(np.asarray(evidence(params).value, np.float64).mean())}

    def ours() -> Any:
        method = QuadratureEM(latent_trait)
        return method.run(random.key(0), STEPS, data, tolerance=TOLERANCE, num_factors=1)

    _, first = cpu_of(ours)
    found, again = cpu_of(ours)
    mine = {"method": "QuadratureEM, two starts", "cpu": again, "compile": first - again}
    mine |= judge(found.params["weights"], found.params["bias"])

    def by_mirt() -> dict[str, float]:
        import mirt

        table, how = data.astype(int), {"accelerate": "squarem", "compute_standard_errors": False}
        mirt.fit_mirt(table[:50], model="2PL", **how)  # what it does once in a process
        found, cpu = cpu_of(lambda: mirt.fit_mirt(table, model="2PL", **how).coef())
        slope = found["discrimination"].to_numpy()
        return {"cpu": cpu, **judge(slope, -slope * found["difficulty"].to_numpy())}

    rows = [mine, rival("mirt", "2PL by EM, SQUAREM", by_mirt)]
    return {"title": f"items: {num_data} × {num_items} answers, 2PL to the maximum", "rows": rows}


def few(full: bool) -> dict[str, Any]:
    """Items: a 2PL of 1000 × 20 to its maximum, beside mirt."""
    del full
    return items(1000, 20)


def many(full: bool) -> dict[str, Any]:
    """Items: a 2PL of 10 000 × 100 to its maximum, beside mirt."""
    del full
    return items(10_000, 100)


def graded(full: bool) -> dict[str, Any]:
    """Items: a graded response model of 1000 × 20 answers from 1 to 5, beside mirt."""
    del full
    generator, count = np.random.default_rng(0), 20
    slope = np.exp(generator.normal(0, 0.4, count))
    cuts = np.sort(generator.normal(0, 1.3, (count, 4)), 1)
    noisy = generator.normal(size=(1000, 1)) * slope + generator.logistic(size=(1000, count))
    data = (noisy[:, :, None] > cuts).sum(2).astype(np.int8)
    kwargs: Any = {"levels": (5,) * count, "num_factors": 1}
    evidence = likelihood(graded_trait, data, **kwargs)

    def judge(weights: Any, cutpoints: Any) -> dict[str, float]:
        params: Any = {
            "weights": np.reshape(weights, (1, -1)),
            "cutpoints_5": np.asarray(cutpoints),
        }
        return {"log_likelihood": float(np.asarray(evidence(params).value, np.float64).mean())}

    def ours() -> Any:
        method = QuadratureEM(graded_trait)
        return method.run(random.key(0), STEPS, data, tolerance=TOLERANCE, **kwargs)

    _, first = cpu_of(ours)
    found, again = cpu_of(ours)
    mine = {"method": "QuadratureEM, two starts", "cpu": again, "compile": first - again}
    mine |= judge(found.params["weights"], found.params["cutpoints_5"])

    def by_mirt() -> dict[str, float]:
        import mirt

        table, how = data.astype(int), {"accelerate": "squarem", "compute_standard_errors": False}
        mirt.fit_mirt(table[:60], model="GRM", **how)  # what it does once in a process
        found, cpu = cpu_of(lambda: mirt.fit_mirt(table, model="GRM", **how).coef())
        slope = found["discrimination"].to_numpy()[:, None]
        names = [f"thresholds_{k}" for k in range(1, 5)]
        return {"cpu": cpu, **judge(slope, slope * found[names].to_numpy())}

    rows = [mine, rival("mirt", "graded by EM, SQUAREM", by_mirt)]
    return {"title": "items: 1000 × 20 answers of five levels, to the maximum", "rows": rows}


BENCHMARKS = {"items-1000": few, "items-10000": many, "items-graded": graded}

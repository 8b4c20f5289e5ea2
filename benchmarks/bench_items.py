"""Two-parameter and graded items to the maximum of the likelihood: whole runs, beside mirt on PyPI
and girth. py-irt would bring torch: it is not among them.

    latentbits bench --only items-1000,items-10000,items-100000,items-graded
    latentbits bench --full --only items-100000     (500 000 × 500, ours alone)

Processor seconds of a second run in the same process, all its starts included; the nats per row are
those of the rows fitted, by one estimator for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import random
from measuring import cpu_of, rival

from inference import QuadratureEM, likelihood
from ppl_models import graded_trait, latent_trait

STEPS, TOLERANCE = 500, 1e-7
"""Those of `latentbits fit`."""


def beside_mirt(
    program: Callable, data: np.ndarray, sizes: dict[str, Any], kind: str, read: Callable
) -> list[dict[str, Any]]:
    """Both fits of one table to its maximum, judged by one estimator.

    :param kind: what mirt calls the model.
    :param read: from mirt's table of items to the program's parameters.
    """
    evidence = likelihood(program, data, **sizes)

    def judge(params: Any) -> dict[str, float]:
        return {"log_likelihood": float(np.asarray(evidence(params).value, np.float64).mean())}

    def ours() -> Any:
        method = QuadratureEM(program)
        return method.run(random.key(0), STEPS, data, tolerance=TOLERANCE, **sizes)

    _, first = cpu_of(ours)
    fitted, again = cpu_of(ours)
    mine = {"method": "QuadratureEM, two starts", "cpu": again, "compile": first - again}

    def by_mirt() -> dict[str, float]:
        import mirt

        table, how = data.astype(int), {"accelerate": "squarem", "compute_standard_errors": False}
        mirt.fit_mirt(table[:60], model=kind, **how)  # what it does once in a process
        coefficients, cpu = cpu_of(lambda: mirt.fit_mirt(table, model=kind, **how).coef())
        return {"cpu": cpu, **judge(read(coefficients))}

    return [mine | judge(fitted.params), rival("mirt", f"{kind} by EM, SQUAREM", by_mirt)]


def drawn(num_data: int, num_items: int) -> np.ndarray:
    """Rows of the model itself, the discriminations log-normal about one."""
    generator = np.random.default_rng(0)
    slope, bias = np.exp(generator.normal(0, 0.4, num_items)), generator.normal(size=num_items)
    ability, data = generator.normal(size=num_data), np.empty((num_data, num_items), np.float32)
    for rows in np.array_split(np.arange(num_data), -(-data.size // 10**7)):
        probability = 1.0 / (1.0 + np.exp(-slope * ability[rows, None] - bias))
        data[rows] = generator.random(probability.shape) < probability
    return data


def items(num_data: int, num_items: int) -> dict[str, Any]:
    """A contest on rows of the model itself."""
    data = drawn(num_data, num_items)

    def read(found: Any) -> Any:
        slope = found["discrimination"].to_numpy()
        return {"weights": slope[None], "bias": -slope * found["difficulty"].to_numpy()}

    rows = beside_mirt(latent_trait, data, {"num_factors": 1}, "2PL", read)
    evidence = likelihood(latent_trait, data, num_factors=1)

    def by_girth() -> dict[str, float]:
        import girth

        found, cpu = cpu_of(lambda: girth.twopl_mml(data.astype(int).T))
        slope = found["Discrimination"]
        value = evidence({"weights": slope[None], "bias": -slope * found["Difficulty"]}).value
        return {"cpu": cpu, "log_likelihood": float(np.asarray(value, np.float64).mean())}

    rows.append(rival("girth", "2PL by marginal likelihood", by_girth))
    return {"title": f"items: {num_data} × {num_items} answers, 2PL to the maximum", "rows": rows}


def few(full: bool) -> dict[str, Any]:
    """Items: a 2PL of 1000 × 20 to its maximum, beside mirt."""
    del full
    return items(1000, 20)


def many(full: bool) -> dict[str, Any]:
    """Items: a 2PL of 10 000 × 100 to its maximum, beside mirt."""
    del full
    return items(10_000, 100)


def most(full: bool) -> dict[str, Any]:
    """Items: a 2PL of 100 000 × 100 beside mirt; with --full one of 500 000 × 500, ours alone."""
    if not full:
        return items(100_000, 100)
    data = drawn(500_000, 500)
    result, cpu = cpu_of(
        lambda: QuadratureEM(latent_trait).run(
            random.key(0), STEPS, data, tolerance=TOLERANCE, num_factors=1
        )
    )
    value = -float(result.losses[-1]) / len(data)
    mine = {"method": "QuadratureEM, two starts", "log_likelihood": value}
    times = {"cpu": cpu - result.compile_seconds, "compile": result.compile_seconds}
    title = "items: 500000 × 500 answers, 2PL to the maximum"
    return {"title": title, "rows": [mine | times]}


def graded(full: bool) -> dict[str, Any]:
    """Items: a graded response model of 1000 × 20 answers from 1 to 5, beside mirt."""
    del full
    generator, count = np.random.default_rng(0), 20
    slope = np.exp(generator.normal(0, 0.4, count))
    cuts = np.sort(generator.normal(0, 1.3, (count, 4)), 1)
    noisy = generator.normal(size=(1000, 1)) * slope + generator.logistic(size=(1000, count))
    data = (noisy[:, :, None] > cuts).sum(2).astype(np.int8)

    def read(found: Any) -> Any:
        slope = found["discrimination"].to_numpy()
        names = [f"thresholds_{k}" for k in range(1, 5)]
        cutpoints = slope[:, None] * found[names].to_numpy()
        return {"weights": slope[None], "cutpoints_5": cutpoints}

    sizes = {"levels": (5,) * count, "num_factors": 1}
    rows = beside_mirt(graded_trait, data, sizes, "GRM", read)
    return {"title": "items: 1000 × 20 answers of five levels, to the maximum", "rows": rows}


BENCHMARKS = {"items-1000": few, "items-10000": many, "items-100000": most, "items-graded": graded}

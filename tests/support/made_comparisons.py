"""Comparisons of every program as `compare` makes them, of made-up numbers."""

import numpy as np

from inference.comparison.compare import Comparison

rng = np.random.default_rng(0)
KINDS_OF_COLUMNS = ("real", 3, "binary", "binary")
# Parameters, sizes and the shape of an image: asymmetric, and small.
FACTORS = {"weights": rng.normal(size=(2, 6)), "bias": rng.normal(size=6)}
PROGRAMS = {
    "latent_trait": (FACTORS, {}, None),
    "clipped_gaussian": (FACTORS, {"num_factors": 2, "noise": 0.7}, (2, 3)),
    "mixed_trait": (
        {
            "weights": rng.normal(size=(2, 5)),
            "bias": rng.normal(size=5),
            "noise": np.array([0.6]),
        },
        {"kinds": KINDS_OF_COLUMNS},
        None,
    ),
    "graded_trait": (
        {"weights": rng.normal(size=(1, 6)), "cutpoints_3": np.sort(rng.normal(size=(6, 2)))},
        {"levels": 3},
        None,
    ),
    "binary_sparse_coding": (
        {"weights": rng.normal(size=(4, 6)), "noise": np.array(1.0), "sparsity": np.array(0.2)},
        {"num_causes": 4},
        (2, 3),
    ),
    "sparse_coding": (
        {"weights": rng.normal(size=(3, 6)), "noise": np.array(1.0), "sparsity": np.array(0.2)},
        {"num_causes": 3},
        (2, 3),
    ),
    "bernoulli_mixture": (
        {"mixing": np.array([0.7, 0.3]), "probs": rng.uniform(size=(2, 6))},
        {"num_components": 2},
        None,
    ),
    "categorical_mixture": (
        {"mixing": np.array([0.7, 0.3]), "probs_3": rng.dirichlet(np.ones(3), (2, 6))},
        {"num_components": 2, "levels": 3},
        None,
    ),
    "trait_mixture": (
        {
            "mixing": np.array([0.7, 0.3]),
            "weights": rng.normal(size=(2, 1, 6)),
            "bias": rng.normal(size=(2, 6)),
        },
        {"num_components": 2, "num_factors": 1},
        None,
    ),
    "bernoulli_product": ({"probs": rng.uniform(size=6)}, {}, None),
    "combination_machine": (
        {"weights": rng.normal(size=(3, 6)), "bias": rng.normal(size=3)},
        {"num_causes": 3},
        (2, 3),
    ),
    "real_combination_machine": (
        {"weights": rng.normal(size=(12, 6)), "bias": rng.normal(size=12)},
        {"num_causes": 12},
        None,
    ),
    "noisy_or_network": (
        {
            "weights_1": rng.exponential(size=(3, 6)),
            "weights_2": rng.exponential(size=(2, 3)),
            "leak_0": rng.uniform(size=6),
            "leak_1": rng.uniform(size=3),
            "leak_2": rng.uniform(size=2),
        },
        {"layers": (3, 2)},
        (2, 3),
    ),
}
METHODS = {  # bespoke, kind, how far behind, and what a method of the kind tells of itself
    "QuadratureEM": (True, "point", 0.0, {"seconds_to_score": 0.131, "bound_gap": -1e-9}),
    "NUTS": (False, "sampler", 0.002, {
        "uncertainty": "NOT_YET", "uncertainty_why": ["267 of 400 effective draws"],
        "seconds_to_score": 9.52, "seconds": 120.0, "rhat": 1.004, "rhat_parameters": 1.02,
        "ess_bulk": 267.0, "ess_tail": 310.0, "ess_per_second": 2.2, "divergences": 0}),
    "SVI low_rank": (False, "variational", 0.15, {
        "score": "WRONG", "score_why": ["converged 0.150 nats per row behind the best"],
        "uncertainty": "WRONG", "uncertainty_why": ["Pareto k̂ 1.31"], "pareto_k": 1.31}),
    "MAP": (False, "point", 0.03, {
        "score": "NOT_YET", "score_why": ["about 0.02 nats per row left to gain"],
        "seconds": 120.0}),
}  # fmt: skip


def made(model="latent_trait", methods=METHODS, *, rows=40, known=True):
    """A comparison as `compare` makes them, of made-up numbers."""
    rng = np.random.default_rng(1)
    truth, sizes, shape = PROGRAMS.get(model, ({"slope": np.arange(3.0)}, {}, None))
    width = 4 if model == "mixed_trait" else 6
    common, clock = rng.normal(-4, 1, 30), np.geomspace(0.02, 5.0, 8)
    held_out, numbers, paths, reliability = {}, {}, {}, {}
    for place, (name, (bespoke, kind, behind, more)) in enumerate(methods.items()):
        held_out[name] = common - behind
        score = float(held_out[name].mean())
        numbers[name] = {
            "status": "done", "bespoke": bespoke, "kind": kind, "reason": "all steps were run",
            "objective": "likelihood", "prediction": "plug-in",
            "compile_seconds": 1.25, "seconds": float(clock[-1]), "held_out": score,
            "held_out_error": 0.181, "recovery": 0.97, "calibration_error": 0.031,
            "calibration_expected": 0.028, "best": place == 0, "behind": behind,
            "behind_error": 0.001 * (place > 0), "behind_upper": behind + 0.002 * (place > 0),
            "score": "ARRIVED", "score_why": [], "uncertainty": "NONE", "uncertainty_why": [],
            "seconds_to_score": None, "seconds_to_uncertainty": None,
            "data_sets": 5, "arrived_on": 5, "remarks": [], **more,
        }  # fmt: skip
        seconds = clock * numbers[name]["seconds"] / clock[-1]
        paths[name] = (score - np.geomspace(2.0, 1e-5, 8), seconds)
        said = np.linspace(0.05, 0.95, 6)
        reliability[name] = {"said": said, "seen": said**1.1, "error": 0.031, "expected": 0.028}
    numbers["SVI flow"] = {
        "status": "failed", "reason": "failed after 3 s: <no> memory & time", "bespoke": False,
        "score": "NONE", "uncertainty": "NONE",
    }  # fmt: skip
    numbers["DiscreteGibbs"] = {
        "status": "out of budget", "reason": "no draw after 120 s of warm-up", "bespoke": False,
        "score": "NOT_YET", "uncertainty": "NOT_YET", "seconds": 120.0,
    }  # fmt: skip
    values = rng.integers(0, 2, (rows, width)).astype(np.float32)
    mask = rng.random((rows, width)) < 0.9
    about = {
        "num_data": rows + 10, "num_train": rows, "num_features": width, "missing": 0.1,
        "likelihood": "quadrature", "likelihood_exact": True, "limit": 120.0, "mark": 0.01,
        "replicates": 5, "fresh": True, "num_test": 30, "reference": "None.",
        "refused": {}, "interrupted": False, "sizes": {x: repr(v) for x, v in sizes.items()},
        "words": "made-up bits", "image_shape": shape, "seed": 0, "versions": {"numpy": "2"},
        "command": "compare latent_trait --data 'my table.csv'",
    }  # fmt: skip
    near = {x: {s: v + rng.normal(0, 0.05, np.shape(v)) ** 2 for s, v in truth.items()}
            for x in methods}  # fmt: skip
    table = {
        "values": np.where(mask, values, 0), "mask": mask, "held_out": np.arange(rows) % 4 == 0,
        "columns": np.array([f"item {i}" for i in range(width)]),
    }  # fmt: skip
    return Comparison(
        model, about, numbers, held_out, paths, reliability, near, table, truth if known else {}
    )

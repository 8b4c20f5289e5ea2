"""Small, asymmetric parameters for the oracle's own tests, and the tolerances they share.

Three tiers: identities in float64 (1e-12), central differences (1e-7, from their step), and
integrals, whose accuracy is stated where they are taken.
"""

import numpy as np

IDENTITY = 1e-12
DIFFERENCE = 1e-7


def close(found, wanted, tolerance=IDENTITY):
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def draws(seed=0):
    return np.random.default_rng(seed)


def machine(seed=1, num_causes=3, num_features=4):
    rng = draws(seed)
    return {
        "weights": rng.normal(0.0, 0.8, (num_causes, num_features)),
        "bias": rng.normal(-0.5, 0.7, num_causes),
    }


def trait(seed=2, num_factors=2, num_features=4):
    rng = draws(seed)
    return {
        "weights": rng.normal(0.0, 1.1, (num_factors, num_features)),
        "bias": rng.normal(0.3, 0.6, num_features),
    }


def network(seed=3, sizes=(4, 3, 2)):
    rng = draws(seed)
    sites = {f"leak_{layer}": rng.uniform(0.05, 0.6, size) for layer, size in enumerate(sizes)}
    for layer in range(1, len(sizes)):
        sites[f"weights_{layer}"] = rng.gamma(1.0, 0.9, (sizes[layer], sizes[layer - 1]))
    return sites


def coding(seed=4, num_causes=3, num_features=4):
    rng = draws(seed)
    weights = rng.normal(0.0, 2.0, (num_causes, num_features))
    return {"weights": weights, "noise": 0.9, "sparsity": 0.3}


def coded_data(parameters, num_data, seed=5):
    rng = draws(seed)
    causes = rng.random((num_data, len(parameters["weights"]))) < parameters["sparsity"]
    noise = rng.normal(0.0, parameters["noise"], (num_data, parameters["weights"].shape[1]))
    return causes @ parameters["weights"] + noise


def mixture(seed=6, num_components=3, num_features=4):
    rng = draws(seed)
    return {
        "mixing": rng.dirichlet(np.full(num_components, 3.0)),
        "probs": rng.uniform(0.1, 0.9, (num_components, num_features)),
    }

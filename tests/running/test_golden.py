"""The best optima that are known: what the file says of its parameters is true of them.

The evidence is computed here from the saved parameters, in NumPy and float64, by the equations of
the papers; `benchmarks/keys.py --golden` wrote it from the losses of the methods.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

HERE = Path(__file__).parents[1]
CASES = HERE.parent / "benchmarks" / "key_cases.py"
GOLDEN = json.loads((HERE / "golden" / "optima.json").read_text())
PUBLISHED = {"carcinoma-2": -317.2568, "carcinoma-3": -293.705, "carcinoma-4": -289.2858}


@pytest.fixture(scope="module")
def cases():
    spec = importlib.util.spec_from_file_location("key_cases", CASES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CASES


def states(count):
    return np.indices((2,) * count).reshape(count, -1).T


def sparse_coding(p, y):
    s, pi, sigma = states(len(p["weights"])), p["sparsity"], p["noise"]
    prior = s.sum(1) * np.log(pi) + (1 - s).sum(1) * np.log1p(-pi)
    mean = s @ p["weights"]
    square = (y**2).sum(1)[:, None] - 2 * y @ mean.T + (mean**2).sum(1)
    norm = -y.shape[1] * (np.log(sigma) + 0.5 * np.log(2 * np.pi))
    return logsumexp(prior + norm - 0.5 * square / sigma**2, axis=1)


def mixture(p, y):
    probs = np.clip(p["probs"], 1e-9, 1 - 1e-9)
    each = y @ np.log(probs).T + (1 - y) @ np.log1p(-probs).T
    return logsumexp(each + np.log(p["mixing"]), axis=1)


def machine(p, y):
    s, x = states(len(p["bias"])), 2 * y - 1
    field = s @ p["weights"]
    log_z = logsumexp(s @ p["bias"] + np.logaddexp(field, -field).sum(1))
    return np.logaddexp(0, x @ p["weights"].T + p["bias"]).sum(1) - log_z


def noisy_or(p, y):
    s = states(len(p["leak_1"]))
    prior = s @ np.log(-np.expm1(-p["leak_1"])) - (1 - s) @ p["leak_1"]
    off = s @ p["weights_1"] + p["leak_0"]
    on = np.log(-np.expm1(-off) + 1e-300)
    return logsumexp(prior + y @ on.T - (1 - y) @ off.T, axis=1)


def trait(p, y):
    """By the trapezoidal rule: 80 fixed Gauss–Hermite nodes are 0.3 nats off on prototypes."""
    nodes, step = np.linspace(-6, 6, 201, retstep=True)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    log_weight = -0.5 * (grid**2).sum(1) - np.log(2 * np.pi) + 2 * np.log(step)
    field = grid @ p["weights"] + p["bias"]
    base = log_weight - np.logaddexp(0, field).sum(1)
    chunks = np.array_split(y, -(-len(y) // 100))
    return np.concatenate([logsumexp(rows @ field.T + base, axis=1) for rows in chunks])


EVIDENCE = {
    "bars": sparse_coding,
    "even-mixture": mixture,
    "uneven-mixture": mixture,
    "combination": machine,
    "lines": noisy_or,
    "prototypes": trait,
    "items": trait,
}


@pytest.mark.parametrize("name", [x for x in EVIDENCE if "evidence" in GOLDEN.get(x, {})])
def test_the_golden_parameters_have_the_likelihood_that_the_file_says(name, cases):
    entry = GOLDEN[name]["evidence"]
    params = {site: np.asarray(value, float) for site, value in entry["params"].items()}
    evidence = EVIDENCE[name](params, np.asarray(cases[name]().data, float)).sum()
    assert abs(evidence - entry["log_likelihood"]) < 3e-5 * abs(evidence) + 0.05


def test_golden_latent_classes_are_the_published_ones():
    for name in PUBLISHED.keys() & GOLDEN.keys():
        assert abs(GOLDEN[name]["evidence"]["log_likelihood"] - PUBLISHED[name]) < 0.002

"""Latent class regression and latent regression against a direct maximum of the likelihood."""

import jax
import numpy as np
import pandas as pd
import pytest
from jax import random
from numpy.polynomial.hermite_e import hermegauss
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logsumexp
from tools import hessian_of

from inference import EM, QuadratureEM, standard_errors
from inference.cli import main
from inference.items.covariates import in_units, reorder, standardise
from ppl_models import bernoulli_mixture, categorical_mixture, graded_trait, latent_trait

COLUMNS = ["a", "b", "c", "d"]


def people(seed=0, number=150):
    """Covariates (age, female), and their standardised values."""
    rng = np.random.default_rng(seed)
    raw = np.stack([50 + 15 * rng.normal(size=number), rng.random(number) < 0.5], 1).round(1)
    return rng, raw, (raw - raw.mean(0)) / raw.std(0)


def classes(levels, seed=0):
    """Answers of two classes, the second of which is more frequent among the old."""
    rng, raw, x = people(seed, 300)
    second = rng.random(len(x)) < expit(-0.3 + x @ [1.0, -0.5])
    weights = np.where(second[:, None], 0.25, 0.75) * np.ones(4)
    return raw, x, rng.binomial(levels - 1, weights)


def positions(levels, seed=1):
    """Answers of people on a line."""
    rng, raw, x = people(seed)
    eta = (x @ [0.8, -0.4] + rng.normal(size=len(x)))[:, None] * np.linspace(0.8, 1.6, 4)
    cuts = np.linspace(-0.5, 0.7, levels - 1)
    return raw, x, (eta[..., None] + rng.logistic(size=(*eta.shape, 1)) > cuts).sum(-1)


def class_likelihood(vector, x, answers, levels):
    """The sum over both classes, as a person would write it; probabilities as logits."""
    intercept, slope, rest = vector[0], vector[1:3], vector[3:]
    logits = np.pad(rest.reshape(2, 4, levels - 1), ((0, 0), (0, 0), (1, 0)))
    log_probs = log_softmax(logits, axis=-1)
    log_prior = log_softmax(np.stack([np.zeros(len(x)), intercept + x @ slope], 1), axis=1)
    total = log_prior.copy()
    for c in range(2):
        for i in range(4):
            total[:, c] += log_probs[c, i, answers[:, i]]
    return logsumexp(total, axis=1).sum()


def trait_likelihood(vector, x, answers, levels, nodes=41):
    """The integral over the residual by Gauss and Hermite's rule."""
    places, weights = hermegauss(nodes)
    slope, loading = vector[:2], vector[2:6]
    cuts = vector[6:].reshape(4, levels - 1)
    factor = (x @ slope)[:, None] + places
    above = expit(factor[:, :, None, None] * loading[:, None] - cuts)
    ends = np.ones((*above.shape[:-1], 1))
    probs = -np.diff(np.concatenate([ends, above, 0 * ends], -1), axis=-1)
    rows = np.arange(len(x))[:, None]
    own = probs[rows, :, np.arange(4)[None], answers]  # (rows, items, nodes)
    return logsumexp(np.log(own).sum(1), b=weights / weights.sum(), axis=1).sum()


def highest(function, start):
    """The maximum by BFGS on numerical slopes."""
    loss = lambda v: -function(v)  # noqa: E731
    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-5, "maxiter": 500})
    return found.x, -found.fun


def as_vector(params, levels, trait):
    p = {name: np.asarray(value, np.float64) for name, value in params.items()}
    if trait:
        cuts = -p["bias"][:, None] if "bias" in p else p[f"cutpoints_{levels}"]
        return np.concatenate([p["effects"].ravel(), p["weights"].ravel(), cuts.ravel()])
    probs = p["probs"] if "probs" in p else p[f"probs_{levels}"]
    probs = np.stack([1 - probs, probs], -1) if probs.ndim == 2 else probs
    logits = np.log(probs[..., 1:]) - np.log(probs[..., :1])
    return np.concatenate([p["class_intercept"], p["effects"].ravel(), logits.ravel()])


CASES = {
    "bernoulli_mixture": (bernoulli_mixture, 2, False, {"num_components": 2}),
    "categorical_mixture": (categorical_mixture, 3, False, {"num_components": 2, "levels": 3}),
    "latent_trait": (latent_trait, 2, True, {"num_factors": 1}),
    "graded_trait": (graded_trait, 3, True, {"levels": 3}),
}


@pytest.mark.parametrize("name", CASES)
def test_fit_is_the_maximum_that_scipy_finds(name):
    program, levels, trait, kwargs = CASES[name]
    _, x, answers = (positions if trait else classes)(levels)
    method = QuadratureEM(program, search=None) if trait else EM(program)
    likelihood = trait_likelihood if trait else class_likelihood
    with jax.enable_x64(True):
        arguments = {**kwargs, "covariates": x}
        result = method.run(
            random.key(0), 2000, answers.astype(float), tolerance=1e-10, **arguments
        )
        errors = standard_errors(program, result.params, answers.astype(float), **arguments)
    own = as_vector(result.params, levels, trait)
    function = lambda v: likelihood(v, x, answers, levels)  # noqa: E731
    best, value = highest(function, own + 0.05)
    assert -float(result.losses[-1]) == pytest.approx(function(own), abs=1e-6)
    assert function(own) == pytest.approx(value, abs=1e-6)
    assert own == pytest.approx(best, abs=2e-3)
    # The errors of the effects, from a numerical Hessian.
    spread = np.sqrt(np.diagonal(np.linalg.inv(-hessian_of(function, own))))
    place = slice(0, 2) if trait else slice(1, 3)
    assert np.ravel(errors["effects"]) == pytest.approx(spread[place], rel=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_units_of_covariates_leave_the_likelihood_as_it_is(name):
    _, levels, trait, _ = CASES[name]
    raw, x, answers = (positions if trait else classes)(levels)
    standard, *moments = standardise(raw, ["age", "female"])
    assert standard == pytest.approx(x)
    rng = np.random.default_rng(2)
    effects = rng.normal(size=(2, 1))
    if trait:
        cuts = np.sort(rng.normal(size=(4, levels - 1)))
        params = {"effects": effects, "weights": rng.normal(size=(1, 4))}
        params |= {"bias": -cuts[:, 0]} if levels == 2 else {"cutpoints_3": cuts}
    else:
        probs = rng.dirichlet(np.ones(levels), (2, 4))
        params = {"effects": effects, "class_intercept": rng.normal(size=1)}
        params |= {"probs": probs[..., 1]} if levels == 2 else {"probs_3": probs}
    moved = in_units(params, *moments, [levels] * 4)
    likelihood = trait_likelihood if trait else class_likelihood
    before = likelihood(as_vector(params, levels, trait), x, answers, levels)
    after = likelihood(as_vector(moved, levels, trait), raw, answers, levels)
    assert after == pytest.approx(before, abs=1e-8)


def test_reference_class_changes_with_the_order():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 2))
    old = {"class_intercept": rng.normal(size=2), "effects": rng.normal(size=(2, 2))}
    order = np.array([2, 0, 1])
    new = reorder(old, order)
    logits = [np.pad(x @ p["effects"] + p["class_intercept"], ((0, 0), (1, 0))) for p in (old, new)]
    before, after = (log_softmax(each, axis=1) for each in logits)
    assert after == pytest.approx(before[:, order])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    raw, _, answers = classes(2)
    frame = pd.DataFrame(answers, columns=COLUMNS)
    frame.insert(0, "age", raw[:, 0])
    frame["female"] = raw[:, 1].astype(int)
    path = tmp_path_factory.mktemp("people") / "people.csv"
    frame.to_csv(path, index=False)
    return path


def test_command_prints_the_effects_and_scores_new_rows(file, capsys):
    out = file.with_name("fit.nc")
    command = ["fit", "LCA", "--data", str(file), "--covariates", "age,female"]
    assert main([*command, "--set", "num_classes=2", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "Effects of covariates on the log odds of a class against class 1" in printed
    assert "4 columns" in printed
    effects = pd.read_csv(file.with_name("fit_effects.csv"))
    raw, x, answers = classes(2)
    value = float(printed.partition("log likelihood ")[2].split()[0])
    best, highest_value = highest(
        lambda v: class_likelihood(v, x, answers, 2), np.r_[0, 1, 0, np.full(4, 1), np.full(4, -1)]
    )
    assert value == pytest.approx(highest_value, abs=2e-3)
    slopes = best[1:3] / raw.std(0)
    own = effects["effect"].to_numpy()
    assert abs(own[1:]) == pytest.approx(abs(slopes), rel=1e-2)
    assert effects["covariate"].tolist() == ["(intercept)", "age", "female"]
    placed = file.with_name("placed.csv")
    assert main(["transform", str(out), "--data", str(file), "--out", str(placed)]) == 0
    assert main(["score", str(out), "--data", str(file), "--out", str(placed) + ".csv"]) == 0
    kept = pd.read_csv(file.with_name("fit_scores.csv"))
    assert pd.read_csv(placed)["class_1"].to_numpy() == pytest.approx(kept["class_1"], abs=1e-5)
    scored = pd.read_csv(str(placed) + ".csv")["log_likelihood"]
    assert scored.sum() == pytest.approx(value, abs=1e-2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"covariates": "age,sex"}, "sex"),
        ({"model": "noisy_or_network", "set": "layers=(2,)"}, "takes no argument covariates"),
        ({"model": "latent_trait", "set": "num_factors=2"}, "--set num_factors=1"),
        ({"more": ["--posterior"]}, "without --posterior"),
    ],
)
def test_errors_of_covariates_say_what_to_type(file, change, words, capsys):
    command = ["fit", change.get("model", "LCA"), "--data", str(file)]
    command += ["--covariates", change.get("covariates", "age,female")]
    command += ["--set", change.get("set", "num_classes=2"), *change.get("more", ())]
    assert main([*command, "--out", str(file.with_name("none.nc"))]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("cell", "words"), [("", "row 3, column 'age'"), ("old", "found 'old'")])
def test_cells_of_covariates_are_numbers(file, cell, words, capsys):
    lines = file.read_text().splitlines()
    lines[2] = cell + lines[2][lines[2].index(",") :]
    wrong = file.with_name("wrong.csv")
    wrong.write_text("\n".join(lines))
    command = ["fit", "LCA", "--data", str(wrong), "--covariates", "age", "--set", "num_classes=2"]
    assert main([*command, "--out", str(file.with_name("none.nc"))]) == 2
    assert words in capsys.readouterr().err

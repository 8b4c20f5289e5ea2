"""Weights that are no counts: fits, errors and tables against likelihoods of rows in loops."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, logsumexp
from tools import hessian_of

import latentbits
from inference.cli import main

NODES, MASS = np.polynomial.hermite_e.hermegauss(61)
LOG_MASS = np.log(MASS / MASS.sum())
ROWS, SLOPE, INTERCEPT = 900, [1.2, 0.9, 1.6, 1.1, 1.4], [0.5, -0.5, 0.0, 0.8, -1.0]
RNG = np.random.default_rng(5)
CLEAR = RNG.normal(size=(ROWS, 1)) * SLOPE + INTERCEPT
BITS = (RNG.random((ROWS, 5)) < expit(CLEAR)).astype(int)
WEIGHTS = RNG.choice([0.25, 0.6, 1.3, 2.75], ROWS)


def of_items(at):
    """The log likelihood of each row, given slopes and intercepts."""
    logits = NODES[:, None] * at[:5] + at[5:]
    each = BITS[:, None] * log_expit(logits) + (1 - BITS[:, None]) * log_expit(-logits)
    return logsumexp(each.sum(2) + LOG_MASS, axis=1)


def of_classes(at):
    """The same given log odds of the second class, and of a 1 in both."""
    share, logits = log_softmax([0.0, at[0]]), at[1:].reshape(2, 5)
    each = BITS[:, None] * log_expit(logits) + (1 - BITS[:, None]) * log_expit(-logits)
    return logsumexp(each.sum(2) + share, axis=1)


def robust(rows, at):
    """Errors by the sandwich, derivatives by differences."""
    bread = np.linalg.inv(hessian_of(lambda x: -WEIGHTS @ rows(x), at))
    steps = 1e-5 * np.eye(len(at))
    scores = np.stack([(rows(at + h) - rows(at - h)) / 2e-5 for h in steps], 1)
    filling = (WEIGHTS[:, None] * scores).T @ (WEIGHTS[:, None] * scores)
    return bread @ filling @ bread


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(BITS, columns=list("abcde")).assign(w=WEIGHTS).to_csv("x.csv", index=False)


def fitted(*more):
    assert main(["fit", *more, "--data", "x.csv", "--weights", "w", "--out", "fit.nc"]) == 0
    value = pd.read_csv("fit_measures.csv", index_col=0)["value"]
    return value["log_likelihood"], value["bic"]


@pytest.mark.usefixtures("table")
def test_items_and_their_errors(capsys):
    best = minimize(lambda x: -WEIGHTS @ of_items(x), np.repeat([1.0, 0.0], 5), tol=1e-10)
    likelihood, bic = fitted("2PL")
    np.testing.assert_allclose(likelihood, -best.fun, atol=1e-3)
    np.testing.assert_allclose(bic, 10 * np.log(WEIGHTS.sum()) + 2 * best.fun, atol=2e-3)
    items, error = pd.read_csv("fit_items.csv"), np.sqrt(np.diag(robust(of_items, best.x)))
    np.testing.assert_allclose(items["discrimination"], best.x[:5], atol=5e-3)
    np.testing.assert_allclose(items["discrimination_se"], error[:5], rtol=0.01)
    np.testing.assert_allclose(items["intercept_se"], error[5:], rtol=0.01)
    assert "s_x2" not in items and "M2" not in capsys.readouterr().out


@pytest.mark.usefixtures("table")
def test_classes_and_their_errors(capsys):
    start = np.repeat([0.0, 1.0, -1.0], [1, 5, 5])
    best = minimize(lambda x: -WEIGHTS @ of_classes(x), start, tol=1e-10)
    assert fitted("LCA", "--set", "num_classes=2")[0] == pytest.approx(-best.fun, abs=1e-3)
    order = [0, 1] if best.x[0] < 0 else [1, 0]
    shares, probs = np.exp(log_softmax([0.0, best.x[0]]))[order], expit(best.x[1:].reshape(2, 5))
    classes = pd.read_csv("fit_classes.csv")
    np.testing.assert_allclose(classes["share"], shares, atol=2e-3)
    np.testing.assert_allclose(classes["posterior_size"], shares, atol=2e-3)
    error = np.sqrt(robust(of_classes, best.x)[0, 0]) * shares.prod()
    np.testing.assert_allclose(classes["share_se"], error, rtol=0.02)
    profile = pd.read_csv("fit_profile.csv").query("category == 1")
    found = profile[["class_1", "class_2"]].to_numpy().T
    np.testing.assert_allclose(found, probs[order], atol=5e-3)
    assert "the weights are no counts" in capsys.readouterr().out
    assert main(["score", "fit.nc", "--data", "x.csv", "--out", "s.csv"]) == 0


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("model", "option"), [("2PL", "--posterior"), ("2PL", "--certify"), ("LCA", "--outcomes=a")]
)
def test_what_wants_a_likelihood_of_rows_refuses_them(model, option, capsys):
    command = ["fit", model, "--data", "x.csv", "--weights", "w", "--out", "y.nc", option]
    assert main([*command, *["--set", "num_components=2"] * (model == "LCA")]) == 2
    name = option.partition("=")[0]
    assert f"{name} goes without weights that are no whole numbers" in capsys.readouterr().err
    assert main(["choose", "2PL", *command[2:6], "--over", "num_factors=1..2"]) == 2
    assert "weights are whole numbers here (`fit` takes fractions)" in capsys.readouterr().err


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("command", "words"),
    [(["2PL", "--method", "NUTS"], "--method NUTS goes without weights that are no whole numbers"),
     (["2PL", "--method", "MAP"], "--method MAP goes without weights that are no whole numbers"),
     (["bernoulli_product", "--method", "NUTS"], "--method NUTS goes without weights"),
     (["clipped_gaussian", "--set", "num_factors=1", "--method", "MomentInversion"],
      "--method MomentInversion does not apply to clipped_gaussian")],
)  # fmt: skip
def test_methods_that_do_not_respect_them_are_refused(command, words, capsys):
    assert main(["fit", *command, "--data", "x.csv", "--weights", "w", "--out", "y.nc"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("table")
def test_another_method_stands_in_for_one_that_counts_every_row_once(capsys):
    """The probit's factor by QuadratureEM, where `fit` would invert moments."""
    command = ["fit", "clipped_gaussian", "--set", "num_factors=1", "--data", "x.csv"]
    assert main([*command, "--weights", "w", "--out", "y.nc"]) == 0
    said = capsys.readouterr()
    assert "QuadratureEM is used, since MomentInversion does not apply" in said.err
    assert "clipped_gaussian, QuadratureEM" in said.out


@pytest.mark.usefixtures("table")
def test_a_program_without_latents(capsys):
    mean = WEIGHTS @ BITS / WEIGHTS.sum()
    each = np.log(np.where(BITS, mean, 1.0 - mean)).sum(1)
    command = ["fit", "bernoulli_product", "--data", "x.csv", "--weights", "w", "--out", "fit.nc"]
    assert main(command) == 0
    said = capsys.readouterr()
    found = float(said.out.partition("log likelihood ")[2].split()[0])
    assert found == pytest.approx(WEIGHTS @ each, abs=0.01)
    assert f"weights sum to {WEIGHTS.sum():.6g} over 900 rows" in said.err


@pytest.mark.usefixtures("table")
def test_the_plate_of_rows_may_have_any_name_and_rows_of_weight_zero_keep_their_numbers():
    Path("own.py").write_text(
        "import numpyro, numpyro.distributions as dist\n"
        "def model(answers):\n"
        "    slope = numpyro.sample('slope', dist.Normal(0, 3).expand([5]).to_event(1))\n"
        "    easy = numpyro.sample('easy', dist.Normal(0, 3).expand([5]).to_event(1))\n"
        "    with numpyro.plate('people', len(answers)):\n"
        "        skill = numpyro.sample('skill', dist.Normal(0, 1))\n"
        "        logits = skill[..., None] * slope + easy\n"
        "        numpyro.sample('x', dist.Bernoulli(logits=logits).to_event(1), obs=answers)\n"
    )
    frame = pd.read_csv("x.csv")
    frame.loc[[1, 5], "w"] = 0.0
    frame.to_csv("x.csv", index=False)
    assert fitted("own:model")[0] == pytest.approx(fitted("2PL")[0], abs=1e-2)
    rows = pd.read_csv("fit_scores.csv")["row"].tolist()
    assert rows == [1, 3, 4, 5, *range(7, ROWS + 1)]


def test_a_row_of_weight_zero_moves_no_threshold():
    rows, times = [[0, 1], [1, 0]] * 20, [1.0] * 40
    found = latentbits.LatentClasses(binarize="mean", max_steps=3, random_state=0)
    found.fit([*rows, [100, 100], [1, 1]], sample_weight=[*times, 0.0, 40.0])
    np.testing.assert_allclose(found.thresholds_, 0.75)


def test_estimators_take_them():
    weights = np.where(np.arange(ROWS) < 40, 0.0, WEIGHTS)
    found = latentbits.LatentTrait(random_state=0).fit(BITS, sample_weight=weights).params_
    counts = (20 * weights).round().astype(int)
    wanted = latentbits.LatentTrait(random_state=0).fit(np.repeat(BITS, counts, 0)).params_
    np.testing.assert_allclose(found["weights"], wanted["weights"], atol=0.01)
    for wrong in (weights[1:], -weights):
        with pytest.raises(ValueError, match="wanted a number from 0 on for each of 900 rows"):
            latentbits.LatentTrait().fit(BITS, sample_weight=wrong)

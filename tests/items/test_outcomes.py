"""Outcomes of classes by three steps: against a direct maximum, and against the truth."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import norm
from tools import hessian_of

from inference.cli import main
from inference.commands import fit
from inference.items.outcomes import misplaced, three_step


def drawn(categories, size=600):
    """Posteriors of three overlapping classes, and an outcome of each row's true class."""
    rng = np.random.default_rng(3)
    true = rng.choice(3, size, p=[0.5, 0.3, 0.2])
    answers = rng.random((size, 5)) < np.array([0.85, 0.5, 0.15])[true][:, None]
    right = answers.sum(1)[:, None]
    joint = np.array([0.5, 0.3, 0.2]) * np.array([0.85, 0.5, 0.15]) ** right
    joint = joint * (1 - np.array([0.85, 0.5, 0.15])) ** (5 - right)
    posterior = joint / joint.sum(1, keepdims=True)
    if categories:
        table = np.array([[0.2, 0.5, 0.3], [0.6, 0.2, 0.2], [0.1, 0.2, 0.7]])
        return posterior, np.array([rng.choice(3, p=table[c]) for c in true], float)
    return posterior, np.array([0.0, 2.0, 3.0])[true] + rng.normal(size=size)


@pytest.mark.parametrize("categories", [False, True])
def test_it_is_the_maximum_of_the_third_likelihood_with_its_curvature(categories):
    """Rows in a loop, SciPy's minimiser, and a Hessian by differences of the likelihood."""
    posterior, outcome = drawn(categories)
    outcome[:7] = np.nan
    found = three_step(posterior, outcome, categories)
    place, rates = misplaced(posterior)

    def total(at):
        log_share, value = log_softmax(np.append(at[:2], 0.0)), 0.0
        if categories:
            logs = log_softmax(np.column_stack([at[2:].reshape(3, 2), np.zeros(3)]), axis=1)
        for z, w in zip(outcome, place, strict=True):
            if np.isnan(z):
                continue
            own = [
                log_share[c] + np.log(rates[c, w]) + (
                    logs[c, int(z)] if categories
                    else -0.5 * (z - at[2 + c]) ** 2 * np.exp(-at[5])
                    - 0.5 * (at[5] + np.log(2 * np.pi))
                )
                for c in range(3)
            ]  # fmt: skip
            value -= np.logaddexp.reduce(own)
        return value

    log_share = np.log(found.share / found.share[-1])[:-1]
    rest = (
        np.log(found.mean / found.mean[:, -1:])[:, :-1].ravel()
        if categories else np.append(found.mean, np.log(found.variance))
    )  # fmt: skip
    point = np.append(log_share, rest)
    best = minimize(total, point + 0.05, method="BFGS", options={"gtol": 1e-5})
    assert found.log_likelihood == pytest.approx(-best.fun, abs=1e-6)
    shares = softmax(np.append(best.x[:2], 0.0))
    np.testing.assert_allclose(found.share, shares, atol=2e-6)
    covariance = np.linalg.inv(hessian_of(total, point))
    if categories:
        for c in range(3):
            part = covariance[2 + 2 * c : 4 + 2 * c, 2 + 2 * c : 4 + 2 * c]
            slope = (np.diag(found.mean[c]) - np.outer(found.mean[c], found.mean[c]))[:, :2]
            wanted = np.sqrt(np.diagonal(slope @ part @ slope.T))
            np.testing.assert_allclose(found.error[c], wanted, rtol=1e-3)
    else:
        np.testing.assert_allclose(found.mean[:, 0], best.x[2:5], atol=1e-5)
        wanted = np.sqrt(np.diagonal(covariance)[2:5])
        np.testing.assert_allclose(found.error[:, 0], wanted, rtol=1e-3)
    assert found.p_value < 1e-6


def test_the_correction_takes_out_what_misplacement_does():
    posterior, outcome = drawn(False, 4000)
    found = three_step(posterior, outcome, False)
    naive = [outcome[posterior.argmax(1) == c].mean() for c in range(3)]
    truth = np.array([0.0, 2.0, 3.0])
    assert np.abs(found.mean[:, 0] - truth).max() < 0.3 < np.abs(naive - truth).max()
    z = (found.mean[:, 0] - truth) / found.error[:, 0]
    assert np.abs(z).max() < norm.ppf(0.999)


def test_fit_prints_outcomes_that_take_no_part_in_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    true = rng.random(200) < 0.6
    answers = (rng.random((200, 4)) < np.where(true, 0.9, 0.1)[:, None]).astype(int)
    frame = pd.DataFrame(answers, columns=list("abcd"))
    frame["income"] = np.round(np.where(true, 3.0, 1.0) + rng.normal(size=200), 2)
    frame["owns"] = np.where(rng.random(200) < np.where(true, 0.8, 0.3), "yes", "no")
    frame.loc[:4, "income"] = -99
    frame.to_csv("t.csv", index=False)
    typed = ["fit", "LCA", "--data", "t.csv", "--out", "t.nc", "--set", "num_classes=2"]
    assert main([*typed, "--outcomes", "income,owns", "--missing", "-99"]) == 0
    printed = capsys.readouterr().out
    assert "4 columns" in printed and "corrected for rows in the wrong class" in printed
    table = pd.read_csv("t_outcomes.csv").set_index(["outcome", "category"])
    assert table.index.tolist() == [("income", "mean"), ("owns", "no"), ("owns", "yes")]
    for line, wanted in (("mean", (3.0, 1.0)), ("yes", (0.8, 0.3))):
        row = table.xs(line, level="category").iloc[0]
        for c in (1, 2):
            assert abs(row[f"class_{c}"] - wanted[c - 1]) < 3 * row[f"class_{c}_se"] < 0.5
    assert (table["p_value"] < 1e-4).all()


def test_outcomes_are_refused_before_the_fit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(np.arange(40).reshape(10, 4) % 3 % 2, columns=list("abcd"))
    frame.assign(land="x", income=range(10)).to_csv("t.csv", index=False)
    monkeypatch.setattr(fit, "fit_table", lambda *_: pytest.fail("it ran"))
    for model, words in (
        (["2PL"], "latent_trait has no classes to predict them"),
        (["LCA", "--set", "num_classes=2"], "land has one value"),
    ):
        typed = ["--data", "t.csv", "--out", "t.nc", "--outcomes", "land,income"]
        assert main(["fit", *model, *typed]) == 2
        assert words in capsys.readouterr().err

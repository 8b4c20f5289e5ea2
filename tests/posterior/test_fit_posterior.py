"""Draws about a fit on the command line, in ArviZ, and among the contenders of a comparison."""

import warnings

import numpy as np
import pytest
from latentbits.models import bernoulli_mixture

from inference.cli import main
from inference.comparison.checks import Mark, uncertainty
from inference.comparison.compare import compare
from inference.files.arviz import container, import_arviz, load
from inference.files.cards import example
from inference.numerics.annealed import good_k
from inference.posterior.laplace import SHARE

MADE = example("bernoulli_mixture", 120, which="small")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("posterior")
    names = ",".join(f"q{i}" for i in range(MADE.values.shape[1]))
    rows = [",".join(str(int(x)) for x in row) for row in MADE.values]
    (folder / "data.csv").write_text("\n".join([names, *rows]) + "\n")
    arguments = ["bernoulli_mixture", "--data", str(folder / "data.csv"), "--set",
                 "num_components=2", "--out", str(folder / "fit.nc"), "--posterior"]  # fmt: skip
    assert main(["fit", *arguments]) == 0
    return folder


def test_a_fit_keeps_its_posterior_for_arviz(fitted):
    groups, _ = load(fitted / "fit.nc")
    draws = groups["posterior"]
    assert draws["probs"].shape == (1, 1000, 2, 12) and "k̂" in draws.attrs["how"]
    assert {"lp", "log_ratio", "weight"} <= set(groups["sample_stats"])
    assert groups["log_prior"]["probs"].shape == (1, 1000)
    assert {"prior", "posterior_predictive", "point_estimate", "optimization"} <= set(groups)
    with warnings.catch_warnings(action="ignore"):  # of rows that weigh much
        loo = import_arviz().loo(container(groups), var_name="observed")
    # Its expectation by the draws lies below their log likelihood by about one for each parameter.
    total = groups["log_likelihood"]["observed"].values.sum(-1).mean()
    elpd = float(getattr(loo, "elpd", None) or loo.elpd_loo)
    assert total - 60 < elpd < total


def test_scores_average_over_the_posterior(fitted, capsys):
    capsys.readouterr()
    out = fitted / "scores.csv"
    arguments = [str(fitted / "fit.nc"), "--data", str(fitted / "data.csv"), "--out", str(out)]
    assert main(["score", *arguments]) == 0
    scores = np.genfromtxt(out, delimiter=",", names=True)
    values = scores["log_likelihood"]
    draws = load(fitted / "fit.nc")[0]["log_likelihood"]["observed"].values[0]
    expected = np.log(np.exp(draws).mean(0))  # of all draws, where the command takes a hundred
    assert np.abs(values - expected).mean() < 0.1
    point = load(fitted / "fit.nc")[0]["point_estimate"]
    likelihood = np.array([
        np.prod(np.where(row == 1, point["probs"].values, 1 - point["probs"].values), 1)
        @ point["mixing"].values
        for row in MADE.values
    ])  # fmt: skip
    assert np.abs(values - expected).mean() < np.abs(np.log(likelihood) - expected).mean()


@pytest.mark.parametrize(
    ("more", "words"),
    [(["--method", "NUTS"], "draws by itself"), (["--rotation", "varimax"], "no loadings")],
)
def test_a_posterior_wants_a_point_estimate(fitted, capsys, more, words):
    arguments = ["bernoulli_mixture", "--data", str(fitted / "data.csv"), "--set",
                 "num_components=3", "--out", str(fitted / "x.nc"), "--posterior"]  # fmt: skip
    assert main(["fit", *arguments, *more]) == 2
    assert words in capsys.readouterr().err


def test_posteriors_about_an_optimum_take_part_in_a_comparison():
    made = compare(
        bernoulli_mixture, MADE.values, ["em", "em laplace", "em nuts"], limit=60.0,
        num_components=3,
    )  # fmt: skip
    rows = made.rows
    assert set(rows) == {"EM", "EM, Laplace", "EM, NUTS"}
    assert rows["EM, NUTS"]["ess_bulk"] >= 400 and rows["EM, NUTS"]["rhat"] <= 1.01
    row = rows["EM, Laplace"]
    trusted = row["pareto_k"] <= good_k(row["num_weighed"])
    trusted &= row["effective"] >= SHARE * row["num_weighed"]
    assert (uncertainty(rows["EM, Laplace"])[0] is Mark.ARRIVED) == trusted
    for name in ("EM, Laplace", "EM, NUTS"):
        assert rows[name]["seconds"] > rows["EM"]["seconds"]
        # Averages over a posterior predict better than the likelihood's maximum.
        assert rows[name]["held_out"] > rows["EM"]["held_out"]
    gap = abs(rows["EM, Laplace"]["held_out"] - rows["EM, NUTS"]["held_out"])
    assert gap < 0.05

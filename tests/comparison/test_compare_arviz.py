"""What is handed to ArviZ, and what it makes of it: of whatever release is installed.

The draws are those of a Gibbs sampler in NumPy: none of ours has to be compiled for it.
"""

import warnings

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from scipy.stats import beta

from inference.baselines.samplers import Draws
from inference.cli import main
from inference.comparison.files import method_groups
from inference.comparison.judge import Judged
from inference.comparison.scoring import Scores
from inference.files.arviz import container, import_arviz, prior_sensitivity, save
from inference.files.cards import example
from inference.files.predictive import check_totals
from ppl_models import bernoulli_mixture

NAMES = [f"q{i}" for i in range(12)]
MADE = example("bernoulli_mixture", 60, which="small")
ROWS = np.asarray(MADE.values)
SIZES = {**MADE.sizes, "prior_probs": dist.Beta(2.0, 2.0)}


def log_terms(params):
    """log p(component) p(row | component), (rows, components)."""
    rates = ROWS @ np.log(params["probs"]).T + (1 - ROWS) @ np.log1p(-params["probs"]).T
    return rates + np.log(params["mixing"])


def chain(rng, length):
    """Draws of the posterior under Beta(2, 2) and a flat prior of the shares, from the truth on."""
    params = {x: np.asarray(v) for x, v in MADE.truth.items()}
    draws = []
    for _ in range(length):
        terms = log_terms(params)
        share = np.exp(terms - logsumexp(terms, 1, keepdims=True)).cumsum(1)
        mine = (share < rng.random((len(ROWS), 1))).sum(1)[:, None] == np.arange(share.shape[1])
        on, off = mine.T @ ROWS, mine.T @ (1 - ROWS)
        params = {"mixing": rng.dirichlet(1 + mine.sum(0)), "probs": rng.beta(2 + on, 2 + off)}
        draws.append(params)
    return {x: np.stack([one[x] for one in draws]) for x in params}


def record(kind, draws):
    """As `compare` keeps it of a contender."""
    each = [[{x: v[i, j] for x, v in draws.items()} for j in range(draws["mixing"].shape[1])]
            for i in range(len(draws["mixing"]))]  # fmt: skip
    train = np.array([[logsumexp(log_terms(one), 1) for one in some] for some in each])
    made = Draws(draws, {"lp": train.sum(-1)}, np.arange(3.0), {}, np.ones(1), 1.0, 1.0, "")
    scores = Scores(1, train, 1, train, 0.0)
    return Judged({"kind": kind}, made, ROWS, scores, train[0, 0], np.ones(1), np.ones(1), None)


@pytest.fixture(scope="module")
def judged():
    rng = np.random.default_rng(0)
    chains = [chain(rng, 100) for _ in range(4)]
    several = {x: np.stack([one[x] for one in chains]) for x in chains[0]}
    one = {x: v.reshape(1, -1, *v.shape[2:]) for x, v in several.items()}
    point = {x: np.asarray(v)[None, None] for x, v in MADE.truth.items()}
    return {kind: record(kind, draws) for kind, draws in
            (("sampler", several), ("variational", one), ("point", point))}  # fmt: skip


def test_arviz_reads_what_is_handed_out(judged):
    groups = method_groups(bernoulli_mixture, judged["sampler"], NAMES, {}, SIZES)
    assert groups["log_likelihood"]["observed"].dims == ("chain", "draw", "row")
    assert groups["posterior"]["probs"].dims == ("chain", "draw", "component", "column")
    arviz = import_arviz()
    data = container(groups)
    assert "mixing[0]" in arviz.summary(data).index
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a hundred draws: some k̂ are large
        loo = arviz.loo(data, var_name="observed")
    assert loo.n_data_points == 60
    point = method_groups(bernoulli_mixture, judged["point"], NAMES, {}, SIZES)
    assert "posterior" not in point and "probs" in point["point_estimate"]
    assert "arviz.summary" in point["point_estimate"].attrs["note"]  # says what it cannot do


def test_arviz_checks_prior_and_predictions_of_every_sampler(judged):
    """The log prior by hand; replicated totals like those of rows drawn from the mean rates."""
    arviz = import_arviz()
    for name in ("sampler", "variational"):
        groups = method_groups(bernoulli_mixture, judged[name], NAMES, {}, SIZES)
        raw = groups.get("posterior_raw", groups["posterior"])
        wanted = beta.logpdf(raw["probs"].values, 2, 2).sum((-1, -2))
        np.testing.assert_allclose(groups["log_prior"]["probs"], wanted, rtol=1e-3, atol=1e-2)
        assert groups["prior"]["probs"].dims == ("chain", "draw", "component", "column")
        assert abs(float(groups["prior"]["probs"].var()) - 0.05) < 0.005  # of Beta(2, 2)
        rates = np.einsum("cdk,cdkx->x", raw["mixing"].values, raw["probs"].values)
        rates /= raw["mixing"].sizes["chain"] * raw["mixing"].sizes["draw"]
        rows = groups["posterior_predictive"]
        np.testing.assert_allclose(rows["column_mean"].mean(("chain", "draw")), rates, atol=0.02)
        np.testing.assert_array_equal(rows["observed"].sum("column"), rows["total"])
        moved = prior_sensitivity(groups)
        assert set(moved) == {"probs", "mixing"} and moved["probs"] > 0.0
        assert check_totals(groups)["outside"] <= 5  # of at most 13 totals, a tenth is due
        data = container(groups)
        if hasattr(arviz, "psens"):  # before 1.0, which has its plots elsewhere
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Matplotlib, about ArviZ
                arviz.plot_ppc(data, var_names=["total"], num_pp_samples=20, random_seed=0)
            weights = -groups["log_likelihood"]["observed"].stack(sample=("chain", "draw"))
            pit = arviz.loo_pit(
                y=groups["observed_data"]["total"].values,
                y_hat=rows["total"].stack(sample=("chain", "draw")).values,
                log_weights=arviz.psislw(weights.values)[0],
            )
            assert 0.3 < pit.mean() < 0.7


def test_models_are_ranked_on_the_same_rows_by_what_they_foretell(judged, tmp_path, capsys):
    """A mixture of three against one whose draws are those of a product: the mixture wins."""
    three = method_groups(bernoulli_mixture, judged["sampler"], NAMES, {}, SIZES)
    save(three, tmp_path / "three.nc", {"model": "three", "method": "NUTS"})
    rates = judged["sampler"].observed.mean(0)
    rows = np.log(np.where(judged["sampler"].observed > 0.5, rates, 1 - rates)).sum(-1)
    noise = 0.01 * np.random.default_rng(0).normal(size=judged["sampler"].scores.train.shape)
    worse = {
        **three,
        "log_likelihood": three["log_likelihood"].copy(data={"observed": rows + noise}),
    }
    save(worse, tmp_path / "one.nc", {"model": "one", "method": "NUTS"})
    files = [str(tmp_path / "one.nc"), str(tmp_path / "three.nc")]
    assert main(["rank", *files]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in said[1:3]] == ["three", "one"]
    other = {**three, "observed_data": three["observed_data"] * 0}
    save(other, tmp_path / "other.nc", {"model": "other", "method": "NUTS"})
    assert main(["rank", files[0], str(tmp_path / "other.nc")]) == 2
    assert "other rows" in capsys.readouterr().err

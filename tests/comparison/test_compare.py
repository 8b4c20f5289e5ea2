"""The comparison: one program, one table, several methods, judged alike, kept as files."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.handlers import seed, substitute, trace
from scipy.special import logsumexp
from scipy.stats import beta

import inference.comparison.contenders as contending
from inference.cli import main
from inference.comparison.compare import compare
from inference.comparison.contenders import Contender, contenders
from inference.comparison.files import load_comparison, method_groups, save_comparison
from inference.comparison.reference import Reference, of_the_run, refer
from inference.comparison.scoring import Judges, spacing
from inference.evaluation.diagnostics import diagnose
from inference.files.arviz import load, posterior_groups
from inference.files.cards import example
from inference.reading.anatomy import inspect
from ppl_models import bernoulli_mixture, bernoulli_product, latent_trait

DATA = example("bernoulli_mixture", 80, which="small")
SIZES_OF_DATA = {**DATA.sizes, "prior_probs": dist.Beta(2.0, 2.0)}


@pytest.fixture(scope="module")
def compared():
    kept = {}
    comparison = compare(
        bernoulli_mixture, DATA.values, ["EM", "NUTS", "SVI mean field", "BoundEM", "EM MAP"],
        truth=DATA.truth, keep=kept, limit=60.0, num_draws=100, **SIZES_OF_DATA,
    )  # fmt: skip
    return comparison, kept


def test_methods_that_apply_are_judged_and_the_others_say_why(compared):
    comparison, _ = compared
    for name in ("EM", "NUTS", "SVI mean_field"):
        row = comparison.rows[name]
        assert row["status"] == "done" and np.isfinite(row["held_out"])
        least = 0.5 if name == "SVI mean_field" else 0.8  # of one start: any mode
        assert row["recovery"] > least and row.get("calibration_error", 0.0) < 0.2
    # A point claims no uncertainty.
    assert set(comparison.reliability) == {"NUTS", "SVI mean_field"}
    assert comparison.rows["BoundEM"]["status"] == "does not apply"
    assert "discrete" in comparison.rows["BoundEM"]["reason"]
    assert sum(comparison.rows[x]["best"] for x in comparison.held_out) == 1
    assert "rhat" in comparison.rows["NUTS"] and "pareto_k" in comparison.rows["SVI mean_field"]
    assert "rhat" not in comparison.rows["EM"] and "rhat" not in comparison.rows["SVI mean_field"]
    # What is left to gain is known only of a run that was long enough to estimate it.
    assert (
        comparison.rows["EM"]["starts"] == 3 and comparison.rows["EM"].get("remaining", 0.0) < 0.01
    )


def test_held_out_score_of_a_point_is_its_marginal_likelihood(compared):
    """By hand: a mixture of products, on the rows that the seed holds out."""
    comparison, kept = compared
    params = {x: np.asarray(v)[0, 0] for x, v in kept["EM"].draws.params.items()}
    order = np.asarray(random.permutation(random.split(random.key(0))[0], 80))
    rows = DATA.values[np.sort(order[60:])]
    # In float32 NumPyro keeps a probability away from 0 and 1, where 60 rows may well put it.
    probs = np.clip(params["probs"], np.finfo(np.float32).eps, 1 - np.finfo(np.float32).eps)
    each = np.where(rows[:, None] > 0.5, probs, 1 - probs).prod(-1)
    np.testing.assert_allclose(
        comparison.held_out["EM"], np.log(each @ params["mixing"]), rtol=1e-4
    )


def test_likelihood_and_posterior_mode_are_rows_apart_under_the_priors_of_all(compared):
    """By hand: each is best at what it maximises."""
    comparison, kept = compared

    @jax.jit
    def log_prior(point, rows):
        sites = trace(seed(substitute(bernoulli_mixture, data=point), 0)).get_trace(
            rows, **SIZES_OF_DATA
        )
        return sum(sites[x]["fn"].log_prob(sites[x]["value"]).sum() for x in point)

    log_joint = {}
    for name in ("EM", "EM MAP"):
        point = {x: v[0, 0] for x, v in kept[name].draws.params.items()}
        log_joint[name] = 60 * comparison.rows[name]["train"] + float(
            log_prior(point, kept[name].observed)
        )
    assert log_joint["EM MAP"] > log_joint["EM"]
    assert comparison.rows["EM"]["train"] > comparison.rows["EM MAP"]["train"]
    said = {x: (comparison.rows[x]["objective"], comparison.rows[x]["prediction"]) for x in kept}
    assert said == {
        "EM": ("likelihood", "plug-in"), "EM MAP": ("posterior mode", "plug-in"),
        "NUTS": ("posterior", "averaged"), "SVI mean_field": ("posterior", "averaged"),
    }  # fmt: skip


def test_a_curve_ends_where_its_row_does(compared):
    comparison, _ = compared
    for name, (path, clock) in comparison.paths.items():
        assert len(path) == len(clock) and path[-1] == pytest.approx(
            comparison.rows[name]["held_out"]
        )


def test_a_comparison_survives_its_file(compared, tmp_path):
    comparison, _ = compared
    save_comparison(comparison, tmp_path / "result.nc")
    again = load_comparison(tmp_path / "result.nc")
    assert again.verdict == comparison.verdict and again.headline == comparison.headline
    np.testing.assert_array_equal(again.held_out["NUTS"], comparison.held_out["NUTS"])
    np.testing.assert_array_equal(again.params["EM"]["probs"], comparison.params["EM"]["probs"])
    np.testing.assert_array_equal(again.paths["EM"][1], comparison.paths["EM"][1])


@pytest.mark.parametrize(("name", "shape"), [("NUTS", (4, 100)), ("SVI mean_field", (1, 500))])
def test_a_file_holds_every_draw_with_its_own_likelihood(compared, name, shape):
    """By hand, a mixture of products, of the draws as made and as brought together."""
    _, kept = compared
    groups = method_groups(
        bernoulli_mixture, kept[name], [f"q{i}" for i in range(12)], {}, SIZES_OF_DATA
    )
    likelihood = groups["log_likelihood"]["observed"].values
    assert likelihood.shape == (*shape, 60) and groups["posterior"].sizes["draw"] == shape[1]
    assert {"prior", "log_prior", "posterior_predictive"} <= {*groups}
    if name == "NUTS":
        assert groups["sample_stats"]["lp"].shape == shape
    raw = groups.get("posterior_raw", groups["posterior"])
    wanted = beta.logpdf(raw["probs"].values, 2, 2).sum((-1, -2))
    np.testing.assert_allclose(groups["log_prior"]["probs"], wanted, rtol=1e-3, atol=1e-2)
    rates = np.einsum("cdk,cdkx->cdx", raw["mixing"].values, raw["probs"].values).mean((0, 1))
    drawn = groups["posterior_predictive"]["column_mean"].mean(("chain", "draw"))
    np.testing.assert_allclose(drawn, rates, atol=0.02)
    rows = kept[name].observed
    for group in {"posterior", "posterior_raw"} & {*groups}:
        probs = groups[group]["probs"].values[..., None, :, :]
        probs = np.clip(probs, np.finfo(np.float32).eps, 1 - np.finfo(np.float32).eps)
        each = np.where(rows[:, None] > 0.5, probs, 1 - probs).prod(-1)
        wanted = np.log((each * groups[group]["mixing"].values[..., None, :]).sum(-1))
        np.testing.assert_allclose(likelihood, wanted, rtol=1e-3)


def test_draws_of_turned_factors_are_brought_together_before_they_are_saved():
    """Four chains of one posterior, each turned by another angle: raw they do not agree."""
    rng = np.random.default_rng(0)
    wanted = rng.normal(size=(2, 9))
    draws = wanted + 0.1 * rng.normal(size=(4, 50, 2, 9))
    angles = np.array([0.0, 1.0, 2.0, 3.0])
    turn = np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]])
    turned = np.einsum("qrc,cdrx->cdqx", turn, draws)
    draws = {"weights": turned, "bias": rng.normal(size=(4, 50, 9))}
    groups = posterior_groups(latent_trait, draws, {}, arguments=((np.eye(9),), {}))
    both = {x: groups[x]["weights"].values for x in ("posterior", "posterior_raw")}
    rhat = {x: checks["rhat"] for x, checks in diagnose(both).items()}
    assert rhat["posterior"] < 1.1 < 2.0 < rhat["posterior_raw"]
    np.testing.assert_array_equal(groups["posterior_raw"]["weights"], turned)


def test_a_score_is_by_all_draws_and_says_what_it_owes_to_them(compared):
    """The error of the mean score against its spread over disjoint quarters of the draws."""
    comparison, kept = compared
    row, one = comparison.rows["NUTS"], kept["NUTS"]
    assert row["num_scored"] == 400 == one.scores.test[..., 0].size
    np.testing.assert_allclose(one.held_out, logsumexp(one.scores.test, (0, 1)) - np.log(400))
    each = [logsumexp(chain, 0).mean() - np.log(100) for chain in one.scores.test]
    spread = np.std(each, ddof=1) / 2  # of the mean of four chains
    assert 0.2 * spread < row["score_error"] < 5 * spread  # three degrees of freedom
    assert comparison.rows["EM"]["score_error"] == 0.0


def test_a_method_that_fails_is_a_row_and_the_others_go_on(monkeypatch):
    def broken(*_):
        raise RuntimeError("it broke")

    def stopped(*_):
        raise KeyboardInterrupt

    def runaway(model, key, arguments, limits):
        draws, engine = real(inspect(model, *arguments))[0]["EM"].run(model, key, arguments, limits)
        return draws._replace(params={x: 1e9 + v for x, v in draws.params.items()}), engine

    real = contenders

    def some(anatomy):
        every, refused = real(anatomy)
        return {
            "broken": Contender("broken", True, "point", broken),
            "runaway": Contender("runaway", True, "point", runaway),
            "EM": every["EM"],
            "stopped": Contender("stopped", True, "point", stopped),
            "NUTS": every["NUTS"],
        }, refused

    monkeypatch.setattr(contending, "contenders", some)
    comparison = compare(bernoulli_mixture, DATA.values, None, limit=60.0, **SIZES_OF_DATA)
    assert comparison.rows["broken"]["status"] == "failed"
    assert "it broke" in comparison.rows["broken"]["reason"]
    assert "as large as 1e+09" in comparison.rows["runaway"]["reason"]
    assert "runaway" not in comparison.held_out  # a likelihood lost to rounding is no score
    assert comparison.rows["EM"]["best"] and comparison.rows["NUTS"]["status"] == "interrupted"
    assert comparison.about["interrupted"] and comparison.headline.startswith("EM first")


def test_distances_are_from_a_sampler_with_its_own_error(compared):
    """Of a chain of a hundred draws; the reference is zero from itself, and says who it is."""
    comparison, kept = compared
    if comparison.rows["NUTS"]["ess_bulk"] < 400:  # too short to be trusted: then nobody is
        assert comparison.about["reference"].startswith("No sampler has arrived")
    rows = {x: {**comparison.rows[x], "uncertainty": "ARRIVED"} for x in kept}
    held_out = {x: kept[x].held_out for x in kept}
    chief = of_the_run(rows, held_out, Reference("The long chain broke."))
    refer(rows, held_out, chief)
    assert chief.words.startswith("The long chain broke. Distances are from NUTS")
    assert rows["NUTS"]["distance"] == 0.0 < rows["EM"]["distance"]
    each = np.exp(kept["NUTS"].scores.train)  # the error of a mean of hardly correlated draws
    spread = each.std((0, 1)) / each.mean((0, 1)) / np.sqrt(each[..., 0].size)
    assert 0.3 * spread.mean() < chief.error < 5 * spread.mean()


def test_the_command_writes_report_manifest_and_results(tmp_path, capsys):
    out = tmp_path / "out"
    small = ["compare", "bernoulli_product", "--example", "small"]
    assert main([*small, "--methods", "MAP", "--out", str(out)]) == 0
    assert sorted(x.name for x in out.iterdir()) == [
        "MAP.nc", "manifest.json", "report.html", "result.nc",
    ]  # fmt: skip
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["methods"]["MAP"]["best"] and manifest["about"]["seed"] == 0
    assert manifest["methods"]["MAP"]["starts"] == 4
    assert "MAP: the best score; there after" in capsys.readouterr().out
    groups, attrs = load(out / "MAP.nc")
    assert set(groups) == {"point_estimate", "optimization", "observed_data"}
    assert attrs["method"] == "MAP"


@pytest.mark.parametrize(("exact", "steps"), [(True, (1, 1)), (False, (2, 2))])
def test_of_many_draws_some_are_scored_where_a_row_needs_quadrature(exact, steps):
    judges = Judges(SimpleNamespace(exact=exact, sampled=False), np.arange(600), 450)
    assert spacing(judges, 4, 500) == steps  # of a table without fresh rows too
    rows = SimpleNamespace(leaves=(np.zeros((600, 30)),))
    fresh = judges._replace(fresh=(rows,), fresh_place=np.arange(1000))
    assert spacing(fresh, 4, 500)[1] == (1 if exact else 10)  # 200 draws x 1000 rows x 30 cells


def test_fresh_rows_and_the_truth_decide_where_both_are_known():
    """Two coins: the excess of the estimate is a divergence between Bernoulli distributions."""
    truth = {"probs": np.array([0.3, 0.6])}

    def fresh(count):
        return (np.random.default_rng(1).random((count, 2)) < truth["probs"]).astype(float)

    data, kept = fresh(50), {}
    comparison = compare(bernoulli_product, data, ["MAP"], truth=truth, fresh=fresh, keep=kept)
    assert comparison.about["num_train"] == 50 and comparison.about["num_test"] == 20_000
    guess = np.asarray(kept["MAP"].draws.params["probs"])[0, 0]
    p, q = truth["probs"], guess
    wanted = (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).sum()
    row = comparison.rows["MAP"]
    assert row["excess"] == pytest.approx(wanted, abs=4 * row["excess_error"])
    assert 0 < row["excess_error"] < 0.003
    rates = np.log(np.where(fresh(20_000) > 0.5, q, 1 - q)).sum(-1)
    np.testing.assert_allclose(comparison.held_out["MAP"], rates, rtol=1e-4)

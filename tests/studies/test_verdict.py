"""The verdict follows from its stated rules: rows made by hand, no inference."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from jax import random

from inference.baselines.samplers import Draws
from inference.studies.cards import CARDS
from inference.studies.comparison.checks import Standing, doubts, standing
from inference.studies.comparison.compare import Comparison
from inference.studies.comparison.contenders import Contender, Limits
from inference.studies.comparison.diagnostics import diagnose, without_arviz
from inference.studies.comparison.golden import HERE, NUM_KEPT, load
from inference.studies.comparison.judge import progress, remaining
from inference.studies.comparison.reference import refer, strict_doubts
from inference.studies.comparison.replicates import repeat, spread
from inference.studies.comparison.turns import _rounds
from inference.studies.comparison.verdict import headline, settle, verdict, winner


def row(held_out, bespoke=True, **more):
    return {
        "held_out": held_out, "held_out_error": 0.1, "bespoke": bespoke, "seconds": 9.0,
        "kind": "point", "starts": 4, "starts_near": 4, "starts_behind": 0.0, **more,
    }  # fmt: skip


def settled(scores, paths=None, **rows):
    held_out = {name: np.asarray(values, float) for name, values in scores.items()}
    for name, values in held_out.items():
        rows[name] = {**row(values.mean()), **rows.get(name, {})}
    paths = paths or {x: (np.array([v.mean()]), np.array([1.0])) for x, v in held_out.items()}
    settle(rows, held_out, paths)
    return rows


def test_as_good_is_decided_by_paired_differences():
    """Both differ from the best by 0.1 on average; only one does so in every row."""
    best = np.array([-1.0, -2.0, -3.0, -4.0])
    rows = settled({
        "best": best,
        "steady": best - [0.09, 0.11, 0.1, 0.1],
        "now and then": best - [1.4, -1.0, 1.0, -1.0],
    })  # fmt: skip
    assert rows["best"]["best"] and rows["best"]["as_good"]
    assert not rows["steady"]["as_good"] and rows["now and then"]["as_good"]
    assert np.isclose(rows["steady"]["behind"], 0.1)


def test_time_to_the_best_is_that_from_which_on_it_is_within_a_hundredth():
    paths = {
        "best": (np.array([-9.0, -2.5]), np.array([1.0, 2.0])),
        "other": (np.array([-2.505, -2.52, -2.505, -2.501]), np.array([0.1, 0.4, 0.9, 1.3])),
        "gone": (np.array([-2.52, -2.505, -2.6]), np.array([0.1, 0.4, 0.9])),
        "never": (np.array([-2.52]), np.array([0.1])),
    }
    scores = {"best": [-2.0, -3.0], "other": [-2.0, -3.002], "gone": [-2.1, -3.1],
              "never": [-2.02, -3.02]}  # fmt: skip
    rows = settled(scores, paths)
    assert rows["best"]["seconds_to_best"] == 2.0
    assert rows["other"]["seconds_to_best"] == 0.9
    assert rows["gone"]["seconds_to_best"] is None
    assert rows["never"]["seconds_to_best"] is None


def test_each_kind_is_doubted_for_its_own_reasons():
    good = {"kind": "sampler", "rhat": 1.001, "rhat_parameters": 1.01, "ess_bulk": 900.0,
            "divergences": 0, "score_error": 0.001}  # fmt: skip
    assert doubts(good) == [] and standing(good) is Standing.PASSES
    assert doubts({**good, "rhat": 1.02}) == ["R̂ of the log joint 1.020"]
    assert doubts({**good, "ess_bulk": 30.0, "divergences": 4}) == [
        "4 divergences",
        "30 effective draws",
    ]
    assert doubts({**good, "score_error": 0.02}) == [
        "its score is known to ± 0.020 nats per row only"
    ]
    assert standing({**good, "rhat": float("nan")}) is Standing.FAILS
    guide = {"kind": "variational", "num_scored": 500}
    assert standing({**guide, "pareto_k": 0.5}) is Standing.PASSES
    assert doubts({**guide, "pareto_k": 0.66}) == ["Pareto k̂ 0.66"]  # fine with 4000 draws
    assert doubts({**guide, "pareto_k": 0.66, "num_scored": 4000}) == []
    apart = {"starts": 2, "starts_near": 1, "starts_behind": 1.8}
    assert standing({**guide, "pareto_k": 0.5, **apart}) is Standing.FAILS


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"remaining": 0.2}, "0.200 nats per row left to gain"),
        ({"starts_near": 1, "starts_behind": 0.12}, "1 of 4 starts ended there, the next 0.120"),
        ({"bound_gap": -5.0}, "5.00 nats per row above the evidence"),
        ({"bound_gap": 0.2}, "0.20 nats per row below the evidence"),
        ({"undetermined": 2}, "2 directions are not determined by these data"),
        ({"missed_mass": 0.02}, "at least 2.0% of the posterior mass missed"),
        ({"train_behind": 0.33}, "0.33 nats per row below the likelihood that another found"),
    ],
)
def test_the_checks_of_a_point_estimate_can_fail(found, words):
    sound = row(-2.0, remaining=0.001, bound_gap=0.01, missed_mass=0.0, train_behind=0.0)
    assert standing(sound) is Standing.PASSES
    assert words in "; ".join(doubts({**sound, **found}))
    assert standing({**sound, **found}) is Standing.FAILS


def test_an_interrupted_comparison_claims_nothing_of_what_did_not_end():
    """Only one side ended: that the other does not come close would be a claim about nothing."""
    rows = settled({"ours": [-2.0, -3.0], "ours too": [-2.5, -3.5]})
    assert headline(rows).startswith("Only bespoke inference comes within")
    rows["NUTS"] = {"status": "interrupted", "bespoke": False, "reason": "interrupted: …"}
    assert headline(rows) == (
        "Of the 2 methods that ended, ours is best; of the others nothing is known. "
        "Interrupted before the end: NUTS."
    )


def test_one_start_is_never_trusted_unless_there_is_no_other():
    alone = row(-2.0, starts=1, starts_near=None)
    assert standing(alone) is Standing.ONE_START
    assert standing({**alone, "start_free": True}) is Standing.PASSES
    rows = settled({"ours": [-2.0, -3.0]}, ours={"starts": 1, "starts_near": None})
    assert "one start" in dict(verdict(rows))["ours"] and "pass" not in dict(verdict(rows))["ours"]
    assert headline(rows) == (
        "No method passes its checks here, so none is recommended. One start only: ours."
    )


def test_what_was_left_to_gain_and_whether_starts_agree_is_read_off_the_losses():
    """A geometric approach of known rest, and four starts of which two end together."""
    losses = 500.0 + 100.0 * 0.98 ** np.arange(60)
    starts = np.array([9.0, 5.0, 5.4, 30.0])
    facts = progress(Draws({}, {}, losses, {}, losses, 1.0, 1.0, "", starts=starts), 100)
    assert facts["remaining"] == pytest.approx(0.98**59, rel=0.02)
    assert (facts["starts"], facts["starts_near"]) == (4, 2)
    assert facts["starts_behind"] == pytest.approx(0.004)
    assert remaining(np.array([3.0])) is None  # of one step nothing is known


def test_a_point_far_below_anothers_training_likelihood_fails_but_a_posterior_mode_may():
    scores = {x: [-2.0, -3.0] for x in ("EM", "pursuit", "mode")}
    rows = settled(
        scores, EM={"train": -2.0}, pursuit={"train": -2.33},
        mode={"train": -2.4, "posterior_mode": True},
    )  # fmt: skip
    assert rows["pursuit"]["standing"] == "FAILS" and rows["EM"]["standing"] == "PASSES"
    many = {**rows["pursuit"], "overfit": 0.4}  # of so many parameters the truth lies 0.2 below
    assert standing(many) is Standing.PASSES
    assert rows["mode"]["standing"] == "PASSES"


def test_the_monte_carlo_error_of_a_score_is_part_of_a_difference():
    """0.02 behind in every row: the paired error is zero, that of the draws is not."""
    best = np.array([-1.0, -2.0, -3.0, -4.0])
    scores = {"best": best, "chain": best - 0.02}
    assert not settled(scores)["chain"]["as_good"]
    noisy = {x: {"score_error": 0.009} for x in scores}
    rows = settled(scores, **noisy)
    assert rows["chain"]["as_good"]
    assert rows["chain"]["behind_error"] == pytest.approx(0.009 * np.sqrt(2))


def test_the_headline_names_the_winner_and_by_how_much():
    scores = {"ours": [-2.0, -3.0], "theirs": [-2.0, -3.0]}
    paths = {
        "ours": (np.array([-2.5]), np.array([0.5])),
        "theirs": (np.array([-2.5]), np.array([2.0])),
    }
    rows = settled(scores, paths, theirs={"bespoke": False})
    assert headline(rows) == (
        "Bespoke inference wins here: ours comes within 0.01 nats per row of the best in 0.5 s; "
        "theirs needs 2 s (4 times as long)."
    )
    paths["theirs"] = (np.array([-2.5]), np.array([0.7]))
    rows = settled(scores, paths, theirs={"bespoke": False})
    assert winner(rows) is None and headline(rows) == (
        "Neither bespoke nor generic inference wins here: ours comes within 0.01 nats per row of "
        "the best in 0.5 s; theirs needs 0.7 s (1.4 times as long)."
    )
    third = {**scores, "third": [-2.0, -3.0]}
    for times in ((0.5, 0.6), (0.6, 0.5)):  # which of two is first is left to chance
        for name, time in zip(("ours", "third"), times, strict=True):
            paths[name] = (np.array([-2.5]), np.array([time]))
        said = headline(settled(third, paths, theirs={"bespoke": False}))
        assert ": ours and third come within 0.01 nats per row of the best in 0.5 s" in said
    paths["ours"] = paths.pop("third")
    paths["theirs"] = (np.array([-2.5]), np.array([2.0]))
    paths["ours"], paths["theirs"] = paths["theirs"], paths["ours"]
    rows = settled(scores, paths, theirs={"bespoke": False})
    assert "Generic inference wins" in headline(rows) and "4 times" in headline(rows)
    assert headline({"failed": {"reason": "failed: no"}}) == "No method finished."


def test_who_fails_its_checks_is_named_as_failing_and_nowhere_as_good():
    """Two fail: one scores highest and was quickest, the other is not told from the best."""
    best = np.array([-1.0, -2.0, -3.0, -4.0])
    scores = {"ours": best, "hasty": best + 0.5, "theirs": best - 0.005}
    scores["vague"] = best - [1.0, -1.0, 1.0, -0.9]
    seconds = {"ours": 4.0, "hasty": 0.5, "theirs": 2.0, "vague": 1.0}
    paths = {x: (np.array([scores[x].mean()]), np.array([s])) for x, s in seconds.items()}
    bad = {"bespoke": False, "kind": "variational", "pareto_k": 1.2}
    rows = settled(scores, paths, theirs={"bespoke": False}, hasty=bad, vague=bad)
    assert rows["ours"]["best"] and not rows["hasty"]["as_good"] and not rows["vague"]["as_good"]
    good, failing = headline(rows).split(" Failing their checks: ")
    assert failing == "hasty, vague." and "hasty" not in good and "vague" not in good
    sentences = dict(verdict(rows))
    for name in ("hasty", "vague"):
        assert "fails its checks (Pareto k̂ 1.20)" in sentences[name]
        assert "good" not in sentences[name] and "best with" not in sentences[name]
    assert "0.500 ± 0.000 nats per row above the best of those to be trusted" in sentences["hasty"]
    rows = settled(scores, paths, **dict.fromkeys(scores, bad))
    assert headline(rows).startswith("No method passes its checks here, so none is recommended.")
    assert not any("best with" in words for _, words in verdict(rows))


def test_one_side_alone_comes_near_and_the_nearest_of_the_other_is_named():
    best = np.array([-1.0, -2.0, -3.0, -4.0])
    scores = {"ours": best, "late": best - 2.0, "a": best - [1.4, -1, 1, -1]}
    rows = settled(scores, **{x: {"bespoke": False} for x in ("late", "a")})
    assert headline(rows) == (
        "Only bespoke inference comes within 0.01 nats per row of the best: ours comes within 0.01 "
        "nats per row of the best in 1 s; a, the nearest generic method, needs 9 s (9 times as "
        "long) and ends 0.100 ± 0.640 behind."
    )


def test_who_is_behind_for_certain_but_by_little_has_come_near_too():
    """0.008 nats behind in every row: worse without a doubt, and within 0.01 nats all the same."""
    best = np.array([-1.0, -2.0, -3.0, -4.0])
    rows = settled({"ours": best, "NUTS": best - 0.008}, NUTS=row(-2.508, bespoke=False))
    assert not rows["NUTS"]["as_good"]
    assert "wins here" in headline(rows) and "NUTS" in headline(rows)


def test_every_method_has_its_sentence_also_one_that_failed():
    rows = settled({"ours": [-2.0, -3.0]}, late={"reason": "out of budget", "status": "failed"})
    sentences = dict(verdict(rows))
    assert sentences["ours"].startswith("ours: best with -2.500")
    assert sentences["late"] == "late: out of budget."


def data_set(scores, seconds, **rows):
    """One of several, as a comparison hands it out."""
    paths = {x: (np.array([np.mean(v)]), np.array([seconds[x]])) for x, v in scores.items()}
    held_out = {x: np.asarray(v, float) for x, v in scores.items()}
    made = settled(scores, paths, **rows)
    about = {"fresh": True, "num_test": 4, "num_train": 9, "interrupted": False}
    return Comparison("", about, made, held_out, paths, {}, {}, {}, {})


def test_over_several_data_sets_means_and_their_spread_decide():
    """ours is 0.02, 0.04 and 0.03 behind theirs; the error is the spread of these, not of rows."""
    best = np.array([-1.0, -2.0, -3.0, -4.0])
    asked = []

    def one(number, passing):
        asked.append(passing)
        scores = {"ours": best - [0.02, 0.04, 0.03][number], "theirs": best, "vague": best}
        truth = {"excess_error": 0.001}
        rows = {"ours": {**truth, "excess": 0.04}, "theirs": {**truth, "excess": 0.01}}
        rows["theirs"]["bespoke"] = False
        rows["vague"] = {"kind": "variational", "pareto_k": 2.0, "bespoke": False}
        scores = scores if passing is None else {x: scores[x] for x in passing}
        rows = {x: rows[x] for x in scores}
        return data_set(scores, {"ours": 1.0 + number, "theirs": 8.0, "vague": 0.1}, **rows)

    pooled = repeat(one, 3)
    assert asked == [None, ["ours", "theirs"], ["ours", "theirs"]]  # one failure decides
    assert pooled.about["replicates"] == 3 and pooled.about["agree"] == 3
    assert pooled.certainty.startswith("The verdict is the same on 3 of 3 data sets;")
    assert [pooled.rows[x]["data_sets"] for x in ("ours", "theirs", "vague")] == [3, 3, 1]
    row = pooled.rows["ours"]
    assert row["behind"] == pytest.approx(0.03)
    assert row["behind_error"] == pytest.approx(0.01 / np.sqrt(3)) and not row["as_good"]
    assert headline(pooled.rows) == (
        "Only generic inference comes within 0.01 nats per row of the best: theirs reaches 0.010 ± "
        "0.001 nats per row of the truth in 8 s; ours, the nearest bespoke method, needs 9 s (1.1 "
        "times as long) and reaches 0.040 ± 0.001. Failing their checks: vague."
    )


def test_a_method_that_fails_on_a_later_data_set_fails():
    def one(number, passing):
        scores = {x: [-2.0, -3.0] for x in passing or ("ours", "theirs")}
        bad = {"remaining": 0.5} if number == 1 else {}
        rows = {"ours": bad, "theirs": {"bespoke": False}}
        return data_set(scores, {"ours": 1.0, "theirs": 8.0}, **{x: rows[x] for x in scores})

    pooled = repeat(one, None, budget=20.0)  # 9 s for the second, 9 for the third, 2 are left
    assert pooled.about["replicates"] == 3 and pooled.rows["theirs"]["data_sets"] == 3
    assert pooled.about["contested"] == 2  # the third had no method that could have won instead
    assert "of the 2 data sets on which methods of both sides ran" in pooled.certainty
    assert pooled.rows["ours"]["standing"] == "FAILS" and not pooled.rows["ours"]["as_good"]
    assert pooled.headline.endswith("Failing their checks: ours.") and pooled.rows["theirs"]["best"]


@pytest.mark.parametrize("failing", [None, 3])
def test_quick_methods_are_checked_on_data_sets_that_slow_ones_have_no_time_for(failing):
    """theirs takes 9 of 10 s: it has two data sets, on which both are measured; ours has five."""

    def one(number, passing):
        bad = {"remaining": 0.5} if number == failing else {}
        rows = {"ours": {"seconds": 1.0, **bad}, "theirs": {"bespoke": False}}
        rows = {x: rows[x] for x in passing or rows}
        return data_set({x: [-2.0, -3.0] for x in rows}, {"ours": 1.0, "theirs": 8.0}, **rows)

    pooled = repeat(one, None, budget=10.0)
    assert pooled.rows["theirs"]["data_sets"] == pooled.about["replicates"] == 2
    assert pooled.rows["ours"]["data_sets"] == pooled.about["checked"] == (4 if failing else 5)
    assert winner(pooled.rows) is (failing is None)
    assert pooled.rows["theirs"]["standing"] == "PASSES"
    assert f"checked on {pooled.about['checked']}" in pooled.certainty


def test_starts_that_disagree_are_made_again_while_the_budget_has_room():
    """Runs of 3 s, of which the third joins the best of the first; all that it took is counted."""
    ends = [[9.0, 5.0], [8.0, 7.0], [5.05, 6.0]]
    left = []

    def run(model, key, arguments, limits):
        del model, key, arguments
        starts = np.array(ends[len(left)])
        left.append(limits.seconds)
        return Draws({}, {}, starts, {}, np.array([1.0, 3.0]), 3.0, 0.0, "", starts=starts), None

    field = SimpleNamespace(model=None, train_arguments=(), judges=SimpleNamespace(num_train=10))
    contender = Contender("ours", True, "point", run)
    draws, _ = _rounds(field, contender, random.key(0), Limits(20.0))
    assert left == [20.0, 17.0, 14.0] and draws.seconds == 9.0
    assert draws.clock.tolist() == [7.0, 9.0] and progress(draws, 10)["starts_near"] == 2
    left.clear()
    _rounds(field, contender, random.key(0), Limits(5.0))
    assert left == [5.0]
    left.clear()
    _rounds(field, contender._replace(kind="sampler"), random.key(0), Limits(20.0))
    assert left == [20.0]


def test_data_sets_on_which_one_side_ran_alone_do_not_confirm_a_verdict():
    def one(_, passing):
        rows = {"ours": {}, "theirs": {"bespoke": False, "remaining": 0.5}}
        rows = {x: rows[x] for x in passing or rows}
        return data_set({x: [-2.0, -3.0] for x in rows}, {"ours": 1.0, "theirs": 8.0}, **rows)

    pooled = repeat(one, 3)
    assert pooled.about["replicates"] == 3 and "do not test the verdict" in pooled.certainty


def test_rows_held_out_in_turn_count_for_less_than_other_data():
    """Nadeau & Bengio (2003): training rows overlap, so that folds are no independent trials."""
    values, rows = [0.1, 0.2, 0.3, 0.4], [0.0] * 4
    assert spread(values, 0.0, rows) == pytest.approx(np.std(values, ddof=1) / 2)
    assert spread(values, 1 / 3, rows) == pytest.approx(
        np.std(values, ddof=1) * np.sqrt(1 / 4 + 1 / 3)
    )


def test_a_method_without_a_result_is_named():
    late = {"status": "out of budget", "reason": "out of budget: no draw was made"}
    rows = settled({"ours": [-2.0, -3.0]}, NUTS=late, other={"status": "does not apply"})
    assert headline(rows).endswith("No generic method passes its checks. Without a result: NUTS.")


def test_diagnostics_without_arviz_are_as_with_it():
    """Four chains of an autoregression, one of them apart; ranks are taken the same way."""
    rng = np.random.default_rng(0)
    chains = rng.normal(size=(4, 400, 2))
    for i in range(1, 400):
        chains[:, i] += 0.7 * chains[:, i - 1]
    chains[0, :, 1] += 1.0
    there, here = diagnose({"x": chains})["x"], without_arviz(chains)
    assert here["rhat"] == pytest.approx(there["rhat"], abs=2e-3) and there["rhat"] > 1.02
    for part in ("ess_bulk", "ess_tail"):
        assert here[part] == pytest.approx(there[part], rel=0.1)


def test_a_reference_that_is_kept_is_measured_from_on_its_rows(tmp_path):
    kept = {
        "gates": {"rhat": 1.001, "rhat_parameters": 1.002, "ess_bulk": 4000.0},
        "settings": {"chains": 4, "draws": 9000, "seconds": 800.0},
        "error": 0.001, "log_density": [-1.0, -2.0],
    }  # fmt: skip
    (tmp_path / "latent_trait-paper.json").write_text(json.dumps(kept))
    reference = load("latent_trait", folder=tmp_path)
    assert load("latent_trait", "small", tmp_path) is None
    rows = {"ours": {}}
    refer(rows, {"ours": SimpleNamespace(held_out=np.array([-1.1, -2.3, -9.0]))}, reference)
    assert rows["ours"]["distance"] == pytest.approx(0.2) and "4 × 9000 draws" in reference.words


@pytest.mark.parametrize("file", sorted(HERE.glob("*.json")), ids=lambda x: x.stem)
def test_references_that_are_kept_passed_their_gates(file):
    kept = json.loads(file.read_text())
    assert not strict_doubts(kept["gates"]) and len(kept["log_density"]) == NUM_KEPT
    name, _, which = file.stem.partition("-")
    assert which in CARDS[name].examples and kept["settings"]["program"] == name

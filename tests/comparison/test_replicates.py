"""A verdict over several data sets, and references that are kept: rows made by hand."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from jax import random
from settled_rows import settled

from inference.baselines.samplers import Draws
from inference.comparison.compare import Comparison, longest_first
from inference.comparison.contenders import Contender, Limits
from inference.comparison.diagnostics import diagnose, mcse
from inference.comparison.judge import progress, rounds
from inference.comparison.reference import GOLDEN, NUM_KEPT, load, refer, strict_doubts
from inference.comparison.replicates import repeat, spread
from inference.comparison.verdict import headline, winner
from inference.files import arviz
from inference.files.cards import CARDS


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
        rows["ours"]["distance"] = None if number else 0.25  # the others have no reference
        rows["vague"] = {"kind": "variational", "pareto_k": 2.0, "bespoke": False}
        scores = scores if passing is None else {x: scores[x] for x in passing}
        rows = {x: rows[x] for x in scores}
        return data_set(scores, {"ours": 1.0 + number, "theirs": 8.0, "vague": 0.1}, **rows)

    expected = {}
    pooled = repeat(one, 3, expect=expected.__setitem__)
    assert asked == [None, ["ours", "theirs"], ["ours", "theirs"]]  # one failure decides
    assert expected == {1: ["ours", "theirs"], 2: ["ours", "theirs"]}
    assert pooled.about["replicates"] == 3 and pooled.about["agree"] == 3
    assert pooled.certainty.startswith("The verdict is the same on 3 of 3 data sets;")
    assert [pooled.rows[x]["data_sets"] for x in ("ours", "theirs", "vague")] == [3, 3, 1]
    row = pooled.rows["ours"]
    assert row["behind"] == pytest.approx(0.03)
    assert row["behind_error"] == pytest.approx(0.01 / np.sqrt(3)) and not row["as_good"]
    assert row["distance"] == 0.25
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

    def later(number):
        return 3.0 * (number > 1)

    def one(number, passing):
        bad = {"remaining": 0.5} if number == failing else {}
        rows = {"ours": {"seconds": 1.0, **bad}, "theirs": {"bespoke": False}}
        rows = {x: rows[x] for x in passing or rows}
        scores = {x: [-2.0 - later(number), -3.0 - later(number)] for x in rows}
        return data_set(scores, {"ours": 1.0, "theirs": 8.0}, **rows)

    pooled = repeat(one, None, budget=10.0)
    ran = [-2.5 - later(n) for n in range(pooled.about["checked"])]
    for name, some in (("ours", ran), ("theirs", ran[:2])):  # of how data sets differ all tell
        row = pooled.rows[name]
        assert row["held_out"] == pytest.approx(-2.5)
        of_two = max(np.std(some, ddof=1), 0.1) / np.sqrt(2)  # their rows leave 0.1 open
        assert row["held_out_error"] == pytest.approx(of_two)
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
    draws, _ = rounds(field, contender, random.key(0), Limits(20.0))
    assert left == [20.0, 17.0, 14.0] and draws.seconds == 9.0
    assert draws.clock.tolist() == [7.0, 9.0] and progress(draws, 10)["starts_near"] == 2
    left.clear()
    rounds(field, contender, random.key(0), Limits(4.0))
    assert left == [4.0]
    left.clear()
    rounds(field, contender._replace(kind="sampler"), random.key(0), Limits(20.0))
    assert left == [20.0]


def test_what_takes_longest_begins_first():
    kinds = {"MomentInversion": "point", "QuadratureEM MAP": "point", "SVI": "variational",
             "MAP": "point", "NUTS": "sampler", "EM": "point"}  # fmt: skip
    picked = [Contender(name, True, kind, None) for name, kind in kinds.items()]
    names = [x.name for x in sorted(picked, key=longest_first)]
    assert names == ["NUTS", "SVI", "QuadratureEM MAP", "EM", "MomentInversion", "MAP"]


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
    assert spread(values, 4, 0.0, rows) == pytest.approx(np.std(values, ddof=1) / 2)
    assert spread(values, 4, 1 / 3, rows) == pytest.approx(
        np.std(values, ddof=1) * np.sqrt(1 / 4 + 1 / 3)
    )


def test_a_method_without_a_result_is_named():
    late = {"status": "does not fit", "reason": "does not fit: it takes 9 GB"}
    rows = settled({"ours": [-2.0, -3.0]}, NUTS=late, other={"status": "does not apply"})
    assert headline(rows).endswith("No generic method passes its checks. Without a result: NUTS.")


@pytest.mark.parametrize("shape", [(4, 400), (4, 25), (1, 7), (2, 4)])
def test_diagnostics_are_those_of_arviz(shape):
    """Autoregressions, one chain apart, and a scalar that never changes."""
    rng = np.random.default_rng(0)
    chains = rng.normal(size=(*shape, 4))
    for i in range(1, shape[1]):
        chains[:, i] += np.array([0.7, 0.7, -0.6, 0.98]) * chains[:, i - 1]
    chains[0, :, 1] += 1.0
    here = diagnose({"x": chains, "still": np.ones(shape)})
    with warnings.catch_warnings(action="ignore"):  # no R̂ of a single chain, nor of one value
        draws = arviz.dataset({"x": chains, "still": np.ones(shape)}, ("chain", "draw"))
        az = arviz.import_arviz()
        there = {
            "rhat": az.rhat(draws), "ess_bulk": az.ess(draws, method="bulk"),
            "ess_tail": az.ess(draws, method="tail", prob=(0.05, 0.95)),
        }  # fmt: skip
        errors = az.mcse(draws, method="mean")["x"].values
    for name, checks in here.items():
        worst = {x: (np.max if x == "rhat" else np.min)(there[x][name].values) for x in checks}
        assert checks == pytest.approx({x: float(v) for x, v in worst.items()}, nan_ok=True)
    np.testing.assert_allclose(mcse(chains), errors)


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


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.json")), ids=lambda x: x.stem)
def test_references_that_are_kept_passed_their_gates(file):
    kept = json.loads(file.read_text())
    assert not strict_doubts(kept["gates"]) and len(kept["log_density"]) == NUM_KEPT
    name, _, which = file.stem.partition("-")
    assert which in CARDS[name].examples and kept["settings"]["program"] == name

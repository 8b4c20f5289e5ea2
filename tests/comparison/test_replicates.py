"""A verdict over several data sets, and references that are kept: rows made by hand."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from jax import random
from scipy.stats import t as student
from settled_rows import settled

from inference.baselines.samplers import Draws
from inference.comparison.compare import Comparison, longest_first
from inference.comparison.contenders import Contender, Limits
from inference.comparison.judge import progress, rounds
from inference.comparison.reference import GOLDEN, NUM_KEPT, load, refer, strict_doubts
from inference.comparison.replicates import combine, repeat
from inference.comparison.verdict import ratio
from inference.evaluation.diagnostics import diagnose, mcse
from inference.files import arviz
from inference.files.cards import CARDS
from inference.running.contract import Stop


def data_set(scores, seconds, **rows):
    """One of several, as a comparison hands it out."""
    paths = {x: (np.array([np.mean(v)]), np.array([seconds[x]])) for x, v in scores.items()}
    held_out = {x: np.asarray(v, float) for x, v in scores.items()}
    made = settled(scores, paths, **rows)
    about = {"fresh": True, "num_test": 4, "num_train": 9, "interrupted": False}
    return Comparison("", about, made, held_out, paths, {}, {}, {}, {})


def test_over_several_data_sets_times_are_put_together_and_scores_are_of_the_first():
    """theirs takes 8, 8 and 64 times as long as ours; vague does not arrive on the first."""
    best = np.array([-1.0, -2.0, -3.0, -4.0])
    asked = []

    def one(number, passing):
        asked.append(passing)
        scores = {"ours": best - 0.004 - number, "theirs": best - number, "vague": best - 0.5}
        rows = {"theirs": {"bespoke": False}, "vague": {"bespoke": False}}
        scores = scores if passing is None else {x: scores[x] for x in passing}
        rows = {x: rows.get(x, {}) for x in scores}
        long = [8.0, 8.0, 64.0][number]
        return data_set(scores, {"ours": 1.0, "theirs": long, "vague": 0.1}, **rows)

    expected = {}
    pooled = combine(repeat(one, 3, expect=expected.__setitem__))
    assert asked == [None, ["ours", "theirs"], ["ours", "theirs"]]  # one miss decides
    assert expected == {1: ["ours", "theirs"], 2: ["ours", "theirs"]}
    assert pooled.about["replicates"] == 3
    assert [pooled.rows[x]["data_sets"] for x in ("ours", "theirs", "vague")] == [3, 3, 1]
    assert pooled.rows["ours"]["held_out"] == pytest.approx(-2.504)
    assert pooled.rows["theirs"]["seconds_to_score"] == pytest.approx(16.0)
    mean, low, high = ratio(pooled.rows, pooled.about)
    wide = student.ppf(0.975, 2) * np.std(np.log([8, 8, 64]), ddof=1) / np.sqrt(3)
    assert mean == pytest.approx(16.0)
    assert (low, high) == pytest.approx((16 * np.exp(-wide), 16 * np.exp(wide)))
    assert pooled.headline == (
        "ours first, 1 s; theirs as near after 16 s, 16 (0.81 to 316) times as long; no intervals."
    )
    two = combine(repeat(one, 2))
    assert ratio(two.rows, two.about) == pytest.approx([8.0])


def test_a_method_that_does_not_arrive_on_a_later_data_set_has_not_arrived():
    def one(number, passing):
        scores = {x: [-2.0, -3.0] for x in passing or ("ours", "theirs")}
        bad = {"starts_near": 1, "starts_behind": 0.2} if number == 1 else {}
        rows = {"ours": bad, "theirs": {"bespoke": False}}
        return data_set(scores, {"ours": 1.0, "theirs": 8.0}, **{x: rows[x] for x in scores})

    pooled = combine(repeat(one, 3))
    row = pooled.rows["ours"]
    assert row["score"] == "WRONG" and row["seconds_to_score"] is None
    assert (row["arrived_on"], row["data_sets"]) == (1, 2)
    assert pooled.headline.startswith("theirs first, 8 s; no bespoke method comes as near")
    assert "1 of 4 starts ended there" in dict(pooled.verdict)["ours"]


def test_quick_methods_run_on_data_sets_that_slow_ones_have_no_time_for():
    """theirs takes 15 s: two data sets, of which the ratio is; ours has five."""

    def one(_, passing):
        rows = {"ours": {"seconds": 1.0}, "theirs": {"bespoke": False, "seconds": 15.0}}
        rows = {x: rows[x] for x in passing or rows}
        return data_set({x: [-2.0, -3.0] for x in rows}, {"ours": 1.0, "theirs": 8.0}, **rows)

    pooled = combine(repeat(one))
    assert [pooled.rows[x]["data_sets"] for x in ("ours", "theirs")] == [5, 2]
    assert len(pooled.about["parts"]) == 5 and ratio(pooled.rows, pooled.about)[0] == pytest.approx(
        8.0
    )


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
    assert left == [20.0, 17.0, 14.0] and draws.seconds == 9.0 and draws.stop is not Stop.BUDGET
    assert draws.clock.tolist() == [7.0, 9.0] and progress(draws, 10)["starts_near"] == 2
    left.clear()
    draws, _ = rounds(field, contender, random.key(0), Limits(4.0))
    assert left == [4.0] and draws.stop is Stop.BUDGET
    left.clear()
    rounds(field, contender._replace(kind="sampler"), random.key(0), Limits(20.0))
    assert left == [20.0]


def test_what_takes_longest_begins_first():
    kinds = {"MomentInversion": "point", "QuadratureEM MAP": "point", "SVI": "variational",
             "MAP": "point", "NUTS": "sampler", "EM": "point"}  # fmt: skip
    picked = [Contender(name, True, kind, None) for name, kind in kinds.items()]
    names = [x.name for x in sorted(picked, key=longest_first)]
    assert names == ["NUTS", "SVI", "QuadratureEM MAP", "EM", "MomentInversion", "MAP"]


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
    refer(rows, {"ours": np.array([-1.1, -2.3, -9.0])}, reference)
    assert rows["ours"]["distance"] == pytest.approx(0.2) and "4 × 9000 draws" in reference.words


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.json")), ids=lambda x: x.stem)
def test_references_that_are_kept_passed_their_gates(file):
    kept = json.loads(file.read_text())
    assert not strict_doubts(kept["gates"]) and len(kept["log_density"]) == NUM_KEPT
    name, _, which = file.stem.partition("-")
    assert which in CARDS[name].examples and kept["settings"]["program"] == name

"""The verdict follows from its stated rules: rows made by hand, no inference."""

from types import SimpleNamespace

import numpy as np
import pytest
from hostile import examples
from hypothesis import given
from hypothesis import strategies as st
from settled_rows import row, settled

from inference.baselines.samplers import Draws
from inference.comparison.checks import Standing, Status, doubts, standing
from inference.comparison.judge import chains, no_row, progress, remaining
from inference.comparison.reference import strict_doubts
from inference.comparison.verdict import cells, headline, verdict, winner


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


def test_a_sampler_with_too_few_draws_fails_in_plain_words():
    """Of three draws a chain R̂ is NaN: the verdict says why, and no row prints a NaN."""
    stats = {"lp": np.zeros((4, 3)), "diverging": np.zeros((4, 3), bool)}
    found = chains(None, None, Draws({}, stats, np.empty(0), {}, np.arange(3.0), 1.0, 1.0, ""))
    sampler = {"kind": "sampler", "score_error": 0.0, "starts_near": None, **found}
    rows = settled({"NUTS": [-2.0, -3.0], "ours": [-2.0, -3.0]}, NUTS=sampler)
    words = dict(verdict(rows))["NUTS"]
    assert "too few draws for R̂ and an effective sample size: 3 per chain" in words
    assert "nan" not in words + headline(rows) and rows["NUTS"]["standing"] == "FAILS"
    assert "NUTS" in headline(rows).split("Failing their checks")[1]
    assert strict_doubts(rows["NUTS"]) == doubts(rows["NUTS"])


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
        ({"posterior_behind": 0.2}, "0.20 nats per row below the posterior density that another"),
    ],
)
def test_the_checks_of_a_point_estimate_can_fail(found, words):
    sound = row(-2.0, remaining=0.001, bound_gap=0.01, missed_mass=0.0, train_behind=0.0)
    assert standing(sound) is Standing.PASSES
    assert words in "; ".join(doubts({**sound, **found}))
    assert standing({**sound, **found}) is Standing.FAILS


LATE = {"status": Status.OUT_OF_BUDGET.value}
SAMPLER = {"kind": "sampler", "bespoke": False, "starts_near": None, "rhat": 1.004,
           "rhat_parameters": 1.01, "ess_bulk": 900.0, "divergences": 0}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "found", "finished"),
    [
        ({**SAMPLER}, {"ess_bulk": 120.0}, False),
        ({**SAMPLER}, {"rhat": 1.03, "rhat_parameters": 1.2, "ess_bulk": 9.0}, False),
        ({**SAMPLER}, {"score_error": 0.03}, False),
        ({**SAMPLER}, {"rhat": None, "ess_bulk": None, "few_draws": 2}, False),
        ({**SAMPLER}, {"ess_bulk": 120.0, "divergences": 3}, True),
        ({"kind": "point", "starts": 4}, {"remaining": 0.2}, False),
        ({"kind": "point", "starts": 4}, {"remaining": 0.2, "train_behind": 0.3}, False),
        ({"kind": "point", "starts": 4}, {"train_behind": 0.3}, False),  # of two steps
        ({"kind": "point", "starts": 4}, {"remaining": 0.0, "train_behind": 0.3}, True),
        ({"kind": "point", "starts": 4}, {"remaining": 0.2, "bound_gap": 0.4}, True),
        ({"kind": "point", "starts": 4}, {"starts_near": 1, "starts_behind": 0.1}, False),
        ({"kind": "variational"}, {"pareto_k": 1.2}, True),
        ({"kind": "variational", "pareto_k": 0.1}, {"starts": 2, "starts_near": 1,
                                                    "starts_behind": 0.1}, True),
    ],
)  # fmt: skip
def test_what_more_time_would_mend_is_not_finished_only_if_the_budget_ended_it(
    row, found, finished
):
    wrong = {**row, **found}
    assert standing({**wrong, "status": "done"}) is Standing.FAILS
    late = Standing.FAILS if finished else Standing.NOT_FINISHED
    assert standing({**wrong, **LATE}) is late
    assert standing({**row, "pareto_k": 0.1, **LATE}) is Standing.PASSES


def test_a_sampler_above_the_best_that_the_budget_ended_is_not_finished():
    """NUTS is first in the table, with 310 effective draws of 400: nobody knows that it fails."""
    best = np.array([-1.0, -2.0, -3.0, -4.0])
    rows = settled(
        {"QuadratureEM": best, "NUTS": best + np.array([0.004, 0.001, 0.006, -0.0014])},
        NUTS={**SAMPLER, **LATE, "ess_bulk": 310.0},
    )
    assert rows["QuadratureEM"]["best"] and rows["NUTS"]["standing"] == "NOT_FINISHED"
    assert headline(rows) == (
        "Bespoke inference is first here: QuadratureEM comes within 0.01 nats per row of the best "
        "in 1 s. Not finished when the budget ended: NUTS."
    )
    assert dict(verdict(rows))["NUTS"] == (
        "NUTS: not finished when the budget ended (310 effective draws); 0.002 ± 0.002 nats per "
        "row above the best of those to be trusted."
    )
    table = cells(SimpleNamespace(rows=rows))
    assert [(line[0], line[-1]) for line in table] == [
        ("method", ""), ("NUTS", "not finished"), ("QuadratureEM", ""),
    ]  # fmt: skip
    fails = {**SAMPLER, **LATE, "ess_bulk": 310.0, "divergences": 2}
    rows = settled({"QuadratureEM": best, "NUTS": best + 0.0024}, NUTS=fails)
    assert headline(rows).startswith("Only bespoke inference")
    none = " No generic method passes its checks. Failing their checks: NUTS."
    assert headline(rows).endswith(none)
    assert all(line[-1] != "not finished" for line in cells(SimpleNamespace(rows=rows)))


def test_a_sampler_without_a_draw_is_not_finished_either():
    none = {**no_row(Status.OUT_OF_BUDGET, "no draw was made"), "bespoke": False}
    rows = settled({"ours": [-2.0, -3.0]}, NUTS=none)
    said = headline(rows)
    assert said.startswith("Bespoke inference is first here") and "No generic" not in said
    assert said.endswith(" Not finished when the budget ended: NUTS.")
    assert dict(verdict(rows))["NUTS"] == (
        "NUTS: not finished when the budget ended: no draw was made."
    )
    behind = {"late": [-2.5, -3.5]}  # passes, but is not near: NUTS may be nearer
    rows = settled({"ours": [-2.0, -3.0], **behind}, NUTS=none, late={"bespoke": False})
    assert "; late, the nearest generic method that passes its checks, needs" in headline(rows)


MADE = st.fixed_dictionaries({
    "score": st.sampled_from([-2.0, -2.0024, -2.5, -4.0]),
    "bespoke": st.booleans(),
    "status": st.sampled_from(["done", "out of budget"]),
    "sampler": st.booleans(),
    "divergences": st.sampled_from([0, 0, 3]),
    "ess_bulk": st.sampled_from([900.0, 120.0]),
    "remaining": st.sampled_from([0.0, 0.5]),
    "starts": st.sampled_from([1, 4]),
    "drawn": st.booleans(),
})  # fmt: skip


@given(made=st.lists(MADE, min_size=1, max_size=6))
@examples(400)
def test_one_side_is_never_said_to_be_alone_while_the_other_is_not_finished(made):
    """By an oracle of its own: late are those that lack draws, or steps, and nothing else."""
    scores, more, late = {}, {}, []
    for number, one in enumerate(made):
        name = f"m{number}"
        lacks = one["ess_bulk"] < 400 and not one["divergences"]
        lacks = lacks if one["sampler"] else one["remaining"] > 0.01
        if one["status"] == "out of budget" and (lacks or not one["drawn"]):
            late.append(name)
        if one["status"] == "out of budget" and not one["drawn"]:
            more[name] = no_row(Status.OUT_OF_BUDGET, "no draw was made")
            more[name]["bespoke"] = one["bespoke"]
            continue
        scores[name] = [one["score"], one["score"] - 1.0]
        kept = ("bespoke", "status", *(
            ("divergences", "ess_bulk") if one["sampler"] else ("remaining", "starts")
        ))  # fmt: skip
        more[name] = {x: one[x] for x in kept}
        more[name] |= {"kind": "sampler", "rhat": 1.0} if one["sampler"] else {"starts_near": None}
    rows = settled(scores, **more)
    said = headline(rows)
    failing = said.partition("Failing their checks: ")[2].partition(".")[0].split(", ")
    sentences = dict(verdict(rows))
    for name in late:
        side = "bespoke" if rows[name]["bespoke"] else "generic"
        other = "generic" if rows[name]["bespoke"] else "bespoke"
        assert f"Only {other}" not in said and f"No {side} method" not in said
        assert "No method passes" not in said and name not in failing
        assert "fail" not in sentences[name] and "not finished" in sentences[name]
        assert "Not finished when the budget ended: " in said or said == "No method finished."
    for name in rows.keys() - late:
        assert "not finished" not in sentences[name]


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


def test_a_point_far_below_anothers_training_likelihood_fails_a_mode_below_its_posterior():
    scores = {x: [-2.0, -3.0] for x in ("EM", "pursuit", "mode", "lesser mode")}
    rows = settled(
        scores, EM={"train": -2.0, "log_prior": -1.0}, pursuit={"train": -2.33, "log_prior": -1.0},
        mode={"train": -2.4, "log_prior": -0.5, "posterior_mode": True},
        **{"lesser mode": {"train": -2.7, "log_prior": -0.5, "posterior_mode": True}},
    )  # fmt: skip
    assert rows["pursuit"]["standing"] == "FAILS" and rows["EM"]["standing"] == "PASSES"
    many = {**rows["pursuit"], "overfit": 0.4}  # of so many parameters the truth lies 0.2 below
    assert standing(many) is Standing.PASSES
    assert rows["mode"]["standing"] == "PASSES" and rows["lesser mode"]["standing"] == "FAILS"
    assert "0.30 nats per row below the posterior" in dict(verdict(rows))["lesser mode"]


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
        for behind in (0.001, 0.009):  # with which on other data the third need not be near
            third["third"] = [-2.0 - behind, -3.0 - behind]
            lead, other = ("third", "ours") if times[1] < times[0] and behind < 0.005 else (
                "ours", "third"
            )  # fmt: skip
            said = headline(settled(third, paths, theirs={"bespoke": False}))
            assert f": {lead} and {other} come within 0.01 nats per row of the best in " in said
            assert f"the best in {paths[lead][1][0]} s; theirs needs 0.7 s" in said
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

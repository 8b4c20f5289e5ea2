"""The verdict follows from its stated rules: rows made by hand, no inference."""

import numpy as np

from inference.studies.comparison.verdict import doubts, headline, settle, verdict


def row(held_out, bespoke=True, **more):
    return {"held_out": held_out, "held_out_error": 0.1, "bespoke": bespoke, "seconds": 9.0, **more}


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
    good = {"rhat": 1.001, "rhat_parameters": 1.01, "ess_bulk": 900.0, "divergences": 0}
    assert doubts(good) == []
    assert doubts({**good, "rhat": 1.02}) == ["R̂ of the log joint 1.020"]
    assert doubts({**good, "ess_bulk": 30.0, "divergences": 4}) == [
        "4 divergences",
        "30 effective draws",
    ]
    assert doubts({**good, "rhat": float("nan")}) != []
    assert doubts({"pareto_k": 0.5}) == [] and doubts({"pareto_k": 0.8}) == ["Pareto k̂ 0.80"]
    assert doubts({"bound_gap": 0.2}) and doubts({"missed_mass": 0.02})
    assert doubts({}) is None


def test_the_headline_names_the_winner_and_by_how_much():
    scores = {"ours": [-2.0, -3.0], "theirs": [-2.0, -3.0]}
    paths = {
        "ours": (np.array([-2.5]), np.array([0.5])),
        "theirs": (np.array([-2.5]), np.array([2.0])),
    }
    rows = settled(scores, paths, theirs={"bespoke": False})
    assert "Bespoke inference wins" in headline(rows) and "4 times" in headline(rows)
    paths["ours"], paths["theirs"] = paths["theirs"], paths["ours"]
    rows = settled(scores, paths, theirs={"bespoke": False})
    assert "Generic inference wins" in headline(rows) and "4 times" in headline(rows)
    assert headline({"failed": {"reason": "failed: no"}}) == "No method finished."


def test_nobody_in_doubt_wins_but_for_want_of_others():
    scores = {x: [-2.0, -3.0] for x in ("ours", "hasty", "theirs")}
    seconds = {"ours": 4.0, "hasty": 0.5, "theirs": 2.0}
    paths = {x: (np.array([-2.5]), np.array([s])) for x, s in seconds.items()}
    bad = {"bespoke": False, "pareto_k": 1.2}
    rows = settled(scores, paths, theirs={"bespoke": False}, hasty=bad)
    assert headline(rows) == (
        "Generic inference wins here: theirs comes within 0.01 nats a row of the best 2 times as "
        "fast as ours, the first bespoke method to do so. hasty was sooner, but is not to be "
        "trusted."
    )
    rows = settled(scores, paths, theirs=bad, hasty=bad)
    assert headline(rows).endswith("8 times as fast as ours, the first bespoke method to do so. "
                                   "hasty is not to be trusted, though.")  # fmt: skip


def test_the_headline_says_who_is_no_worse_within_errors():
    """One side alone comes near; of the other, two differ from it by chance alone."""
    best = np.array([-1.0, -2.0, -3.0, -4.0])
    scores = {"ours": best, "late": best - 2.0, "a": best - [1.4, -1, 1, -1],
              "b": best - [1.8, -1, 1, -1]}  # fmt: skip
    rows = settled(scores, **{x: {"bespoke": False} for x in ("late", "a", "b")})
    assert headline(rows) == (
        "Only bespoke inference comes within 0.01 nats a row of the best, and stays: ours. "
        "Within two standard errors, though, a and b are as good."
    )
    del rows["a"], rows["b"]
    assert headline(rows).endswith("and stays: ours.")


def test_every_method_has_its_sentence_also_one_that_failed():
    rows = settled({"ours": [-2.0, -3.0]}, late={"reason": "out of budget", "status": "failed"})
    told = dict(verdict(rows))
    assert told["ours"].startswith("ours: best with -2.500")
    assert told["late"] == "late: out of budget."

"""What must hold of the numbers of each experiment of the papers, at its default size.

Bounds are the papers' figures and orderings, or those widened by the error of so many draws. What
holds at any size stands in `tests/support/paper_checks.py`.
"""

import numpy as np


def at_least(share, paper, count):
    """Not below a share of the paper's 1000 trials by more than three errors of the difference."""
    error = np.sqrt(paper * (1 - paper) * (1 / count + 1 / 1000))
    return share > paper - 3 * error


def bars_as_in_the_paper(numbers):
    """978 of 1000 runs find all bars; πH = 2.0 and σ = 2.0 at the end (section 4)."""
    assert at_least(numbers["recovered"], 0.978, numbers["trials"])
    assert abs(numbers["pi_h_mean"] - 2) < 0.05 and abs(numbers["sigma_mean"] - 2) < 0.1


def fields(numbers):
    """Most basis functions are like Gabor functions, few are globular (section 4, figure 2)."""
    assert numbers["fraction_gabor"] > 0.5 > numbers["fraction_globular"]
    assert 1 < numbers["pi_h"] < numbers["num_causes"] / 10


def truncation_corrected(numbers):
    """Up to γ = 3 active causes eq. (8) makes good what the truncation leaves out."""
    for active in (1, 2, 3):
        row = numbers[f"πH = {active}"]
        error = np.sqrt(active * (1 - active / 10) / 2500)
        for name in ("exact", "truncated, (8) and the cut"):
            assert abs(row[f"πH, {name}"] - active) < 4 * error
            assert abs(row[f"σ, {name}"] - 2) < 0.05


def clipped_morph(numbers):
    """Clipped factors stay nearer to twos than PCA, whose path is grey; the hard clip is best."""
    assert numbers["bits_wrong_hard_clip"] < numbers["bits_wrong"] < numbers["bits_wrong_pca"]
    assert numbers["morph_to_nearest_two"] < numbers["morph_to_nearest_two_pca"]


def hidden_intervals(numbers):
    """90 % intervals hold 90 % of 1000 values, to four binomial errors."""
    assert abs(numbers["inside_of_90_percent_intervals"] - 0.9) < 4 * np.sqrt(0.09 / 1000)


def machine_curves(numbers):
    """The machine ends below the mixture and overfits less (figures 4.6, 4.7)."""
    test, train = numbers["test"], numbers["train"]
    for kind in ("reconstruction", "single_bit"):
        assert test["machine"][kind] < test["mixture"][kind]
    gaps = [test[x]["reconstruction"] - train[x]["reconstruction"] for x in ("machine", "mixture")]
    assert 0 < gaps[0] < gaps[1]


def machine_table(numbers):
    """Single bits and reconstruction on test rows: product, mixture, machine, each below the one
    before; the persistent gradient makes it better still."""
    for kind in ("single_bit", "reconstruction"):
        errors = [row[kind]["test"] for row in numbers["table"].values()]
        assert errors == sorted(errors, reverse=True), errors


def machine_orderings(farthest):
    """Pursuit alone is worst; followed by the gradient it beats the gradient and is close to the
    true model, within `farthest` bits per bit."""

    def check(numbers):
        worst, better, longer, largest, _ = numbers["orderings"].values()
        assert worst == better == longer == 1 and abs(largest) < farthest

    return check


def largest_terms(numbers):
    assert all(row["largest found"] == 1 for row in numbers["terms"].values())
    assert numbers["parity"]["single_bit_principal_components"] == 0.5


def learning_proceeds(numbers):
    """States become "increasingly accurate": the most probable one, in fewer sweeps (section 3)."""
    epochs = numbers["by_epoch"]
    assert epochs["sweeps"][-1] < 0.5 * epochs["sweeps"][0] and epochs["best"][-1] > 0.9
    assert all(row["lines"] > 5 for row in numbers["learned"].values())


def all_lines(numbers):
    """All ten lines and all four patterns, in nearly every trial."""
    assert numbers["all_lines"] >= 0.95 and numbers["all_patterns"] >= 0.95


def feedback(numbers):
    """The top layer tells the direction, which the lower layer alone cannot (section 5)."""
    assert numbers["shift_accuracy"] > 0.95 and numbers["share_of_trials_above_95"] >= 0.8
    assert numbers["shift_accuracy_without_feedback"] < numbers["shift_accuracy"] - 0.1
    assert numbers["features_recovered"] > 15


def calibrated(numbers):
    """Probabilities of structures claim no more than they hold; those of BIC do."""
    evidence, bic = numbers["evidence"], numbers["bic"]
    assert abs(evidence["overconfidence"]) < 3 * evidence["overconfidence_error"]
    assert bic["overconfidence"] > 3 * bic["overconfidence_error"]


def bound_beside_monte_carlo(numbers):
    """The bound is faster and loses little, of many columns less (table 1); its posterior is nearer
    to the true one for most rows of many columns (figure 4)."""
    lost = {}
    for name, one in numbers.items():
        lost[name] = one["bound"]["nll"] - one["quadrature"]["nll"]
        assert -0.01 < lost[name] < 0.5 and one["speedup"] > 1
    assert lost["digits"] < lost["synthetic"]
    medians = [numbers[name]["divergence"]["median"] for name in ("digits", "synthetic")]
    assert medians[0] < medians[1]


def number_of_factors(numbers):
    """What `latentbits choose` takes is right for one and two factors."""
    for true in (1, 2):
        assert numbers[f"{true} factors"]["new rows, within an error"]["right"] >= 0.9


def groups_found(numbers):
    nats = numbers["nats_per_new_row"]
    assert nats["a map of each of three"] > max(nats["one map"], nats["three classes"]) + 0.5
    assert numbers["new_rows_in_their_own_group"] > 0.9


def factor_analysis(numbers):
    """A noise of each column is nearer to the truth; maps of bits are as good as PCA's."""
    rows = numbers["numbers"]
    each, one = rows["a noise of each column"], rows["one noise"]
    assert each["degrees_from_truth"] < one["degrees_from_truth"]
    for row in numbers["bits"].values():
        assert abs(row["difference"][0]) < 0.01


def bound_breaks(numbers):
    """The larger the weights, the more too small are those of the bound, and the more is lost."""
    rows = list(numbers.values())
    for name in ("bound_below_evidence", "lost_on_new_rows"):
        assert (np.diff([row[name] for row in rows]) > 0).all()
    for true, row in zip((0.5, 1, 2, 3, 4), rows, strict=True):
        assert row["bound"] < true and abs(row["quadrature"] / true - 1) < 0.15


AT_DEFAULT = {
    "bsc-bars": bars_as_in_the_paper,
    "bsc-patches": fields,
    "bsc-truncation": truncation_corrected,
    "clipped-digits": clipped_morph,
    "clipped-hidden": hidden_intervals,
    "combination-curves": machine_curves,
    "combination-digits": machine_table,
    "combination-synthetic": machine_orderings(0.02),
    "combination-synthetic-small": machine_orderings(0.01),
    "combination-theory": largest_terms,
    "noisyor-learning": learning_proceeds,
    "noisyor-lines": all_lines,
    "noisyor-shifter": feedback,
    "noisyor-structure": calibrated,
    "trait-accuracy": bound_beside_monte_carlo,
    "trait-factors": number_of_factors,
    "trait-mixture": groups_found,
    "trait-pca": factor_analysis,
    "trait-strength": bound_breaks,
}

"""What must hold of the numbers of each experiment of the papers, at any size.

Bounds are the papers' figures and orderings, exact values, or those widened by the error of so many
draws. What holds at the default size only stands in `benchmarks/claims.py`.
"""

import numpy as np
from scipy import stats

from inference.papers import combination
from ppl_models.data import digits


def finite(value):
    if isinstance(value, dict | list):
        return all(map(finite, value.values() if isinstance(value, dict) else value))
    return value is not None and (isinstance(value, str) or np.isfinite(value))


def ring(numbers, settings):
    """Half of the spins' eigenvalues are positive, two of the Gaussian's, in a sample too."""
    half = settings["size"] // 2
    for kind in ("positive_eigenvalues_binary", "sample_positive_eigenvalues_binary"):
        assert numbers[kind] == half
    assert numbers["positive_eigenvalues_gaussian"] == numbers["sample_rank_gaussian"] == 2
    assert numbers["positive_eigenvalues_scaled"] == 2
    assert not np.allclose(numbers["first_two_eigenvalues_scaled"], half, rtol=0.02)
    assert numbers["largest_other"] <= 1e-6 and numbers["sample_largest_other"] < 0.01


def constraint(numbers, _settings):
    assert np.isclose(numbers["min_eigenvalue"], -0.5, atol=1e-9)
    for size, least in numbers["min_eigenvalue_by_size"].items():
        pairs = int(size) - 1
        assert np.isclose(least, 1 - pairs * np.sin(np.pi / (2 * pairs)), atol=1e-9)


def clipped_digits(numbers, settings):
    columns, rank = settings["side"] ** 2, settings["rank"]
    assert numbers["columns"] == columns
    assert numbers["negative_eigenvalues"] > 0 > numbers["least_eigenvalue"]
    share = f"share_of_first_{rank}"
    assert numbers[f"{share}_gaussian"] > numbers[f"{share}_binary"]
    for kind in ("bits_wrong", "bits_wrong_pca", "bits_wrong_hard_clip"):
        assert 0 < numbers[kind] < columns
    assert len(numbers["morph_hamming"]) == settings["steps"] - 1
    assert numbers["morph_grey_pca"] > 0.1  # the clipped path has bits only
    before, after = numbers["positive_eigenvalues_scaled"]
    assert before == after


def neighbours(numbers, settings):
    """At least P + 1 for bounded cells; wedges have two, and the ring's are two flips away."""
    plane = numbers["the plane, exactly"]
    some, central, ring = plane.values()
    lines = settings["columns"]
    assert some["cells"] == some["cells_by_formula"] and some["unbounded_cells"] == 2 * lines
    assert some["least_neighbours"] == 2 and some["least_neighbours_bounded"] == 3
    # Every edge is shared by two cells: N² edges.
    assert np.isclose(some["mean_neighbours"] * some["cells"], 2 * lines**2)
    assert central["least_neighbours"] == central["most_neighbours"] == 2
    assert ring["least_neighbours"] == ring["most_neighbours"] == ring["flips_to_a_neighbour"] == 2
    for factors in settings["factors"]:
        beyond = numbers[f"{factors} factors, {settings['draws']} draws"]
        assert beyond["without"]["share_unbounded"] == 1
        assert beyond["without"]["least_neighbours"] >= factors
        assert beyond["with biases"]["least_neighbours_bounded"] >= factors + 1


def clipped_errors(numbers, _settings):
    """Of 95 % of the intervals; those of a table are not independent."""
    for name in ("eigenvalues", "loadings"):
        assert 0.9 < numbers[name]["inside_of_95_percent_intervals"] <= 0.99
        assert 0.85 < numbers[name]["z"] < 1.15


def hidden(numbers, _settings):
    assert numbers["bits_wrong"] == 0 <= numbers["bits_wrong_by_mode"]
    assert numbers["error_of_mean_of_draws"] < numbers["error_of_deepest_point"]
    assert numbers["inside_of_90_percent_intervals"] > 0.6  # 36 of them, of 40 draws each


def clipped_baselines(numbers, _settings):
    methods = numbers["methods"]
    assert {*methods} == {"moments, pairs", "moments, factors", "SVI, normal guide", "NUTS"}
    assert all(row["mean_abs_error"] < 0.4 for row in methods.values())


def combination_table(rows):
    """Each row has each measure, on training and on test rows."""

    def check(numbers, _settings):
        assert list(numbers["table"]) == list(rows)
        for row in numbers["table"].values():
            assert list(row) == list(combination.MEASURES)
            assert all({*value} == {"train", "test"} for value in row.values())
        assert {*numbers.get("log_normalizer_error", ())} <= {*numbers["table"]}

    return check


def noisy_or_lines(numbers, _settings):
    assert sum(kind["trials"] for kind in numbers["failures"].values()) == numbers["trials"]
    assert numbers["test_log_likelihood"] < numbers["true_network_log_likelihood"]


def noisy_or_learning(numbers, settings):
    """Nearly flat weights are sampled exactly in any number of sweeps; each way of learning ran."""
    epochs = numbers["by_epoch"]
    assert len(epochs["kl"]) == settings["epochs"] + 1
    assert abs(epochs["kl"][0]) < 1e-3 > epochs["bias"][0]
    assert epochs["entropy"][0] > epochs["entropy"][-1] and epochs["best"][0] < epochs["best"][-1]
    assert epochs["evidence"][0] < epochs["evidence"][-1]
    assert list(numbers["learned"]) == ["layers", "joint", "no rule"]
    assert 1.2 < numbers["total_correlation_of_the_lines"] < 1.4


def noisy_or_structure(numbers, _settings):
    for row in numbers["mean_posterior_by_truth"].values():
        np.testing.assert_allclose(sum(row.values()), 1.0)
    assert 0 < numbers["evidence"]["probability_of_the_truth"] < 1


def combination_curves(numbers, _settings):
    assert {*numbers["accuracy"]} >= {"pixels", "machine", "mixture", "principal components"}
    rows = [*numbers["test"].values(), *numbers["test_with_missing_cells"].values()]
    assert all(0 < row["single_bit"] < 0.5 for row in rows)
    assert numbers["rise_at_a_doubling"]["1.0"] > numbers["rise_at_a_doubling"]["0.1"]


def combination_theory(numbers, _settings):
    """What holds exactly: parity has no second moments, and no search beats the sorted terms."""
    parity = numbers["parity"]
    np.testing.assert_allclose(parity["eigenvalues"], 1.0)
    np.testing.assert_allclose(parity["single_bit_machine"], 0.1)
    np.testing.assert_allclose(parity["log_loss_machine"], parity["log_loss_true"], atol=1e-4)
    for row in numbers["terms"].values():
        assert row["at most 3 active"] <= row["search"] + 1e-12 <= row["best possible"] + 2e-12
    far = numbers["normality"]
    assert far["1024"]["random means"] < 0.03 < far["4"]["random means"]
    assert min(row["all but one certain"] for row in far.values()) > 0.3


def topics(numbers, _settings):
    """Two groups of words are found: better than independent words on new documents."""
    assert numbers["test_log_likelihood"] > numbers["product_log_likelihood"] + 0.1
    assert numbers["test_log_likelihood_error"] == 0.0 and numbers["given_a_word"]
    assert numbers["mixture_log_likelihood"] > numbers["product_log_likelihood"] + 0.1
    assert len(numbers["topics"]) == 2


def bars(numbers, _settings):
    """N rows give πH to √(Hπ(1−π)/N); σ falls by the 10 causes that each column fits, and what a
    trial that misses a bar does not explain is noise."""
    rows, missed = numbers["num_data"], 1 - numbers["recovered"]
    sigma = 2 * np.sqrt(1 - 10 / rows)
    if missed < 0.5:
        assert abs(numbers["pi_h_mean"] - 2) < 4 * np.sqrt(1.6 / rows)
        assert sigma - 0.15 < numbers["sigma_mean"] < sigma + 0.15 + missed
    else:
        assert numbers["sigma_mean"] > 2


def patches(numbers, _settings):
    assert 0 < numbers["sigma"] < 1.5  # the patches have unit variance
    assert 0 <= numbers["fraction_gabor"] + numbers["fraction_globular"] <= 1


def strength(numbers, _settings):
    """A lower bound is below the evidence, and further below where the weights are large."""
    gaps = [x["bound_below_evidence"] for x in numbers.values()]
    assert 0 < gaps[0] < gaps[-1]
    assert all(low <= high for x in numbers.values() for low, high in (x["bound_90"],))


def accuracy(numbers, settings):
    """Each algorithm of table 1; the bound is one, and a divergence is not below zero."""
    assert {*numbers} == {*settings["sets"]}
    for one in numbers.values():
        for name in ("bound", "monte_carlo", "quadrature"):
            assert {*one[name]} == {"seconds", "compile_seconds", "nll", "bound", "iterations"}
        assert one["bound"]["bound"] >= one["bound"]["nll"] - 1e-4
        away = np.array(one["divergence"]["per_datum"])
        assert len(away) >= 100 and (away > -1e-3).all()
        assert one["speedup"] > 0


def components(numbers, _settings):
    """One noise makes it principal components, with their own σ² (Tipping & Bishop 1999, eq. 8)."""
    one, each = numbers["numbers"]["one noise"], numbers["numbers"]["a noise of each column"]
    left_over = numbers["numbers"]["variance_left_over_by_pca"]
    assert np.isclose(one["variance_of_noise"], left_over, rtol=1e-3)
    assert one["degrees_from_pca"] < 0.1 < 1 < each["degrees_from_pca"]
    for row in numbers["bits"].values():
        assert row["rows_nearest_by_pca"][0] > 0.8 and row["least_canonical_correlation"][0] > 0.9


def mixture(numbers, _settings):
    """Rows of three groups are less likely under any other model than under the true one."""
    nats = dict(numbers["nats_per_new_row"])
    assert nats.pop("the true model") > max(nats.values())


def winner(numbers, _settings):
    """Other data sets of the same truth: the excess differs, by no more than their errors say."""
    excess = numbers["excess"]
    assert excess["within"] and excess["said"] != excess["again"] > 0 and excess["most_apart"] < 0.1
    assert numbers["seconds"]["most_times"] >= 1.5


def bsc_causes(numbers, settings):
    """The kind that made the rows fits new ones best, beyond the error, and finds all bars."""
    for made in settings["kinds"]:
        row = numbers[f"made of {made}"]
        assert row["best"] == made and row["all bars recovered"]
        nats = row["log-likelihood"]
        for other, error in row["standard error of the difference"].items():
            assert nats[made] - nats[other] > 2 * error


def denoised(numbers, settings):
    """The noise is that which was added, in dB too; the picture comes out with less."""
    pixels, sigma = settings["pixels"] ** 2, settings["sigma"]
    decibels = 20 * np.log10(255 / sigma)
    # A mean of squares of so many normal numbers is off by √(2/n) of itself.
    assert abs(numbers["psnr_noisy"] - decibels) < 4 * 10 / np.log(10) * np.sqrt(2 / pixels)
    assert abs(numbers["noise"] / sigma - 1) < 0.15
    assert numbers["psnr"] > numbers["psnr_noisy"] + 2


def truncation(numbers, _settings):
    """The more causes are on, the more is left out, as the method itself says; without eq. (8)
    fewer are found than by exact EM, and more noise."""
    rows = list(numbers.values())
    missed = np.array([row["posterior mass left out"] for row in rows])
    assert (np.diff(missed) > 0).all()
    np.testing.assert_allclose(missed, [row["the same, as estimated"] for row in rows], atol=1e-3)
    behind = np.array([row["πH, exact"] - row["πH, truncated"] for row in rows])
    assert (behind > -1e-4).all() and (np.diff(behind) > 0).all()
    assert all(row["σ, truncated"] > row["σ, exact"] - 1e-4 for row in rows)


def shifter(numbers, settings):
    """All rows but those of period two look different when moved left and right: of 8 bits, each on
    with probability 0.3, 1 − (0.3⁴ + 0.7⁴)²."""
    share = 1 - (0.3**4 + 0.7**4) ** 2
    count = numbers["trials"] * (settings["num_test"] or settings["num_data"])
    assert abs(numbers["decidable"] - share) < 4 * np.sqrt(share * (1 - share) / count)
    assert len(numbers["accuracy_by_trial"]) == numbers["trials"]
    np.testing.assert_allclose(np.median(numbers["accuracy_by_trial"]), numbers["shift_accuracy"])
    assert 0 <= numbers["features_recovered"] <= 16


def clusters(numbers, settings):
    """The bound is one; copies lie nearest to their own prototype, noisier ones less often."""
    right = []
    for flip in settings["flips"]:
        one = numbers[f"flip {flip}"]
        assert one["nll"] <= one["bound"] + 1e-4 and one["nll"] < 16 * np.log(2)
        right.append(one["rows nearest to their own prototype"])
    assert right[0] > 0.98 and 0.9 < right[-1] <= right[0]


def trait_digits(numbers, settings):
    """The bound is one, and two factors explain more than independent pixels do."""
    probs = np.asarray(digits([2]).data)[: settings["rows"]].mean(0)
    assert numbers["pixels that vary"] == ((probs > 0) & (probs < 1)).sum()
    assert numbers["nll"] <= numbers["bound"] + 1e-4
    assert numbers["nll"] < stats.bernoulli(probs).entropy().sum()


def factors(numbers, settings):
    """AIC and BIC find one and two factors."""
    for true in range(1, settings["most"]):
        rules = numbers[f"{true} factors"]
        for shares in rules.values():
            assert np.isclose(sum(shares.values()), 1)
        for rule in ("AIC", "BIC") if true < 3 else ():
            assert rules[rule]["right"] >= 0.9


CHECKS = {
    "bsc-bars": bars,
    "bsc-causes": bsc_causes,
    "bsc-denoise": denoised,
    "bsc-patches": patches,
    "bsc-truncation": truncation,
    "clipped-baselines": clipped_baselines,
    "clipped-constraint": constraint,
    "clipped-digits": clipped_digits,
    "clipped-errors": clipped_errors,
    "clipped-hidden": hidden,
    "clipped-neighbours": neighbours,
    "clipped-ring": ring,
    "combination-curves": combination_curves,
    "combination-digits": combination_table(combination.DIGIT_ROWS),
    "combination-synthetic": combination_table(combination.ROWS),
    "combination-synthetic-small": combination_table(combination.ROWS),
    "combination-theory": combination_theory,
    "noisyor-learning": noisy_or_learning,
    "noisyor-lines": noisy_or_lines,
    "noisyor-shifter": shifter,
    "noisyor-structure": noisy_or_structure,
    "noisyor-words": topics,
    "trait-accuracy": accuracy,
    "trait-clusters": clusters,
    "trait-digits": trait_digits,
    "trait-factors": factors,
    "trait-mixture": mixture,
    "trait-pca": components,
    "trait-strength": strength,
    "winner": winner,
}

"""What must hold of the numbers of each experiment of the papers, at its smallest size too."""

import numpy as np

from inference.studies.papers import combination, combination_digits


def ring(numbers):
    """Half of the spins' eigenvalues are positive, two of the Gaussian's, in a sample too."""
    for kind in ("positive_eigenvalues_binary", "sample_positive_eigenvalues_binary"):
        assert numbers[kind] == 8
    assert numbers["positive_eigenvalues_gaussian"] == numbers["sample_rank_gaussian"] == 2
    assert numbers["positive_eigenvalues_scaled"] == 2
    assert not np.allclose(numbers["first_two_eigenvalues_scaled"], 8, rtol=0.02)
    assert numbers["largest_other"] <= 1e-6 and numbers["sample_largest_other"] < 0.01


def constraint(numbers):
    assert np.isclose(numbers["min_eigenvalue"], -0.5, atol=1e-9)
    for size, least in numbers["min_eigenvalue_by_size"].items():
        pairs = int(size) - 1
        assert np.isclose(least, 1 - pairs * np.sin(np.pi / (2 * pairs)), atol=1e-9)


def clipped_digits(numbers):
    assert numbers["columns"] == 64 and numbers["constant_columns"] > 0
    assert numbers["negative_eigenvalues"] > 0 > numbers["least_eigenvalue"]
    assert numbers["share_of_first_2_gaussian"] > numbers["share_of_first_2_binary"]
    assert 0 < numbers["bits_wrong"] < 64 and 0 < numbers["bits_wrong_pca"] < 64
    assert len(numbers["morph_hamming"]) == 2  # three images, two steps between them
    assert 0 < numbers["bits_wrong_hard_clip"] < 64
    assert numbers["morph_grey_pca"] > 0.1  # the clipped path has bits only
    before, after = numbers["positive_eigenvalues_scaled"]
    assert before == after


def neighbours(numbers):
    """At least P + 1 for bounded cells; wedges have two, and the ring's are two flips away."""
    plane = numbers["the plane, exactly"]
    some, central, ring = plane.values()
    assert some["cells"] == some["cells_by_formula"] and some["unbounded_cells"] == 16
    assert some["least_neighbours"] == 2 and some["least_neighbours_bounded"] == 3
    # Every edge is shared by two cells: N² edges.
    assert np.isclose(some["mean_neighbours"] * some["cells"], 2 * 8**2)
    assert central["least_neighbours"] == central["most_neighbours"] == 2
    assert ring["least_neighbours"] == ring["most_neighbours"] == ring["flips_to_a_neighbour"] == 2
    beyond = numbers["3 factors, 50 draws"]
    assert beyond["without"]["share_unbounded"] == 1 and beyond["without"]["least_neighbours"] >= 3
    assert beyond["with biases"]["least_neighbours_bounded"] >= 4


def clipped_errors(numbers):
    """200 and 1600 intervals of 95 %, of which those of a table are not independent."""
    for name in ("eigenvalues", "loadings"):
        assert 0.9 < numbers[name]["inside_of_95_percent_intervals"] <= 0.99
        assert 0.85 < numbers[name]["z"] < 1.15


def hidden(numbers):
    assert numbers["bits_wrong"] == 0 <= numbers["bits_wrong_by_mode"]
    assert numbers["error_of_mean_of_draws"] < numbers["error_of_deepest_point"]
    assert numbers["inside_of_90_percent_intervals"] > 0.6  # 36 of them, of 40 draws each


def clipped_baselines(numbers):
    methods = numbers["methods"]
    assert {*methods} == {"moments, pairs", "moments, factors", "SVI, normal guide", "NUTS"}
    assert all(row["mean_abs_error"] < 0.4 for row in methods.values())


def combination_table(study):
    """Each row has each measure, on training and on test rows."""

    def check(numbers):
        assert list(numbers["table"]) == list(study.ROWS)
        for row in numbers["table"].values():
            assert list(row) == list(combination.MEASURES)
            assert all({*value} == {"train", "test"} for value in row.values())
        assert {*numbers.get("log_normalizer_error", ())} <= {*numbers["table"]}

    return check


def noisy_or_lines(numbers):
    assert sum(kind["trials"] for kind in numbers["failures"].values()) == numbers["trials"]
    assert numbers["test_log_likelihood"] < numbers["true_network_log_likelihood"]


def noisy_or_learning(numbers):
    """Nearly flat weights are sampled exactly in any number of sweeps; each way of learning ran."""
    epochs = numbers["by_epoch"]
    assert len(epochs["kl"]) == 3 and abs(epochs["kl"][0]) < 1e-3 > epochs["bias"][0]
    assert epochs["entropy"][0] > epochs["entropy"][-1] and epochs["best"][0] < epochs["best"][-1]
    assert epochs["evidence"][0] < epochs["evidence"][-1]
    assert list(numbers["learned"]) == ["layers", "joint", "no rule"]
    assert 1.2 < numbers["total_correlation_of_the_lines"] < 1.4


def noisy_or_structure(numbers):
    for row in numbers["mean_posterior_by_truth"].values():
        np.testing.assert_allclose(sum(row.values()), 1.0)
    assert 0 < numbers["evidence"]["probability_of_the_truth"] < 1


def combination_curves(numbers):
    assert {*numbers["accuracy"]} >= {"pixels", "machine", "mixture", "principal components"}
    rows = [*numbers["test"].values(), *numbers["test_with_missing_cells"].values()]
    assert all(0 < row["single_bit"] < 0.5 for row in rows)
    assert numbers["rise_at_a_doubling"]["1.0"] > numbers["rise_at_a_doubling"]["0.1"]


def combination_theory(numbers):
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


def topics(numbers):
    """Two groups of words are found: better than independent words on new documents."""
    assert numbers["test_log_likelihood"] > numbers["product_log_likelihood"] + 0.1
    assert numbers["test_log_likelihood_error"] == 0.0 and numbers["given_a_word"]
    assert numbers["mixture_log_likelihood"] > numbers["product_log_likelihood"] + 0.1
    assert len(numbers["topics"]) == 2


def bars(numbers):
    """60 rows give πH to √(Hπ(1−π)/N) = 0.16; σ falls by the 10 causes that each column fits."""
    assert numbers["trials"] == 1
    if numbers["recovered"]:
        assert abs(numbers["pi_h_mean"] - 2) < 0.6
        assert abs(numbers["sigma_mean"] - 2 * np.sqrt(1 - 10 / 60)) < 0.15
    else:
        assert numbers["sigma_mean"] > 2  # what is not explained is noise


def patches(numbers):
    assert 0 < numbers["sigma"] < 1.5  # the patches have unit variance
    assert 0 <= numbers["fraction_gabor"] + numbers["fraction_globular"] <= 1


def strength(numbers):
    """A lower bound is below the evidence, and further below where the weights are large."""
    gaps = [x["bound_below_evidence"] for x in numbers.values()]
    assert 0 < gaps[0] < gaps[-1]
    assert all(low <= high for x in numbers.values() for low, high in (x["bound_90"],))


def accuracy(numbers):
    """Each algorithm of table 1; the bound is one, and a divergence is not below zero."""
    numbers = numbers["synthetic"]
    for name in ("bound", "monte_carlo", "quadrature"):
        assert {*numbers[name]} == {"seconds", "compile_seconds", "nll", "bound", "iterations"}
    assert numbers["bound"]["bound"] >= numbers["bound"]["nll"] - 1e-4
    away = np.array(numbers["divergence"]["per_datum"])
    assert len(away) == 100 and (away > -1e-3).all()
    assert numbers["speedup"] > 0


def components(numbers):
    """One noise makes it principal components, with their own σ² (Tipping & Bishop 1999, eq. 8)."""
    one, each = numbers["numbers"]["one noise"], numbers["numbers"]["a noise of each column"]
    left_over = numbers["numbers"]["variance_left_over_by_pca"]
    assert np.isclose(one["variance_of_noise"], left_over, rtol=1e-3)
    assert one["degrees_from_pca"] < 0.1 < 1 < each["degrees_from_pca"]
    for row in numbers["bits"].values():
        assert row["rows_nearest_by_pca"][0] > 0.8 and row["least_canonical_correlation"][0] > 0.9


def mixture(numbers):
    """Rows of three groups are less likely under any other model than under the true one."""
    nats = dict(numbers["nats_per_new_row"])
    assert nats.pop("the true model") > max(nats.values())


def winner(numbers):
    """Other data sets of the same truth: the excess differs, by no more than their errors say."""
    excess = numbers["excess"]
    assert excess["within"] and excess["said"] != excess["again"] > 0 and excess["most_apart"] < 0.1
    assert numbers["seconds"]["most_times"] >= 1.5


CHECKS = {
    "bsc-bars": bars,
    "bsc-patches": patches,
    "clipped-baselines": clipped_baselines,
    "clipped-constraint": constraint,
    "clipped-digits": clipped_digits,
    "clipped-errors": clipped_errors,
    "clipped-hidden": hidden,
    "clipped-neighbours": neighbours,
    "clipped-ring": ring,
    "combination-curves": combination_curves,
    "combination-digits": combination_table(combination_digits),
    "combination-synthetic": combination_table(combination),
    "combination-synthetic-small": combination_table(combination),
    "combination-theory": combination_theory,
    "noisyor-learning": noisy_or_learning,
    "noisyor-lines": noisy_or_lines,
    "noisyor-structure": noisy_or_structure,
    "noisyor-words": topics,
    "trait-accuracy": accuracy,
    "trait-mixture": mixture,
    "trait-pca": components,
    "trait-strength": strength,
    "winner": winner,
}

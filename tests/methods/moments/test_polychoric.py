"""Correlations of columns of any two kinds, against rectangle probabilities pair by pair."""

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import multivariate_normal, norm

from inference import polychoric

KINDS = (4, "binary", 3, "real", "binary", "real")
RNG = np.random.default_rng(0)


def simulated(num_data=300):
    root = RNG.normal(size=(6, 6))
    cover = root @ root.T + np.eye(6)
    scale = np.sqrt(np.diagonal(cover))
    hidden = RNG.multivariate_normal(np.zeros(6), cover / np.outer(scale, scale), num_data)
    table = 2.0 * hidden + 5.0
    for place, cuts in ((0, [-1.0, 0.2, 0.9]), (1, [0.4]), (2, [-0.3, 1.0]), (4, [-0.6])):
        table[:, place] = np.digitize(hidden[:, place], cuts)
    return table, RNG.random(table.shape) < 0.8


def of_pair(first, second, kinds):
    """The ρ at which the covariance of two columns is what it would be, by rectangles."""
    cover = np.mean(first * second) - first.mean() * second.mean()
    steps = [0 if k == "real" else (2 if k == "binary" else k) - 1 for k in kinds]
    columns = (first, second)
    cuts = [
        [-norm.ppf(np.mean(x >= k)) for k in range(1, count + 1)]
        for x, count in zip(columns, steps, strict=True)
    ]
    deviations = [x.std() if not count else sum(map(norm.pdf, c)) for x, count, c in
                  zip(columns, steps, cuts, strict=True)]  # fmt: skip
    if not all(steps):
        return cover / np.prod(deviations)

    def gap(rho):
        square = [[1.0, rho], [rho, 1.0]]
        above = lambda a, b: multivariate_normal.cdf([-a, -b], cov=square)  # noqa: E731
        return (
            sum(above(a, b) - norm.cdf(-a) * norm.cdf(-b) for a in cuts[0] for b in cuts[1]) - cover
        )

    return brentq(gap, -0.999, 0.999, xtol=1e-10)


@pytest.mark.parametrize("masked", [False, True])
def test_all_pairs_are_what_rectangles_say(masked):
    table, mask = simulated()
    correlation = polychoric(table, KINDS, mask if masked else None).correlation
    for i in range(len(KINDS)):
        for j in range(i):
            rows = mask[:, i] & mask[:, j] if masked else np.full(len(table), True)
            wanted = of_pair(table[rows, i], table[rows, j], (KINDS[i], KINDS[j]))
            assert correlation[i, j] == pytest.approx(wanted, abs=2e-6), (i, j)
            assert correlation[i, j] == correlation[j, i]


def test_what_cannot_be_known_is_marked():
    same = np.array([0, 1, 2] * 4)
    table = np.stack([same, same, same * 0, np.arange(12) % 2], 1)
    mask = np.ones(table.shape, bool)
    mask[:6, 3], mask[6:, 0] = False, False
    pairs = polychoric(table, (3, 3, 2, 2), mask)
    assert pairs.correlation[0, 1] == 1 and pairs.at_end[0, 1]
    assert pairs.unseen[2].tolist() == [True, True, False, True] and pairs.unseen[0, 3]
    assert not pairs.correlation[2, [0, 1, 3]].any() and not pairs.correlation[0, 3]
    with pytest.raises(ValueError, match="row 2, column 0 holds 2: wanted a level from 0 to 1"):
        polychoric(table, (2, 3, 2, 2))
    with pytest.raises(ValueError, match="names 1 columns"):
        polychoric(table, (2,))


def rectangles(first, second, rho):
    """The probabilities of all cells of two columns cut at thresholds."""
    ends = [np.concatenate([[-8.0], x, [8.0]]) for x in (first, second)]
    square = [[1.0, rho], [rho, 1.0]]
    below = np.array([[multivariate_normal.cdf([a, b], cov=square) for b in ends[1]]
                      for a in ends[0]])  # fmt: skip
    return np.diff(np.diff(below, axis=0), axis=1)


def by_two_steps(table):
    """The most likely ρ of a table of counts, thresholds from its margins."""
    shares = table / table.sum()
    first, second = (norm.ppf(np.cumsum(shares.sum(axis))[:-1]) for axis in (1, 0))
    loss = lambda rho: -np.sum(shares * np.log(rectangles(first, second, rho).clip(1e-12)))  # noqa: E731
    return minimize_scalar(loss, bounds=(-0.99, 0.99), method="bounded", options={"xatol": 1e-8}).x


def as_rows(table):
    return np.repeat(np.argwhere(table >= 0), table.astype(int).ravel(), axis=0)


def test_the_most_likely_correlation_with_its_error():
    counts = np.round(2000 * rectangles([-1.0, 0.2, 0.8], [-0.4, 0.9], 0.55))
    shares = counts / counts.sum()
    found = polychoric(as_rows(counts), (4, 3), likelihood=True)
    best = by_two_steps(counts)
    assert found.correlation[0, 1] == pytest.approx(best, abs=1e-5)
    # By how much a row more in each cell moves it: the delta method of a multinomial.
    slope = np.zeros(counts.shape)
    for cell in np.ndindex(counts.shape):
        more = np.eye(1, counts.size, np.ravel_multi_index(cell, counts.shape)).reshape(slope.shape)
        ends = [by_two_steps(shares + step * (more - shares)) for step in (1e-3, -1e-3)]
        slope[cell] = (ends[0] - ends[1]) / 2e-3
    error = np.sqrt(np.sum(shares * slope**2) / counts.sum())
    assert found.error[0, 1] == pytest.approx(error, rel=0.01)
    assert found.error[0, 1] == found.error[1, 0] and np.isnan(found.error[0, 0])


def test_the_most_likely_correlation_is_not_that_of_the_covariance():
    counts = np.array([[20, 5, 3], [10, 12, 6], [4, 9, 11], [1, 4, 15]])
    likely = polychoric(as_rows(counts), (4, 3), likelihood=True).correlation[0, 1]
    moments = polychoric(as_rows(counts), (4, 3)).correlation[0, 1]
    assert likely == pytest.approx(by_two_steps(counts), abs=1e-5)
    assert 1e-4 < abs(likely - moments) < 0.02


def test_cells_that_hide_and_tables_without_a_most_likely_correlation():
    table, mask = simulated()
    found = polychoric(table, KINDS, mask, likelihood=True)
    rows = mask[:, 0] & mask[:, 2]
    counts = np.zeros((4, 3))
    np.add.at(counts, tuple(table[rows][:, [0, 2]].astype(int).T), 1)
    assert found.correlation[0, 2] == pytest.approx(by_two_steps(counts), abs=1e-5)
    assert np.isnan(found.error[3]).all() and found.error[0, 2] > 0
    bits = np.array([[0, 0], [1, 1], [1, 1], [0, 0], [1, 0]])  # no row of 0 and 1
    apart = polychoric(bits, ("binary", "binary"), likelihood=True)
    assert apart.at_end[0, 1] and apart.correlation[0, 1] == 1.0 and np.isnan(apart.error[0, 1])

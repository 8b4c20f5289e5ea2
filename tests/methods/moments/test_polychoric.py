"""Correlations of columns of any two kinds, against rectangle probabilities pair by pair."""

import numpy as np
import pytest
from scipy.optimize import brentq
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

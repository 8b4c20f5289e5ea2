"""Equation (10) and its inversion against scipy, over all biases and correlations."""

import itertools

import jax
import numpy as np
import pytest
from scipy import special, stats

from inference.methods.moments.tetrachoric import correlation_of_cells, slope

BIASES = (-5.0, -3.1, -1.2, -0.3, -1e-6, 0.0, 0.3, 0.301, 1.2, 2.0, 4.2)
CORRELATIONS = (-0.9999, -0.99, -0.8, -0.3, -0.01, 0.0, 0.02, 0.45, 0.9, 0.999, 0.9999)
GRID = np.array(list(itertools.product(BIASES, BIASES, CORRELATIONS)))
SMALLEST = {"float64": 1e-200, "float32": 1e-30}
"""Cells below the first are beyond the oracle; those below the second, nearly beyond the type."""


@pytest.fixture(params=["float64", "float32"])
def dtype(request):
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param == "float64")
    yield request.param
    jax.config.update("jax_enable_x64", before)


NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def tail(high, low, correlation):
    """P(X > high, Y > low), an integral over X of what Y then does: positive terms only."""
    spread = np.sqrt((1 - correlation) * (1 + correlation))
    # Y's step, and where the product is largest when the step is far out, are finely cut.
    step = low / correlation if abs(correlation) > 1e-3 else high
    fine = spread * np.linspace(-30, 30, 121)
    breaks = np.concatenate([high + np.linspace(0, 40, 121), step + fine, correlation * low + fine])
    breaks = np.unique(np.clip(breaks, high, high + 40))
    middle, half = 0.5 * (breaks[1:] + breaks[:-1]), 0.5 * np.diff(breaks)
    x = middle[:, None] + half[:, None] * NODES
    log_density = -0.5 * x**2 - 0.5 * np.log(2 * np.pi)
    heights = np.exp(log_density + special.log_ndtr((correlation * x - low) / spread))
    return np.sum(heights * WEIGHTS * half[:, None])


@pytest.fixture(scope="module")
def cells():
    """(on, on), (on, off), (off, on), (off, off) of every point of the grid, each to its digits."""
    table = []
    with np.errstate(under="ignore"):
        for a, b, rho in GRID:
            table.append([tail(-a, -b, rho), tail(-a, b, -rho), tail(a, -b, -rho), tail(a, b, rho)])
    return np.array(table).T


def test_the_oracle_agrees_with_scipy_and_with_itself(cells):
    assert np.abs(cells.sum(axis=0) - 1).max() < 1e-12
    for (a, b, rho), both in list(zip(GRID, cells[0], strict=True))[::7]:
        expected = stats.multivariate_normal.cdf([a, b], cov=[[1, rho], [rho, 1]])
        assert abs(both - expected) < 1e-12


def test_inversion_over_the_whole_range(cells, dtype):
    """To 1e-10 in float64 and 1e-5 in float32, also where the moment is flat in ρ."""
    first, second, truth = GRID.T
    inverted = np.asarray(jax.jit(correlation_of_cells)(first, second, tuple(cells)))
    assert np.isfinite(inverted).all()
    full = cells.min(axis=0) > SMALLEST[dtype]
    assert full.mean() > 0.6
    error = np.abs(inverted - truth)
    assert error[full].max() < {"float64": 1e-10, "float32": 1e-5}[dtype]
    # There ρ is still on the right side.
    assert (np.sign(inverted) * truth >= -1e-6)[~full].all()


def test_slope_is_the_derivative(dtype):
    first, second, rho = np.array([[0.3, -1.0], [-0.8, -0.5], [0.4, -0.7]])
    step = 1e-3

    rise = [
        (tail(-a, -b, r + step) - tail(-a, -b, r - step)) / (2 * step)
        for a, b, r in zip(first, second, rho, strict=True)
    ]
    tolerance = {"float64": 1e-6, "float32": 1e-3}[dtype]
    assert np.abs(jax.jit(slope)(first, second, rho) - np.array(rise)).max() < tolerance


def test_ends_of_the_range():
    a, b = np.array([0.5, 0.5, 0.0]), np.array([-1.0, -1.0, 0.0])
    on, other = special.ndtr(0.5), special.ndtr(-1.0)
    tables = np.array(
        [
            [other, on - other, 0.0, 1 - on],  # whoever has the second has the first: ρ = 1
            [0.0, on, other, 1 - on - other],  # nobody has both: ρ = −1
            [0.5, 0.0, 0.0, 0.5],
        ]
    )
    inverted = jax.jit(correlation_of_cells)(a, b, tuple(tables.T))
    assert inverted.tolist() == [1.0, -1.0, 1.0]

"""What moment inversion is made of: counts of pairs, their correlations, spectra and factors."""

import jax
import jax.numpy as jnp
import numpy as np

from inference.methods.moments.pairs import (
    Pairs,
    count_pairs,
    invert_moments,
    invert_pairs,
    standard_errors,
)
from inference.methods.moments.spectrum import (
    nearest_correlation,
    principal_axes,
    spectrum,
)
from ppl_models.data import ring_moments, sum_constraint_moments


def count_by_hand(data, mask):
    size = data.shape[1]
    both, one, neither = np.zeros((3, size, size))
    for row, seen in zip(data, mask, strict=True):
        for i in range(size):
            for j in range(size):
                if seen[i] and seen[j]:
                    both[i, j] += row[i] * row[j]
                    one[i, j] += row[i] * (1 - row[j])
                    neither[i, j] += (1 - row[i]) * (1 - row[j])
    return both, one, neither


def test_counts_in_chunks_with_holes():
    generator = np.random.default_rng(3)
    data = (generator.uniform(size=(23, 5)) < 0.4).astype(np.uint8)
    mask = generator.uniform(size=data.shape) < 0.7
    whole = np.ones_like(mask)
    for chunk_size in (7, 100):
        for given, used in ((mask, mask), (None, whole)):
            count = jax.jit(lambda given, size=chunk_size: count_pairs(data, given, size))
            for a, b in zip(count(given), count_by_hand(data, used), strict=True):
                assert (np.asarray(a) == b).all()
    parts = [count_pairs(data[rows], mask[rows]) for rows in (slice(0, 11), slice(11, 23))]
    added = jax.tree.map(jnp.add, *parts)
    for a, b in zip(added, count_pairs(data, mask), strict=True):
        assert (a == b).all()


def test_moments_of_counts():
    data = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 1], [1, 0, 0]])
    spins = 2 * data - 1
    pairs = count_pairs(jnp.asarray(data))
    assert np.allclose(pairs.mean, spins.mean(axis=0), atol=1e-6)
    assert np.allclose(pairs.second_moment, spins.T @ spins / 5, atol=1e-6)


def test_arcsine_law_where_means_vanish():
    """(7) is met to the last digits, and (10) near it joins without a step."""
    second = np.array([[1.0, 0.4, -0.9], [0.4, 1.0, 0.1], [-0.9, 0.1, 1.0]])
    invert = jax.jit(lambda mean: invert_moments(mean, jnp.asarray(second)).correlation)
    inverted = invert(np.zeros(3))
    assert np.allclose(inverted, np.sin(np.pi / 2 * second), atol=1e-6)
    beside = invert(np.full(3, 1e-4))
    assert np.abs(inverted - beside).max() < 1e-5


def test_what_real_data_bring():
    data = np.zeros((40, 6))
    data[:20, 0] = 1
    data[:10, 1] = 1  # whoever has 1 has 0: an empty cell, ρ = 1
    data[20:25, 2] = 1  # nobody has 0 and 2: ρ = −1
    data[::2, 3] = 1
    data[:, 5] = 1  # 4 and 5 are constant

    @jax.jit
    def compute(data):
        pairs = count_pairs(data)
        return invert_pairs(pairs), invert_pairs(pairs, smoothing=1.0)

    inverted, smooth = compute(data)
    repairs, correlation = inverted.repairs, np.asarray(inverted.correlation)
    assert np.asarray(repairs.constant).tolist() == [False] * 4 + [True] * 2
    assert correlation[0, 1] == 1 and correlation[0, 2] == -1 and correlation[1, 2] == -1
    assert int(repairs.empty) == 3 and int(repairs.outside) == 0 and int(repairs.unseen) == 0
    assert (correlation[4:, :4] == 0).all() and np.isfinite(inverted.threshold).all()
    assert inverted.threshold[5] > 2 and inverted.threshold[4] < -2
    assert len(repairs.lines()) == 2

    assert int(smooth.repairs.empty) == 0
    assert 0.8 < smooth.correlation[0, 1] < 1 and -1 < smooth.correlation[0, 2] < -0.4


def test_pairs_are_inverted_by_the_margins_of_their_own_rows():
    """As if each pair had come alone: what its columns are elsewhere does not matter to it."""
    rng = np.random.default_rng(1)
    normal = rng.multivariate_normal(np.zeros(3), 0.5 * np.eye(3) + 0.5, size=4000)
    data = (normal > 1.28).astype(np.float32)  # on in a tenth of the rows
    mask = rng.random(data.shape) < 0.5

    @jax.jit
    def compute(data, mask):
        pairs = count_pairs(jnp.where(mask, data, 0.0), mask)
        inverted = invert_pairs(pairs)
        return inverted, standard_errors(pairs, inverted)

    holed, error = compute(data, mask)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        both = mask[:, i] & mask[:, j]
        alone = np.where(both[:, None], mask & (np.arange(3) != 3 - i - j), False)
        same, same_error = compute(data, alone)
        np.testing.assert_allclose(holed.correlation[i, j], same.correlation[i, j], rtol=1e-5)
        np.testing.assert_allclose(error[i, j], same_error[i, j], rtol=1e-4)


def test_a_pair_that_says_nothing_has_no_correlation():
    """Never seen together, or only where one of the two is constant."""
    data = np.array([[1, 1]] * 5 + [[0, 0]] * 5 + [[1, 0]] * 10 + [[0, 0]] * 10)
    mask = np.array([[True, True]] * 10 + [[True, False]] * 10 + [[False, True]] * 10)
    compute = jax.jit(lambda data, mask: invert_pairs(count_pairs(data, mask)))
    together = compute(data, mask)
    assert together.correlation[0, 1] == 1 and int(together.repairs.empty) == 1
    never = compute(data, mask & np.array([[True, False]] * 20 + [[False, True]] * 10))
    assert never.correlation[0, 1] == 0 and int(never.repairs.unseen) == 1
    data[20:22, 1] = 1  # the second changes, but not where the first was observed too
    still = compute(data, mask & np.array([[True, False]] * 5 + [[True, True]] * 25))
    assert still.correlation[0, 1] == 0 and int(still.repairs.unseen) == 1


def test_a_moment_outside_its_range_is_moved_to_the_end():
    """Means 1/2 and −1/2 allow ⟨s s⟩ up to 0, and it is 1."""
    inverted = jax.jit(invert_moments)(jnp.array([0.5, -0.5]), jnp.ones((2, 2)))
    assert inverted.correlation[0, 1] == 1
    assert int(inverted.repairs.outside) == 1 and int(inverted.repairs.empty) == 0
    assert np.isclose(inverted.repairs.excess, 1.0)


@jax.jit
def spectrum_of(moments):
    return spectrum(invert_moments(moments.mean, moments.correlation).correlation)


def test_spectrum_says_what_no_gaussian_has():
    moments = sum_constraint_moments(4)
    spectral = spectrum_of(moments)
    assert np.isclose(spectral.eigenvalues[-1], -0.5, atol=1e-5)
    assert int(spectral.num_negative) == 1
    assert "1 negative eigenvalues, the least -0.5" in spectral.lines()[0]
    circle = ring_moments(32)
    fine = spectrum_of(circle)
    assert int(fine.num_negative) == 0
    assert np.allclose(fine.eigenvalues[:2], 16.0, atol=1e-3)
    assert np.abs(fine.eigenvalues[2:]).max() < 1e-3


def test_nearest_correlation_matrix():
    """It is one; and no correlation matrix on the way back is nearer (a convex problem)."""
    generator = np.random.default_rng(7)
    bad = np.clip(generator.normal(scale=0.6, size=(7, 7)), -1, 1)
    bad = np.triu(bad, 1) + np.triu(bad, 1).T + np.eye(7)
    nearest = np.asarray(jax.jit(nearest_correlation)(bad))
    assert np.linalg.eigvalsh(bad)[0] < -0.5
    assert np.allclose(np.diagonal(nearest), 1.0) and np.linalg.eigvalsh(nearest)[0] > -1e-5
    distance = np.linalg.norm(nearest - bad)
    for _ in range(50):
        root = generator.normal(size=(7, 7))
        other = root @ root.T
        scale = np.sqrt(np.diagonal(other))
        other = 0.98 * nearest + 0.02 * other / scale[:, None] / scale
        assert np.linalg.norm(other - bad) > distance - 1e-4


def test_principal_axes_find_an_exact_solution():
    loadings = np.array([[0.9, 0.5, -0.4, 0.3, 0.7, 0.1], [0.0, 0.6, 0.5, -0.7, 0.2, 0.4]])
    correlation = loadings.T @ loadings
    np.fill_diagonal(correlation, 1.0)
    factors = jax.jit(lambda x: principal_axes(x, 2, num_steps=2000))(correlation)
    assert np.allclose(factors.loadings.T @ factors.loadings, loadings.T @ loadings, atol=1e-2)
    assert np.allclose(factors.uniqueness, 1 - (loadings**2).sum(axis=0), atol=1e-2)
    assert not factors.held.any()


def test_standard_error_is_infinite_at_the_end():
    both, one = jnp.array([[20.0, 20.0], [20.0, 30.0]]), jnp.array([[0.0, 0.0], [10.0, 0.0]])
    pairs = Pairs(both, one, jnp.array([[20.0, 10.0], [10.0, 10.0]]))
    errors = jax.jit(lambda pairs: standard_errors(pairs, invert_pairs(pairs)))
    assert np.isinf(errors(pairs)[0, 1])

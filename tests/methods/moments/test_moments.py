"""Moment inversion: counts, repairs, spectra, factors, standard errors, and the contract."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer import Predictive
from scipy import special
from tools import fast_jit

from inference import MomentInversion, ProgramError, factor_errors, implied_correlation
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
    principal_components,
    spectrum,
)
from ppl_models import clipped_gaussian
from ppl_models.data import ring_moments, sum_constraint_moments
from ppl_models.distributions import ClippedNormal

TRUTH = {
    "weights": jnp.array([[1.2, -0.8, 0.5, 1.0, -1.5, 0.7], [0.0, 0.9, 1.1, -0.6, 0.4, 0.8]]),
    "bias": jnp.array([0.3, -0.9, 0.0, 1.2, -0.4, 0.6]),
}


def simulate(key, num_data, noise=1.0, params=TRUTH):
    draw = Predictive(clipped_gaussian, posterior_samples=params, batch_ndims=0)
    factors, features = params["weights"].shape
    sizes = {"num_data": num_data, "num_features": features, "num_factors": factors}
    return fast_jit(lambda key: draw(key, noise=noise, **sizes)["observed"])(key)


@pytest.fixture(scope="module")
def data():
    return simulate(random.key(0), 4000)


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
            count = fast_jit(lambda given, size=chunk_size: count_pairs(data, given, size))
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
    invert = fast_jit(lambda mean: invert_moments(mean, jnp.asarray(second)).correlation)
    inverted = invert(np.zeros(3))
    assert np.allclose(inverted, np.sin(np.pi / 2 * second), atol=1e-6)
    beside = invert(np.full(3, 1e-4))
    assert np.abs(inverted - beside).max() < 1e-5


def test_counts_and_their_moments_invert_alike(data):
    @fast_jit
    def compute(data):
        pairs = count_pairs(data)
        return invert_pairs(pairs), invert_moments(pairs.mean, pairs.second_moment)

    counted, moved = compute(data)
    assert np.allclose(counted.threshold, moved.threshold, atol=1e-5)
    assert np.abs(counted.correlation - moved.correlation).max() < 1e-4


def test_missing_cells_cost_accuracy_and_nothing_else(data):
    """Holes at random leave the same correlations within their standard errors."""
    mask = np.random.default_rng(5).random(data.shape) < 0.7

    @fast_jit
    def compute(data, mask):
        pairs = count_pairs(jnp.where(mask, data, 0.0), mask)
        holed, whole = invert_pairs(pairs), invert_pairs(count_pairs(data))
        return holed, whole, standard_errors(pairs, holed)

    holed, whole, error = jax.device_get(compute(data, mask))
    off = ~np.eye(len(error), dtype=bool)
    away = np.abs(holed.correlation - whole.correlation)[off] / error[off]
    assert away.max() < 4  # 15 pairs, standard normal at worst
    assert np.abs(holed.correlation - correlations(TRUTH, 1.0)).max() < 0.12


def test_what_real_data_bring():
    data = np.zeros((40, 6))
    data[:20, 0] = 1
    data[:10, 1] = 1  # whoever has 1 has 0: an empty cell, ρ = 1
    data[20:25, 2] = 1  # nobody has 0 and 2: ρ = −1
    data[::2, 3] = 1
    data[:, 5] = 1  # 4 and 5 are constant

    @fast_jit
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

    @fast_jit
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
    compute = fast_jit(lambda data, mask: invert_pairs(count_pairs(data, mask)))
    together = compute(data, mask)
    assert together.correlation[0, 1] == 1 and int(together.repairs.empty) == 1
    never = compute(data, mask & np.array([[True, False]] * 20 + [[False, True]] * 10))
    assert never.correlation[0, 1] == 0 and int(never.repairs.unseen) == 1
    data[20:22, 1] = 1  # the second changes, but not where the first was observed too
    still = compute(data, mask & np.array([[True, False]] * 5 + [[True, True]] * 25))
    assert still.correlation[0, 1] == 0 and int(still.repairs.unseen) == 1


def test_a_moment_outside_its_range_is_moved_to_the_end():
    """Means 1/2 and −1/2 allow ⟨s s⟩ up to 0, and it is 1."""
    inverted = fast_jit(invert_moments)(jnp.array([0.5, -0.5]), jnp.ones((2, 2)))
    assert inverted.correlation[0, 1] == 1
    assert int(inverted.repairs.outside) == 1 and int(inverted.repairs.empty) == 0
    assert np.isclose(inverted.repairs.excess, 1.0)


@fast_jit
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
    nearest = np.asarray(fast_jit(nearest_correlation)(bad))
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
    factors = fast_jit(lambda x: principal_axes(x, 2, num_steps=2000))(correlation)
    assert np.allclose(factors.loadings.T @ factors.loadings, loadings.T @ loadings, atol=1e-2)
    assert np.allclose(factors.uniqueness, 1 - (loadings**2).sum(axis=0), atol=1e-2)
    assert not factors.held.any()


correlations = fast_jit(implied_correlation)


@pytest.mark.parametrize("noise", [2.5, "columns"])
def test_recovers_the_program(data, noise):
    """Correlations and means of the program with the parameters found, whatever its noise."""
    if noise == "columns":
        noise = np.linspace(0.5, 2.0, 6)
    result = MomentInversion(clipped_gaussian).run(
        random.key(1), 1, data, num_factors=2, noise=noise, progress_bar=False
    )
    fitted = correlations(result.params, noise)
    # 4000 rows leave standard errors of up to 0.03 a pair.
    assert np.abs(fitted - correlations(TRUTH, 1.0)).max() < 0.08
    params = {site: np.asarray(value) for site, value in result.params.items()}
    variance = (params["weights"] ** 2).sum(axis=0) + np.asarray(noise) ** 2
    on = special.ndtr(params["bias"] / np.sqrt(variance))
    assert np.allclose(on, np.asarray(data).mean(axis=0), atol=1e-4)
    assert result.reason == "all steps done" and result.losses.shape == (1,)


def test_hard_clip_recovers_the_ring():
    from ppl_models.data import ring

    method = MomentInversion(clipped_gaussian, rank="spectrum")
    data = fast_jit(lambda key: ring(key, 3000, 16).data)(random.key(1))
    state = method.invert(random.key(0), data, noise=0.0)
    assert state.rank == 2 and state.edge < 2
    assert np.allclose((state.params["weights"] ** 2).sum(axis=0), 1.0, atol=1e-4)
    wanted = np.cos(2 * np.pi * (np.arange(16)[:, None] - np.arange(16)) / 16)
    assert np.abs(correlations(state.params, 0.0) - wanted).max() < 0.1


def votes(table, cast=None, *, axes=2, blur=1.0):
    """A clipped Gaussian under other names, its weights transposed, and of fewer columns."""
    place = numpyro.sample("place", dist.Normal(0.0, 4.0).expand((5,)).to_event(1))
    pull = numpyro.sample("pull", dist.Laplace(0.0, 2.0).expand((5, axes)).to_event(2))
    with numpyro.plate("people", len(table)):
        opinion = numpyro.sample("opinion", dist.Normal(0.0, 1.0).expand((axes,)).to_event(1))
        side = ClippedNormal(place + opinion @ pull.T, blur)
        side = side if cast is None else side.mask(cast[:, 1:])
        numpyro.sample("votes", side.to_event(1), obs=table[:, 1:])


def unlike(table, *, axes=2):
    """The same, but a curved one."""
    place = numpyro.sample("place", dist.Normal(0.0, 4.0).expand((6,)).to_event(1))
    pull = numpyro.sample("pull", dist.Normal(0.0, 2.0).expand((6, axes)).to_event(2))
    with numpyro.plate("people", len(table)):
        opinion = numpyro.sample("opinion", dist.Normal(0.0, 1.0).expand((axes,)).to_event(1))
        at = place + (opinion + 0.1 * opinion**2) @ pull.T
        numpyro.sample("votes", ClippedNormal(at, 1.0).to_event(1), obs=table)


def test_a_copy_under_other_names_is_inverted_too(data):
    """With its own noise, columns and missing cells; of other forms nothing is inverted."""
    mask = np.random.default_rng(2).random(data.shape) < 0.9
    noise = np.linspace(0.5, 2.0, 5)
    copy = MomentInversion(votes).init(random.key(0), data, cast=mask, blur=noise).params
    ours = MomentInversion(clipped_gaussian).init(
        random.key(0), data[:, 1:], mask=mask[:, 1:], num_factors=2, noise=noise
    )
    np.testing.assert_array_equal(copy["pull"].T, ours.params["weights"])
    np.testing.assert_array_equal(copy["place"], ours.params["bias"])
    with pytest.raises(ProgramError, match="not that of clipped_gaussian"):
        MomentInversion(unlike).init(random.key(0), data)


def test_rank_by_the_spectrum():
    """Three strong factors are found among twelve columns, none in coin tosses."""
    generator = np.random.default_rng(3)
    params = {"weights": 2 * generator.normal(size=(3, 12)), "bias": np.linspace(-1, 1, 12)}
    method = MomentInversion(clipped_gaussian, rank="spectrum")
    data = simulate(random.key(4), 2000, params=params)
    assert method.invert(random.key(5), data).rank == 3
    tosses = (generator.random(data.shape) < 0.3).astype(np.float32)
    state = method.invert(random.key(5), tosses)
    assert (state.spectrum.eigenvalues > state.edge).sum() <= 1
    assert "rank" in state.report()


def test_standard_errors_against_repetition():
    """400 data sets: the spread of ρ is known to 3.5 %, its own estimate to less."""
    params = {site: np.asarray(value)[..., :3] for site, value in TRUTH.items()}
    many = simulate(random.key(8), 400 * 500, params=params).reshape(400, 500, 3)

    def one(data):
        pairs = count_pairs(data)
        inverted = invert_pairs(pairs)
        return inverted.correlation, standard_errors(pairs, inverted)

    # Four hundred times over, it is worth being optimised.
    thorough = jax.jit(jax.vmap(one), compiler_options={"xla_backend_optimization_level": 1})
    correlation, error = thorough(many)
    off = ~np.eye(3, dtype=bool)
    spread = np.asarray(correlation).std(axis=0)[off]
    assert np.abs(np.asarray(error).mean(axis=0)[off] / spread - 1).max() < 0.15
    assert (np.asarray(error)[:, ~off] == 0).all()


def test_standard_error_is_infinite_at_the_end():
    both, one = jnp.array([[20.0, 20.0], [20.0, 30.0]]), jnp.array([[0.0, 0.0], [10.0, 0.0]])
    pairs = Pairs(both, one, jnp.array([[20.0, 10.0], [10.0, 10.0]]))
    errors = fast_jit(lambda pairs: standard_errors(pairs, invert_pairs(pairs)))
    assert np.isinf(errors(pairs)[0, 1])


def test_the_contract(data):
    method = MomentInversion(clipped_gaussian, errors=True, nearest=True)
    state = method.init(random.key(0), data, num_factors=2)
    after, loss = fast_jit(method.update)(state, data, num_factors=2)
    jax.tree.map(np.testing.assert_array_equal, state, after)
    assert loss == state.residual
    inverted = method.invert(random.key(0), data, num_factors=2)
    jax.tree.map(np.testing.assert_array_equal, tuple(state), (inverted.params, inverted.residual))
    assert inverted.standard_error.shape == (6, 6)
    traced = fast_jit(lambda x: method.init(random.key(0), x, num_factors=2).params)(data)
    for name, value in method.get_params(state).items():
        assert np.allclose(value, traced[name], atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({"rank": "guess"}, {}, "'spectrum'"),
        ({"rank": 0}, {}, "at least 1"),
        ({"smoothing": -1.0}, {}, "smoothing"),
        ({}, {}, "how many factors"),
        ({"rank": 9}, {}, "only 6 columns"),
        ({"rank": 2}, {"num_factors": 3}, "program has 3"),
        ({"rank": 2}, {"init_params": TRUTH}, "does not start"),
    ],
)
def test_errors_before_any_work(data, settings, given, words):
    with pytest.raises(ValueError, match=words):
        MomentInversion(clipped_gaussian, **settings).init(random.key(0), data, **given)


def test_data_other_than_bits_are_named(data):
    data = data.astype(float)
    with pytest.raises(ValueError, match=r"data holds 2\.0 in row 3, column 4"):
        MomentInversion(clipped_gaussian, rank=1).init(random.key(0), data.at[3, 4].set(2.0))
    with pytest.raises(ValueError, match="nan"):
        MomentInversion(clipped_gaussian, rank=1).init(random.key(0), data.at[3, 4].set(jnp.nan))


@pytest.mark.parametrize(("noise", "factors"), [(1.0, principal_axes), (0.0, principal_components)])
def test_errors_of_factors_are_those_of_the_jackknife(noise, factors):
    """Infinitesimal: each pattern of rows weighs a little more, or less. Some lack a column."""
    full = np.stack(np.meshgrid(*[[0, 1]] * 4, indexing="ij"), -1).reshape(16, 4)
    patterns, hole = np.concatenate([full, full[8:]]), np.repeat([1, 0], [16, 8])
    mask = np.ones(patterns.shape, bool)
    mask[:, 0] = hole
    logits = np.abs(patterns.sum(axis=1) - 2) + np.array([0.3, 0.1, 0.0, -0.2]) @ patterns.T
    counts = np.rint(12 * np.exp(0.7 * logits)).astype(int)
    bits, seen = (np.repeat(x, counts, axis=0) for x in (patterns, mask))

    with jax.enable_x64(True):
        method = MomentInversion(clipped_gaussian, rank=1)
        state = method.invert(random.key(0), bits, mask=seen, noise=noise)
        errors = factor_errors(state, bits, seen, noise=noise)
        assert not state.factors.held.any()
        on, off = patterns * mask, (1 - patterns) * mask

        @fast_jit
        @jax.vmap
        def estimate(weight):
            both, one, neither = (
                jnp.einsum("n,ni,nj->ij", weight, *x) for x in ((on, on), (on, off), (off, off))
            )
            correlation = invert_pairs(Pairs(both, one, neither)).correlation
            loadings = factors(correlation, 1).loadings
            eigenvalue = jnp.linalg.eigvalsh(correlation)[-1:]
            return jnp.append(eigenvalue, loadings * jnp.sign(loadings[0, 0]))

        step = 1e-4 * jnp.eye(len(counts))
        change = (estimate(counts + step) - estimate(counts - step)) / 2e-4
        expected = jnp.sqrt(counts @ change**2)
        assert np.allclose(errors.eigenvalues, expected[:1], rtol=1e-4)
        assert np.allclose(errors.loadings[0], expected[1:], rtol=1e-4)
    moved = state._replace(moved=jnp.ones(()))
    with pytest.raises(ValueError, match="nearest=True"):
        factor_errors(moved, bits)

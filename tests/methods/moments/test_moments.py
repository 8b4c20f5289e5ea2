"""Moment inversion: recovery, ranks and standard errors."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer import Predictive
from scipy import special

from inference import MomentInversion, ProgramError, factor_errors, implied_correlation
from inference.methods.moments.pairs import (
    Pairs,
    count_pairs,
    invert_moments,
    invert_pairs,
    standard_errors,
)
from inference.methods.moments.spectrum import (
    principal_axes,
    principal_components,
)
from ppl_models import clipped_gaussian
from ppl_models.distributions import ClippedNormal

TRUTH = {
    "weights": jnp.array([[1.2, -0.8, 0.5, 1.0, -1.5, 0.7], [0.0, 0.9, 1.1, -0.6, 0.4, 0.8]]),
    "bias": jnp.array([0.3, -0.9, 0.0, 1.2, -0.4, 0.6]),
}


def simulate(key, num_data, noise=1.0, params=TRUTH):
    draw = Predictive(clipped_gaussian, posterior_samples=params, batch_ndims=0)
    factors, features = params["weights"].shape
    sizes = {"num_data": num_data, "num_features": features, "num_factors": factors}
    return jax.jit(lambda key: draw(key, noise=noise, **sizes)["observed"])(key)


@pytest.fixture(scope="module")
def data():
    return simulate(random.key(0), 4000)


def test_counts_and_their_moments_invert_alike(data):
    @jax.jit
    def compute(data):
        pairs = count_pairs(data)
        return invert_pairs(pairs), invert_moments(pairs.mean, pairs.second_moment)

    counted, moved = compute(data)
    assert np.allclose(counted.threshold, moved.threshold, atol=1e-5)
    assert np.abs(counted.correlation - moved.correlation).max() < 1e-4


def test_missing_cells_cost_accuracy_and_nothing_else(data):
    """Holes at random leave the same correlations within their standard errors."""
    mask = np.random.default_rng(5).random(data.shape) < 0.7

    @jax.jit
    def compute(data, mask):
        pairs = count_pairs(jnp.where(mask, data, 0.0), mask)
        holed, whole = invert_pairs(pairs), invert_pairs(count_pairs(data))
        return holed, whole, standard_errors(pairs, holed)

    holed, whole, error = jax.device_get(compute(data, mask))
    off = ~np.eye(len(error), dtype=bool)
    away = np.abs(holed.correlation - whole.correlation)[off] / error[off]
    assert away.max() < 4  # 15 pairs, standard normal at worst
    assert np.abs(holed.correlation - correlations(TRUTH, 1.0)).max() < 0.12


correlations = jax.jit(implied_correlation)


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
    data = jax.jit(lambda key: ring(key, 3000, 16).data)(random.key(1))
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
    thorough = jax.jit(jax.vmap(one))
    correlation, error = thorough(many)
    off = ~np.eye(3, dtype=bool)
    spread = np.asarray(correlation).std(axis=0)[off]
    assert np.abs(np.asarray(error).mean(axis=0)[off] / spread - 1).max() < 0.15
    assert (np.asarray(error)[:, ~off] == 0).all()


def test_a_step_is_idle_and_init_is_the_inversion(data):
    method = MomentInversion(clipped_gaussian, errors=True, nearest=True)
    state = method.init(random.key(0), data, num_factors=2)
    after, loss = jax.jit(method.update)(state, data, num_factors=2)
    jax.tree.map(np.testing.assert_array_equal, state, after)
    assert loss == state.residual
    inverted = method.invert(random.key(0), data, num_factors=2)
    jax.tree.map(np.testing.assert_array_equal, tuple(state), (inverted.params, inverted.residual))
    assert inverted.standard_error.shape == (6, 6)


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

        @jax.jit
        @jax.vmap
        def estimate(weight):
            both, one, neither = (
                jnp.einsum("n,ni,nj->ij", weight, *x) for x in ((on, on), (on, off), (off, off))
            )
            correlation = invert_pairs(Pairs(both, one, neither)).correlation
            loadings = factors(correlation, 1).loadings
            eigenvalue = jnp.linalg.eigvalsh(correlation)[-1:]
            return jnp.append(eigenvalue, loadings * jnp.sign(loadings[0, 0]))

        step = 1e-4 * np.eye(len(counts))
        more, less = (np.asarray(estimate(counts + x)) for x in (step, -step))
        expected = np.sqrt(counts @ ((more - less) / 2e-4) ** 2)
        assert np.allclose(errors.eigenvalues, expected[:1], rtol=1e-4)
        assert np.allclose(errors.loadings[0], expected[1:], rtol=1e-4)
    moved = state._replace(moved=jnp.ones(()))
    with pytest.raises(ValueError, match="nearest=True"):
        factor_errors(moved, bits)

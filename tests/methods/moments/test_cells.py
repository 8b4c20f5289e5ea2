"""Cells of a hard clip, hidden values of an image, and paths between two."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from oracle.clipped_gaussian import hard_clip_log_evidence
from scipy import special

from inference import (
    MomentInversion,
    count_cells,
    draw_hidden,
    entropy,
    enumerate_cells,
    hidden_values,
    morph,
)
from ppl_models import clipped_gaussian

SLANTED = {
    "weights": np.array([[1.0, -0.4, 0.7, -1.3], [0.2, 0.9, -1.1, -0.6]]),
    "bias": np.array([0.3, -0.8, 0.1, 0.5]),
}
CENTRAL = {"weights": SLANTED["weights"], "bias": np.zeros(4)}
# Two columns on one line, one its opposite, one without weights, one line through the origin.
ALIKE = {
    "weights": np.array([[1.0, 2.0, -1.0, 0.0, 0.5], [0.5, 1.0, -0.5, 0.0, -1.0]]),
    "bias": np.array([0.4, 0.8, -0.4, -1.0, 0.0]),
}
ONE_FACTOR = {"weights": np.array([[1.0, -2.0, 0.5]]), "bias": np.array([0.2, 0.7, -1.0])}


@pytest.mark.parametrize(
    ("params", "number"), [(SLANTED, 11), (CENTRAL, 8), (ALIKE, 4), (ONE_FACTOR, 4)]
)
def test_cells_against_the_oracle(params, number):
    cells = enumerate_cells(params)
    assert len(cells.bits) == number and len(np.unique(cells.bits, axis=0)) == number
    if params is not ALIKE:  # there the oracle's kinks coincide
        expected = np.exp(hard_clip_log_evidence(params["weights"], params["bias"], cells.bits))
        assert np.abs(cells.probability - expected).max() < 1e-8
    # Over all cells: a standard normal.
    size = cells.first.shape[1]
    assert np.isclose(cells.probability.sum(), 1.0)
    assert np.allclose(cells.first.sum(axis=0), 0.0, atol=1e-8)
    assert np.allclose(cells.second.sum(axis=0), np.eye(size), atol=1e-8)


def test_counts_by_cover():
    assert count_cells(4, 2) == len(enumerate_cells(CENTRAL).bits)
    assert count_cells(4, 2, central=False) == len(enumerate_cells(SLANTED).bits)
    assert count_cells(256, 2) == 512
    # Opposite spins of a ring share a line, though rounding has turned one by 1e-16.
    angle = 2 * np.pi * np.arange(8) / 8
    ring = {"weights": np.stack([np.cos(angle), np.sin(angle)]), "bias": np.zeros(8)}
    assert len(enumerate_cells(ring).bits) == 8
    assert count_cells(3, 3) == count_cells(3, 5) == 8  # every state


def test_cell_moments_against_draws():
    generator = np.random.default_rng(0)
    draws = generator.normal(size=(200_000, 2))
    images = (draws @ SLANTED["weights"] + SLANTED["bias"] > 0).astype(int)
    for bits, chance, first, second in zip(*enumerate_cells(SLANTED), strict=True):
        inside = draws[(images == bits).all(axis=1)]
        # Monte Carlo: 1/√200000 times a deviation of about 1, four times over.
        assert abs(len(inside) / len(draws) - chance) < 0.005
        assert np.abs(inside.sum(axis=0) / len(draws) - first).max() < 0.01
        assert np.abs(inside.T @ inside / len(draws) - second).max() < 0.015


def test_entropy():
    exact = entropy(SLANTED)
    probabilities = enumerate_cells(SLANTED).probability
    assert (
        np.isclose(exact.nats, -np.sum(probabilities * np.log(probabilities)))
        and exact.coverage == 1
    )
    # The same plane seen from three dimensions must be drawn: it agrees within its noise.
    third = {"weights": np.vstack([SLANTED["weights"], np.zeros((1, 4))]), "bias": SLANTED["bias"]}
    drawn = entropy(third, random.key(0), 50_000)
    assert abs(drawn.nats - exact.nats) < 0.02 and drawn.coverage > 0.99
    with pytest.raises(ValueError, match="give rng_key"):
        entropy(third)


def test_entropy_grows_as_the_log_of_the_columns():
    """Without biases and many columns, log 2N less what unequal wedges cost: P − 1 logs of N."""
    weights = np.asarray(random.normal(random.key(2), (2, 200)))
    sizes = (25, 200)
    nats = [entropy({"weights": weights[:, :n], "bias": np.zeros(n)}).nats for n in sizes]
    assert abs((nats[1] - nats[0]) - np.log(8)) < 0.15


def test_exact_posterior_of_a_hard_clip():
    method = MomentInversion(clipped_gaussian)
    cells = enumerate_cells(SLANTED)
    data = np.vstack([cells.bits, cells.bits[2:4]]).astype(float)
    mask = np.ones(data.shape, bool)
    mask[-2, [0, 3]] = False
    posterior = method.posterior(SLANTED, jnp.asarray(data), mask=mask, num_factors=2, noise=0.0)
    number = len(cells.bits)
    assert np.allclose(posterior.evidence[:number], np.log(cells.probability), atol=1e-4)
    mean = cells.first / cells.probability[:, None]
    assert np.allclose(posterior.mean[:number], mean, atol=1e-5)
    agree = (cells.bits[:, 1:3] == data[-2, 1:3]).all(axis=1)
    assert np.isclose(posterior.evidence[-2], np.log(cells.probability[agree].sum()), atol=1e-5)
    assert posterior.effective[-2] == agree.sum() > 1
    everything = {tuple(bits) for bits in cells.bits}
    impossible = next(bits for bits in np.ndindex(2, 2, 2, 2) if bits not in everything)
    lost = method.posterior(SLANTED, jnp.asarray([impossible], float), num_factors=2, noise=0.0)
    assert lost.evidence[0] == -jnp.inf and np.isfinite(lost.mean).all()


def test_laplace_says_how_far_it_can_be_trusted():
    """Laplace plus its gap is the evidence summed over a fine grid, within the draws' noise."""
    params = {name: jnp.asarray(value, float) for name, value in SLANTED.items()}
    data = np.array(list(np.ndindex(2, 2, 2, 2)), float)
    posterior = MomentInversion(clipped_gaussian).posterior(
        params, jnp.asarray(data), num_draws=500, num_factors=2, noise=0.7
    )
    line = np.linspace(-6, 6, 121)
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    weight = np.exp(-0.5 * (grid**2).sum(axis=1)) / (2 * np.pi) * (line[1] - line[0]) ** 2
    on = special.ndtr((grid @ SLANTED["weights"] + SLANTED["bias"]) / 0.7)
    for n, bits in enumerate(data):
        joint = weight * np.prod(np.where(bits == 1, on, 1 - on), axis=1)
        evidence, mean = np.log(joint.sum()), joint @ grid / joint.sum()
        # 500 draws, of which most count: 1/√500 of a deviation below 1, three times over.
        assert abs(posterior.evidence[n] + posterior.gap[n] - evidence) < 0.1
        assert abs(posterior.gap[n]) < 0.3 and posterior.effective[n] > 100
        assert np.abs(posterior.mean[n] - mean).max() < 0.3  # a mode, not a mean


def test_posterior_refuses_what_it_cannot_do():
    method = MomentInversion(clipped_gaussian)
    params = {"weights": jnp.ones((3, 4)), "bias": jnp.zeros(4)}
    with pytest.raises(ValueError, match="up to 2 factors, found 3"):
        method.posterior(params, jnp.zeros((2, 4)), num_factors=3, noise=0.0)
    with pytest.raises(ValueError, match="some columns only"):
        method.posterior(params, jnp.zeros((2, 4)), noise=jnp.array([0.0, 1, 1, 1]), num_factors=3)


def test_a_path_never_leaves_the_images():
    """Bits only, each flips at most once, and so the path is as long as its ends are apart."""
    weights = 3 * np.asarray(random.normal(random.key(0), (3, 40)))
    params = {"weights": weights, "bias": np.linspace(-1, 1, 40, dtype=np.float32)}
    places = np.asarray(random.normal(random.key(1), (2, 3)))
    ends = (places @ weights + params["bias"] > 0).astype(np.float32)
    path = morph(params, ends[0], ends[1], 25)
    assert set(np.unique(path.images)) == {0.0, 1.0} and path.images.shape == (25, 40)
    flips = np.abs(np.diff(path.images, axis=0)).sum(axis=0)
    assert flips.max() == 1
    assert path.hamming.sum() == np.abs(path.images[0] - path.images[-1]).sum() > 5
    # The mode under noise is not the image itself; how far off it is, is told, and it is nearer
    # than the image of the prior's mode.
    reached = np.asarray(path.images)[[0, -1]]
    np.testing.assert_array_equal(path.wrong, np.abs(reached - np.asarray(ends)).sum(axis=1))
    prior_mode = np.asarray(params["bias"] > 0).astype(float)
    assert (np.asarray(path.wrong) < np.abs(prior_mode - np.asarray(ends)).sum(axis=1)).all()
    with pytest.raises(ValueError, match="at least 2"):
        morph(params, ends[0], ends[1], 1)
    with pytest.raises(ValueError, match="noise"):
        morph(params, ends[0], ends[1], 3, noise=0.0)


def test_hidden_values_lie_in_their_cells():
    cells = enumerate_cells(SLANTED)
    likely = cells.probability > 1e-3
    bits = cells.bits[likely]
    hidden = hidden_values(SLANTED, bits)
    assert not hidden.wrong.any() and (hidden.depth > 0).all()
    drawn = draw_hidden(0, SLANTED, bits, hidden.factors, 2000)
    inside = drawn @ SLANTED["weights"] + SLANTED["bias"] > 0
    assert (inside == (bits > 0)).all()
    # Both moments against the exact ones, errors from the means of 20 batches of a chain.
    for values, exact in (
        (drawn, cells.first[likely]),
        (drawn[..., :, None] * drawn[..., None, :], cells.second[likely]),
    ):
        batches = values.reshape(20, 100, *exact.shape).mean(axis=1)
        error = batches.std(axis=0) / np.sqrt(19)
        share = cells.probability[likely].reshape(-1, *[1] * (exact.ndim - 1))
        assert np.abs((batches.mean(axis=0) - exact / share) / error).max() < 5


def test_an_image_that_no_hidden_value_makes():
    """Two equal columns cannot differ; an unobserved bit asks for nothing."""
    params = {"weights": np.ones((3, 2)), "bias": np.zeros(2)}
    hidden = hidden_values(params, [[1, 0], [1, 1], [1, 0]], [[1, 1], [1, 1], [1, 0]])
    assert hidden.wrong.tolist() == [1, 0, 0] and (hidden.depth > 0).tolist() == [False, True, True]
    with pytest.raises(ValueError, match="outside of some row's cell"):
        draw_hidden(0, params, [[1, 0]], hidden.factors[:1], 2)

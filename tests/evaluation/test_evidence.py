"""The marginal log likelihood of every program, by every estimator, against the oracle's sums."""

import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from oracle.examples import coded_data, coding, draws, machine, mixture, network, trait
from tools import in_double

import ppl_models
from inference.evaluation.evidence import likelihood, log_likelihood
from inference.evaluation.standard_errors import standard_errors
from inference.reading.anatomy import ProgramError

NUM_DATA = 5
BITS = (draws(7).random((NUM_DATA, 4)) < [0.2, 0.8, 0.5, 0.4]).astype(np.float64)
MASK = draws(8).random((NUM_DATA, 4)) < 0.7


def enumerated(log_joint, parameters, states, data, mask):
    return oracle.log_evidence(oracle.log_joint_table(log_joint, parameters, states, data, mask))


CAUSES = {"causes": oracle.all_states(3)}
# Parameters, data, sizes, and the states of the latents; None: they are integrated over.
CASES = {
    "combination_machine": (machine(), BITS, {"num_causes": 3}, CAUSES),
    "binary_sparse_coding": (
        coding(), coded_data(coding(), NUM_DATA), {"num_causes": 3}, CAUSES),
    "bernoulli_mixture": (mixture(), BITS, {"num_components": 3}, {"component": np.arange(3)}),
    "bernoulli_product": ({"probs": np.array([0.3, 0.6, 0.8, 0.45])}, BITS, {}, {}),
    "noisy_or_network": (
        network(), BITS, {"layers": (3, 2)}, oracle.joint_states(layer_1=3, layer_2=2)),
    "latent_trait": (trait(), BITS, {"num_factors": 2}, None),
    "clipped_gaussian": (trait(), BITS, {"num_factors": 2}, None),
}  # fmt: skip


def by_the_oracle(name, mask):
    params, data, _, states = CASES[name]
    log_joint = getattr(oracle, f"log_joint_{name}")
    if states == {}:
        return log_joint(params, data, mask)
    if states is not None:
        return enumerated(log_joint, params, states, data, mask)
    nodes, weights = oracle.gauss_hermite(2, 60)
    table = oracle.quadrature_table(log_joint, params, nodes, weights, data, mask)
    return oracle.log_evidence(table)


# A machine is summed in another way where cells are missing; the others are read alike.
READINGS = [(name, True) for name in CASES if name != "clipped_gaussian"]
READINGS += [(name, False) for name in CASES if "machine" in name or name == "clipped_gaussian"]


@pytest.mark.parametrize(("name", "masked"), READINGS)
def test_evidence_is_the_oracles_sum_over_latents(name, masked):
    params, data, sizes, _ = CASES[name]
    extra = {"mask": MASK} if masked else {}
    params = {site: jnp.asarray(value, jnp.float32) for site, value in params.items()}
    evidence = log_likelihood(
        getattr(ppl_models, name), params, jnp.asarray(data, jnp.float32), **sizes, **extra
    )
    # float32: 1e-5 of the largest term; quadrature says its own error, which float32 rounds.
    np.testing.assert_allclose(
        evidence.value,
        by_the_oracle(name, MASK if masked else None),
        rtol=2e-5,
        atol=2e-5 + float(evidence.error.max()),
    )
    assert float(evidence.error.max()) < 2e-4


def test_a_masked_machine_is_not_linear_and_is_summed_over_all_states():
    whole = likelihood(ppl_models.combination_machine, BITS, num_causes=3)
    holes = likelihood(ppl_models.combination_machine, BITS, num_causes=3, mask=MASK)
    assert (whole.how, holes.how) == ("closed form", "the sum over all 8 states")


def test_importance_sampling_covers_quadrature_with_its_own_error():
    rng = draws(9)
    weights = rng.normal(0.0, 1.0, (4, 4))
    weights[3] = 0.0  # a factor that no column shows: four are three, which quadrature can do
    params = {"weights": jnp.asarray(weights), "bias": jnp.asarray(rng.normal(size=4))}
    fewer = {**params, "weights": params["weights"][:3]}
    data = jnp.asarray(BITS)
    exact = log_likelihood(ppl_models.latent_trait, fewer, data, num_factors=3)
    estimate = likelihood(ppl_models.latent_trait, data, num_factors=4, num_draws=2000)
    assert estimate.how == "importance sampling, 2000 draws per row" and not estimate.exact
    sampled = estimate(params)
    # Five rows: a normal deviate beyond 4 in one of them has a chance of 3e-4.
    assert np.all(np.abs(sampled.value - exact.value) < 4 * sampled.error + exact.error)
    assert float(sampled.error.max()) < 0.05


def test_more_bits_than_can_be_listed_are_summed_by_layer_or_annealed():
    params = {x: jnp.asarray(v, jnp.float32) for x, v in network().items()}
    data = jnp.asarray(BITS, jnp.float32)
    exact = likelihood(ppl_models.noisy_or_network, data, layers=(3, 2))(params).value
    estimate = likelihood(ppl_models.noisy_or_network, data, layers=(3, 2), max_states=4)
    assert estimate.how.startswith("annealed importance sampling")
    annealed = estimate(params)
    # Five rows, weights that are nearly equal: 5 standard errors, and rounding.
    assert np.all(np.abs(annealed.value - exact) < 5 * annealed.error + 1e-3)
    assert 0 < float(annealed.error.max()) < 0.1
    # 32 states together are too many, but not the 8 and 4 of the layers.
    layered = likelihood(ppl_models.noisy_or_network, data, layers=(3, 2), max_states=8)
    assert layered.exact and layered.how == "layer by layer, all 8 and 4 states"
    np.testing.assert_allclose(layered(params).value, exact, rtol=1e-5)


def test_draws_of_parameters_are_read_one_by_one():
    one = {site: jnp.asarray(value, jnp.float32) for site, value in mixture().items()}
    two = {**one, "probs": 1.0 - one["probs"]}
    draws_of_both = {site: jnp.stack([one[site], two[site]]) for site in one}
    estimate = likelihood(ppl_models.bernoulli_mixture, jnp.asarray(BITS), num_components=3)
    values = estimate.of_draws(draws_of_both).value
    np.testing.assert_allclose(values, [estimate(one).value, estimate(two).value], rtol=1e-6)


def test_a_program_without_data_is_refused():
    with pytest.raises(ProgramError, match="nothing is observed"):
        likelihood(ppl_models.latent_trait, num_data=3, num_features=4, num_factors=2)


@in_double
def test_standard_errors_of_classes_are_those_of_the_oracles_hessian():
    """By chunks, with missing cells."""
    rng = draws(9)
    probs = np.array([[0.9, 0.8, 0.3, 0.7], [0.2, 0.3, 0.8, 0.25]])
    first = rng.random(60) < 0.4
    data = (rng.random((60, 4)) < probs[1 - first]).astype(float)
    mask = np.ones((60, 4), bool)
    mask[:9, 0], mask[3] = False, False
    both, count = np.unique(np.concatenate([data * mask, mask], 1), axis=0, return_counts=True)
    classes = {"component": np.arange(2)}

    def params(point):
        return {"mixing": np.array([point[0], 1 - point[0]]), "probs": point[1:].reshape(2, 4)}

    def total(free):
        given = params(free["x"]), classes, both[:, :4], both[:, 4:]
        return count @ enumerated(oracle.log_joint_bernoulli_mixture, *given)

    def slope(free):
        return oracle.finite_difference(total, free, step=1e-4)["x"]

    # Newton's steps to the maximum: elsewhere errors depend on the chart of the parameters.
    point = np.array([0.41, 0.8, 0.76, 0.14, 0.83, 0.12, 0.16, 0.84, 0.29])
    for _ in range(3):
        bend = oracle.finite_difference(slope, {"x": point}, step=1e-4)["x"]
        point = point - np.linalg.solve(bend, slope({"x": point}))
    wanted = np.sqrt(np.diagonal(np.linalg.inv(-bend)))
    given = {"mask": mask, "num_components": 2, "chunk_size": 16}
    errors = standard_errors(ppl_models.bernoulli_mixture, params(point), data, **given)
    np.testing.assert_allclose(errors["mixing"], wanted[[0, 0]], rtol=1e-4)
    np.testing.assert_allclose(errors["probs"].ravel(), wanted[1:], rtol=1e-4)

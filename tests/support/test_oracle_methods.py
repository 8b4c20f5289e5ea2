"""The oracle's updates and bounds checked by what they are for.

An M-step never lowers the likelihood and stops where its derivative is zero, a bound stays below,
a Gibbs step is a ratio of joints. Nothing here uses the code under test.
"""

import math

import numpy as np
import pytest
from oracle import (
    active_mass,
    all_states,
    bound_log_evidence,
    bound_posterior,
    bound_update_variational,
    data_to_keep,
    expected_active_mass,
    finite_difference,
    gauss_hermite,
    gibbs_flip_probability,
    log_evidence,
    log_joint_clipped_gaussian,
    log_joint_latent_trait,
    log_joint_noisy_or_network,
    noisy_or_leak_update,
    noisy_or_weight_update_beta,
    num_data_cut,
    quadrature_table,
    sparse_coding_sparsity,
)
from oracle.examples import DIFFERENCE, close, draws, network, trait
from scipy import integrate

# Henniges et al.


def test_truncation_corrections_are_prior_sums_over_states():
    states, sparsity = all_states(5), 0.23
    mass = [np.prod(np.where(state == 1, sparsity, 1 - sparsity)) for state in states]
    few = [m for m, state in zip(mass, states, strict=True) if state.sum() <= 2]
    active = [m * s.sum() for m, s in zip(mass, states, strict=True) if s.sum() <= 2]
    close(active_mass(sparsity, 5, 2), sum(few))
    close(expected_active_mass(sparsity, 5, 2), sum(active))
    close(num_data_cut(40, sparsity, 5, 2), 40 * sum(few))
    close(num_data_cut(40, sparsity, 5, 5), 40.0)
    # Without truncation the correction is one over H, as the paper notes.
    close(active_mass(sparsity, 5, 5) * sparsity / expected_active_mass(sparsity, 5, 5), 1 / 5)


def test_data_to_keep_are_the_best():
    assert data_to_keep([0.3, -1.0, 2.0, 0.5], 2) == [2, 3]


def test_sparsity_update_is_unbiased_under_truncation():
    # With the prior restricted to γ active causes as posterior, (8) must give π back.
    states, sparsity = all_states(4), 0.35
    prior = np.prod(np.where(states == 1, sparsity, 1 - sparsity), axis=1)
    prior[states.sum(1) > 2] = 0.0
    posterior = (prior / prior.sum())[:, None]
    close(sparse_coding_sparsity(posterior, states, sparsity, 2), sparsity)


# Tipping


def adaptive_log_evidence(log_joint, parameters, datum):
    def density(*factors):
        sites = {**parameters, "factors": np.array([factors])}
        return math.exp(log_joint(sites, datum[None])[0])

    limits = [(-9.0, 9.0)] * len(parameters["weights"])
    accuracy = {"epsabs": 1e-8, "epsrel": 1e-8}
    return math.log(integrate.nquad(density, limits, opts=accuracy)[0])


@pytest.mark.parametrize("log_joint", [log_joint_latent_trait, log_joint_clipped_gaussian])
@pytest.mark.parametrize("num_factors", [1, 2])
def test_gauss_hermite_agrees_with_adaptive_integration(log_joint, num_factors):
    parameters = trait(num_factors=num_factors, num_features=2)
    parameters["weights"] *= 0.6
    datum = np.array([1.0, 0.0])
    table = quadrature_table(log_joint, parameters, *gauss_hermite(num_factors, 30), datum[None])
    wanted = adaptive_log_evidence(log_joint, parameters, datum)
    close(log_evidence(table)[0], wanted, 1e-7)


@pytest.mark.parametrize("log_joint", [log_joint_latent_trait, log_joint_clipped_gaussian])
def test_quadrature_evidence_sums_to_one_over_data(log_joint):
    nodes, log_weights = gauss_hermite(2, 12)
    table = quadrature_table(log_joint, trait(), nodes, log_weights, all_states(4))
    # Sums over the data commute with any quadrature whose weights sum to one.
    close(np.exp(log_evidence(table)).sum(), 1.0, 1e-11)


def test_variational_update_8_ends_where_the_bound_is_best():
    parameters = trait(num_features=3)
    data = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    variational = np.full((2, 3), 1.3)
    for _ in range(300):
        moments = bound_posterior(**parameters, variational=variational, data=data)
        variational = bound_update_variational(
            **parameters, means=moments[0], covariances=moments[1]
        )

    def bound(p):
        return bound_log_evidence(**parameters, **p, data=data).sum()

    slopes = finite_difference(bound, {"variational": variational})
    close(slopes["variational"], 0.0, DIFFERENCE)


# Lewicki & Sejnowski


@pytest.mark.parametrize(("layer", "unit"), [(1, 0), (1, 2), (2, 1)])
def test_flip_probability_is_the_ratio_of_joints(layer, unit):
    rng = draws(16)
    sites = network()
    sites["layer_1"] = (rng.random((7, 3)) < 0.5).astype(float)
    sites["layer_2"] = (rng.random((7, 2)) < 0.5).astype(float)
    data = (rng.random((7, 4)) < 0.5).astype(float)
    mask = rng.random((7, 4)) < 0.7
    flipped = {**sites, f"layer_{layer}": sites[f"layer_{layer}"].copy()}
    flipped[f"layer_{layer}"][:, unit] = 1.0 - flipped[f"layer_{layer}"][:, unit]
    before = np.exp(log_joint_noisy_or_network(sites, data, mask))
    after = np.exp(log_joint_noisy_or_network(flipped, data, mask))
    probability = gibbs_flip_probability(sites, data, layer, unit, mask)
    close(probability, after / (before + after))


def noisy_or_objective(parents, children, weights, leak, log_prior, mask):
    total = log_prior(weights) + log_prior(leak)
    for n in range(len(parents)):
        for j in range(len(leak)):
            if mask[n, j]:
                reach = leak[j] + parents[n] @ weights[:, j]
                total += math.log(-math.expm1(-reach)) if children[n, j] else -reach
    return total


def noisy_or_example():
    rng = draws(17)
    parents = (rng.random((25, 2)) < 0.5).astype(float)
    weights, leak = rng.uniform(0.3, 1.5, (2, 3)), rng.uniform(0.1, 0.5, 3)
    chance = -np.expm1(-(parents @ weights + leak))
    children = (rng.random((25, 3)) < chance).astype(float)
    mask = rng.random((25, 3)) < 0.9
    return parents, children, rng.uniform(0.05, 0.15, (2, 3)), np.full(3, 0.1), mask


def test_weight_update_with_a_beta_prior_is_stationary():
    parents, children, weights, leak, mask = noisy_or_example()
    for _ in range(3000):
        new = noisy_or_weight_update_beta(parents, children, weights, leak, 1.4, 2.5, mask)
        moved = np.abs(new - weights).max()
        weights = new
        if moved < 1e-11:
            break

    def objective(p):
        reach = -np.expm1(-p["weights"])
        log_prior = (0.4 * np.log(reach) + 1.5 * np.log1p(-reach)).sum()
        nothing = noisy_or_objective(
            parents, children, p["weights"], leak, lambda w: 0.0 * w.sum(), mask
        )
        return nothing + log_prior

    close(finite_difference(objective, {"weights": weights})["weights"], 0.0, 1e-6)


def test_top_layer_leak_is_a_base_rate():
    layer = (draws(18).random((20, 3)) < 0.4).astype(float)
    nobody, nothing = np.zeros((20, 0)), np.zeros((0, 3))
    leak = noisy_or_leak_update(nobody, layer, nothing, np.full(3, 0.7), rate=0.0)
    close(-np.expm1(-leak), layer.mean(0))

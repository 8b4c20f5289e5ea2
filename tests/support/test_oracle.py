"""The oracle's log joints, tables, moments and updates: sums to one, and second derivations.

Nothing here uses the code under test. An oracle that fails here proves nothing about a program.
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
    candidate_states,
    combination_log_evidence,
    combination_log_evidence_gradient,
    combination_log_partition,
    data_to_keep,
    expected_active_mass,
    finite_difference,
    gauss_hermite,
    gibbs_flip_probability,
    hard_clip_log_evidence,
    joint_states,
    log_evidence,
    log_joint_bernoulli_mixture,
    log_joint_bernoulli_product,
    log_joint_binary_sparse_coding,
    log_joint_candidates,
    log_joint_clipped_gaussian,
    log_joint_combination_machine,
    log_joint_latent_trait,
    log_joint_noisy_or_network,
    log_joint_real_combination_machine,
    log_joint_table,
    noisy_or_leak_update,
    noisy_or_weight_update_beta,
    num_data_cut,
    posterior_mean,
    posterior_second_moments,
    posterior_table,
    quadrature_table,
    real_combination_log_evidence,
    real_combination_log_evidence_gradient,
    real_combination_log_partition,
    selection_scores,
    sparse_coding_sparsity,
    truncate_table,
)
from oracle.examples import (
    DIFFERENCE,
    close,
    coded_data,
    coding,
    draws,
    machine,
    mixture,
    network,
    trait,
)
from scipy import integrate

# Tables of states


def test_joint_states_are_every_pair_once():
    states = joint_states(layer_1=2, layer_2=3)
    rows = {(*a, *b) for a, b in zip(states["layer_1"], states["layer_2"], strict=True)}
    assert len(rows) == len(states["layer_1"]) == 32


BINARY_PROGRAMS = {
    "bernoulli_product": (log_joint_bernoulli_product, {"probs": mixture()["probs"][0]}, None),
    "bernoulli_mixture": (log_joint_bernoulli_mixture, mixture(), {"component": np.arange(3)}),
    "combination_machine": (
        log_joint_combination_machine,
        machine(),
        {"causes": all_states(3)},
    ),
    "noisy_or_network": (
        log_joint_noisy_or_network,
        network(),
        joint_states(layer_1=3, layer_2=2),
    ),
}


@pytest.mark.parametrize("name", BINARY_PROGRAMS)
def test_probabilities_of_all_data_sum_to_one(name):
    log_joint, parameters, states = BINARY_PROGRAMS[name]
    data = all_states(4)
    if states is None:
        evidence = log_joint(parameters, data)
    else:
        evidence = log_evidence(log_joint_table(log_joint, parameters, states, data))
    close(sum(math.exp(value) for value in evidence), 1.0)


@pytest.mark.parametrize("name", BINARY_PROGRAMS)
def test_a_masked_cell_is_a_cell_summed_out(name):
    log_joint, parameters, states = BINARY_PROGRAMS[name]
    mask = np.ones((1, 4), dtype=bool)
    mask[0, 2] = False
    rows = np.array([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]])

    def evidence(data, mask=None):
        if states is None:
            return log_joint(parameters, data, mask)
        return log_evidence(log_joint_table(log_joint, parameters, states, data, mask))

    close(math.exp(evidence(rows[:1], mask)[0]), np.exp(evidence(rows)).sum())


def test_moments_of_a_posterior_by_a_second_route():
    parameters, states = network(), joint_states(layer_1=3, layer_2=2)
    data = all_states(4)[[3, 9, 14]]
    posterior = posterior_table(
        log_joint_table(log_joint_noisy_or_network, parameters, states, data)
    )
    close(posterior.sum(0), 1.0)
    close(posterior_mean(posterior, states["layer_1"]), posterior.T @ states["layer_1"])
    crossed = posterior_second_moments(posterior, states["layer_1"], states["layer_2"])
    wanted = np.einsum("sn,sh,sk->nhk", posterior, states["layer_1"], states["layer_2"])
    close(crossed, wanted)


def test_truncation_bounds_the_evidence_and_all_states_reach_it():
    parameters, states = coding(), all_states(3)
    data = coded_data(parameters, 6)
    table = log_joint_table(log_joint_binary_sparse_coding, parameters, {"causes": states}, data)
    kept = [candidate_states(selection_scores(parameters["weights"], y), 2, 2) for y in data]
    truncated = log_evidence(truncate_table(table, states, kept))
    assert np.all(truncated < log_evidence(table))
    close(log_evidence(truncate_table(table, states, [states] * 6)), log_evidence(table))


def test_selection_scores_by_hand():
    weights, datum = np.array([[3.0, 4.0], [0.0, -2.0]]), np.array([2.0, 1.0])
    close(selection_scores(weights, datum), [2.0, -1.0])


def test_candidates_are_the_states_of_equation_4():
    kept = candidate_states(np.array([0.1, 3.0, -2.0, 2.0, 1.0]), num_candidates=3, max_active=2)
    pairs = {(0, 1, 0, 1, 0), (0, 1, 0, 0, 1), (0, 0, 0, 1, 1)}
    singles = {tuple(int(h == k) for h in range(5)) for k in range(5)}
    assert set(kept) == pairs | singles | {(0,) * 5}
    assert len(kept) == len(set(kept))


def test_a_candidate_axis_is_a_loop():
    parameters = coding()
    data = coded_data(parameters, 3)
    causes = np.array([[state] * 3 for state in all_states(3)])
    sites = {**parameters, "causes": causes}
    close(
        log_joint_candidates(log_joint_binary_sparse_coding, sites, ["causes"], data),
        log_joint_table(
            log_joint_binary_sparse_coding, parameters, {"causes": all_states(3)}, data
        ),
    )


def test_finite_differences_of_a_known_function():
    point = {"a": np.array([[0.3, -1.2], [0.7, 2.0]]), "b": 1.5}
    slopes = finite_difference(lambda p: np.array([np.sin(p["a"]).sum(), p["b"] ** 3]), point)
    close(slopes["a"][..., 0], np.cos(point["a"]), 1e-9)
    close(slopes["a"][..., 1], 0.0)
    close(slopes["b"], [0.0, 3.0 * 1.5**2], 1e-9)


# Freund & Haussler


def test_combination_machine_is_its_energy_and_its_product_form():
    parameters, data = machine(), all_states(4)
    table = log_joint_table(
        log_joint_combination_machine, parameters, {"causes": all_states(3)}, data
    )
    signs = 2.0 * data - 1.0
    energy = -(signs @ parameters["weights"].T + parameters["bias"]) @ all_states(3).T
    close(table, -energy.T - np.log(np.exp(-energy).sum()))
    close(combination_log_partition(**parameters), np.log(np.exp(-energy).sum()))
    close(log_evidence(table), combination_log_evidence(**parameters, data=data))


def test_real_combination_machine_is_its_energy_and_its_product_form():
    parameters = machine(num_features=2)
    data = draws().normal(0.0, 1.5, (5, 2))
    table = log_joint_table(
        log_joint_real_combination_machine, parameters, {"causes": all_states(3)}, data
    )
    energy = -(data @ parameters["weights"].T + parameters["bias"]) @ all_states(3).T
    energy += 0.5 * (data**2).sum(1, keepdims=True)
    close(table, -energy.T - real_combination_log_partition(**parameters))
    close(log_evidence(table), real_combination_log_evidence(**parameters, data=data))


def test_real_combination_machine_integrates_to_one():
    parameters = machine(num_features=1)

    def density(x):
        return math.exp(real_combination_log_evidence(**parameters, data=np.array([[x]]))[0])

    close(integrate.quad(density, -15.0, 15.0)[0], 1.0, 1e-9)


@pytest.mark.parametrize(
    ("evidence", "gradient"),
    [
        (combination_log_evidence, combination_log_evidence_gradient),
        (real_combination_log_evidence, real_combination_log_evidence_gradient),
    ],
)
def test_gradients_3_5_to_3_9(evidence, gradient):
    parameters, data = machine(), all_states(4)[[1, 6, 7, 12, 12]]
    wanted = finite_difference(lambda p: evidence(**p, data=data).sum(), parameters)
    for name, slope in gradient(**parameters, data=data).items():
        close(slope, wanted[name], DIFFERENCE)


# Lee & Sompolinsky


def test_hard_clip_is_the_limit_of_the_noisy_one():
    parameters = trait(num_features=3)
    data = all_states(3)
    factors = np.array([[0.4, -1.1]] * len(data))
    sites = {**parameters, "factors": factors}
    hard = log_joint_clipped_gaussian(sites, data, noise=0.0)
    soft = log_joint_clipped_gaussian(sites, data, noise=1e-3)
    close(np.exp(hard), np.exp(soft))
    assert np.isfinite(hard).sum() == 1


def test_hard_clip_sums_to_one():
    two = hard_clip_log_evidence(**trait(num_features=3), data=all_states(3))
    close(np.exp(two).sum(), 1.0, 1e-8)
    parameters = trait(num_factors=1)
    probabilities = np.exp(hard_clip_log_evidence(**parameters, data=all_states(4)))
    close(probabilities.sum(), 1.0)
    # Four cuts of a line make five cells.
    assert (probabilities > 0.0).sum() == 5
    mask = np.array([[True, False, True, True]])
    rows = np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    both = np.exp(hard_clip_log_evidence(**parameters, data=rows)).sum()
    close(np.exp(hard_clip_log_evidence(**parameters, data=rows[:1], mask=mask))[0], both)


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

"""The oracle's log joints, tables and moments: sums to one, and second derivations.

Nothing here uses the code under test. An oracle that fails here proves nothing about a program.
"""

import math

import numpy as np
import pytest
from oracle import (
    all_states,
    bias_from_mean,
    candidate_states,
    clipped_correlation_unbiased,
    clipped_mean,
    clipped_second_moment,
    combination_log_evidence,
    combination_log_evidence_gradient,
    combination_log_partition,
    expected_log_joint,
    finite_difference,
    gauss_hermite,
    hard_clip_log_evidence,
    joint_states,
    latent_covariance,
    log_evidence,
    log_joint_bernoulli_mixture,
    log_joint_bernoulli_product,
    log_joint_binary_sparse_coding,
    log_joint_candidates,
    log_joint_clipped_gaussian,
    log_joint_combination_machine,
    log_joint_noisy_or_network,
    log_joint_real_combination_machine,
    log_joint_table,
    mixture_m_step,
    posterior_mean,
    posterior_second_moments,
    posterior_table,
    quadrature_table,
    real_combination_log_evidence,
    real_combination_log_evidence_gradient,
    real_combination_log_partition,
    selection_scores,
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


def test_mixture_m_step_raises_the_likelihood_to_a_stationary_point():
    parameters, states = mixture(), {"component": np.arange(3)}
    data = (draws(7).random((40, 4)) < [0.3, 0.5, 0.6, 0.4]).astype(float)
    mask = draws(8).random((40, 4)) < 0.8

    def table_of(parameters):
        return log_joint_table(log_joint_bernoulli_mixture, parameters, states, data, mask)

    posterior = posterior_table(table_of(parameters))

    def expectation(p):
        # Mixing is held to the simplex by normalising, so that its derivative is along it.
        inside = {**p, "mixing": p["mixing"] / p["mixing"].sum()}
        return expected_log_joint(posterior, table_of(inside))

    best = mixture_m_step(posterior, data, mask)
    for slope in finite_difference(expectation, best, 1e-6).values():
        close(slope, 0.0, DIFFERENCE)
    last = -math.inf
    for _ in range(5):
        table = table_of(parameters)
        assert log_evidence(table).sum() > last
        last = log_evidence(table).sum()
        parameters = mixture_m_step(posterior_table(table), data, mask)


# Lee & Sompolinsky


def test_clipped_moments_are_those_of_the_density():
    weights, bias = trait(num_features=3)["weights"], np.array([0.4, -0.7, 0.2])
    data = all_states(3)
    probabilities = np.exp(hard_clip_log_evidence(weights, bias, data))
    spins = 2.0 * data - 1.0
    covariance = latent_covariance(weights)
    close(covariance, weights.T @ weights)
    close(probabilities.sum(), 1.0, 1e-8)
    close(clipped_mean(covariance, bias), probabilities @ spins, 1e-8)
    second = clipped_second_moment(covariance, bias)
    close(second, np.einsum("s,si,sj->ij", probabilities, spins, spins), 1e-7)
    close(clipped_correlation_unbiased(covariance), clipped_second_moment(covariance, 0.0 * bias))
    close(bias_from_mean(covariance, clipped_mean(covariance, bias)), bias)


def test_clipped_moments_with_noise_and_one_factor():
    weights, bias = np.array([[1.2, -0.8]]), np.array([0.5, -0.1])
    noise = np.array([0.7, 1.1])
    data = all_states(2)
    table = quadrature_table(
        log_joint_clipped_gaussian,
        {"weights": weights, "bias": bias},
        *gauss_hermite(1, 60),
        data,
        noise=noise,
    )
    probabilities, spins = np.exp(log_evidence(table)), 2.0 * data - 1.0
    covariance = latent_covariance(weights, noise)
    close(clipped_mean(covariance, bias), probabilities @ spins, 1e-8)
    second = clipped_second_moment(covariance, bias)
    close(second[0, 1], probabilities @ (spins[:, 0] * spins[:, 1]), 1e-8)


def test_equal_and_opposite_columns_are_the_ends_of_the_range():
    weights, bias = np.array([[0.9, 0.9, -0.9], [0.4, 0.4, -0.4]]), np.array([0.3, -0.5, 0.6])
    covariance = latent_covariance(weights)
    mean = clipped_mean(covariance, bias)
    second = clipped_second_moment(covariance, bias)
    close(second[0, 1], 1.0 - abs(mean[0] - mean[1]))
    close(second[0, 2], abs(mean[0] + mean[2]) - 1.0)


def test_hard_clip_is_the_limit_of_the_noisy_one():
    parameters = trait(num_features=3)
    data = all_states(3)
    factors = np.array([[0.4, -1.1]] * len(data))
    sites = {**parameters, "factors": factors}
    hard = log_joint_clipped_gaussian(sites, data, noise=0.0)
    soft = log_joint_clipped_gaussian(sites, data, noise=1e-3)
    close(np.exp(hard), np.exp(soft))
    assert np.isfinite(hard).sum() == 1


def test_hard_clip_with_one_factor_sums_to_one():
    parameters = trait(num_factors=1)
    probabilities = np.exp(hard_clip_log_evidence(**parameters, data=all_states(4)))
    close(probabilities.sum(), 1.0)
    # Four cuts of a line make five cells.
    assert (probabilities > 0.0).sum() == 5
    mask = np.array([[True, False, True, True]])
    rows = np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    both = np.exp(hard_clip_log_evidence(**parameters, data=rows)).sum()
    close(np.exp(hard_clip_log_evidence(**parameters, data=rows[:1], mask=mask))[0], both)

"""Freund & Haussler 1994, *Unsupervised learning of distributions on binary vectors*.

The paper's bits are x in {−1, +1}; the data here are t in {0, 1}, x = 2t − 1. Weights ω are (m, n),
row i the vector ω⁽ⁱ⁾ of hidden unit i; biases θ are (m,). The real-valued machine takes x as it is.
"""

import math

import numpy as np

from oracle.scalars import (
    is_observed,
    log_bernoulli,
    log_bernoulli_logit,
    log_normal,
    logistic,
    weighted_sum,
)
from oracle.tables import all_states, log_sum_exp


def _bias_input(state, bias):
    total = 0.0
    for i in range(len(bias)):
        total += float(state[i]) * float(bias[i])
    return total


def _log_weight_binary(state, weights, bias):
    """log of the numerator of (3.4): Σ h_i θ⁽ⁱ⁾ + Σ_j log cosh ω(h)_j."""
    total = _bias_input(state, bias)
    for j in range(len(weights[0])):
        total += math.log(math.cosh(weighted_sum(state, weights, j)))
    return total


def _log_weight_real(state, weights, bias):
    """log of the numerator of (3.7): Σ h_i θ⁽ⁱ⁾ + ½ ‖ω(h)‖²."""
    total = _bias_input(state, bias)
    for j in range(len(weights[0])):
        total += 0.5 * weighted_sum(state, weights, j) ** 2
    return total


def combination_log_partition(weights, bias):
    """log Z_B by (2.2)."""
    states = all_states(len(bias))
    total = log_sum_exp([_log_weight_binary(state, weights, bias) for state in states])
    return len(weights[0]) * math.log(2.0) + total


def real_combination_log_partition(weights, bias):
    """log Z_R by (2.7)."""
    states = all_states(len(bias))
    total = log_sum_exp([_log_weight_real(state, weights, bias) for state in states])
    return 0.5 * len(weights[0]) * math.log(2.0 * math.pi) + total


def _log_joint(sites, data, mask, log_weight, log_cell):
    """log P(h) from the weights of all states, then each cell given ω(h)_j."""
    causes, weights, bias = sites["causes"], sites["weights"], sites["bias"]
    states = all_states(len(bias))
    normaliser = log_sum_exp([log_weight(state, weights, bias) for state in states])
    result = np.zeros(len(data))
    for n in range(len(data)):
        result[n] = log_weight(causes[n], weights, bias) - normaliser
        for j in range(len(data[n])):
            if is_observed(mask, n, j):
                result[n] += log_cell(data[n][j], weighted_sum(causes[n], weights, j))
    return result


def log_joint_combination_machine(sites, data, mask=None):
    """(3.4) for the causes, then x_j = +1 with probability logistic(2 ω(h)_j).

    With nothing masked this is −E(x, h) − log Z_B of (2.1).
    """
    log_cell = lambda bit, total: log_bernoulli_logit(bit, 2.0 * total)  # noqa: E731
    return _log_joint(sites, data, mask, _log_weight_binary, log_cell)


def log_joint_real_combination_machine(sites, data, mask=None):
    """(3.7) for the causes, then x ~ N(ω(h), I). With nothing masked: −E of (2.5) − log Z_R."""
    log_cell = lambda value, total: log_normal(value, total, 1.0)  # noqa: E731
    return _log_joint(sites, data, mask, _log_weight_real, log_cell)


def _unit_inputs(row, weights, bias):
    """ω⁽ⁱ⁾·x + θ⁽ⁱ⁾ of every hidden unit, x as the paper has it."""
    inputs = []
    for i in range(len(bias)):
        total = float(bias[i])
        for j in range(len(row)):
            total += float(weights[i][j]) * row[j]
        inputs.append(total)
    return inputs


def combination_log_evidence(weights, bias, data):
    """(2.4): log P(x) = Σ_i log(1 + exp(ω⁽ⁱ⁾·x + θ⁽ⁱ⁾)) − log Z_B; data in {0, 1}."""
    log_partition = combination_log_partition(weights, bias)
    result = np.zeros(len(data))
    for n in range(len(data)):
        signs = [2.0 * bit - 1.0 for bit in data[n]]
        for unit_input in _unit_inputs(signs, weights, bias):
            result[n] += math.log1p(math.exp(unit_input))
        result[n] -= log_partition
    return result


def real_combination_log_evidence(weights, bias, data):
    """(2.6): log density of real x."""
    log_partition = real_combination_log_partition(weights, bias)
    result = np.zeros(len(data))
    for n in range(len(data)):
        for unit_input in _unit_inputs(list(data[n]), weights, bias):
            result[n] += math.log1p(math.exp(unit_input))
        for value in data[n]:
            result[n] -= 0.5 * value**2
        result[n] -= log_partition
    return result


def _gradient(weights, bias, rows, log_weight, conditional_mean):
    """Clamped minus sleep phase, summed over the data: (3.5)–(3.6) and (3.8)–(3.9)."""
    num_causes, num_features = len(bias), len(weights[0])
    states = all_states(num_causes)
    log_weights = [log_weight(state, weights, bias) for state in states]
    normaliser = log_sum_exp(log_weights)
    weights_slope = np.zeros((num_causes, num_features))
    bias_slope = np.zeros(num_causes)
    for row in rows:
        inputs = _unit_inputs(row, weights, bias)
        for i in range(num_causes):
            bias_slope[i] += logistic(inputs[i])
            for j in range(num_features):
                weights_slope[i, j] += row[j] * logistic(inputs[i])
    for state, log_mass in zip(states, log_weights, strict=True):
        mass = math.exp(log_mass - normaliser)
        for i in range(num_causes):
            bias_slope[i] -= len(rows) * mass * state[i]
            for j in range(num_features):
                mean = conditional_mean(weighted_sum(state, weights, j))
                weights_slope[i, j] -= len(rows) * mass * state[i] * mean
    return {"weights": weights_slope, "bias": bias_slope}


def combination_log_evidence_gradient(weights, bias, data):
    """(3.5) and (3.6), the gradient of the summed log likelihood of {0, 1} data."""
    rows = [[2.0 * bit - 1.0 for bit in row] for row in data]
    return _gradient(weights, bias, rows, _log_weight_binary, math.tanh)


def real_combination_log_evidence_gradient(weights, bias, data):
    """(3.8) and (3.9), the gradient of the summed log likelihood of real data."""
    rows = [list(row) for row in data]
    return _gradient(weights, bias, rows, _log_weight_real, lambda total: total)


def log_joint_bernoulli_mixture(sites, data, mask=None):
    """The standard mixture of §2.3: log p_k + Σ_d log Bernoulli(t_d; P_kd)."""
    component, mixing, probs = sites["component"], sites["mixing"], sites["probs"]
    result = np.zeros(len(data))
    for n in range(len(data)):
        k = int(component[n])
        result[n] = math.log(float(mixing[k]))
        for d in range(len(data[n])):
            if is_observed(mask, n, d):
                result[n] += log_bernoulli(data[n][d], float(probs[k][d]))
    return result


def log_joint_bernoulli_product(sites, data, mask=None):
    """Every bit by itself: Σ_d log Bernoulli(t_d; p_d)."""
    result = np.zeros(len(data))
    for n in range(len(data)):
        for d in range(len(data[n])):
            if is_observed(mask, n, d):
                result[n] += log_bernoulli(data[n][d], float(sites["probs"][d]))
    return result

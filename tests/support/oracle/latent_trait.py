"""Tipping 1998, *Probabilistic visualisation of high-dimensional binary data*: (1)–(12).

Weights are (Q, D) here: the paper's w_i is column i. ``variational`` is ξ, (N, D). Where there is a
mask, sums over the bits of a datum run over the observed ones.
"""

import math

import numpy as np

from oracle.scalars import (
    is_observed,
    log_bernoulli,
    log_bernoulli_logit,
    log_logistic,
    log_normal,
    logistic,
    weighted_sum,
)


def log_joint_latent_trait(sites, data, mask=None):
    """log N(x; 0, I) + Σ_i log Bernoulli(t_i; σ(w_iᵀ x + b_i)), (1) and (2).

    With a site "guessing", of probability g_i + (1 - g_i) σ.
    """
    factors, weights, bias = sites["factors"], sites["weights"], sites["bias"]
    result = np.zeros(len(data))
    for n in range(len(data)):
        for q in range(len(weights)):
            result[n] += log_normal(float(factors[n][q]), 0.0, 1.0)
        for i in range(len(data[n])):
            if is_observed(mask, n, i):
                activation = weighted_sum(factors[n], weights, i) + float(bias[i])
                if "guessing" in sites:
                    least = float(sites["guessing"][i])
                    probability = least + (1.0 - least) * logistic(activation)
                    result[n] += log_bernoulli(data[n][i], probability)
                else:
                    result[n] += log_bernoulli_logit(data[n][i], activation)
    return result


def log_joint_trait_mixture(sites, data, mask=None):
    """log π_z, and the log joint of the latent trait of that component."""
    result = np.zeros(len(data))
    for n in range(len(data)):
        z = int(sites["component"][n])
        one = {"weights": sites["weights"][z], "bias": sites["bias"][z]}
        one["factors"] = [sites["factors"][n]]
        row_mask = None if mask is None else [mask[n]]
        result[n] = math.log(sites["mixing"][z])
        result[n] += log_joint_latent_trait(one, [data[n]], row_mask)[0]
    return result


def bound_slope(variational):
    """λ(ξ) = (½ − σ(ξ)) / (2ξ), negative, −1/8 at zero."""
    if abs(variational) < 1e-6:
        return -0.125
    return (0.5 - logistic(variational)) / (2.0 * variational)


def bound_log_likelihood(bit, activation, variational):
    """(5): log of the bound on P(t_i | x) for one bit; ``activation`` is w_iᵀ x + b_i."""
    signed = (2.0 * bit - 1.0) * activation
    return (
        log_logistic(variational)
        + (signed - variational) / 2.0
        + bound_slope(variational) * (signed**2 - variational**2)
    )


def bound_posterior(weights, bias, variational, data, mask=None):
    """(6) and (7): covariances C_n (N, Q, Q) and means μ_n (N, Q)."""
    num_factors = len(weights)
    covariances = np.zeros((len(data), num_factors, num_factors))
    means = np.zeros((len(data), num_factors))
    for n in range(len(data)):
        precision = np.eye(num_factors)
        right = np.zeros(num_factors)
        for i in range(len(data[n])):
            if not is_observed(mask, n, i):
                continue
            slope = bound_slope(variational[n][i])
            for q in range(num_factors):
                right[q] += (data[n][i] - 0.5 + 2.0 * slope * bias[i]) * weights[q][i]
                for r in range(num_factors):
                    precision[q, r] -= 2.0 * slope * weights[q][i] * weights[r][i]
        covariances[n] = np.linalg.inv(precision)
        means[n] = covariances[n] @ right
    return means, covariances


def bound_update_variational(weights, bias, means, covariances):
    """(8) with (9) and (10): the best ξ (N, D) for these posteriors, masked cells included."""
    num_factors, num_features = len(weights), len(bias)
    variational = np.zeros((len(means), num_features))
    for n in range(len(means)):
        for i in range(num_features):
            square = bias[i] ** 2
            for q in range(num_factors):
                square += 2.0 * bias[i] * weights[q][i] * means[n][q]
                for r in range(num_factors):
                    moment = covariances[n][q][r] + means[n][q] * means[n][r]
                    square += weights[q][i] * moment * weights[r][i]
            variational[n, i] = math.sqrt(square)
    return variational


def bound_log_evidence(weights, bias, variational, data, mask=None):
    """log P̃(t_n) of (4), the Gaussian integral of (5) in closed form, (N,).

    The exponent is constant + μᵀC⁻¹x − ½ xᵀC⁻¹x, so the integral against N(0, I) is
    exp(constant + ½ μᵀC⁻¹μ) |C|^½.
    """
    means, covariances = bound_posterior(weights, bias, variational, data, mask)
    result = np.zeros(len(data))
    for n in range(len(data)):
        precision = np.linalg.inv(covariances[n])
        result[n] = 0.5 * math.log(np.linalg.det(covariances[n]))
        result[n] += 0.5 * float(means[n] @ precision @ means[n])
        for i in range(len(data[n])):
            if is_observed(mask, n, i):
                result[n] += bound_log_likelihood(data[n][i], float(bias[i]), variational[n][i])
    return result


def bound_m_step(means, covariances, variational, data, mask=None):
    """(11) and (12): new weights (Q, D) and bias (D,)."""
    num_factors, num_features = means.shape[1], len(data[0])
    weights = np.zeros((num_factors, num_features))
    bias = np.zeros(num_features)
    for i in range(num_features):
        left = np.zeros((num_factors + 1, num_factors + 1))
        right = np.zeros(num_factors + 1)
        for n in range(len(data)):
            if not is_observed(mask, n, i):
                continue
            extended = np.append(means[n], 1.0)
            moments = np.outer(extended, extended)
            moments[:num_factors, :num_factors] += covariances[n]
            left += 2.0 * bound_slope(variational[n][i]) * moments
            right += (data[n][i] - 0.5) * extended
        solution = -np.linalg.solve(left, right)
        weights[:, i] = solution[:num_factors]
        bias[i] = solution[num_factors]
    return {"weights": weights, "bias": bias}

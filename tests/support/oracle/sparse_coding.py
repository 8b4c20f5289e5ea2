"""Henniges, Puertas, Bornschein, Eggert & Lücke 2010, *Binary Sparse Coding*: equations (1)–(8).

Weights are (H, D) here, the transpose of the paper's W.
"""

import math

import numpy as np

from oracle.scalars import is_observed, log_bernoulli, log_normal, weighted_sum
from oracle.tables import all_states


def log_joint_binary_sparse_coding(sites, data, mask=None, *, superposition="sum"):
    """(1): Σ_h log Bernoulli(s_h; π) + Σ_d log N(y_d; (W s)_d, σ²).

    With the superposition "max", y_d is N(W_dh, σ²) for the active h of largest |W_dh|.
    """
    causes, weights = sites["causes"], sites["weights"]
    noise, sparsity = float(sites["noise"]), float(sites["sparsity"])
    result = np.zeros(len(data))
    for n in range(len(data)):
        for h in range(len(weights)):
            result[n] += log_bernoulli(causes[n][h], sparsity)
        for d in range(len(data[n])):
            shown = weighted_sum(causes[n], weights, d)
            if superposition == "max":
                shown = 0.0
                for h in range(len(weights)):
                    if causes[n][h] == 1 and abs(weights[h][d]) > abs(shown):
                        shown = weights[h][d]
            if is_observed(mask, n, d):
                result[n] += log_normal(data[n][d], shown, noise)
    return result


def log_joint_sparse_coding(sites, data, mask=None, *, laplace=False):
    """Σ_h log p(z_h) + Σ_h log Bernoulli(s_h; π) + Σ_d log N(y_d; (W (s∘z))_d, σ²).

    z is N(0, 1); or of a Laplace distribution, and there are no s.
    """
    weights, noise = sites["weights"], float(sites["noise"])
    result = np.zeros(len(data))
    for n in range(len(data)):
        strengths = np.array(sites["strengths"][n], float)
        for h in range(len(weights)):
            if laplace:
                result[n] += -abs(strengths[h]) - math.log(2.0)
            else:
                result[n] += log_normal(strengths[h], 0.0, 1.0)
                result[n] += log_bernoulli(sites["causes"][n][h], float(sites["sparsity"]))
                strengths[h] *= sites["causes"][n][h]
        for d in range(len(data[n])):
            if is_observed(mask, n, d):
                result[n] += log_normal(data[n][d], weighted_sum(strengths, weights, d), noise)
    return result


def selection_scores(weights, datum):
    """(5): S_h(y) = W_hᵀ y / ‖W_h‖, (H,)."""
    scores = np.empty(len(weights))
    for h in range(len(weights)):
        product, square = 0.0, 0.0
        for d in range(len(datum)):
            product += weights[h][d] * datum[d]
            square += weights[h][d] ** 2
        scores[h] = product / math.sqrt(square)
    return scores


def candidate_states(scores, num_candidates, max_active):
    """(4): K_n as a list of tuples, from all 2^H states, for one datum's scores (H,).

    At most ``max_active`` (γ) causes, all of them among the ``num_candidates`` (H') best; and every
    state with one cause or none.
    """
    best = sorted(range(len(scores)), key=lambda h: -scores[h])[:num_candidates]
    kept = []
    for state in all_states(len(scores)):
        active = [h for h in range(len(scores)) if state[h] == 1]
        inside = len(active) <= max_active and all(h in best for h in active)
        if inside or len(active) <= 1:
            kept.append(tuple(int(bit) for bit in state))
    return kept


def active_mass(sparsity, num_causes, max_active):
    """A(π): the prior's probability of at most γ active causes."""
    total = 0.0
    for active in range(max_active + 1):
        ways = math.comb(num_causes, active)
        total += ways * sparsity**active * (1.0 - sparsity) ** (num_causes - active)
    return total


def expected_active_mass(sparsity, num_causes, max_active):
    """B(π): the prior's expectation of |s| restricted to at most γ active causes."""
    total = 0.0
    for active in range(max_active + 1):
        ways = math.comb(num_causes, active)
        total += active * ways * sparsity**active * (1.0 - sparsity) ** (num_causes - active)
    return total


def num_data_cut(num_data, sparsity, num_causes, max_active):
    """N_cut = N·A(π), not rounded."""
    return num_data * active_mass(sparsity, num_causes, max_active)


def data_to_keep(evidence, number):
    """𝓜: the indices of the ``number`` data points with the highest truncated evidence."""
    return sorted(sorted(range(len(evidence)), key=lambda n: -evidence[n])[:number])


def sparse_coding_weights(posterior, states, data, kept=None, mask=None):
    """(6): W = (Σ_{n∈𝓜} y ⟨s⟩ᵀ)(Σ_{n∈𝓜} ⟨s sᵀ⟩)⁻¹, as (H, D), one column at a time.

    With a mask, a column's sums run over the data in which that column was observed.
    """
    kept = range(len(data)) if kept is None else kept
    num_causes, num_features = states.shape[1], len(data[0])
    weights = np.empty((num_causes, num_features))
    for d in range(num_features):
        moments = np.zeros((num_causes, num_causes))
        products = np.zeros(num_causes)
        for n in kept:
            if not is_observed(mask, n, d):
                continue
            for s in range(len(states)):
                for h in range(num_causes):
                    products[h] += posterior[s, n] * data[n][d] * states[s, h]
                    for k in range(num_causes):
                        moments[h, k] += posterior[s, n] * states[s, h] * states[s, k]
        weights[:, d] = np.linalg.solve(moments, products)
    return weights


def sparse_coding_noise(posterior, states, data, weights, kept=None, mask=None):
    """(7): σ² = Σ_{n∈𝓜} ⟨‖y − W s‖²⟩ / (|𝓜| D), over the observed cells where there is a mask."""
    kept = range(len(data)) if kept is None else kept
    total, cells = 0.0, 0
    for n in kept:
        for d in range(len(data[n])):
            if not is_observed(mask, n, d):
                continue
            cells += 1
            for s in range(len(states)):
                residual = data[n][d] - weighted_sum(states[s], weights, d)
                total += posterior[s, n] * residual**2
    return math.sqrt(total / cells)


def sparse_coding_sparsity(posterior, states, sparsity, max_active, kept=None):
    """(8): π = A(π)π/B(π) · Σ_{n∈𝓜} ⟨|s|⟩ / |𝓜|."""
    kept = range(posterior.shape[1]) if kept is None else kept
    num_causes = states.shape[1]
    total, number = 0.0, 0
    for n in kept:
        number += 1
        for s in range(len(states)):
            total += posterior[s, n] * sum(states[s])
    mass = active_mass(sparsity, num_causes, max_active)
    return mass * sparsity / expected_active_mass(sparsity, num_causes, max_active) * total / number


def sparse_coding_m_step(
    posterior, states, data, sparsity, max_active, kept=None, mask=None, noise_weights=None
):
    """(6), (7), (8) together; σ from the new W unless ``noise_weights`` gives another."""
    weights = sparse_coding_weights(posterior, states, data, kept, mask)
    used = weights if noise_weights is None else noise_weights
    return {
        "weights": weights,
        "noise": sparse_coding_noise(posterior, states, data, used, kept, mask),
        "sparsity": sparse_coding_sparsity(posterior, states, sparsity, max_active, kept),
    }

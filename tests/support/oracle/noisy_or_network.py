"""Lewicki & Sejnowski 1996, *Bayesian unsupervised learning of higher order structure*: (1)–(9).

Layer 0 is the input. ``weights_l`` goes from layer l to layer l − 1 and is (units of l, units of
l − 1); ``leak_l`` is the input of layer l's units from an always-on unit, for the top layer the
only one. (9) is missing from common copies of the paper; it is derived again at its function.
"""

import math

import numpy as np

from oracle.scalars import is_observed, log_noisy_or, logistic, weighted_sum


def _num_layers(sites):
    layer = 0
    while f"leak_{layer + 1}" in sites:
        layer += 1
    return layer


def _layer_row(sites, data, layer, row):
    return data[row] if layer == 0 else sites[f"layer_{layer}"][row]


def _unit_input(sites, layer, row, unit):
    """u: the causal input of one unit from its leak and from the layer above."""
    total = float(sites[f"leak_{layer}"][unit])
    if layer < _num_layers(sites):
        parents = sites[f"layer_{layer + 1}"][row]
        total += weighted_sum(parents, sites[f"weights_{layer + 1}"], unit)
    return total


def log_joint_noisy_or_network(sites, data, mask=None):
    """(1) and (2): Σ over all units of log h(u; state); masked inputs do not count."""
    result = np.zeros(len(data))
    for n in range(len(data)):
        for layer in range(_num_layers(sites) + 1):
            states = _layer_row(sites, data, layer, n)
            for unit in range(len(states)):
                if layer > 0 or is_observed(mask, n, unit):
                    total = _unit_input(sites, layer, n, unit)
                    result[n] += log_noisy_or(states[unit], total)
    return result


def gibbs_flip_probability(sites, data, layer, unit, mask=None):
    """(6) and (7): the probability of each datum's unit to change its state, (N,).

    ``layer`` counts hidden layers from 1. (7) is read with the states as they are: h(u_j; S_j) of
    every child against h(u_j + δ_ij; S_j), δ_ij = ±w_ij.
    """
    flips = np.zeros(len(data))
    for n in range(len(data)):
        state = int(sites[f"layer_{layer}"][n][unit])
        total = _unit_input(sites, layer, n, unit)
        change = log_noisy_or(1 - state, total) - log_noisy_or(state, total)
        children = _layer_row(sites, data, layer - 1, n)
        weights = sites[f"weights_{layer}"]
        for child in range(len(children)):
            if layer == 1 and not is_observed(mask, n, child):
                continue
            before = _unit_input(sites, layer - 1, n, child)
            delta = float(weights[unit][child]) * (1.0 if state == 0 else -1.0)
            change += log_noisy_or(children[child], before + delta)
            change -= log_noisy_or(children[child], before)
        flips[n] = logistic(change)
    return flips


def _updated(parents, children, weights, leak, new, mask, of_leak=False):
    """The weights, or leaks, of every link: 1 − exp(−w) is ``new(f, w, share, count)``, of

    Σ_n S_i S_j f_ij/g_j and Σ_n S_i, the sums over the observed children. A leak is a link from a
    unit that is always on.
    """
    inputs = np.zeros((len(parents), len(leak)))  # u_j of every child in every row
    for n in range(len(parents)):
        for j in range(len(leak)):
            inputs[n, j] = float(leak[j]) + weighted_sum(parents[n], weights, j)
    updated = np.zeros((1, len(leak)) if of_leak else np.shape(weights))
    for i in range(len(updated)):
        for j in range(len(leak)):
            weight = float(leak[j]) if of_leak else float(weights[i][j])
            frequency, share, count = -math.expm1(-weight), 0.0, 0.0
            for n in range(len(children)):
                on = 1.0 if of_leak else parents[n][i]
                if is_observed(mask, n, j):
                    count += on
                    if on == 1 and children[n][j] == 1:
                        share += frequency / -math.expm1(-inputs[n, j])
            updated[i, j] = -math.log1p(-new(frequency, weight, share, count))
    return updated


def _by_gamma(shape, rate):
    return lambda f, w, share, count: (share + (shape - 1.0) * f / w) / (count + rate)


def noisy_or_weight_update(parents, children, weights, leak, shape=1.0, rate=1.5, mask=None):
    """(9) with a Gamma(α, β) prior on w: f ← [Σ S_i S_j f/g_j + (α − 1) f/w] / (Σ S_i + β).

    The log joint's slope in w_ij is Σ_n S_i (S_j/g_j − 1) + (α − 1)/w_ij − β, since exp(−u)/g =
    1/g − 1; times f_ij and set to zero, that is the update's fixed point.
    """
    return _updated(parents, children, weights, leak, _by_gamma(shape, rate), mask)


def noisy_or_leak_update(parents, children, weights, leak, shape=1.0, rate=1.5, mask=None):
    """The same for the leaks: links from a unit that is always on.

    For the top layer, pass ``parents`` of shape (N, 0) and ``weights`` of shape (0, J).
    """
    return _updated(parents, children, weights, leak, _by_gamma(shape, rate), mask, True)[0]


def noisy_or_weight_update_beta(parents, children, weights, leak, alpha, beta, mask=None):
    """With a Beta(α, β) prior on f: f ← [α − 1 + 2f + Σ S_i S_j f/g_j] / (α + β + Σ S_i)."""

    def new(f, w, share, count):
        del w
        return (alpha - 1.0 + 2.0 * f + share) / (alpha + beta + count)

    return _updated(parents, children, weights, leak, new, mask)

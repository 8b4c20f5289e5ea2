"""Columns of levels by loops: Samejima's graded response model, and latent classes."""

import math

import numpy as np

from oracle.scalars import is_observed, log_logistic, log_normal, logistic, weighted_sum


def cutpoints_of(sites, levels):
    """The cutpoints of each column: those of K levels stand in one site, in their order."""
    met = dict.fromkeys(levels, 0)
    cutpoints = []
    for k in levels:
        cutpoints.append([float(c) for c in sites[f"cutpoints_{k}"][met[k]]])
        met[k] += 1
    return cutpoints


def log_level(level, predictor, cutpoints):
    """log of P(t >= level) - P(t >= level + 1), where P(t >= k) = logistic(predictor - c_k)."""
    level = int(level)
    if level == 0:
        return log_logistic(cutpoints[0] - predictor)
    if level == len(cutpoints):
        return log_logistic(predictor - cutpoints[-1])
    low, high = predictor - cutpoints[level - 1], predictor - cutpoints[level]
    # In the upper tail both are near one: there the probabilities of less are subtracted.
    if high > 0.0:
        return math.log(logistic(-high) - logistic(-low))
    return math.log(logistic(low) - logistic(high))


def log_joint_graded_trait(sites, data, mask=None, *, levels):
    """log N(x; 0, I) + Σ_i log P(t_i | x) over the observed columns."""
    factors, weights, cuts = sites["factors"], sites["weights"], cutpoints_of(sites, levels)
    result = np.zeros(len(data))
    for n in range(len(data)):
        for q in range(len(weights)):
            result[n] += log_normal(float(factors[n][q]), 0.0, 1.0)
        for i in range(len(levels)):
            if is_observed(mask, n, i):
                predictor = weighted_sum(factors[n], weights, i)
                result[n] += log_level(data[n][i], predictor, cuts[i])
    return result


def graded_evidence(params, data, mask=None, *, levels, num_nodes=61):
    """log p(t_n) of each row under one factor: the trapezoidal rule from -7 to 7."""
    nodes = np.linspace(-7.0, 7.0, num_nodes)
    table = [
        log_joint_graded_trait(
            {**params, "factors": np.full((len(data), 1), node)}, data, mask, levels=levels
        )
        for node in nodes
    ]
    return np.logaddexp.reduce(np.stack(table)) + math.log(nodes[1] - nodes[0])


def probs_of(sites, levels):
    """The probabilities of each class for each column, as a list of lists for each class."""
    met, probs = dict.fromkeys(levels, 0), []
    for k in levels:
        probs.append([[float(p) for p in one[met[k]]] for one in sites[f"probs_{k}"]])
        met[k] += 1
    return [[column[c] for column in probs] for c in range(len(sites["mixing"]))]


def log_joint_categorical_mixture(sites, data, mask=None, *, levels):
    """log π_c + Σ_i log p_{c i t_i} over the observed columns."""
    probs, result = probs_of(sites, levels), np.zeros(len(data))
    for n in range(len(data)):
        c = int(sites["component"][n])
        result[n] = math.log(float(sites["mixing"][c]))
        for i in range(len(levels)):
            if is_observed(mask, n, i):
                result[n] += math.log(probs[c][i][int(data[n][i])])
    return result


def polytomous_em_step(params, data, mask=None, *, levels):
    """Shares of the classes, and in each the shares of the levels, weighted by responsibility.

    :return: the new parameters, and the log likelihood of the old ones.
    """
    classes = range(len(params["mixing"]))
    table = [
        log_joint_categorical_mixture(
            {**params, "component": np.full(len(data), c)}, data, mask, levels=levels
        )
        for c in classes
    ]
    evidence = np.logaddexp.reduce(table)
    share = np.exp(np.array(table) - evidence)
    new = {"mixing": share.mean(1)}
    for k in sorted(set(levels)):
        columns = [i for i in range(len(levels)) if levels[i] == k]
        counts = np.zeros((len(share), len(columns), k))
        for n in range(len(data)):
            for place, i in enumerate(columns):
                if is_observed(mask, n, i):
                    for c in classes:
                        counts[c, place, int(data[n][i])] += share[c, n]
        new[f"probs_{k}"] = counts / counts.sum(-1, keepdims=True)
    return new, evidence.sum()

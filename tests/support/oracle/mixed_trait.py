"""Real, binary and categorical columns on shared factors: the promise that closes Tipping 1998.

The linear predictors w_jᵀ x + b_j follow each other so: one for each real column, one for each
binary column, then K − 1 for each column of K levels, small K first, in the order of the columns
among those of a kind. Level 0 has predictor zero.
"""

import math

import numpy as np

from oracle.scalars import is_observed, log_bernoulli_logit, log_normal, weighted_sum


def predictors_of(kinds):
    """The predictors of each column, as a list for each."""
    order = [i for i, kind in enumerate(kinds) if kind == "real"]
    order += [i for i, kind in enumerate(kinds) if kind == "binary"]
    numbers = sorted({kind for kind in kinds if kind not in ("real", "binary")})
    for levels in numbers:
        order += [i for i, kind in enumerate(kinds) if kind == levels]
    predictors, start = [[] for _ in kinds], 0
    for i in order:
        width = 1 if kinds[i] in ("real", "binary") else kinds[i] - 1
        predictors[i] = list(range(start, start + width))
        start += width
    return predictors


def log_categorical(level, predictors):
    """log softmax of (0, a_1, …, a_{K−1}) at a level."""
    every = [0.0, *predictors]
    top = max(every)
    return every[int(level)] - top - math.log(sum(math.exp(a - top) for a in every))


def log_joint_mixed_trait(sites, data, mask=None, *, kinds):
    """log N(x; 0, I) + Σ_i log p(y_i | w x + b) over the observed columns, each of its kind."""
    factors, weights, bias = sites["factors"], sites["weights"], sites["bias"]
    places = predictors_of(kinds)
    reals = [i for i, kind in enumerate(kinds) if kind == "real"]
    result = np.zeros(len(data))
    for n in range(len(data)):
        for q in range(len(weights)):
            result[n] += log_normal(float(factors[n][q]), 0.0, 1.0)
        for i, kind in enumerate(kinds):
            if not is_observed(mask, n, i):
                continue
            inputs = [weighted_sum(factors[n], weights, j) + float(bias[j]) for j in places[i]]
            if kind == "real":
                deviation = float(sites["noise"][reals.index(i)])
                result[n] += log_normal(float(data[n][i]), inputs[0], deviation)
            elif kind == "binary":
                result[n] += log_bernoulli_logit(data[n][i], inputs[0])
            else:
                result[n] += log_categorical(data[n][i], inputs)
    return result

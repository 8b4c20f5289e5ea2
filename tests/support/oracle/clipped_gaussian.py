"""Lee & Sompolinsky 1998, *Learning a continuous hidden variable model*: (1), (2) and (8).

The paper's spins are s in {−1, +1}; the data here are t in {0, 1}, s = 2t − 1. Weights are (P, D).
``noise`` is the deviation of a normal term added before clipping; 0 is the paper's model.
"""

import itertools
import math

import numpy as np
from scipy import integrate, special, stats

from oracle.scalars import is_observed, log_normal, weighted_sum


def log_joint_clipped_gaussian(sites, data, mask=None, noise=1.0):
    """log N(y; 0, I) + Σ_i log P(t_i | y), t_i = [ξ_i + (W y)_i + noise·ε > 0]: (1), (2), (8)."""
    factors, weights, bias = sites["factors"], sites["weights"], sites["bias"]
    deviations = np.broadcast_to(np.asarray(noise, dtype=np.float64), (len(bias),))
    result = np.zeros(len(data))
    for n in range(len(data)):
        for p in range(len(weights)):
            result[n] += log_normal(float(factors[n][p]), 0.0, 1.0)
        for i in range(len(data[n])):
            if not is_observed(mask, n, i):
                continue
            location = float(bias[i]) + weighted_sum(factors[n], weights, i)
            if deviations[i] == 0.0:
                result[n] += 0.0 if (location > 0.0) == (data[n][i] == 1) else -math.inf
            else:
                sign = 2.0 * data[n][i] - 1.0
                result[n] += float(special.log_ndtr(sign * location / deviations[i]))
    return result


def _interval_probability(slopes, offsets, bits):
    """P over z ~ N(0, 1) that [offset_i + slope_i z > 0] = bit_i for every i: one interval of z."""
    low, high = -math.inf, math.inf
    for slope, offset, bit in zip(slopes, offsets, bits, strict=True):
        if slope == 0.0:
            if (offset > 0.0) != (bit == 1):
                return 0.0
            continue
        root = -offset / slope
        if (slope > 0.0) == (bit == 1):
            low = max(low, root)
        else:
            high = min(high, root)
    if low >= high:
        return 0.0
    # The side on which both tails are small keeps the difference's digits.
    if low > 0.0:
        return float(stats.norm.sf(low) - stats.norm.sf(high))
    return float(stats.norm.cdf(high) - stats.norm.cdf(low))


def hard_clip_log_evidence(weights, bias, data, mask=None):
    """log P(t_n) of the paper's own model (noise 0) with one or two factors, (N,).

    Given all factors but the last, the bits hold it to an interval; a second factor is integrated
    by scipy between the kinks, which are where two bits' boundaries cross.
    """
    result = np.zeros(len(data))
    for n in range(len(data)):
        used = [i for i in range(len(bias)) if is_observed(mask, n, i)]
        bits = [data[n][i] for i in used]
        slopes = [float(weights[-1][i]) for i in used]
        if len(weights) == 1:
            probability = _interval_probability(slopes, [float(bias[i]) for i in used], bits)
        else:
            probability = _integrate_first_factor(weights, bias, used, slopes, bits)
        result[n] = math.log(probability) if probability > 0.0 else -math.inf
    return result


def _integrate_first_factor(weights, bias, used, slopes, bits):
    def density(first):
        offsets = [float(bias[i]) + float(weights[0][i]) * first for i in used]
        return math.exp(log_normal(first, 0.0, 1.0)) * _interval_probability(slopes, offsets, bits)

    kinks = {-9.0, 9.0}
    for i, j in itertools.combinations(used, 2):
        lines = np.array([[weights[0][i], weights[1][i]], [weights[0][j], weights[1][j]]])
        if abs(np.linalg.det(lines)) > 1e-12:
            crossing = np.linalg.solve(lines, [-bias[i], -bias[j]])[0]
            if -9.0 < crossing < 9.0:
                kinks.add(float(crossing))
    total = 0.0
    for low, high in itertools.pairwise(sorted(kinks)):
        total += integrate.quad(density, low, high, epsabs=1e-12, epsrel=1e-10)[0]
    return total

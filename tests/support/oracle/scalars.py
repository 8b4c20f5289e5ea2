"""One number in, one number out: the few functions all the papers share."""

import math


def log_logistic(activation):
    """log 1/(1 + exp(−a)), written so that the exponential never overflows."""
    if activation >= 0.0:
        return -math.log1p(math.exp(-activation))
    return activation - math.log1p(math.exp(activation))


def logistic(activation):
    return math.exp(log_logistic(activation))


def log_bernoulli(bit, probability):
    """log p^t (1 − p)^(1 − t), with 0·log 0 = 0."""
    chance = probability if bit == 1 else 1.0 - probability
    return math.log(chance) if chance > 0.0 else -math.inf


def log_bernoulli_logit(bit, activation):
    return log_logistic(activation) if bit == 1 else log_logistic(-activation)


def log_normal(value, location, deviation):
    residual = (value - location) / deviation
    return -0.5 * math.log(2.0 * math.pi) - math.log(deviation) - 0.5 * residual * residual


def log_noisy_or(bit, total_input):
    """log h(u; a) of Lewicki & Sejnowski: h(u) = 1 − exp(−u) for a = 1, exp(−u) for a = 0."""
    if bit == 1:
        return math.log(-math.expm1(-total_input)) if total_input > 0.0 else -math.inf
    return -total_input


def is_observed(mask, row, column):
    return mask is None or bool(mask[row][column])


def weighted_sum(latent, weights, column):
    """Σ_h s_h W_hd: the input that one column gets from one row of latents."""
    total = 0.0
    for h in range(len(latent)):
        total += float(latent[h]) * float(weights[h][column])
    return total

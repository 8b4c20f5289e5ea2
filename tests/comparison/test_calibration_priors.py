"""Calibration on tables in which every column varies: the priors of the cards see to it.

Given the parameters the rows of a table are independent, so that a column of N rows whose value v
has probability p_v is constant with probability Σ_v p_v^N. The mean of that over parameters drawn
from the priors, summed over columns, is at least the probability that any column is constant.
"""

import itertools

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import expit, softmax
from scipy.stats import norm

from inference.comparison.calibration.calibrate import setting_of

NUM_DRAWS = 20_000
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
BITS = np.array(list(itertools.product((0, 1), repeat=2)))
RNG = np.random.default_rng(0)


def drawn(prior, *shape):
    """Draws from a prior, by NumPy's generator."""
    shape = (NUM_DRAWS, *shape)
    if isinstance(prior, dist.Normal):
        return RNG.normal(prior.loc, prior.scale, shape)
    if isinstance(prior, dist.Gamma):
        return RNG.gamma(prior.concentration, 1.0 / np.asarray(prior.rate), shape)
    return RNG.beta(prior.concentration1, prior.concentration0, shape)


def over_factor(probability):
    """The mean of a function of a standard normal number."""
    return sum(w * probability(x) for x, w in zip(NODES, WEIGHTS, strict=True))


def bits(one):
    """Probabilities of 0 and 1, (2, num_draws, ...)."""
    return [np.stack([1 - one, one])]


def trait(setting):
    # w·x with x standard normal is normal, its deviation the length of w.
    size = np.linalg.norm(
        drawn(setting.priors["prior_weights"], setting.sizes["num_factors"], 5), axis=1
    )
    bias, low = drawn(setting.priors["prior_bias"], 5), 0.0
    if setting.sizes.get("guessing"):
        low = drawn(setting.priors["prior_guessing"], 5)
    return bits(over_factor(lambda x: low + (1 - low) * expit(size * x + bias)))


def clipped(setting):
    weights, bias = (drawn(setting.priors[f"prior_{x}"], 6) for x in ("weights", "bias"))
    return bits(norm.cdf(bias / np.sqrt(1 + weights**2)))


def mixed(setting):
    weights, bias = (drawn(setting.priors[f"prior_{x}"], 4) for x in ("weights", "bias"))
    two = bits(over_factor(lambda x: expit(weights * x + bias)[:, :2]))
    zero = np.zeros((NUM_DRAWS, 1))
    logits = lambda x: np.concatenate([zero, (weights * x + bias)[:, 2:]], 1)  # noqa: E731
    return [*two, over_factor(lambda x: softmax(logits(x), 1)).T]


def graded(setting):
    out = []
    for levels in setting.sizes["levels"]:
        steps = drawn(setting.priors["prior_cutpoints"], levels - 1)
        cuts = np.cumsum(np.concatenate([steps[:, :1], np.exp(steps[:, 1:])], 1), 1)
        weight = drawn(setting.priors["prior_weights"], 1)
        above = over_factor(lambda x: expit(weight * x - cuts))  # noqa: B023
        out.append(-np.diff(np.pad(above, ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0)))).T)
    return out


def maps(setting):
    mixing = RNG.dirichlet(np.ones(2), NUM_DRAWS)[:, :, None]
    weights = RNG.normal(size=(NUM_DRAWS, 2, 6))
    bias = drawn(setting.priors["prior_bias"], 2, 6)
    return bits((mixing * over_factor(lambda x: expit(weights * x + bias))).sum(1))


def mixture(setting):
    mixing = RNG.dirichlet(np.ones(2), NUM_DRAWS)[:, :, None]
    return bits((mixing * drawn(setting.priors["prior_probs"], 2, 6)).sum(1))


def classes(setting):
    mixing = RNG.dirichlet(np.ones(2), NUM_DRAWS)[:, :, None]
    priors = (np.full(k, setting.priors["prior_probs"]) for k in setting.sizes["levels"])
    return [(mixing * RNG.dirichlet(x, (NUM_DRAWS, 2))).sum(1).T for x in priors]


def product(setting):
    return bits(drawn(setting.priors["prior_probs"], 4))


def machine(setting):
    pull = BITS @ drawn(setting.priors["prior_weights"], 2, 6)  # (num_draws, 4 states, 6)
    odds = drawn(setting.priors["prior_bias"], 2) @ BITS.T + np.log(2 * np.cosh(pull)).sum(-1)
    return bits((softmax(odds, 1)[..., None] * expit(2 * pull)).sum(1))


def network(setting):
    weights, leak = setting.priors["prior_weights"], setting.priors["prior_leak"]
    off = np.exp(-drawn(leak, 1, 2))
    chance = np.where(BITS, 1 - off, off).prod(-1)  # (num_draws, 4 states)
    lit = 1 - np.exp(-(BITS @ drawn(weights, 2, 6)) - drawn(leak, 1, 6))
    return bits((chance[..., None] * lit).sum(1))


SHOWN = {
    "latent_trait": trait, "clipped_gaussian": clipped, "mixed_trait": mixed,
    "graded_trait": graded, "trait_mixture": maps, "bernoulli_mixture": mixture,
    "categorical_mixture": classes, "bernoulli_product": product, "combination_machine": machine,
    "noisy_or_network": network,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *((name, {}) for name in SHOWN),
        ("latent_trait", {"num_factors": 2}),
        ("latent_trait", {"guessing": True}),
        ("latent_trait", {"num_factors": 2, "guessing": True}),
    ],
)
def test_constant_columns_are_rarer_than_one_table_in_a_thousand(name, given):
    setting = setting_of(name, given)
    constant = 0.0
    for column in SHOWN[name](setting):
        np.testing.assert_allclose(column.sum(0), 1.0)
        same = (column**setting.num_data).sum(0)
        constant = constant + same.reshape(NUM_DRAWS, -1).sum(1)
    error = np.std(constant) / np.sqrt(NUM_DRAWS)
    assert np.mean(constant) + 4 * error < 1e-3

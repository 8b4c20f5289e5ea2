"""What makes the data of an example: sizes of its program, true parameters, how many rows.

Those of the papers have their sizes. The small ones are for tests and notebooks; where the
program's own prior is too wide for NUTS in seconds, they have a narrower one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import logsumexp
from latentbits.models.data.strokes import LINE_PATTERNS, lines, stroke_masks

from ..reading.states import AllStates


class Truth(NamedTuple):
    """What a table is drawn from."""

    num_data: int
    num_features: int | None  # None: the sizes say it
    sizes: dict[str, Any]  # keyword arguments of the program
    params: dict[str, np.ndarray]  # by site; empty: the program did not make the data
    words: str
    image_shape: tuple[int, int] | None = None
    draw: Callable[[int, int], np.ndarray] | None = None  # (seed, num_data) -> rows, if not it
    density: Callable[[np.ndarray], np.ndarray] | None = None  # their log density, if not its


def items(num_data: int, count: int, factors: int = 2, **priors: Any) -> Truth:
    """Questions that a few factors explain."""
    rng = np.random.default_rng(0)
    weights = rng.normal(0.0, 1.2, (factors, count))
    params = {"weights": weights, "bias": rng.normal(0.0, 0.7, count)}
    words = f"{count} items that {'two' if factors == 2 else factors} factors explain"
    return Truth(num_data, count, {"num_factors": factors, **priors}, params, words)


def three_prototypes() -> Truth:
    """Tipping (1998), section 4: three prototypes, each bit of a copy inverted at times."""
    centres = np.random.default_rng(0).random((3, 16)) < 0.5

    def draw(seed: int, num_data: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        label = rng.permutation(np.arange(num_data) % 3)
        return centres[label] ^ (rng.random((num_data, 16)) < 0.05)

    def density(rows: np.ndarray) -> np.ndarray:
        wrong = (rows[:, None] != centres).sum(-1)
        each = wrong * np.log(0.05) + (16 - wrong) * np.log(0.95)
        return np.logaddexp.reduce(each, axis=1) - np.log(3)

    words = "noisy copies of three 16-bit prototypes (Tipping 1998)"
    return Truth(600, 16, {"num_factors": 2}, {}, words, (4, 4), draw, density)


def outer_lines(side: int) -> np.ndarray:
    """The outer rows and columns of a grid, (4, side²)."""
    return stroke_masks(side)[[0, side - 1, side, 2 * side - 1]]


def linear_causes(
    num_data: int, weights: np.ndarray, noise: float, sparsity: float, words: str, *image: Any
) -> Truth:
    """Rows of causes of these weights, as sparse coding has them."""
    causes, width = weights.shape
    params = {"weights": weights, "noise": np.array(noise), "sparsity": np.array(sparsity)}
    return Truth(num_data, width, {"num_causes": causes}, params, words, *image)


def four_bars() -> Truth:
    words = "four bars on a 3×3 grid, each in two images of five"
    return linear_causes(160, 4.0 * outer_lines(3), 1.0, 0.4, words, (3, 3))


def ten_bars() -> Truth:
    """Henniges et al. (2010), section 4: bars of ±10, noise of 2, two in an image."""
    signs = np.random.default_rng(0).permutation(np.repeat([1.0, -1.0], 5))
    words = "ten bars on a 5×5 grid, two in an image (Henniges et al. 2010)"
    return linear_causes(1000, 10.0 * signs[:, None] * stroke_masks(5), 2.0, 0.2, words, (5, 5))


def three_strong_bars(num_data: int) -> Truth:
    """Three bars that cross, on by degrees: as many as quadrature goes through."""
    words = "three bars on a 3×3 grid, each in two images of five and of any strength"
    return linear_causes(num_data, 4.0 * outer_lines(3)[:3], 1.0, 0.4, words, (3, 3))


def maximal_bars() -> Truth:
    """The bars of the paper where the stronger hides the weaker, instead of adding to it."""
    truth = ten_bars()
    words = "ten bars on a 5×5 grid, two in an image, of which the stronger hides the weaker"
    strengths = np.linspace(0.8, 1.2, 10)[:, None]  # equal ones hide nothing
    params = {**truth.params, "weights": strengths * truth.params["weights"]}
    sizes = {**truth.sizes, "superposition": "max"}
    return truth._replace(sizes=sizes, params=params, words=words)


def two_units() -> Truth:
    rng = np.random.default_rng(0)
    weights = np.where(np.kron(np.eye(2), np.ones((1, 4))) > 0, 1.5, 0.0)
    weights = weights * rng.choice([-1.0, 1.0], weights.shape)
    # The program's own priors are so wide that NUTS would be at it for minutes.
    sizes = {
        "num_causes": 2,
        "prior_weights": dist.Normal(0.0, 1.0),
        "prior_bias": dist.Normal(0.0, 5.0),
    }
    params = {"weights": weights, "bias": np.full(2, -3.4)}
    return Truth(160, 8, sizes, params, "8 columns that two hidden units push", (2, 4))


def ten_units() -> Truth:
    """Freund & Haussler (1994), section 4: ten simple shapes on an 8×8 grid."""
    from jax import random
    from latentbits.models.data import combination_target

    made = combination_target(random.key(0), 1)
    params = {"weights": np.asarray(made.weights), "bias": np.asarray(made.bias)}
    words = "ten simple shapes on an 8×8 grid (Freund & Haussler 1994)"
    return Truth(4000, 64, {"num_causes": 10}, params, words, (8, 8))


def ten_real_units() -> Truth:
    """The same shapes on real columns, a quarter as strong, each on half of the time.

    The probability of a state grows with the square of its weights there: at ±6 a single one has
    all of it.
    """
    truth = ten_units()
    weights = truth.params["weights"] / 4.0
    bias = -0.5 * weights @ weights.sum(0)  # a state and its complement are equally probable
    words = "ten simple shapes on an 8×8 grid of real columns"
    return truth._replace(params={"weights": weights, "bias": bias}, words=words)


def clusters(num_data: int, components: int, features: int) -> Truth:
    rng = np.random.default_rng(0)
    probs = np.where(rng.random((components, features)) < 0.5, 0.9, 0.1)
    mixing = _mixing(components)
    words = f"noisy copies of {components} patterns of {features} bits"
    sizes = {"num_components": components}
    return Truth(num_data, features, sizes, {"mixing": mixing, "probs": probs}, words)


def maps(num_data: int, count: int, components: int) -> Truth:
    """Groups of rows, each along a line of its own."""
    rng = np.random.default_rng(0)
    params = {
        "mixing": _mixing(components),
        "weights": rng.normal(0.0, 1.0, (components, 1, count)),
        "bias": np.where(rng.random((components, count)) < 0.5, 1.5, -1.5),
    }
    sizes = {"num_components": components, "num_factors": 1}
    words = f"{count} bits of {components} groups, each with a factor of its own"
    return Truth(num_data, count, sizes, params, words)


def coins(num_data: int, count: int) -> Truth:
    params = {"probs": np.random.default_rng(0).uniform(0.1, 0.9, count)}
    return Truth(num_data, count, {}, params, f"{count} independent bits")


def noisy_or_causes(
    num_data: int, weights: np.ndarray, leak: float, on: Any, words: str, *image: Any
) -> Truth:
    """Rows of causes of these weights, as a noisy-OR network of one layer has them."""
    causes, width = weights.shape
    params = {
        "weights_1": weights, "leak_0": np.full(width, leak),
        "leak_1": np.array(np.broadcast_to(on, causes)),
    }  # fmt: skip
    return Truth(num_data, width, {"layers": (causes,)}, params, words, *image)


def four_lines() -> Truth:
    words, on = "four lines on a 4×4 grid, more or less often", [0.3, 0.5, 0.5, 0.7]
    return noisy_or_causes(120, 3.0 * outer_lines(4), 0.02, on, words, (4, 4))


def ten_lines() -> Truth:
    """Lewicki & Sejnowski (1996), section 5, the lines that are on independently."""
    words = "ten lines on a 5×5 grid (Lewicki & Sejnowski 1996)"
    return noisy_or_causes(1000, 6.0 * stroke_masks(5), 0.005, 0.3, words, (5, 5))


PATTERN_PROBABILITIES = (0.125, 0.125, 0.125, 0.125)
"""Of 'll', '+', '=' and ']'; in the other half each line is on with probability 0.3."""

LINE_PROBABILITY = 0.3
MEMBERS = np.array([np.isin(np.arange(10), chosen) for chosen in LINE_PATTERNS.values()])
"""Which lines a pattern has, (4, 10)."""


def line_probabilities() -> np.ndarray:
    """How often the process draws each of the 1024 sets of lines, the first line slowest."""
    states = AllStates().table((2,) * 10)
    probs = np.prod(np.where(states, LINE_PROBABILITY, 1 - LINE_PROBABILITY), axis=1)
    probs = probs * (1.0 - sum(PATTERN_PROBABILITIES))
    for probability, lines_of_it in zip(PATTERN_PROBABILITIES, MEMBERS, strict=True):
        probs[(states == lines_of_it).all(1)] += probability
    return probs


def generator_log_likelihood(data: Array) -> Array:
    """Log probability of each pattern under the process itself: no network can do better."""
    probs = line_probabilities()
    drawn = (AllStates().table((2,) * 10) @ stroke_masks(5) > 0).astype(np.float32)
    # Two pictures are one if they agree in all 25 pixels.
    agree = data @ drawn.T + (1.0 - data) @ (1.0 - drawn).T
    return logsumexp(jnp.where(agree > 24.5, np.log(probs), -jnp.inf), axis=1)


def patterned_lines() -> Truth:
    """Lewicki & Sejnowski (1996), section 5: half of the images one of four patterns of lines."""
    from jax import random

    def draw(seed: int, num_data: int) -> np.ndarray:
        return np.asarray(lines(random.key(seed), num_data).data)

    def density(rows: np.ndarray) -> np.ndarray:
        return np.asarray(generator_log_likelihood(jnp.asarray(rows)), np.float64)

    words = "ten lines and four patterns of them on a 5×5 grid (Lewicki & Sejnowski 1996)"
    return Truth(1000, 25, {"layers": (10, 5)}, {}, words, (5, 5), draw, density)


def mixed(num_data: int, count: int = 7, factors: int = 2) -> Truth:
    rng = np.random.default_rng(0)
    kinds = _repeated(("real", "real", "binary", "binary", "binary", "binary", 3), count)
    width = sum(2 if kind == 3 else 1 for kind in kinds)
    params = {
        "weights": rng.normal(0.0, 1.2, (factors, width)),
        "bias": rng.normal(0.0, 0.5, width),
        "noise": np.array(_repeated((0.8, 1.0), kinds.count("real"))),
    }
    # Two factors can take up two numbers whole: noise near zero is kept away by its prior.
    sizes = {
        "kinds": kinds,
        "num_factors": factors,
        "prior_weights": dist.Normal(0.0, 1.5),
        "prior_noise": dist.Gamma(10.0, 10.0),
    }
    return Truth(num_data, None, sizes, params, "two numbers, four bits, one of three categories")


def clipped(num_data: int) -> Truth:
    """Lee & Sompolinsky (1998): a Gaussian of 64 columns on two factors, clipped."""
    return items(num_data, 64)._replace(words="64 bits, a Gaussian on two factors clipped")


def scales(num_data: int, count: int = 10, factors: int = 1) -> Truth:
    """A questionnaire: of ten answers six from 1 to 5, two in three words, two yes or no."""
    rng = np.random.default_rng(0)
    levels = _repeated((5, 5, 5, 3, 2), count)
    params = {"weights": rng.lognormal(0.2, 0.4, (factors, count))}
    if factors > 1:  # all of one sign, they would be one
        params["weights"] *= rng.choice([-1.0, 1.0], params["weights"].shape)
    for k in sorted(set(levels)):
        middle = np.linspace(-1.0, 1.0, k + 1)[1:-1] * 2.0
        params[f"cutpoints_{k}"] = middle + rng.normal(0.0, 0.7, (levels.count(k), 1))
    sizes = {"levels": levels, "num_factors": factors, "prior_weights": dist.Normal(0.0, 1.5)}
    words = f"{'ten' if count == 10 else count} answers on scales of two to five levels"
    return Truth(num_data, None, sizes, params, words)


def classes(num_data: int, count: int = 8, components: int = 3) -> Truth:
    """A few kinds of people, who answer differently."""
    rng = np.random.default_rng(0)
    levels = _repeated((4, 4, 3, 2, 4, 3, 2, 4), count)
    params = {"mixing": _mixing(components)}
    for k in sorted(set(levels)):
        probs = rng.dirichlet(np.full(k, 0.4), (components, levels.count(k))).clip(0.02)
        params[f"probs_{k}"] = probs / probs.sum(-1, keepdims=True)
    sizes = {"levels": levels, "num_components": components}
    words = "eight answers in two to four words, three classes"
    if (count, components) != (8, 3):
        words = f"{count} answers in two to four words, {components} classes"
    return Truth(num_data, None, sizes, params, words)


def _repeated(pattern: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    return (pattern * -(-count // len(pattern)))[:count]


def _mixing(components: int) -> np.ndarray:
    return np.array([0.5, 0.3, 0.2]) if components == 3 else np.full(components, 1 / components)

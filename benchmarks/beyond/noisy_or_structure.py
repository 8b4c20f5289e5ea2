"""Evidence for the structure of a noisy-OR network, and whether its probabilities are calibrated.

Lewicki & Sejnowski (1996) call their learning Bayesian, put a prior on the weights, and fix the
numbers of layers and units by hand. Here p(structure | data) is computed for networks that are
small enough: all states of the units are summed, the weights are integrated by sequential Monte
Carlo from the prior to the posterior (Del Moral, Doucet & Jasra 2006), and the data come from each
structure in turn, with weights from the prior. All sets of data go at once, in NumPy.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, logsumexp, softmax

from inference.papers.experiment import Option, Outcome, Page, experiment
from inference.reading.states import AllStates

STRUCTURES: dict[str, tuple[int, ...]] = {
    "1": (1,),
    "2": (2,),
    "3": (3,),
    "2–1": (2, 1),
    "3–1": (3, 1),
}
"""Units of each hidden layer, the lowest first."""

COLUMNS = 5
WEIGHTS, LEAKS = 0.5, 4.0
"""Rates of Gamma priors whose shape is the paper's α = 1: causes that are on in one row of
five, and turn on more than half of their children."""
TEMPERATURES = 30


class Network(NamedTuple):
    """A structure. Its parameters are vectors that the prior makes standard normal, (..., size)."""

    layers: tuple[int, ...]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Site of the program -> shape."""
        units = (COLUMNS, *self.layers)
        sites: dict[str, tuple[int, ...]] = {f"leak_{i}": (n,) for i, n in enumerate(units)}
        below = zip(units[1:], units[:-1], strict=True)
        return sites | {f"weights_{i + 1}": shape for i, shape in enumerate(below)}

    @property
    def rates(self) -> np.ndarray:
        """Of each parameter's exponential prior, (num_parameters,)."""
        sizes = {name: int(np.prod(shape)) for name, shape in self.shapes.items()}
        each = [LEAKS if name.startswith("leak") else WEIGHTS for name in sizes]
        return np.repeat(each, list(sizes.values()))

    def params(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """By site, in the program's shapes; leading axes as they are."""
        values = -log_ndtr(-points) / self.rates
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])
        sites = zip(self.shapes.items(), np.split(values, ends[:-1], axis=-1), strict=True)
        lead = points.shape[:-1]
        return {name: part.reshape(*lead, *shape) for (name, shape), part in sites}

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.normal(size=(*shape, len(self.rates)))

    def probs(self, points: np.ndarray) -> np.ndarray:
        """p of every pattern, all states summed, (..., 2^COLUMNS), the first column slowest."""
        params = self.params(points)
        top = len(self.layers)
        states = np.zeros((1, 0))
        weight = np.ones((*points.shape[:-1], 1))  # of each state of the layer above
        for level in range(top, -1, -1):
            inputs = params[f"leak_{level}"][..., None, :]
            if level < top:
                inputs = inputs + states @ params[f"weights_{level + 1}"]
            off = np.exp(-inputs)  # (..., states above, units)
            # One unit after the other doubles the states: no logarithms, and no table of bits.
            each = weight[..., None]
            for unit in range(off.shape[-1]):
                zero = off[..., unit, None]
                both = np.stack([each * zero, each * (1.0 - zero)], -1)
                each = both.reshape(*each.shape[:-1], -1)
            weight = each.sum(-2)
            states = AllStates().table((2,) * off.shape[-1]).astype(float)
        return weight


class Weighed(NamedTuple):
    """The evidence of a structure on sets of data."""

    evidence: np.ndarray  # (num_sets,) log p(data | structure), nats
    best: np.ndarray  # (num_sets,) the largest log likelihood met
    parameters: int


def weigh(
    network: Network, counts: np.ndarray, rng: np.random.Generator, particles: int, steps: int
) -> Weighed:
    """Integrate the weights out of p(data | weights) p(weights), for all sets of data at once.

    :param counts: (num_sets, 2^COLUMNS), how often each pattern is in the data.
    :param steps: of Metropolis at each temperature.
    """
    sets = len(counts)
    points = network.draw(rng, (sets, particles))
    width = points.shape[-1]

    def log_likelihood(points: np.ndarray) -> np.ndarray:
        log_probs = np.log(np.maximum(network.probs(points), 1e-300))
        return np.einsum("tkp,tp->tk", log_probs, counts)

    value = log_likelihood(points)
    evidence, best = np.zeros(sets), value.max(1)
    betas = np.linspace(0.0, 1.0, TEMPERATURES + 1) ** 3
    for before, beta in pairwise(betas):
        rise = (beta - before) * value
        evidence += logsumexp(rise, axis=1) - np.log(particles)
        # Systematic resampling: each particle as often as its weight says, up to rounding.
        edges = softmax(rise, axis=1).cumsum(1)
        marks = (np.arange(particles) + rng.random((sets, 1))) / particles
        chosen = (edges[:, None, :] < marks[:, :, None]).sum(-1).clip(max=particles - 1)
        points = np.take_along_axis(points, chosen[:, :, None], 1)
        value = np.take_along_axis(value, chosen, 1)
        centred = points - points.mean(1, keepdims=True)
        spread = np.einsum("tki,tkj->tij", centred, centred) / particles
        shape = np.linalg.cholesky(spread + 1e-4 * np.eye(width))
        for step in range(steps):
            drawn = rng.normal(size=points.shape)
            size = np.exp(rng.normal(size=(sets, particles, 1)) - 1.0)  # short steps and long ones
            if step % 2:
                # As the particles lie.
                along = np.einsum("tij,tkj->tki", shape, drawn)
                proposed = points + 2.38 / width**0.5 * size * along
                prior = 0.5 * (points**2 - proposed**2).sum(-1)
            else:
                # As the prior lies, which this proposal keeps: parameters that the data leave free.
                size = np.minimum(size, 1.0)
                proposed = np.sqrt(1.0 - size**2) * points + size * drawn
                prior = 0.0
            there = log_likelihood(proposed)
            accept = np.log(rng.random(value.shape)) < beta * (there - value) + prior
            points = np.where(accept[:, :, None], proposed, points)
            value = np.where(accept, there, value)
            best = np.maximum(best, value.max(1))
    return Weighed(evidence, best, width)


class Study(NamedTuple):
    """Sets of data, whose structure is known, and what is believed of it."""

    truth: np.ndarray  # (num_sets,)
    posterior: np.ndarray  # (num_sets, structures), by the evidence
    bic: np.ndarray  # the same, by the Bayesian information criterion at the best weights met


def study(sets: int, num_data: int, particles: int, steps: int, seed: int) -> Study:
    """As many sets of data from each structure, each judged under every structure."""
    rng = np.random.default_rng(seed)
    networks = [Network(layers) for layers in STRUCTURES.values()]
    drawn = [network.probs(network.draw(rng, (sets,))) for network in networks]
    probs = np.concatenate(drawn)
    counts = rng.multinomial(num_data, probs / probs.sum(-1, keepdims=True)).astype(float)
    weighed = [weigh(network, counts, rng, particles, steps) for network in networks]
    evidence = np.stack([one.evidence for one in weighed], axis=1)
    cost = 0.5 * np.log(num_data) * np.array([one.parameters for one in weighed])
    bic = np.stack([one.best for one in weighed], axis=1) - cost
    truth = np.repeat(np.arange(len(networks)), sets)
    return Study(truth, softmax(evidence, axis=1), softmax(bic, axis=1))


def judge(posterior: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """How probable the true structure is, and whether such probabilities can be believed.

    If they are right, the true structure has the probability that a structure drawn from them has:
    p(true) and Σ p² agree in expectation.
    """
    true = posterior[np.arange(len(truth)), truth]
    excess = (posterior**2).sum(1) - true
    top, sure = posterior.argmax(1) == truth, posterior.max(1)
    return {
        "probability_of_the_truth": float(true.mean()),
        "log_score": float(np.log(true).mean()),
        "truth_is_most_probable": float(top.mean()),
        "claimed_for_the_most_probable": float(sure.mean()),
        "overconfidence": float(excess.mean()),
        "overconfidence_error": float(excess.std(ddof=1) / len(truth) ** 0.5),
    }


@experiment(
    "noisyor-structure",
    "evidence for the numbers of layers and units, and whether its probabilities are right",
    sets=Option(5, "sets from each structure", 1, 1, full=40),
    num_data=Option(100, "rows", 50, 1),
    particles=Option(300, "particles for each set", 30, 10),
    steps=Option(10, "steps of Metropolis at each temperature", 1, 1),
)
def run(options: argparse.Namespace) -> Outcome:
    """`noisyor-structure`: the probability of the true structure, and its calibration."""
    sets, rows = options.sets, options.num_data
    studied = study(sets, rows, options.particles, options.steps, options.seed)
    means = (studied.posterior[studied.truth == i].mean(0) for i in range(len(STRUCTURES)))
    each = [dict(zip(STRUCTURES, map(float, x), strict=True)) for x in means]
    numbers = {
        "sets_of_each_structure": sets,
        "num_data": rows,
        "evidence": judge(studied.posterior, studied.truth),
        "bic": judge(studied.bic, studied.truth),
        "mean_posterior_by_truth": dict(zip(STRUCTURES, each, strict=True)),
    }
    return Outcome(numbers, (12, 4.4), figure, (studied,))


def figure(page: Page, studied: Study) -> None:
    """What is believed of each true structure, and how often beliefs of a size are right."""
    *tables, line = page.subplots(1, 3, width_ratios=(1, 1, 1.1))
    size = len(STRUCTURES)
    kinds = {"evidence": studied.posterior, "BIC": studied.bic}
    for axis, letter, (name, posterior) in zip(tables, "AB", kinds.items(), strict=True):
        means = np.stack([posterior[studied.truth == i].mean(0) for i in range(size)])
        axis.imshow(means, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.ndindex(size, size):
            colour = "w" if means[i, j] > 0.5 else "k"
            axis.text(j, i, f"{means[i, j]:.2f}", ha="center", va="center", color=colour)
        axis.set_xticks(range(size), list(STRUCTURES))
        axis.set_yticks(range(size), list(STRUCTURES))
        axis.set(title=f"{letter}  probability by {name}", xlabel="structure", ylabel="true")
    edges = np.linspace(0.0, 1.0, 6)
    line.plot([0, 1], [0, 1], "--", color="0.5")
    for place, (name, posterior) in enumerate(kinds.items()):
        right = np.arange(size) == studied.truth[:, None]
        group = np.digitize(posterior, edges[1:-1])
        full = [k for k in range(5) if (group == k).any()]
        claimed = np.array([posterior[group == k].mean() for k in full])
        share = np.array([right[group == k].mean() for k in full])
        count = np.array([(group == k).sum() for k in full])
        error = np.sqrt(share * (1.0 - share) / count)
        line.errorbar(claimed, share, error, fmt="os"[place] + "-", label=name, capsize=3)
    line.set(title="C  calibration", xlabel="probability of a structure", ylabel="share right")
    line.legend(fontsize=10)

"""Brackets against all states in NumPy, where they are hard to prove; refusals by name."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import ndtr
from latentbits.models import (
    bernoulli_mixture,
    binary_sparse_coding,
    combination_machine,
    noisy_or_network,
)
from scipy import special, stats
from scipy.special import logsumexp

from inference import ProgramError
from inference.certificates.certify import certify

BOXES = {"max_states": 0, "max_boxes": 400}


def table(num_bits):
    return np.array([*itertools.product((0, 1), repeat=num_bits)])


def check(proved, joint, rounding=1e-6):
    """What is proved holds of all log joints (states, rows); true brackets may touch.

    :param rounding: of the log joint of `best`, which is lower by a margin.
    """
    exact, states = logsumexp(joint, axis=0), table(proved.best.shape[1])
    slack = 1e-9 * (1 + np.abs(joint.max(0)))
    assert (proved.lower <= exact + slack).all()
    assert (exact <= proved.upper + slack).all()
    share = np.exp(joint - exact).T @ states
    least, most = np.moveaxis(proved.probability, 2, 0)
    assert (least <= share + 2 * slack[:, None]).all()
    assert (share <= most + 2 * slack[:, None]).all()
    place = proved.best @ 2 ** np.arange(states.shape[1])[::-1]
    own = joint[place, np.arange(joint.shape[1])]
    np.testing.assert_allclose(proved.log_joint, own, rtol=rounding, atol=rounding)
    assert (joint.max(0) <= own + proved.best_gap + slack).all()


def hard_causes(rng, kind):
    """Weights of ten causes in twelve columns, where tangents are wide."""
    weights = rng.normal(size=(10, 12))
    if kind == "alike":  # each twice, and once up to a near tie
        weights[5:] = weights[:5] + 1e-9 * rng.normal(size=(5, 12))
    if kind == "cancelling":
        weights[5:] = -weights[:5]
    return weights * {"large": 1e4}.get(kind, 1.5)


@pytest.mark.parametrize("kind", ["alike", "cancelling", "large"])
def test_brackets_of_linear_causes(kind):
    rng = np.random.default_rng(3)
    weights, states = hard_causes(rng, kind), table(10)
    bits = rng.random((30, 10)) < 0.4
    data = bits @ weights + rng.normal(size=(30, 12))
    params = {"weights": weights, "noise": 0.8, "sparsity": 0.3}
    prior = special.xlogy(states, 0.3).sum(1) + special.xlogy(1 - states, 0.7).sum(1)
    joint = stats.norm.logpdf(data[None], (states @ weights)[:, None], 0.8).sum(-1)
    proved = certify(binary_sparse_coding, params, data, num_causes=10, best=True, **BOXES)
    check(proved, joint + prior[:, None], 1e-2 if kind == "large" else 1e-6)
    wide = 0.1 if kind != "large" else 1.0  # squares of 1e4 leave 1e-3 to rounding
    assert (proved.width <= wide).mean() > 0.9
    assert (proved.best_gap < 1e-6 if kind == "cancelling" else proved.best_gap < 1.0).mean() > 0.9
    parts = certify(
        binary_sparse_coding, params, data, num_causes=10, chunk_size=7, best=True, **BOXES
    )
    # The margin hangs on the largest error in a chunk.
    np.testing.assert_allclose(parts.upper, proved.upper, rtol=1e-4 if kind == "large" else 1e-9)


@pytest.mark.parametrize("leak", [0.0, 1e-12, 0.1])
def test_brackets_of_a_noisy_or(leak):
    """Also two layers, of which the boxes fix the upper one, and cells that are masked."""
    rng = np.random.default_rng(4)
    first, second = rng.gamma(1.0, 1.0, (6, 12)), rng.gamma(1.0, 1.0, (3, 6))
    first[4:] = first[:2]
    params = {"weights_1": first, "leak_0": np.full(12, leak), "weights_2": second,
              "leak_1": np.full(6, 0.2), "leak_2": np.full(3, 0.5)}  # fmt: skip
    states, mask = table(9), rng.random((25, 12)) < 0.8
    data = (rng.random((25, 12)) < 0.4).astype(float)
    top, low = states[:, :3], states[:, 3:]

    def log_prob(bit, u):
        with np.errstate(divide="ignore"):
            return np.where(bit > 0, np.log(-np.expm1(-u)), -u)

    prior = log_prob(top, np.full(3, 0.5)).sum(1) + log_prob(low, top @ second + 0.2).sum(1)
    each = log_prob(data[None], (low @ first + leak)[:, None])
    joint = prior[:, None] + np.where(mask, each, 0.0).sum(-1)
    proved = certify(noisy_or_network, params, data, mask=mask, layers=(6, 3), **BOXES)
    check(proved, joint)
    assert (proved.width <= 0.1).all()
    assert (proved.boxes < 200).all()


def several(data):
    """Many families in one program, read only at bits: with `where`, a gather, casts and s²."""
    weights = numpyro.sample("weights", dist.Normal().expand((7, 10)).to_event(2))
    with numpyro.plate("data", len(data)):
        s = numpyro.sample("s", dist.Bernoulli(0.3).expand((7,)).to_event(1))
        u = jnp.where(s[..., :3] > 0, 1.0, 0.0) @ weights[:3] + s[..., 3:] ** 2 @ weights[3:]
        positive = jnp.array([0.1, 1.3])[s[..., 0].astype(int)] + s[..., 1:] @ jnp.abs(
            weights[1:, 0]
        )
        sites = (
            dist.Laplace(u[..., 0], 0.5), dist.Logistic(u[..., 1], 0.5),
            dist.Bernoulli(logits=u[..., 2]), dist.Bernoulli(probs=ndtr(u[..., 3])),
            dist.Binomial(4, logits=u[..., 4]), dist.Poisson(jnp.exp(u[..., 5])),
            dist.Poisson(positive), dist.NegativeBinomial2(jnp.exp(u[..., 6]), 2.0),
            dist.Categorical(logits=jnp.stack([u[..., 7], 0 * u[..., 8], u[..., 8]], -1)),
            dist.OrderedLogistic(u[..., 9], jnp.array([-1.0, 0.5])),
            dist.Bernoulli(probs=-jnp.expm1(-positive)),
        )  # fmt: skip
        for i, fn in enumerate(sites):
            numpyro.sample(f"x{i}", fn, obs=data[:, i].astype(int) if i in (8, 9) else data[:, i])


def test_brackets_of_many_families_at_once():
    rng = np.random.default_rng(5)
    weights, count, states = rng.normal(size=(7, 10)), 20, table(7)
    data = np.stack([
        rng.normal(size=count), rng.normal(size=count), rng.integers(0, 2, count),
        rng.integers(0, 2, count), rng.integers(0, 5, count), rng.poisson(2, count),
        rng.poisson(2, count), rng.poisson(2, count), rng.integers(0, 3, count),
        rng.integers(0, 3, count), rng.integers(0, 2, count),
    ], 1).astype(float)  # fmt: skip
    u = (states @ weights)[:, None]
    positive = 0.1 + 1.2 * states[:, :1] + states[:, 1:] @ np.abs(weights[1:, :1])
    logits = np.stack([u[..., 7], 0 * u[..., 8], u[..., 8]], -1)
    cuts = special.expit(np.stack([u[..., 9] * 0 - np.inf, -1 - u[..., 9], 0.5 - u[..., 9],
                                   u[..., 9] * 0 + np.inf], -1))  # fmt: skip
    pick = lambda x, y: x[np.arange(len(states))[:, None], 0, y.astype(int)]  # noqa: E731
    parts = (
        stats.laplace.logpdf(data[:, 0], u[..., 0], 0.5),
        stats.logistic.logpdf(data[:, 1], u[..., 1], 0.5),
        stats.bernoulli.logpmf(data[:, 2], special.expit(u[..., 2])),
        stats.bernoulli.logpmf(data[:, 3], special.ndtr(u[..., 3])),
        stats.binom.logpmf(data[:, 4], 4, special.expit(u[..., 4])),
        stats.poisson.logpmf(data[:, 5], np.exp(u[..., 5])),
        stats.poisson.logpmf(data[:, 6], positive),
        stats.nbinom.logpmf(data[:, 7], 2.0, 1 / (1 + np.exp(u[..., 6]) / 2.0)),
        pick(special.log_softmax(logits, -1), data[:, 8]),
        pick(np.log(np.diff(cuts, axis=-1)), data[:, 9]),
        stats.bernoulli.logpmf(data[:, 10], -np.expm1(-positive)),
    )
    prior = special.xlogy(states, 0.3).sum(1) + special.xlogy(1 - states, 0.7).sum(1)
    proved = certify(several, {"weights": weights}, data, **BOXES)
    check(proved, sum(parts) + prior[:, None])
    assert (proved.width <= 0.1).all()


def one_site(likelihood):
    def program(data):
        weights = numpyro.sample("weights", dist.Normal().expand((11, 4)).to_event(2))
        with numpyro.plate("data", len(data)):
            s = numpyro.sample("s", dist.Bernoulli(0.3).expand((11,)).to_event(1))
            numpyro.sample("x", likelihood(s, weights).to_event(1), obs=data)

    return program


@pytest.mark.parametrize(
    ("likelihood", "words"),
    [
        (lambda s, w: dist.StudentT(3.0, s @ w, 1.0), "StudentT at 'x'.* none of the families"),
        (lambda s, w: dist.Normal(0.0, 0.1 + s @ jnp.abs(w)), "scale, size, cuts or mask depend"),
        (lambda s, w: dist.Bernoulli(0.2 + 0.8 * jax.nn.sigmoid(s @ w)), "not affine.*asymptote"),
        (lambda s, w: dist.Normal((s[..., None] * jnp.abs(w)).max(-2), 1.0), "a maximum"),
        (
            lambda s, w: dist.ZeroInflatedPoisson(0.3, rate=jnp.exp(s @ w)),
            "ZeroInflated.* at 'x'.* none of the families",
        ),
        (lambda s, w: dist.Poisson(4.0 + s @ (w - 0.5)), "below zero"),
    ],
    ids=["student", "scale", "asymptote", "maximum", "inflated", "negative"],
)
def test_refused_by_name(likelihood, words):
    weights = np.random.default_rng(0).uniform(-0.3, 0.3, (11, 4))
    data = (np.arange(12.0).reshape(3, 4) % 5 > 1).astype(float)
    with pytest.raises(ProgramError, match=words):
        certify(one_site(likelihood), {"weights": weights}, data)


def test_machine_is_linear_and_refused_where_cells_are_masked():
    rng = np.random.default_rng(1)
    weights, bias = rng.normal(size=(9, 6)), rng.normal(size=9)
    params, data = {"weights": weights, "bias": bias}, rng.integers(0, 2, (4, 6)).astype(float)
    proved = certify(combination_machine, params, data, num_causes=9, max_states=0)
    states = table(9)
    joint = states @ (weights @ (2 * data.T - 1) + bias[:, None])
    visible = 2.0 * table(6) - 1
    log_z = logsumexp(states @ (weights @ visible.T + bias[:, None]))
    check(proved, joint - log_z)
    assert (proved.width < 1e-9).all()
    mask = data > 0
    with pytest.raises(ProgramError, match=r"'causes'.*masked is convex"):
        certify(combination_machine, params, data, num_causes=9, mask=mask, max_states=0)


def test_rows_without_an_explanation_and_rows_that_read_others():
    """Impossible rows have no width; a program that centres its chunk is refused."""
    rng = np.random.default_rng(6)
    weights, states = rng.gamma(1.0, 1.0, (6, 3)), table(6)
    weights[:, 0] = 0.0
    data = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    params = {"weights_1": weights, "leak_0": np.zeros(3), "leak_1": np.full(6, 0.4)}
    u = (states @ weights)[:, None]
    with np.errstate(divide="ignore"):
        each = np.where(data > 0, np.log(-np.expm1(-u)), -u).sum(-1)
    on = -np.expm1(-0.4)
    prior = special.xlogy(states, on).sum(1) + special.xlogy(1 - states, 1 - on).sum(1)
    exact = logsumexp(each + prior[:, None], axis=0)
    for some in ([0], [0, 1]):
        proved = certify(noisy_or_network, params, data[some], layers=(6,), **BOXES)
        assert proved.lower[0] == proved.upper[0] == -np.inf
        assert proved.width[0] == proved.best_gap[0] == 0.0
    assert proved.lower[1] <= exact[1] <= proved.upper[1] <= proved.lower[1] + 0.1

    def centred(data):
        weights = numpyro.sample("weights", dist.Normal().expand((11, 4)).to_event(2))
        with numpyro.plate("data", len(data)):
            s = numpyro.sample("s", dist.Bernoulli(0.3).expand((11,)).to_event(1))
            own = data - data.mean(0)
            numpyro.sample("x", dist.Normal(s @ weights, 1.0).to_event(1), obs=own)

    with pytest.raises(ProgramError, match=r"rows that it is read with.*chunk_size=7"):
        certify(centred, {"weights": np.zeros((11, 4))}, rng.normal(size=(7, 4)), chunk_size=3)


def test_signs_of_weights_are_tested_in_every_row():
    """A rate whose weights are below zero in a row that did not choose the form is refused."""

    def rates(data, sign):
        weights = numpyro.sample("weights", dist.Gamma(1.0).expand((11, 2)).to_event(2))
        with numpyro.plate("data", len(data)):
            s = numpyro.sample("s", dist.Bernoulli(0.3).expand((11,)).to_event(1))
            rate = 9.0 + sign[:, None] * (s @ weights)
            numpyro.sample("x", dist.Poisson(rate).to_event(1), obs=data)

    weights, sign = np.full((11, 2), 0.3), np.ones(40)
    sign[7] = -1.0
    with pytest.raises(ProgramError, match="row 7"):
        certify(rates, {"weights": weights}, np.full((40, 2), 8.0), sign)


def test_few_states_are_listed_whatever_the_program():
    rng = np.random.default_rng(2)
    params = {"mixing": np.array([0.2, 0.5, 0.3]), "probs": rng.random((3, 5))}
    data = rng.integers(0, 2, (6, 5)).astype(float)
    proved = certify(bernoulli_mixture, params, data, num_components=3)
    each = stats.bernoulli.logpmf(data[None], params["probs"][:, None]).sum(-1)
    joint = np.log(params["mixing"])[:, None] + each
    np.testing.assert_allclose(proved.lower, logsumexp(joint, axis=0), rtol=1e-12)
    assert (proved.width < 1e-9).all()
    np.testing.assert_array_equal(proved.best[:, 0], joint.argmax(0))
    with pytest.raises(ProgramError, match=r"not binary.*max_states"):
        certify(bernoulli_mixture, params, data, num_components=3, max_states=2)

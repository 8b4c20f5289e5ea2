"""Programs with discrete latents as people write them, on data of a few rows.

`ZOO` names them; `bench_zoo.py` measures them, and `tests/zoo` holds their densities to sums over
all states. Each is written as in its source: names, plates and loops are those of the source.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import nn
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.contrib.funsor import markov
from numpyro.ops.indexing import Vindex

from latentbits import up_to

RNG = np.random.default_rng(49)


class Program(NamedTuple):
    """A program of the zoo."""

    source: str
    program: Callable
    args: tuple
    em: str = ""  # the words of the refusal, where EM does not fit it
    most: int = 0  # the last of a count's list


ZOO: dict[str, Program] = {}


def of(source: str, *args: Any, em: str = "", most: int = 0) -> Callable:
    """Put a program into the zoo with its data."""

    def put(program: Callable) -> Callable:
        ZOO[program.__name__] = Program(source, program, args, em, most)
        return program

    return put


def bits(*shape: int, rate: float = 0.5) -> np.ndarray:
    return (RNG.random(shape) < rate).astype(int)


def sure() -> dist.Distribution:
    return dist.Dirichlet(jnp.ones(2))


# --- the Stan user's guide


@of("Stan guide", RNG.poisson(3.0, 6), em="outside the plate")
def change_point(disasters):
    early = numpyro.sample("early", dist.Exponential(1.0))
    late = numpyro.sample("late", dist.Exponential(1.0))
    change = numpyro.sample("change", dist.DiscreteUniform(0, len(disasters) - 1))
    with numpyro.plate("years", len(disasters)) as year:
        rate = jnp.where(year < change, early, late)
        numpyro.sample("disasters", dist.Poisson(rate), obs=disasters)


@of("Stan guide", RNG.normal(size=5))
def soft_k_means(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Categorical(jnp.ones(3) / 3))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


CAPTURES = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])


@of("Stan guide", CAPTURES[:3, :3])
def cormack_jolly_seber(captures):
    phi = numpyro.sample("phi", dist.Uniform(0, 1))
    p = numpyro.sample("p", dist.Uniform(0, 1))
    first = np.argmax(captures, 1)
    with numpyro.plate("animals", len(captures)):
        z = 1
        for t in range(captures.shape[1]):
            known = t <= first
            alive = jnp.where(known, 1.0, phi * z)
            z = numpyro.sample(f"z_{t}", dist.Bernoulli(alive))
            seen = dist.Bernoulli(jnp.where(known, 1.0 * captures[:, t], p * z))
            numpyro.sample(f"y_{t}", seen, obs=captures[:, t])


@of("Stan guide", np.array([[0, 1, 0], [0, 0, 0]]))
def jolly_seber(captures):
    """Not entered yet, alive, dead: as a multistate model with augmented animals."""
    enter = numpyro.sample("enter", dist.Uniform(0, 1))
    phi = numpyro.sample("phi", dist.Uniform(0, 1))
    p = numpyro.sample("p", dist.Uniform(0, 1))
    zero, one = jnp.zeros(()), jnp.ones(())
    moves = jnp.array([[1 - enter, enter, zero], [zero, phi, 1 - phi], [zero, zero, one]])

    def step(state, seen):
        with numpyro.plate("animals", captures.shape[0]):
            state = numpyro.sample("state", dist.Categorical(moves[state]))
            numpyro.sample("seen", dist.Bernoulli(p * (state == 1)), obs=seen)
        return state, None

    scan(step, jnp.zeros(captures.shape[0], int), captures.T)


@of("Stan guide", RNG.integers(0, 3, (4, 3)))
def dawid_skene_wide(ratings):
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(3)))
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(3)).expand([3, 3]).to_event(2))
    with numpyro.plate("items", len(ratings)):
        z = numpyro.sample("z", dist.Categorical(pi))
        given = jnp.moveaxis(theta[:, z], 0, -2)
        numpyro.sample("y", dist.Categorical(given).to_event(1), obs=ratings)


ITEM, ANNOTATOR = np.array([0, 1, 1, 2, 4, 4, 0, 3]), np.array([0, 0, 1, 2, 1, 2, 1, 0])
LABEL = RNG.integers(0, 3, 8)


@of("Stan guide, long format", LABEL, ITEM, ANNOTATOR)
def dawid_skene_long(label, item, annotator):
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("annotators", 3, dim=-2), numpyro.plate("classes", 3):
        confusion = numpyro.sample("confusion", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("items", 5):
        z = numpyro.sample("z", dist.Categorical(pi))
    with numpyro.plate("labels", len(label)):
        numpyro.sample("y", dist.Categorical(confusion[annotator, z[item]]), obs=label)


@of("Stan guide", np.array([0, 0, 3, 1, 0]))
def zero_inflated_poisson(y):
    theta = numpyro.sample("theta", dist.Uniform(0, 1))
    rate = numpyro.sample("rate", dist.Gamma(2, 1))
    with numpyro.plate("data", len(y)):
        on = numpyro.sample("on", dist.Bernoulli(theta))
        numpyro.sample("y", dist.Poisson(rate * on), obs=y)


@of("Stan guide", np.array([0, 0, 3, 1, 0]))
def hurdle(y):
    theta = numpyro.sample("theta", dist.Uniform(0, 1))
    rate = numpyro.sample("rate", dist.Gamma(2, 1))
    with numpyro.plate("data", len(y)):
        over = numpyro.sample("over", dist.Bernoulli(theta))
        positive = dist.Poisson(rate).log_prob(y) - jnp.log1p(-jnp.exp(-rate))
        above = jnp.where(y > 0, positive, -jnp.inf)
        numpyro.factor("y", jnp.where(over == 1, above, jnp.where(y > 0, -jnp.inf, 0.0)))


@of("Stan guide", RNG.integers(0, 2, 6), np.array([0, 1, 1]))
def semi_supervised_hmm(words, tags):
    move = numpyro.sample("move", sure().expand([2]).to_event(1))
    emit = numpyro.sample("emit", sure().expand([2]).to_event(1))
    tag = 0
    for t in markov(range(len(words))):
        known = tags[t] if t < len(tags) else None
        tag = numpyro.sample(f"tag_{t}", dist.Categorical(move[tag]), obs=known)
        numpyro.sample(f"word_{t}", dist.Categorical(emit[tag]), obs=words[t])


@of("Stan guide", np.array([0, 1, 2, 1, 0]), np.array([0, 0, 0, 1, 1]))
def lda(word, doc):
    with numpyro.plate("documents", 2):
        theta = numpyro.sample("theta", sure())
    with numpyro.plate("topics", 2):
        phi = numpyro.sample("phi", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("words", len(word)):
        z = numpyro.sample("z", dist.Categorical(theta[doc]))
        numpyro.sample("w", dist.Categorical(phi[z]), obs=word)


# --- Kéry & Schaub

VISITS = np.array([[1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0]])


@of("Kéry & Schaub", VISITS)
def occupancy(y):
    psi = numpyro.sample("psi", dist.Uniform(0, 1))
    p = numpyro.sample("p", dist.Uniform(0, 1))
    with numpyro.plate("sites", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(psi))
        seen = dist.Bernoulli(jnp.broadcast_to((z * p)[..., None], (*z.shape, y.shape[1])))
        numpyro.sample("y", seen.to_event(1), obs=y)


@of("Kéry & Schaub", VISITS.T, RNG.normal(size=4), RNG.normal(size=(3, 4)))
def occupancy_covariates(y, forest, wind):
    """Visits × sites, as in NumPyro's tutorials on ecology."""
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    alpha = numpyro.sample("alpha", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("sites", y.shape[1], dim=-1):
        z = numpyro.sample("z", dist.Bernoulli(logits=beta[0] + beta[1] * forest))
        with numpyro.plate("visits", y.shape[0], dim=-2):
            p = nn.sigmoid(alpha[0] + alpha[1] * wind)
            numpyro.sample("y", dist.Bernoulli(z * p), obs=y)


SURVEY = (np.array([1, 0, 0, 0, 1, 0, 0]), np.array([0, 0, 1, 1, 1, 2, 3]))


@of("Kéry & Schaub, long format", *SURVEY)
def occupancy_long(y, site):
    psi = numpyro.sample("psi", dist.Uniform(0, 1))
    p = numpyro.sample("p", dist.Uniform(0, 1))
    with numpyro.plate("sites", 4):
        z = numpyro.sample("z", dist.Bernoulli(psi))
    with numpyro.plate("visits", len(y)):
        numpyro.sample("y", dist.Bernoulli(p * z[site]), obs=y)


@of("Kéry & Schaub", RNG.integers(0, 2, (4, 3, 2)))
def dynamic_occupancy(y):
    """Sites × years × visits; a site is colonised or goes extinct from year to year."""
    psi, gain, loss, p = (
        numpyro.sample(x, dist.Uniform(0, 1)) for x in ("psi", "gain", "loss", "p")
    )
    with numpyro.plate("sites", len(y)):
        here = psi
        for t in range(y.shape[1]):
            z = numpyro.sample(f"z_{t}", dist.Bernoulli(here))
            seen = dist.Bernoulli(jnp.broadcast_to((p * z)[..., None], (*z.shape, y.shape[2])))
            numpyro.sample(f"y_{t}", seen.to_event(1), obs=y[:, t])
            here = jnp.where(z == 1, 1 - loss, gain)


@of("Kéry & Schaub", np.array([[2, 1], [0, 1], [3, 3]]), most=14)
def n_mixture(y):
    rate = numpyro.sample("rate", dist.Gamma(2, 1))
    p = numpyro.sample("p", dist.Beta(2, 2))
    with numpyro.plate("sites", len(y)):
        n = numpyro.sample("n", dist.Poisson(rate))
        seen = dist.Binomial(n[..., None], jnp.broadcast_to(p, (y.shape[1],)))
        numpyro.sample("y", seen.to_event(1), obs=y)


@of("Kéry & Schaub", RNG.integers(0, 3, (2, 3)))
def multistate(y):
    """Alive in A, alive in B, dead; seen in A, seen in B, not seen."""
    phi = numpyro.sample("phi", dist.Uniform(0, 1).expand([2]).to_event(1))
    psi = numpyro.sample("psi", dist.Uniform(0, 1).expand([2]).to_event(1))
    p = numpyro.sample("p", dist.Uniform(0, 1).expand([2]).to_event(1))
    stay = jnp.array([1 - psi[0], psi[0]]), jnp.array([psi[1], 1 - psi[1]])
    rows = [jnp.append(phi[i] * stay[i], 1 - phi[i]) for i in range(2)]
    move = jnp.stack([*rows, jnp.array([0.0, 0.0, 1.0])])
    zero = jnp.zeros(())
    emit = jnp.array([[p[0], zero, 1 - p[0]], [zero, p[1], 1 - p[1]], [zero, zero, 1.0]])

    def step(z, seen):
        with numpyro.plate("animals", y.shape[0]):
            z = numpyro.sample("z", dist.Categorical(move[z]))
            numpyro.sample("y", dist.Categorical(emit[z]), obs=seen)
        return z, None

    scan(step, jnp.zeros(y.shape[0], int), y.T)


# --- NumPyro: annotation

POSITIONS, ANNOTATIONS = np.array([0, 1, 2]), RNG.integers(0, 2, (4, 3))
J, K = 3, 2


@of("NumPyro annotation", ANNOTATIONS)
def annotation_multinomial(annotations):
    with numpyro.plate("class", K):
        zeta = numpyro.sample("zeta", dist.Dirichlet(jnp.ones(K)))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("item", len(annotations), dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with numpyro.plate("position", annotations.shape[1]):
            numpyro.sample("y", dist.Categorical(zeta[c]), obs=annotations)


@of("NumPyro annotation", POSITIONS, ANNOTATIONS)
def annotation_dawid_skene(positions, annotations):
    with numpyro.plate("annotator", J, dim=-2), numpyro.plate("class", K):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones(K)))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("item", len(annotations), dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with numpyro.plate("position", annotations.shape[1]):
            numpyro.sample("y", dist.Categorical(Vindex(beta)[positions, c, :]), obs=annotations)


@of("NumPyro annotation", POSITIONS, ANNOTATIONS[:2])
def annotation_mace(positions, annotations):
    with numpyro.plate("annotator", J):
        epsilon = numpyro.sample("epsilon", dist.Dirichlet(jnp.full(K, 10.0)))
        theta = numpyro.sample("theta", dist.Beta(0.5, 0.5))
    with numpyro.plate("item", len(annotations), dim=-2):
        c = numpyro.sample("c", dist.DiscreteUniform(0, K - 1), infer={"enumerate": "parallel"})
        with numpyro.plate("position", annotations.shape[1]):
            s = numpyro.sample(
                "s", dist.Bernoulli(1 - theta[positions]), infer={"enumerate": "parallel"}
            )
            probs = jnp.where(s[..., None] == 0, nn.one_hot(c, K), epsilon[positions])
            numpyro.sample("y", dist.Categorical(probs), obs=annotations)


@of("NumPyro annotation", POSITIONS, ANNOTATIONS)
def annotation_hierarchical(positions, annotations):
    with numpyro.plate("class", K):
        zeta = numpyro.sample("zeta", dist.Normal(0, 1).expand([K - 1]).to_event(1))
        omega = numpyro.sample("Omega", dist.HalfNormal(1).expand([K - 1]).to_event(1))
    with numpyro.plate("annotator", J, dim=-2), numpyro.plate("class", K):
        with handlers.reparam(config={"beta": numpyro.infer.reparam.LocScaleReparam(0)}):
            beta = numpyro.sample("beta", dist.Normal(zeta, omega).to_event(1))
        beta = jnp.pad(beta, [(0, 0)] * (jnp.ndim(beta) - 1) + [(0, 1)])
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("item", len(annotations), dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with numpyro.plate("position", annotations.shape[1]):
            logits = Vindex(beta)[positions, c, :]
            numpyro.sample("y", dist.Categorical(logits=logits), obs=annotations)


@of("NumPyro annotation", ANNOTATIONS, em="continuous|random effect")
def annotation_item_difficulty(annotations):
    with numpyro.plate("class", K):
        eta = numpyro.sample("eta", dist.Normal(0, 1).expand([K - 1]).to_event(1))
        chi = numpyro.sample("Chi", dist.HalfNormal(1).expand([K - 1]).to_event(1))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("item", len(annotations), dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with handlers.reparam(config={"theta": numpyro.infer.reparam.LocScaleReparam(0)}):
            theta = numpyro.sample("theta", dist.Normal(eta[c], chi[c]).to_event(1))
            theta = jnp.pad(theta, [(0, 0)] * (jnp.ndim(theta) - 1) + [(0, 1)])
        with numpyro.plate("position", annotations.shape[-1]):
            numpyro.sample("y", dist.Categorical(logits=theta), obs=annotations)


@of("NumPyro annotation", POSITIONS, ANNOTATIONS, em="continuous|random effect")
def annotation_logistic_random_effects(positions, annotations):
    with numpyro.plate("class", K):
        zeta = numpyro.sample("zeta", dist.Normal(0, 1).expand([K - 1]).to_event(1))
        omega = numpyro.sample("Omega", dist.HalfNormal(1).expand([K - 1]).to_event(1))
        chi = numpyro.sample("Chi", dist.HalfNormal(1).expand([K - 1]).to_event(1))
    apart = handlers.reparam(config={"beta": numpyro.infer.reparam.LocScaleReparam(0)})
    with numpyro.plate("annotator", J, dim=-2), numpyro.plate("class", K), apart:
        beta = numpyro.sample("beta", dist.Normal(zeta, omega).to_event(1))
        beta = jnp.pad(beta, [(0, 0)] * (jnp.ndim(beta) - 1) + [(0, 1)])
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("item", len(annotations), dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with handlers.reparam(config={"theta": numpyro.infer.reparam.LocScaleReparam(0)}):
            theta = numpyro.sample("theta", dist.Normal(0, chi[c]).to_event(1))
            theta = jnp.pad(theta, [(0, 0)] * (jnp.ndim(theta) - 1) + [(0, 1)])
        with numpyro.plate("position", annotations.shape[1]):
            logits = Vindex(beta)[positions, c, :] - theta
            numpyro.sample("y", dist.Categorical(logits=logits), obs=annotations)


# --- NumPyro: hidden Markov models of music (`hmm_enum.py`)

TUNES = bits(2, 3, 2)  # sequences × steps × tones
LENGTHS = np.array([3, 2])


def _music(hidden=2):
    x = numpyro.sample("probs_x", dist.Dirichlet(0.9 * jnp.eye(hidden) + 0.1).to_event(1))
    y = numpyro.sample("probs_y", dist.Beta(0.1, 0.9).expand([hidden, 2]).to_event(2))
    return x, y


@of("NumPyro hmm_enum", TUNES, LENGTHS)
def hmm_1(sequences, lengths):
    probs_x, probs_y = _music()

    def step(carry, y):
        x_prev, t = carry
        with (
            numpyro.plate("sequences", sequences.shape[0], dim=-2),
            handlers.mask(mask=(t < lengths).reshape(-1, 1)),
        ):
            x = numpyro.sample("x", dist.Categorical(probs_x[x_prev]))
            with numpyro.plate("tones", 2, dim=-1):
                numpyro.sample("y", dist.Bernoulli(probs_y[x.squeeze(-1)]), obs=y)
        return (x, t + 1), None

    x_init = jnp.zeros((sequences.shape[0], 1), int)
    scan(step, (x_init, 0), jnp.swapaxes(sequences, 0, 1))


@of("NumPyro hmm_enum", TUNES, LENGTHS)
def hmm_2(sequences, lengths):
    probs_x, _ = _music()
    probs_y = numpyro.sample("probs_y2", dist.Beta(0.1, 0.9).expand([2, 2, 2]).to_event(3))

    def step(carry, y):
        x_prev, y_prev, t = carry
        with (
            numpyro.plate("sequences", sequences.shape[0], dim=-2),
            handlers.mask(mask=(t < lengths).reshape(-1, 1)),
        ):
            x = numpyro.sample("x", dist.Categorical(probs_x[x_prev]))
            with numpyro.plate("tones", 2, dim=-1) as tones:
                numpyro.sample("y", dist.Bernoulli(probs_y[x, y_prev, tones]), obs=y)
        return (x, y, t + 1), None

    x_init = jnp.zeros((sequences.shape[0], 1), int)
    y_init = jnp.zeros((sequences.shape[0], 2), int)
    scan(step, (x_init, y_init, 0), jnp.swapaxes(sequences, 0, 1))


@of("NumPyro hmm_enum", TUNES, LENGTHS)
def hmm_3(sequences, lengths):
    probs_w = numpyro.sample("probs_w", sure().expand([2]).to_event(1))
    probs_x = numpyro.sample("probs_x", sure().expand([2]).to_event(1))
    probs_y = numpyro.sample("probs_y", dist.Beta(0.1, 0.9).expand([2, 2, 2]).to_event(3))

    def step(carry, y):
        w_prev, x_prev, t = carry
        with (
            numpyro.plate("sequences", sequences.shape[0], dim=-2),
            handlers.mask(mask=(t < lengths).reshape(-1, 1)),
        ):
            w = numpyro.sample("w", dist.Categorical(probs_w[w_prev]))
            x = numpyro.sample("x", dist.Categorical(probs_x[x_prev]))
            with numpyro.plate("tones", 2, dim=-1) as tones:
                numpyro.sample("y", dist.Bernoulli(probs_y[w, x, tones]), obs=y)
        return (w, x, t + 1), None

    init = jnp.zeros((sequences.shape[0], 1), int)
    scan(step, (init, init, 0), jnp.swapaxes(sequences, 0, 1))


@of("NumPyro hmm_enum", TUNES, LENGTHS)
def hmm_4(sequences, lengths):
    probs_w = numpyro.sample("probs_w", sure().expand([2]).to_event(1))
    probs_x = numpyro.sample("probs_x", sure().expand([2, 2]).to_event(2))
    probs_y = numpyro.sample("probs_y", dist.Beta(0.1, 0.9).expand([2, 2, 2]).to_event(3))

    def step(carry, y):
        w_prev, x_prev, t = carry
        with (
            numpyro.plate("sequences", sequences.shape[0], dim=-2),
            handlers.mask(mask=(t < lengths).reshape(-1, 1)),
        ):
            w = numpyro.sample("w", dist.Categorical(probs_w[w_prev]))
            x = numpyro.sample("x", dist.Categorical(Vindex(probs_x)[w, x_prev]))
            with numpyro.plate("tones", 2, dim=-1) as tones:
                numpyro.sample("y", dist.Bernoulli(probs_y[w, x, tones]), obs=y)
        return (w, x, t + 1), None

    init = jnp.zeros((sequences.shape[0], 1), int)
    scan(step, (init, init, 0), jnp.swapaxes(sequences, 0, 1))


@of("NumPyro hmm_enum", TUNES, LENGTHS)
def hmm_6(sequences, lengths):
    """Of order two."""
    probs_x = numpyro.sample("probs_x", sure().expand([2, 2]).to_event(2))
    probs_y = numpyro.sample("probs_y", dist.Beta(0.1, 0.9).expand([2, 2]).to_event(2))

    def step(carry, y):
        x_prev, x_curr, t = carry
        with (
            numpyro.plate("sequences", sequences.shape[0], dim=-2),
            handlers.mask(mask=(t < lengths).reshape(-1, 1)),
        ):
            probs_x_t = Vindex(probs_x)[x_prev, x_curr]
            x_prev, x_curr = x_curr, numpyro.sample("x", dist.Categorical(probs_x_t))
            with numpyro.plate("tones", 2, dim=-1):
                numpyro.sample("y", dist.Bernoulli(probs_y[x_curr.squeeze(-1)]), obs=y)
        return (x_prev, x_curr, t + 1), None

    x_prev = jnp.zeros((sequences.shape[0], 1), int)
    x_curr = jnp.zeros((sequences.shape[0], 1), int)
    scan(step, (x_prev, x_curr, 0), jnp.swapaxes(sequences, 0, 1), history=2)


# --- NumPyro: capture and recapture, Cormack–Jolly–Seber in five ways


def _recapture(history, survival, p):
    """The gallery's body: survival of each step, given what it draws."""
    n, steps = history.shape

    def step(carry, inputs):
        first, z = carry
        seen, t = inputs
        with numpyro.plate("animals", n, dim=-1), handlers.mask(mask=first):
            mean = survival(t) * z + (1 - first)
            z = numpyro.sample("z", dist.Bernoulli(jnp.clip(mean, 0.0, 1.0)))
            numpyro.sample("y", dist.Bernoulli(p(t) * z), obs=seen)
        return (first | seen.astype(bool), z), None

    z, first = jnp.ones(n, int), jnp.asarray(history[:, 0], bool)
    scan(step, (first, z), (history[:, 1:].T, np.arange(steps - 1)))


@of("NumPyro capture–recapture", CAPTURES)
def recapture_1(history):
    phi = numpyro.sample("phi", dist.Uniform(0, 1))
    rho = numpyro.sample("rho", dist.Uniform(0, 1))
    _recapture(history, lambda _: phi, lambda _: rho)


@of("NumPyro capture–recapture", CAPTURES)
def recapture_2(history):
    """Survival by step."""
    rho = numpyro.sample("rho", dist.Uniform(0, 1))
    with numpyro.plate("steps", history.shape[1] - 1):
        phi = numpyro.sample("phi", dist.Uniform(0, 1))
    _recapture(history, lambda t: phi[t], lambda _: rho)


@of("NumPyro capture–recapture", CAPTURES, em="random effect")
def recapture_3(history):
    """Survival by step, about a mean."""
    mean = numpyro.sample("mean", dist.Uniform(0, 1))
    sigma = numpyro.sample("sigma", dist.Uniform(0, 2))
    rho = numpyro.sample("rho", dist.Uniform(0, 1))
    with numpyro.plate("animals", len(history)):
        logit = numpyro.sample("logit", dist.Normal(jnp.log(mean / (1 - mean)), sigma))
    _recapture(history, lambda _: nn.sigmoid(logit), lambda _: rho)


@of("NumPyro capture–recapture", CAPTURES)
def recapture_4(history):
    """Survival by group."""
    rho = numpyro.sample("rho", dist.Uniform(0, 1))
    phi = numpyro.sample("phi", dist.Uniform(0, 1).expand([2]).to_event(1))
    _recapture(history, lambda _: phi[np.array([0, 1, 0, 1])], lambda _: rho)


@of("NumPyro capture–recapture", CAPTURES)
def recapture_5(history):
    """Also recapture by step."""
    steps = history.shape[1] - 1
    phi = numpyro.sample("phi", dist.Uniform(0, 1).expand([2]).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([steps]).to_event(1))
    _recapture(history, lambda _: phi[np.array([0, 1, 0, 1])], lambda t: nn.sigmoid(beta[t]))


RECAPTURED = (
    np.array([1, 0, 1, 0, 0, 1, 0]),
    np.array([0, 0, 0, 1, 1, 2, 2]),
    np.array([1, 1, 1, 0, 0, 1, 1]),
)  # fmt: skip


@of("captures in long form", *RECAPTURED)
def captures_long(seen, animal, effort):
    """Resident or passing through; a line for each day of each animal."""
    resident = numpyro.sample("share", dist.Beta(2, 2))
    p = numpyro.sample("p", dist.Beta(2, 2).expand([2, 2]).to_event(2))
    with numpyro.plate("animals", 3):
        kind = numpyro.sample("kind", dist.Bernoulli(resident))
    with numpyro.plate("days", len(seen)):
        numpyro.sample("seen", dist.Bernoulli(p[kind[animal], effort]), obs=seen)


# --- NumPyro: others


@of("NumPyro toy mixture", RNG.normal(size=(4, 2)), em="outside the plate")
def toy_mixture(data):
    """Which of the columns are swapped is one bit of all rows."""
    locs = numpyro.sample("locs", dist.Normal(0, 2).expand([2]).to_event(1))
    swapped = numpyro.sample("swapped", dist.Bernoulli(0.3))
    with numpyro.plate("data", len(data)):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.4, 0.6])))
        mean = locs[(z + swapped) % 2]
        numpyro.sample(
            "obs", dist.Normal(mean[..., None], 1.0).expand([*mean.shape, 2]).to_event(1), obs=data
        )


B_SEEN = np.array([True, False, True, False])


@of("NumPyro discrete imputation", bits(4), bits(4), B_SEEN, bits(4))
def discrete_imputation(a, b, b_seen, c):
    """A column that is a cause and has holes: `obs_mask`."""
    pa = numpyro.sample("pa", dist.Beta(1, 1))
    pb = numpyro.sample("pb", dist.Beta(1, 1).expand([2]).to_event(1))
    pc = numpyro.sample("pc", dist.Beta(1, 1).expand([2, 2]).to_event(2))
    with numpyro.plate("data", len(a)):
        a = numpyro.sample("a", dist.Bernoulli(pa), obs=a)
        b = numpyro.sample("b", dist.Bernoulli(pb[a]), obs=b, obs_mask=b_seen)
        numpyro.sample("c", dist.Bernoulli(pc[a, b.astype(int)]), obs=c)


# --- Pyro


@of("Pyro mixed HMM", RNG.normal(size=(2, 1, 3)))
def mixed_hmm(steps):
    """Groups × individuals × steps; each has a discrete random effect on how it moves."""
    share = numpyro.sample("share", sure().expand([2]).to_event(1))
    move = numpyro.sample("move", dist.Normal(0, 1).expand([2, 2]).to_event(2))
    loc = numpyro.sample("loc", dist.Normal(0, 1).expand([2]).to_event(1))
    groups, individuals, length = steps.shape
    with numpyro.plate("groups", groups, dim=-2):
        e_g = numpyro.sample("e_g", dist.Categorical(share[0]))
        with numpyro.plate("individuals", individuals, dim=-1):
            e_i = numpyro.sample("e_i", dist.Categorical(share[1]))
            z = 0
            for t in markov(range(length)):
                gamma = move[0, e_g] + move[1, e_i] + 0.7 * z
                z = numpyro.sample(f"z_{t}", dist.Bernoulli(logits=gamma))
                numpyro.sample(f"y_{t}", dist.Normal(loc[z], 1.0), obs=steps[..., t])


@of("Pyro tracking", RNG.normal(size=(3, 2)))
def tracking(observations):
    """Which of two objects, or noise, each detection of a step comes from."""
    start = numpyro.sample("start", dist.Normal(0, 1).expand([2]).to_event(1))
    speed = numpyro.sample("speed", dist.Normal(0, 1).expand([2]).to_event(1))
    spurious = numpyro.sample("spurious", dist.Beta(1, 4))
    steps, detections = observations.shape
    place = start + speed * np.arange(steps)[:, None]
    own = (1 - spurious) / 2
    with numpyro.plate("time", steps, dim=-2) as t, numpyro.plate("detections", detections, dim=-1):
        assign = numpyro.sample("assign", dist.Categorical(jnp.array([own, own, spurious])))
        real = assign < 2
        mean = jnp.where(real, place[t[:, None], jnp.clip(assign, 0, 1)], 0.0)
        numpyro.sample("seen", dist.Normal(mean, jnp.where(real, 0.5, 3.0)), obs=observations)


# --- PyMC


@of(
    "PyMC marginalised coal mining", RNG.poisson(3.0, 5), np.array([1, 1, 0, 1, 1], bool),
    em="outside the plate",
)  # fmt: skip
def coal_mining(disasters, seen):
    early = numpyro.sample("early_rate", dist.Exponential(1.0))
    late = numpyro.sample("late_rate", dist.Exponential(1.0))
    switch = numpyro.sample("switchpoint", dist.DiscreteUniform(0, len(disasters) - 1))
    years = np.arange(len(disasters))
    with numpyro.plate("years", len(disasters)), handlers.mask(mask=seen):
        rate = jnp.where(switch >= years, early, late)
        numpyro.sample("disasters", dist.Poisson(rate), obs=disasters)


Q = np.array([[1, 0], [0, 1], [1, 1]])


@of("PyMC DINA", bits(4, 3), Q)
def dina(y, q):
    guess = numpyro.sample("guess", dist.Beta(1, 4).expand([3]).to_event(1))
    slip = numpyro.sample("slip", dist.Beta(1, 4).expand([3]).to_event(1))
    with numpyro.plate("students", len(y)):
        alpha = numpyro.sample("alpha", dist.Bernoulli(jnp.full(2, 0.6)).to_event(1))
        eta = jnp.all(alpha[..., None, :] >= q, -1)
        numpyro.sample("y", dist.Bernoulli(jnp.where(eta, 1 - slip, guess)).to_event(1), obs=y)


ANSWERS = bits(7), np.array([0, 0, 1, 1, 1, 2, 2]), np.array([0, 2, 0, 1, 2, 1, 2])


@of("PyMC DINA, long format", *ANSWERS, Q)
def dina_long(y, student, item, q):
    guess = numpyro.sample("guess", dist.Beta(1, 4).expand([3]).to_event(1))
    slip = numpyro.sample("slip", dist.Beta(1, 4).expand([3]).to_event(1))
    with numpyro.plate("students", 3):
        alpha = numpyro.sample("alpha", dist.Bernoulli(jnp.full(2, 0.6)).to_event(1))
    with numpyro.plate("answers", len(y)):
        eta = jnp.all(alpha[student] >= q[item], -1)
        numpyro.sample("y", dist.Bernoulli(jnp.where(eta, 1 - slip[item], guess[item])), obs=y)


@of("PyMC robust regression", RNG.normal(size=5), RNG.normal(size=5))
def robust_regression(x, y):
    a, b = (numpyro.sample(name, dist.Normal(0, 1)) for name in "ab")
    spread = numpyro.sample("spread", dist.HalfNormal(3.0))
    share = numpyro.sample("share", dist.Uniform(0, 0.5))
    with numpyro.plate("data", len(y)):
        outlier = numpyro.sample("outlier", dist.Bernoulli(share))
        scale = jnp.where(outlier == 1, 1.0 + spread, 1.0)
        numpyro.sample("y", dist.Normal(a + b * x, scale), obs=y)


# --- BUGS


@of("BUGS Biopsies", np.array([[2, 0, 1, 0], [0, 3, 0, 0], [1, 1, 1, 0], [3, 0, 0, 0]]))
def biopsies(counts):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(4)))
    rows = [jnp.array([1.0, 0.0, 0.0, 0.0])]
    for k in (2, 3, 4):
        row = numpyro.sample(f"error_{k}", dist.Dirichlet(jnp.ones(k)))
        rows.append(jnp.concatenate([row, jnp.zeros(4 - k)]))
    error = jnp.stack(rows)
    with numpyro.plate("biopsies", len(counts)):
        true = numpyro.sample("true", dist.Categorical(p))
        numpyro.sample("counts", dist.Multinomial(counts.sum(1), error[true]), obs=counts)


EYES = np.array([529.0, 533.1, 536.4, 540.8, 548.7, 551.2])


@of("BUGS Eyes", EYES)
def eyes(y):
    p = numpyro.sample("P", dist.Dirichlet(jnp.ones(2)))
    first = numpyro.sample("lambda_1", dist.Normal(535, 10))
    theta = numpyro.sample("theta", dist.Uniform(0, 1000))
    tau = numpyro.sample("tau", dist.Gamma(1.0, 10.0))
    means = jnp.array([first, first + theta])
    with numpyro.plate("eyes", len(y)):
        t = numpyro.sample("T", dist.Categorical(p))
        numpyro.sample("y", dist.Normal(means[t], tau**-0.5), obs=y)


HEARTS_BEFORE = np.array([6, 9, 17, 22, 7, 5, 5, 14, 9, 7, 9, 51])
HEARTS_AFTER = np.array([5, 2, 0, 0, 2, 1, 0, 0, 0, 0, 13, 0])


@of("BUGS Hearts", HEARTS_BEFORE, HEARTS_AFTER)
def hearts(before, after):
    alpha = numpyro.sample("alpha", dist.Normal(0, 100))
    delta = numpyro.sample("delta", dist.Normal(0, 100))
    with numpyro.plate("patients", len(after)):
        cured = numpyro.sample("cured", dist.Bernoulli(logits=delta))
        rate = jnp.where(cured == 1, 0.0, nn.sigmoid(alpha))
        numpyro.sample("after", dist.Binomial(before + after, rate), obs=after)


STAGNANT_X = np.array([
    -1.39, -1.39, -1.08, -1.08, -0.94, -0.8, -0.63, -0.63, -0.25, -0.25, -0.12, -0.12, 0.01, 0.11,
    0.11, 0.11, 0.25, 0.25, 0.34, 0.34, 0.44, 0.59, 0.7, 0.7, 0.85, 0.85, 0.99, 0.99, 1.19,
])  # fmt: skip
STAGNANT_Y = np.array([
    1.12, 1.12, 0.99, 1.03, 0.92, 0.9, 0.81, 0.83, 0.65, 0.67, 0.6, 0.59, 0.51, 0.44, 0.43, 0.43,
    0.33, 0.3, 0.25, 0.24, 0.13, -0.01, -0.13, -0.14, -0.3, -0.33, -0.46, -0.43, -0.65,
])  # fmt: skip


@of("BUGS Stagnant", STAGNANT_X, STAGNANT_Y, em="outside the plate")
def stagnant(x, y):
    """The interval of the change is a category, its place in it uniform: BUGS has one uniform."""
    ends = np.unique(x[4:26])
    gaps = np.diff(ends)
    alpha = numpyro.sample("alpha", dist.Normal(0, 1000))
    beta = numpyro.sample("beta", dist.Normal(0, 1000).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    within = numpyro.sample("within", dist.Uniform(0, 1))
    interval = numpyro.sample("interval", dist.Categorical(probs=gaps / gaps.sum()))
    change = jnp.asarray(ends[:-1])[interval] + within * jnp.asarray(gaps)[interval]
    with numpyro.plate("data", len(y)):
        slope = jnp.where(x >= change, beta[1], beta[0])
        numpyro.sample("y", dist.Normal(alpha + slope * (x - change), sigma), obs=y)


@of("BUGS Asia", 1, 1, em="no parameters to learn")
def asia(visit, dyspnoea):
    smoking = numpyro.sample("smoking", dist.Bernoulli(0.5))
    tuberculosis = numpyro.sample("tuberculosis", dist.Bernoulli(0.05 if visit else 0.01))
    cancer = numpyro.sample("cancer", dist.Bernoulli(jnp.where(smoking == 1, 0.1, 0.01)))
    bronchitis = numpyro.sample("bronchitis", dist.Bernoulli(jnp.where(smoking == 1, 0.6, 0.3)))
    either = jnp.maximum(tuberculosis, cancer)
    numpyro.sample("xray", dist.Bernoulli(jnp.where(either == 1, 0.98, 0.05)))
    short = jnp.array([[0.1, 0.8], [0.7, 0.9]])[either, bronchitis]
    numpyro.sample("dyspnoea", dist.Bernoulli(short), obs=dyspnoea)


# --- posteriordb


@of("posteriordb", RNG.normal(size=6))
def hmm_example(y):
    theta = numpyro.sample("theta", sure().expand([2]).to_event(1))
    mu = numpyro.sample("mu", dist.Normal(jnp.array([3.0, 10.0]), 1.0).to_event(1))

    def step(z, seen):
        z = numpyro.sample("z", dist.Categorical(theta[z]))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=seen)
        return z, None

    z = numpyro.sample("z_1", dist.Categorical(jnp.ones(2) / 2))
    numpyro.sample("y_1", dist.Normal(mu[z], 1.0), obs=y[0])
    scan(step, z, y[1:])


@of("posteriordb", RNG.normal(size=6))
def low_dim_gauss_mix(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5, 5))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(1 - theta))
        numpyro.sample("y", dist.Normal(mu[z], sigma[z]), obs=y)


def _closed(y, probability):
    omega = numpyro.sample("omega", dist.Uniform(0, 1))
    with numpyro.plate("animals", len(y)):
        here = numpyro.sample("here", dist.Bernoulli(omega))
        seen = dist.Bernoulli(here[..., None] * jnp.broadcast_to(probability, y.shape))
        numpyro.sample("seen", seen.to_event(1), obs=y)


CLOSED = np.vstack([bits(3, 3), np.zeros((2, 3), int)])


@of("posteriordb", CLOSED)
def m0(y):
    _closed(y, numpyro.sample("p", dist.Uniform(0, 1)))


@of("posteriordb", CLOSED)
def mb(y):
    p, c = (numpyro.sample(x, dist.Uniform(0, 1)) for x in "pc")
    before = np.cumsum(y, 1) - y > 0
    _closed(y, jnp.where(before, c, p))


@of("posteriordb", CLOSED)
def mt(y):
    _closed(y, numpyro.sample("p", dist.Uniform(0, 1).expand([y.shape[1]]).to_event(1)))


@of("posteriordb", RNG.exponential(size=5), RNG.exponential(size=5))
def hmm_drive_0(u, v):
    theta = numpyro.sample("theta", sure().expand([2]).to_event(1))
    phi = numpyro.sample("phi", dist.HalfNormal(3).expand([2]).to_event(1))
    rate = numpyro.sample("lambda", dist.HalfNormal(3).expand([2]).to_event(1))

    def step(z, seen):
        z = numpyro.sample("z", dist.Categorical(theta[z]))
        numpyro.sample("u", dist.Exponential(phi[z]), obs=seen[0])
        numpyro.sample("v", dist.Exponential(rate[z]), obs=seen[1])
        return z, None

    z = numpyro.sample("z_1", dist.Categorical(jnp.ones(2) / 2))
    numpyro.sample("u_1", dist.Exponential(phi[z]), obs=u[0])
    numpyro.sample("v_1", dist.Exponential(rate[z]), obs=v[0])
    scan(step, z, (u[1:], v[1:]))


@of("posteriordb", RNG.normal(size=5), RNG.normal(size=(5, 2)))
def iohmm_reg(y, u):
    """The state does not depend on the one before, but on inputs."""
    start = numpyro.sample("pi1", sure())
    w = numpyro.sample("w", dist.Normal(0, 5).expand([2, 2]).to_event(2))
    b = numpyro.sample("b", dist.Normal(0, 5).expand([2, 2]).to_event(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(3).expand([2]).to_event(1))
    logits = jnp.concatenate([jnp.log(start)[None], u[1:] @ w.T])
    with numpyro.plate("time", len(y)):
        z = numpyro.sample("z", dist.Categorical(logits=logits))
        mean = (b[z] * u).sum(-1)
        numpyro.sample("y", dist.Normal(mean, sigma[z]), obs=y)


# --- networks


@of("Dice burglary alarm", 1, em="no parameters to learn")
def burglary(called):
    earthquake = numpyro.sample("earthquake", dist.Bernoulli(0.0001))
    burglary = numpyro.sample("burglary", dist.Bernoulli(0.001))
    alarm = jnp.maximum(earthquake, burglary)
    working = numpyro.sample("working", dist.Bernoulli(jnp.where(earthquake == 1, 0.7, 0.99)))
    wakes = jnp.where(alarm == 1, jnp.where(earthquake == 1, 0.8, 0.6), 0.2)
    wakes = numpyro.sample("wakes", dist.Bernoulli(wakes))
    numpyro.sample("called", dist.Delta(1.0 * wakes * working), obs=1.0 * called)


@of("R2 wet grass", 1, em="no parameters to learn")
def wet_grass(wet):
    cloudy = numpyro.sample("cloudy", dist.Bernoulli(0.5))
    rain = numpyro.sample("rain", dist.Bernoulli(jnp.where(cloudy == 1, 0.8, 0.2)))
    sprinkler = numpyro.sample("sprinkler", dist.Bernoulli(jnp.where(cloudy == 1, 0.1, 0.5)))
    dry = (1 - 0.9 * rain) * (1 - 0.9 * sprinkler)
    numpyro.sample("wet", dist.Bernoulli(1 - dry), obs=wet)


# --- by index

WORDS = RNG.integers(0, 3, 9), np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])


@of("mixture of unigrams, documents × words by index", *WORDS)
def unigrams(word, doc):
    theta = numpyro.sample("theta", sure())
    phi = numpyro.sample("phi", dist.Dirichlet(jnp.ones(3)).expand([2]).to_event(1))
    with numpyro.plate("documents", 3):
        z = numpyro.sample("z", dist.Categorical(theta))
    with numpyro.plate("words", len(word)):
        numpyro.sample("w", dist.Categorical(phi[z[doc]]), obs=word)


@of("ragged groups", RNG.normal(size=6), np.array([0, 0, 0, 1, 2, 2]))
def ragged_groups(y, group):
    """A bit of each group and one of each row, by index."""
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("groups", 3):
        kind = numpyro.sample("kind", dist.Bernoulli(0.4))
    with numpyro.plate("rows", len(y)):
        own = numpyro.sample("own", dist.Bernoulli(0.2 + 0.5 * kind[group]))
        numpyro.sample("y", dist.Normal(effect[kind[group]] + own, 1.0), obs=y)


@of(
    "Ising model on a list of edges", RNG.normal(size=5), np.array([[0, 1], [1, 2], [2, 3], [1, 4]])
)
def ising_edges(y, edges):
    coupling = numpyro.sample("coupling", dist.Normal(0, 1))
    with numpyro.plate("spins", len(y)):
        spin = numpyro.sample("spin", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(spin, 1.0), obs=y)
    with numpyro.plate("edges", len(edges)):
        numpyro.factor("pairs", coupling * (spin[edges[:, 0]] == spin[edges[:, 1]]))


@of("latents of other rows of the same plate", RNG.normal(size=5), np.array([0, 0, 1, 1, 3]))
def parents(y, parent):
    loc = numpyro.sample("loc", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
        mean = loc[z] + 0.5 * loc[z[..., parent]]
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@of("stochastic block model", bits(6), np.array([[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]))
def block_model(linked, pair):
    share = numpyro.sample("share", sure())
    inside, between = (numpyro.sample(x, dist.Beta(1, 1)) for x in ("inside", "between"))
    with numpyro.plate("nodes", 4):
        block = numpyro.sample("block", dist.Categorical(share))
    with numpyro.plate("pairs", len(linked)):
        same = block[pair[:, 0]] == block[pair[:, 1]]
        numpyro.sample("linked", dist.Bernoulli(jnp.where(same, inside, between)), obs=linked)


@of("spike and slab", RNG.normal(size=(5, 3)), RNG.normal(size=5), em="continuous")
def spike_and_slab(design, y):
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("columns", design.shape[1]):
        on = numpyro.sample("on", dist.Bernoulli(0.3))
        size = numpyro.sample("size", dist.Normal(0, 2))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(design @ (on * size), noise), obs=y)


@of("a response missing for some rows", RNG.normal(size=5), np.array([1, 0, 1, 1, 0], bool))
def missing_response(y, seen):
    mu = numpyro.sample("mu", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y, obs_mask=seen)


def with_counts(entry: Program) -> Callable:
    """The program, its counts listed where there are any."""
    return up_to(entry.program, entry.most) if entry.most else entry.program

"""Latents that are shared, nested, in several plates or written as a loop: against all states."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from every_state import check, density, every
from jax.scipy.special import logsumexp
from numpyro import handlers
from numpyro.infer import log_likelihood
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density
from numpyro.ops.indexing import Vindex
from tools import near

from inference import ProgramError, marginal
from inference.reading.survey import find_graph

RNG = np.random.default_rng(5)


def families(height):
    """A bit of each group, one of each member, and one that all share."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    shared = numpyro.sample("shared", dist.Bernoulli(0.4))
    with numpyro.plate("groups", 2, dim=-2):
        group = numpyro.sample("group", dist.Categorical(jnp.array([[0.2, 0.3, 0.5]])))
        with numpyro.plate("members", 3, dim=-1):
            member = numpyro.sample("member", dist.Bernoulli(0.2 + 0.2 * group + 0.1 * shared))
            numpyro.sample("height", dist.Normal(level * member + 0.3 * group, 1.0), obs=height)


def test_nested_plates():
    height = jnp.asarray(RNG.normal(0.5, 1.0, (2, 3)))
    latents = {"shared": ((), 2), "group": ((2, 1), 3), "member": ((2, 3), 2)}
    check(families, (height,), {"level": jnp.array(1.3)}, latents, draws=2000)


def test_an_outer_plate_of_annotators():
    """Also with latents of a second, unrelated plate, which are summed for themselves."""

    def program(votes, noise):
        skill = numpyro.sample("skill", dist.Beta(2.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("items", 4, dim=-1):
            truth = numpyro.sample("truth", dist.Bernoulli(0.3))
        with numpyro.plate("annotators", 3, dim=-2), numpyro.plate("items", 4, dim=-1):
            right = jnp.where(truth == 1, skill[:, None], 1.0 - skill[:, None])
            numpyro.sample("votes", dist.Bernoulli(right), obs=votes)
        with numpyro.plate("sounds", 2, dim=-1):
            loud = numpyro.sample("loud", dist.Bernoulli(0.6))
            numpyro.sample("noise", dist.Normal(loud, 0.7), obs=noise)

    votes = jnp.asarray(RNG.integers(0, 2, (3, 4)))
    noise = jnp.array([0.2, 1.4])
    params = {"skill": jnp.array([0.8, 0.6, 0.9])}
    check(program, (votes, noise), params, {"truth": ((4,), 2), "loud": ((2,), 2)})
    graph = find_graph(program, (votes, noise), {})
    assert [component.name for component in graph.components] == ["votes", "noise"]


def dawid_skene(positions, annotations):
    """NumPyro's own example, as it stands."""
    num_annotators = int(np.max(positions)) + 1
    num_classes = int(np.max(annotations)) + 1
    with numpyro.plate("annotator", num_annotators, dim=-2), numpyro.plate("class", num_classes):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones(num_classes)))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(num_classes)))
    with numpyro.plate("item", annotations.shape[0], dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with numpyro.plate("position", annotations.shape[1]):
            odds = Vindex(beta)[positions, c, :]
            numpyro.sample("y", dist.Categorical(odds), obs=annotations)


def test_dawid_and_skene_as_numpyro_writes_it():
    """Its sizes are values of its arguments."""
    positions = np.array([0, 1, 2, 2])
    annotations = RNG.integers(0, 2, (5, 4))
    params = {"beta": jnp.asarray(RNG.dirichlet(np.ones(2), (3, 2))), "pi": jnp.array([0.35, 0.65])}
    check(dawid_skene, (positions, annotations), params, {"c": ((5, 1), 2)})


def spike_and_slab(design, response):
    """Indicators shared by all rows; a coefficient is wide or narrow as its indicator says."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    effects = []
    for i in range(design.shape[1]):
        on = numpyro.sample(f"on_{i}", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        effects.append(
            numpyro.sample(f"effect_{i}", dist.Normal(0.0, jnp.where(on == 1, 3.0, 0.1)))
        )
    with numpyro.plate("rows", len(response)):
        numpyro.sample("response", dist.Normal(design @ jnp.stack(effects), scale), obs=response)


def test_a_spike_and_a_slab_as_funsor_has_it():
    """Continuous sites that depend on the bits are sampled; value and gradient are NumPyro's."""
    from numpyro.contrib.funsor import enum
    from numpyro.contrib.funsor import log_density as enumerated

    design = jnp.asarray(RNG.normal(size=(6, 3)))
    response = jnp.asarray(RNG.normal(size=6))
    params = {"scale": jnp.array(0.8)} | {f"effect_{i}": jnp.array(0.2 * i) for i in range(3)}
    theirs = enum(spike_and_slab, first_available_dim=-2)

    def value_and_slope(function):
        return jax.jit(jax.value_and_grad(lambda p: function(p)[0]))(params)

    wanted = value_and_slope(lambda p: enumerated(theirs, (design, response), {}, p))
    summed = value_and_slope(
        lambda p: log_density(marginal(spike_and_slab), (design, response), {}, p)
    )
    near(summed[0], wanted[0])
    for site in params:
        near(summed[1][site], wanted[1][site])


def test_a_continuous_latent_stays_beside_a_discrete_one():
    """A trait whose mean hangs on a class that also acts on the answers themselves."""

    def program(answers):
        gap = numpyro.sample("gap", dist.Normal(0.0, 2.0))
        with numpyro.plate("data", len(answers)):
            kind = numpyro.sample("kind", dist.Categorical(jnp.array([0.5, 0.2, 0.3])))
            trait = numpyro.sample("trait", dist.Normal(gap * kind, 1.0))
            logits = trait[..., None] + jnp.array([0.5, -0.5]) * kind[..., None]
            numpyro.sample("answers", dist.Bernoulli(logits=logits).to_event(1), obs=answers)

    answers = jnp.asarray(RNG.integers(0, 2, (4, 2)))
    params = {"gap": jnp.array(0.7), "trait": jnp.asarray(RNG.normal(size=4))}
    check(program, (answers,), params, {"kind": ((4,), 3)})
    likelihood = lambda p: log_likelihood(marginal(program), p, answers, batch_ndims=0)  # noqa: E731
    assert jax.eval_shape(likelihood, params)["answers"].shape == (4,)

    apart = handlers.reparam(program, config={"trait": LocScaleReparam(0)})
    given = {"gap": params["gap"], "trait_decentered": params["trait"][:2]}
    logs = every(apart, (answers[:2],), given, {"kind": ((2,), 3)})[1]
    near(density(apart, (answers[:2],), given), logsumexp(logs))


def test_a_loop_is_a_chain_however_long():
    """Thirty bits of `markov`: as a product of matrices has it, with the gradient of funsor."""
    from numpyro.contrib.funsor import config_enumerate, enum, markov
    from numpyro.contrib.funsor import log_density as enumerated

    def program(seen):
        stay = numpyro.sample("stay", dist.Beta(2.0, 2.0))
        state = 0
        for t in markov(range(len(seen))):
            odds = jnp.where(state == 1, stay, 1.0 - stay)
            state = numpyro.sample(f"state_{t}", dist.Bernoulli(odds))
            numpyro.sample(f"seen_{t}", dist.Normal(state, 1.0), obs=seen[t])

    seen = RNG.normal(0.5, 1.0, 30)
    stay = 0.8
    weight = np.array([1.0, 0.0])
    total = np.log(6 * stay * (1 - stay))
    for y in seen:
        move = np.array([[stay, 1 - stay], [1 - stay, stay]])
        weight = weight @ move * np.exp(-0.5 * (y - np.arange(2)) ** 2) / np.sqrt(2 * np.pi)
        total += np.log(weight.sum())
        weight = weight / weight.sum()
    near(density(program, (jnp.asarray(seen),), {"stay": jnp.array(stay)}), total)
    few = (jnp.asarray(seen[:3]),)
    theirs = enum(config_enumerate(program), first_available_dim=-1)
    wanted = jax.jit(jax.grad(lambda x: enumerated(theirs, few, {}, {"stay": x})[0]))(stay)
    ours = lambda x: log_density(marginal(program), few, {}, {"stay": x})[0]  # noqa: E731
    near(jax.jit(jax.grad(ours))(stay), wanted)


def test_latents_of_a_plate_that_meet_outside_of_it():
    """Indicators in a plate of columns, and plates that cross: joint states of their cells."""

    def crossed(data):
        with numpyro.plate("rows", data.shape[0], dim=-2):
            row = numpyro.sample("row", dist.Bernoulli(0.4))
        with numpyro.plate("columns", data.shape[1], dim=-1):
            column = numpyro.sample("column", dist.Bernoulli(0.7))
        numpyro.sample("total", dist.Normal(row.sum(), 1.0), obs=1.5)
        with numpyro.plate("rows", data.shape[0], dim=-2), numpyro.plate("columns", data.shape[1]):
            numpyro.sample("data", dist.Normal(row + 0.5 * column, 1.0), obs=data)

    data = jnp.asarray(RNG.normal(size=(3, 4)))
    check(crossed, (data,), {}, {"row": ((3, 1), 2), "column": ((4,), 2)})
    words = r"a cell of 'total' reads 30 elements of \['row'\] at once.*\(treewidth 29\)"
    with pytest.raises(ProgramError, match=words):
        density(crossed, (jnp.zeros((30, 40)),), {})

    def slopes(design, response):
        with numpyro.plate("columns", design.shape[1]):
            on = numpyro.sample("on", dist.Bernoulli(0.3))
        with numpyro.plate("rows", len(response)):
            numpyro.sample("response", dist.Normal(design @ on, 1.0), obs=response)

    design = jnp.asarray(RNG.normal(size=(5, 3)))
    check(slopes, (design, design.sum(1)), {}, {"on": ((3,), 2)})


def test_what_has_no_short_sum_is_refused():
    def lattice(data):
        values = {}
        for i, j in np.ndindex(6, 6):
            values[i, j] = numpyro.sample(f"cell_{i}_{j}", dist.Categorical(jnp.ones(16) / 16))
            for other in ((i - 1, j), (i, j - 1)):
                if other in values:
                    name = f"pair_{i}_{j}_{other}"
                    numpyro.factor(name, 0.1 * (values[i, j] == values[other]))
        numpyro.sample("data", dist.Normal(values[0, 0], 1.0), obs=data)

    words = r"joins 7 of them \(treewidth 6\)"
    with pytest.raises(ProgramError, match=words), handlers.seed(rng_seed=0):
        marginal(lattice)(0.0)

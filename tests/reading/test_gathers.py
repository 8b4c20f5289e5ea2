"""Latents read through an index: `marginal`, `recover` and `EM` against sums by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from every_state import check, density
from jax import random
from numpyro.infer.util import log_density
from scipy import stats
from tools import near
from zoo_programs import ZOO, dawid_skene_long, ising_edges, parents

from inference import EM, ProgramError, QuadratureEM, TruncatedEM, marginal
from inference.reading.gathers import FEW

RNG = np.random.default_rng(3)


def rated(label, item, annotator, num_items):
    """Dawid and Skene's model, a line for each label."""
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(3)))
    confusion = numpyro.sample("confusion", dist.Dirichlet(jnp.ones(3)).expand([4, 3]).to_event(2))
    with numpyro.plate("items", num_items):
        z = numpyro.sample("z", dist.Categorical(pi))
    with numpyro.plate("labels", len(label)):
        numpyro.sample("y", dist.Categorical(confusion[annotator, z[item]]), obs=label)


def test_many_items_are_summed_one_by_one():
    """More than are changed one by one; some have no label."""
    num_items, num_labels = FEW + 16, 300
    item = RNG.integers(0, num_items - 2, num_labels)
    annotator, label = RNG.integers(0, 4, num_labels), RNG.integers(0, 3, num_labels)
    pi, confusion = RNG.dirichlet(np.ones(3)), RNG.dirichlet(np.ones(3), (4, 3))
    total = np.zeros(num_items)
    for i in range(num_items):
        mine = item == i
        given = confusion[annotator[mine], :, label[mine]].prod(0)
        total[i] = np.log((pi * given).sum())
    prior = stats.dirichlet.logpdf(pi / pi.sum(), np.ones(3)) + 12 * np.log(2.0)
    params = {"pi": jnp.asarray(pi), "confusion": jnp.asarray(confusion)}
    near(density(rated, (label, item, annotator, num_items), params), total.sum() + prior)


def test_rows_that_read_other_rows():
    """`z[parent]` in the plate of z itself: probabilities, best states and draws of all states."""
    entry = ZOO["parents"]
    params = {"loc": jnp.array([-1.0, 0.3, 1.2])}
    check(parents, entry.args, params, {"z": ((5,), 3)}, draws=500)


@pytest.mark.parametrize("reads", [lambda z, other: z[..., other], lambda z, other: z[other]])
@pytest.mark.parametrize("other", [np.array([1, 0, 3, 2, 4]), np.arange(5)])
def test_em_on_rows_that_read_other_rows(reads, other):
    """The loss is that of all states, whichever axis the index takes, and it falls."""
    y = np.array([-1.2, 0.4, 1.1, 0.3, -0.2])

    def program(y, other):
        loc = numpyro.sample("loc", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
            mean = loc[z] + 0.5 * loc[reads(z, other)]
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    loc, prior = np.array([-1.0, 0.3, 1.2]), np.array([0.2, 0.3, 0.5])
    total = 0.0
    for states in itertools.product(range(3), repeat=5):
        z = np.array(states)
        mean = loc[z] + 0.5 * loc[z[other]]
        total += prior[z].prod() * np.exp(stats.norm.logpdf(y, mean).sum())
    em = EM(program, search=None)
    result = em.run(random.key(0), 3, y, other, init_params={"loc": jnp.asarray(loc)})
    near(-result.losses[0], np.log(total))
    assert (np.diff(result.losses) < 0).all()


def test_methods_of_rows_refuse_rows_that_meet():
    def program(y, other):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("data", len(y)):
            x = numpyro.sample("x", dist.Normal(0.0, scale))
            numpyro.sample("y", dist.Normal(x[..., other], 1.0), obs=y)

    other = np.array([1, 0, 2])
    with pytest.raises(ProgramError, match=r"depends on latents \['x'\] of other rows"):
        QuadratureEM(program).run(random.key(0), 2, np.zeros(3), other)
    discrete = ZOO["parents"]
    with pytest.raises(ProgramError, match=r"EM\(model\) and NUTS"):
        TruncatedEM(discrete.program).run(random.key(0), 2, *discrete.args)


def test_an_index_without_a_value_is_refused_and_the_advice_runs():
    label, item, annotator = ZOO["dawid_skene_long"].args
    params = {
        "pi": jnp.ones(3) / 3,
        "confusion": jnp.asarray(RNG.dirichlet(np.ones(3), (3, 3))),
    }
    whole = lambda p, *data: log_density(marginal(dawid_skene_long), data, {}, p)[0]  # noqa: E731
    with pytest.raises(ProgramError, match=r"jax.jit\(lambda params: log_density"):
        jax.jit(whole)(params, label, item, annotator)
    advised = jax.jit(lambda p: whole(p, label, item, annotator))(params)
    data_alone = jax.jit(lambda p, label: whole(p, label, item, annotator))
    near(data_alone(params, label), advised)


def test_an_index_without_a_value_is_refused_where_rows_are_alike():
    """The groups that any row reads are asked for, not those that each does."""
    entry = ZOO["ragged_groups"]
    whole = lambda p, *data: log_density(marginal(entry.program), data, {}, p)[0]  # noqa: E731
    with pytest.raises(ProgramError, match="has no value yet"):
        jax.jit(whole)({"effect": jnp.zeros(2)}, *entry.args)


def test_em_climbs_the_evidence_of_latents_that_meet():
    """Spins on a list of edges: the loss is that of all states, and no step goes up."""
    y, edges = ZOO["ising_edges"].args
    start = {"coupling": jnp.array(0.3)}
    result = EM(ising_edges, search=None).run(random.key(0), 15, y, edges, init_params=start)

    def evidence(coupling):
        total = 0.0
        for spins in itertools.product((0, 1), repeat=len(y)):
            s = np.array(spins)
            pairs = (s[edges[:, 0]] == s[edges[:, 1]]).sum()
            total += 0.5 ** len(y) * np.exp(stats.norm.logpdf(y, s).sum() + coupling * pairs)
        return np.log(total)

    near(-result.losses[0], evidence(0.3))
    near(-result.losses[-1], evidence(float(result.params["coupling"])), 0.1)
    assert (np.diff(result.losses) <= 1e-4).all() and result.losses[-1] < result.losses[0]
    posterior = jax.jit(lambda p: EM(ising_edges).posterior(p, y, edges).probabilities["spin"])
    assert posterior(start).shape == (5, 2)

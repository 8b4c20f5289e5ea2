"""Programs are recognised by their form: copies under other names, and near misses.

A copy must take the same path and give the same numbers: in float64 to 1e-9 after sums and solves.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from tools import EXACT, close, in_double

from inference import EM, StepwiseEM, TruncatedEM
from inference.methods.discrete.updates import MixtureUpdate, closed_form
from inference.reading.anatomy import ProgramError, inspect
from inference.reading.arguments import rows_of
from inference.reading.reader import open_program
from inference.reading.recognition.papers import Form, recognise
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    combination_machine,
    noisy_or_network,
    real_combination_machine,
)
from ppl_models.distributions import CombinationCauses, NoisyOr

NUM_DATA, NUM_FEATURES = 40, 5
RNG = np.random.default_rng(0)
BITS = (RNG.random((NUM_DATA, NUM_FEATURES)) < [0.3, 0.6, 0.5, 0.4, 0.7]).astype(float)
REAL = RNG.normal(0.4, 1.2, (NUM_DATA, NUM_FEATURES))
ANSWERED = RNG.random(BITS.shape) < 0.8


def known(model, *args, **kwargs):
    anatomy = inspect(model, args, kwargs)
    return recognise(model, anatomy, rows_of(anatomy, args, kwargs))


# --- copies, as somebody might write them


def pictures(images, observed=None, *, units=3):
    """Binary sparse coding: images lie along the first axis of the dictionary."""
    width = images.shape[1]
    rate = numpyro.sample("rate", dist.Beta(1.0, 3.0))
    basis = numpyro.sample("basis", dist.Laplace(0.0, 2.0).expand((width, units)).to_event(2))
    spread = numpyro.sample("spread", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("images", len(images)):
        on = numpyro.sample("on", dist.Bernoulli(rate).expand((units,)).to_event(1))
        pixels = dist.Normal(on @ basis.T, spread)
        if observed is not None:
            pixels = pixels.mask(observed)
        numpyro.sample("pixels", pixels.to_event(1), obs=images)


def classes(answers, given=None, *, groups=3):
    """A mixture of Bernoulli products: latent classes."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.full(groups, 2.0)))
    rates = numpyro.sample(
        "rates", dist.Beta(1.5, 1.5).expand((answers.shape[1], groups)).to_event(2)
    )
    with numpyro.plate("people", len(answers)):
        member = numpyro.sample("member", dist.Categorical(share))
        items = dist.Bernoulli(jnp.asarray(rates).T[member])
        if given is not None:
            items = items.mask(given)
        numpyro.sample("items", items.to_event(1), obs=answers)


def blob(points):
    """The real machine of one unit: a bit says whether a point is from the second of two blobs."""
    shift = numpyro.sample("shift", dist.Normal(0.0, 2.0).expand((points.shape[1],)).to_event(1))
    level = numpyro.sample("level", dist.Normal(0.0, 9.0).expand((1,)).to_event(1))
    with numpyro.plate("points", len(points)):
        odds = level + 0.5 * shift @ shift
        second = numpyro.sample("second", dist.Bernoulli(logits=odds).to_event(1))
        numpyro.sample("place", dist.Normal(second * shift, 1.0).to_event(1), obs=points)


def machine(table, *, units=3):
    """A combination machine with its weights transposed."""
    size = (table.shape[1], units)
    offset = numpyro.sample("offset", dist.Normal(0.0, 50.0).expand((units,)).to_event(1))
    links = numpyro.sample("links", dist.Normal(0.0, 1.0).expand(size).to_event(2))
    with numpyro.plate("rows", len(table)):
        hidden = numpyro.sample("hidden", CombinationCauses(links.T, offset))
        seen = dist.Bernoulli(logits=2.0 * hidden @ links.T)
        numpyro.sample("table", seen.to_event(1), obs=table)


def symptoms(table, *, diseases=3):
    """A noisy-OR network of one layer, causes as columns of the weights."""
    rate = dist.Exponential(1.0)
    odds = numpyro.sample("prevalence", rate.expand((diseases,)).to_event(1))
    size = (table.shape[1], diseases)
    link = numpyro.sample("link", dist.Gamma(1.0, 1.5).expand(size).to_event(2))
    probability = numpyro.sample("background", rate.expand((table.shape[1],)).to_event(1))
    with numpyro.plate("patients", len(table)):
        ill = numpyro.sample("ill", NoisyOr(odds).to_event(1))
        numpyro.sample("shown", NoisyOr(ill @ link.T + probability).to_event(1), obs=table)


COPIES = {
    "sparse coding": (pictures, REAL, binary_sparse_coding, {"num_causes": 3}, Form.SPARSE_CODING),
    "mixture": (classes, BITS, bernoulli_mixture, {"num_components": 3}, Form.MIXTURE),
    "blob": (blob, REAL, real_combination_machine, {"num_causes": 1}, Form.REAL_MACHINE),
    "machine": (machine, BITS, combination_machine, {"num_causes": 3}, Form.MACHINE),
    "noisy-or": (symptoms, BITS, noisy_or_network, {"layers": (3,)}, Form.NOISY_OR),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_recognised_and_read(name):
    """Ours and the copy are of one form; to read and write parameters changes nothing."""
    copy, data, ours, sizes, form = COPIES[name]
    recognised, own = known(copy, data), known(ours, data, **sizes)
    assert recognised.form is own.form is form
    rng = np.random.default_rng(1)
    params = {site: jnp.asarray(rng.random(shape)) for site, shape in recognised.shapes.items()}
    values = recognised.read(params)
    assert {x: v.shape for x, v in values.items()} == own.shapes
    for site, value in recognised.write(values).items():
        np.testing.assert_array_equal(value, params[site])
    close(recognised.seen(copy, ((jnp.asarray(data),), {})).value, data, 1e-6)


@in_double
@pytest.mark.parametrize(
    ("name", "masked"), [("sparse coding", True), ("mixture", False), ("blob", False)]
)
def test_copies_take_the_closed_m_step(name, masked):
    """Three steps of EM from one start: the copy's parameters and losses are ours."""
    copy, data, ours, sizes, form = COPIES[name]
    args, kwargs = ((data, ANSWERED), {"mask": ANSWERED}) if masked else ((data,), {})
    reader, rows = open_program(copy, args, {})
    assert closed_form(reader, rows).form is form
    there, here = (
        recognise(reader.model, reader.anatomy, rows),
        known(ours, data, **sizes, **kwargs),
    )
    rng = np.random.default_rng(2)
    start = {x: rng.uniform(0.2, 0.8, shape) for x, shape in here.shapes.items()}
    if "mixing" in start:
        start["mixing"] /= start["mixing"].sum()
    start = {x: jnp.asarray(v) for x, v in start.items()}
    copied = steps(EM(copy), there.write(here.read(start)), *args)
    wanted = steps(EM(ours), start, data, **sizes, **kwargs)
    close(copied[1], wanted[1])
    for role, value in here.read(wanted[0]).items():
        close(there.read(copied[0])[role], value, EXACT)


def steps(method, params, *args, **kwargs):
    state = method.init(random.key(0), *args, init_params=params, **kwargs)
    step = jax.jit(lambda state: method.update(state, *args, **kwargs))
    losses = []
    for _ in range(3):
        state, loss = step(state)
        losses.append(loss)
    return method.get_params(state), np.array(losses)


@in_double
def test_truncated_and_stepwise_take_copies_too():
    """Eq. (8) corrects the site that holds the sparsity, whatever its name; batches take copies."""
    there = known(pictures, REAL)
    here = known(binary_sparse_coding, REAL, num_causes=3)
    rng = np.random.default_rng(3)
    start = {x: jnp.asarray(rng.uniform(0.2, 0.8, v)) for x, v in here.shapes.items()}
    limits = {"max_active": 2, "num_candidates": 3}
    copied = steps(TruncatedEM(pictures, **limits), there.write(start), REAL)
    wanted = steps(TruncatedEM(binary_sparse_coding, **limits), start, REAL, num_causes=3)
    close(copied[1], wanted[1])
    close(copied[0]["rate"], wanted[0]["sparsity"])
    copied = steps(StepwiseEM(pictures, batch_size=7), there.write(start), REAL)
    wanted = steps(StepwiseEM(binary_sparse_coding, batch_size=7), start, REAL, num_causes=3)
    close(copied[0]["basis"].T, wanted[0]["weights"])


# --- near misses


def curved(images, *, units=3):
    """Sparse coding, but the picture bends with its causes."""
    basis = numpyro.sample("basis", dist.Normal(0.0, 1.0).expand((units, 5)).to_event(2))
    rate = numpyro.sample("rate", dist.Uniform(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("images", len(images)):
        on = numpyro.sample("on", dist.Bernoulli(rate).expand((units,)).to_event(1))
        sum_ = on @ basis
        numpyro.sample("pixels", dist.Normal(sum_ + 0.1 * sum_**2, spread).to_event(1), obs=images)


def offset(images, *, units=3):
    """Sparse coding with one more site that matters."""
    basis = numpyro.sample("basis", dist.Normal(0.0, 1.0).expand((units, 5)).to_event(2))
    rate = numpyro.sample("rate", dist.Uniform(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    middle = numpyro.sample("middle", dist.Normal(0.0, 1.0).expand((5,)).to_event(1))
    with numpyro.plate("images", len(images)):
        on = numpyro.sample("on", dist.Bernoulli(rate).expand((units,)).to_event(1))
        numpyro.sample("pixels", dist.Normal(on @ basis + middle, spread).to_event(1), obs=images)


def positive(images, *, units=3):
    """Sparse coding whose weights must not be negative: a regression would make them so."""
    basis = numpyro.sample("basis", dist.HalfNormal(1.0).expand((units, 5)).to_event(2))
    rate = numpyro.sample("rate", dist.Uniform(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("images", len(images)):
        on = numpyro.sample("on", dist.Bernoulli(rate).expand((units,)).to_event(1))
        numpyro.sample("pixels", dist.Normal(on @ basis, spread).to_event(1), obs=images)


def tied(answers, *, groups=3):
    """Latent classes of which the last two answer the first item alike."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(groups)))
    rates = numpyro.sample("rates", dist.Beta(1.5, 1.5).expand((groups, 5)).to_event(2))
    with numpyro.plate("people", len(answers)):
        member = numpyro.sample("member", dist.Categorical(share))
        alike = jnp.asarray(rates).at[2, 0].set(rates[1, 0])
        numpyro.sample("items", dist.Bernoulli(alike[member]).to_event(1), obs=answers)


def occupied(answers):
    """Two classes by one bit, of which one never answers: a probability, and no simplex."""
    share = numpyro.sample("share", dist.Uniform(0.0, 1.0))
    rates = numpyro.sample("rates", dist.Beta(1.5, 1.5).expand((5,)).to_event(1))
    with numpyro.plate("people", len(answers)):
        there = numpyro.sample("there", dist.Bernoulli(share))
        numpyro.sample("items", dist.Bernoulli(there[..., None] * rates).to_event(1), obs=answers)


@pytest.mark.parametrize(
    ("model", "data"),
    [(curved, REAL), (offset, REAL), (positive, REAL), (tied, BITS), (occupied, BITS)],
)
def test_near_misses_are_not_recognised(model, data):
    assert known(model, data) is None


def test_what_was_recognised_is_told_with_its_sites():
    assert repr(known(classes, BITS)) == (
        "Known(bernoulli_mixture, {'mixing': 'share', 'probs': 'rates'})"
    )


@in_double
def test_near_misses_are_right():
    """They take gradient steps: the loss falls, and no parameter leaves its support."""
    start = {"basis": jnp.full((3, 5), 0.5), "rate": jnp.array(0.3), "spread": jnp.array(1.0)}
    start["basis"] = start["basis"].at[jnp.arange(3), jnp.arange(3)].set(1.5)
    params, losses = steps(EM(positive), start, REAL)
    assert np.diff(losses).max() < -0.1
    assert (params["basis"] > 0).all()


def test_an_update_for_another_form_is_refused():
    with pytest.raises(ProgramError, match="MixtureUpdate is for programs of the form"):
        EM(binary_sparse_coding, m_step=MixtureUpdate()).run(random.key(0), 1, REAL, num_causes=3)


def test_recognition_works_inside_a_trace():
    """The first look at a program may be inside `jit`, where the data are not known."""

    @jax.jit
    def inside(data):
        return known(functools.partial(classes, groups=2), data) is not None

    assert bool(inside(BITS))

"""The form in the datum against the program run on every state of every row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.scipy.special import logsumexp
from small_programs import CASES, mixture_case
from tools import close, contribution, fast_jit, in_double

from inference import EM, AllStates, Structure, marginal
from inference.methods.discrete.step import EMState
from inference.reading import sums
from inference.reading.datum import about_of
from inference.reading.handlers import table_of
from inference.reading.reader import affine_too, open_program
from ppl_models import noisy_or_network

AFFINE = {*CASES, "mixture"} - {"two_sites"}  # whose noise is Laplace


@in_double
@pytest.mark.parametrize("name", [*CASES, "mixture"])
def test_form_in_the_datum(name):
    """Log joints, and an expected log joint at other parameters with its slope, from sums alone."""
    case = mixture_case() if name == "mixture" else CASES[name]
    reader = affine_too(*open_program(case.model, *case.arguments, structure=case.structure))
    assert reader.affine == (name in AFFINE)
    if not reader.affine:
        return
    args, table = case.arguments, table_of(reader.anatomy, AllStates())
    weights = random.uniform(random.key(0), (len(table), reader.anatomy.num_data))
    other = {site: 0.9 * value + 0.01 for site, value in case.typed().items()}

    @fast_jit
    def both(params, other):
        form = reader.affine_form(params, table[:, 0], args)
        cells = reader.cells(params, form, args)
        moments, about = form.moments(cells, weights), about_of(form)

        def quick(other):
            return reader.affine_form(other, table[:, 0], args, about).expected(moments)

        def slow(other):
            return jnp.sum(weights * reader.log_joint(other, table, args))

        joints = form.log_joint(cells), reader.log_joint(params, table, args)
        # Terms of the datum alone are left out of the expectation: only differences count.
        changes = [f(other) - f(params) for f in (quick, slow)]
        return joints, changes, [jax.grad(f)(other) for f in (quick, slow)]

    joints, changes, slopes = both(case.typed(), other)
    close(*joints, 1e-10)
    close(*changes, 1e-10)
    for site in other:
        close(slopes[0][site], slopes[1][site], 1e-10)


def test_a_row_that_enters_elsewhere_is_no_affine_program():
    """A covariate shifts the mean of its row: one row says nothing about the others."""
    import numpyro
    import numpyro.distributions as dist

    def program(data, shift):
        rate = numpyro.sample("rate", dist.Uniform(0.0, 1.0))
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(rate))
            mean = level * on + jnp.asarray(shift)
            numpyro.sample("observed", dist.Normal(mean, 1.0), obs=data)

    def affine(shift):
        data = np.random.default_rng(0).normal(size=6)
        opened = open_program(program, (data, shift), {}, structure=Structure.GENERAL)
        return affine_too(*opened).affine

    assert not affine(np.arange(6.0))
    assert affine(0.5)


def test_memory_of_a_step_does_not_grow_with_the_rows():
    """A gradient M-step and its E-step, on 20 000 rows of 64 states: less than rows × states."""
    num_data, layers = 20_000, (6,)
    method = EM(noisy_or_network)
    shapes = {"leak_0": (5,), "leak_1": (6,), "weights_1": (6, 5)}
    params = {name: jnp.full(shape, 0.3) for name, shape in shapes.items()}
    state = EMState(params, jnp.zeros((), int), random.key(0), None)
    step = fast_jit(lambda state, data: method.update(state, data, layers=layers))
    compiled = step.lower(state, jnp.zeros((num_data, 5))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < num_data * 2**6 * 4


@pytest.mark.parametrize("digits", [1e-10, 1e-5], ids=["double", "single"])
@pytest.mark.parametrize("name", [*CASES, "mixture"])
def test_marginal_is_the_program_on_its_states(name, digits, request, monkeypatch):
    """Value and slopes, in chunks of two rows; relative to the largest slope of a site."""
    if digits < 1e-6:
        request.getfixturevalue("double")
    case = mixture_case() if name == "mixture" else CASES[name]
    reader, _ = open_program(case.model, *case.arguments, structure=case.structure)
    table = table_of(reader.anatomy, AllStates())
    cells = 5 if name == "two_sites" else 1  # of a site that is run on its rows
    monkeypatch.setattr(sums, "product_floats", lambda: 2 * len(table) * cells)

    def fast(params):
        return contribution(marginal(case.model), case, params)

    def slow(params):
        return logsumexp(reader.log_joint(params, table, case.arguments), axis=0).sum()

    value, slopes = fast_jit(jax.value_and_grad(fast))(case.typed())
    wanted, by_states = fast_jit(jax.value_and_grad(slow))(case.typed())
    close(value, wanted, digits)
    for site in slopes:
        close(slopes[site], by_states[site], digits)

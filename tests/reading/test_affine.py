"""The form in the datum against the program run on every state of every row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from small_programs import CASES, mixture_case
from tools import close, in_double, quick_run

from inference import EM, AllStates, StepwiseEM, Structure
from inference.reading.handlers import table_of
from inference.reading.reader import affine_too, open_program
from ppl_models import binary_sparse_coding

# One program of each kind of form and noise; sums of Gaussian causes are in test_forms too.
EACH = "sparse_coding_masked", "noisy_or", "two_sites", "counts", "mixture"


@in_double
@pytest.mark.parametrize("name", EACH)
def test_form_in_the_datum(name):
    """Log joints, and an expected log joint at other parameters with its slope, from sums alone."""
    case = mixture_case() if name == "mixture" else CASES[name]
    reader = affine_too(*open_program(case.model, *case.arguments, structure=case.structure))
    assert reader.affine == (name != "two_sites")  # whose noise is Laplace
    if not reader.affine:
        return
    args, table = case.arguments, table_of(reader.anatomy, AllStates())
    weights = random.uniform(random.key(0), (len(table), reader.anatomy.num_data))
    other = {site: 0.9 * value + 0.01 for site, value in case.typed().items()}

    @jax.jit
    def both(params, other):
        form = reader.affine_form(params, table[:, 0], args)
        cells = reader.cells(params, args)
        moments, about = form.moments(cells, weights), form.about

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


def test_stepwise_em_without_a_closed_step_comes_to_rest_where_em_does():
    """Statistics of steps with other parameters add up: they are taken about one point."""
    case = CASES["max_of_causes"]
    args, kwargs = case.arguments

    def last_loss(method, steps):
        method = dataclasses.replace(method, structure=case.structure)
        run = quick_run(method, 0, steps, *args, init_params=case.typed(), **kwargs)
        return run.losses[0], run.losses[-1]

    first, wanted = last_loss(EM(case.model), 40)
    _, loss = last_loss(StepwiseEM(case.model, batch_size=len(case.data)), 80)
    assert abs(loss - wanted) < 0.02 * (first - wanted)


def test_a_cause_far_from_all_rows_costs_no_digits():
    """A cause that no row has may lie anywhere; half of the states have it."""
    rng = np.random.default_rng(0)
    weights = np.array([[2.0, -1.0], [0.5, 3.0], [1e6, 1e6]])
    data = rng.normal(size=(12, 2))
    params = {"weights": weights, "noise": 1.0, "sparsity": 0.2}
    loss = 0.0
    for y in data:
        terms = []
        for s in np.indices((2, 2, 2)).reshape(3, -1).T:
            each = s[:, None] * weights
            mean = each[np.abs(each).argmax(0), [0, 1]]
            prior = s.sum() * np.log(0.2) + (3 - s.sum()) * np.log(0.8)
            terms.append(prior - 0.5 * ((y - mean) ** 2).sum() - np.log(2 * np.pi))
        loss -= np.logaddexp.reduce(terms)
    method, sizes = EM(binary_sparse_coding), {"num_causes": 3, "superposition": "max"}
    state = method.init(random.key(0), data, init_params=params, **sizes)
    found = jax.jit(lambda state: method.update(state, data, **sizes)[1])(state)
    np.testing.assert_allclose(found, loss, rtol=1e-5)

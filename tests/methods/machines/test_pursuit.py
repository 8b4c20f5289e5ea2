"""Projection pursuit: a unit of a combination machine after another, and how many there are."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from machine_examples import MACHINES, ROWS, SIZES, WIDTH, copied, numbers, rows
from tools import quick_run

from inference import (
    EM,
    ExactGradient,
    ProgramError,
    ProjectionPursuit,
    Structure,
)
from inference.methods.machines.variants import replanted, turned
from ppl_models import (
    bernoulli_mixture,
    combination_machine,
    real_combination_machine,
)
from ppl_models.distributions import CombinationCauses


def test_one_unit_em_is_that_of_the_paper():
    """(3.14) and (3.15) in loops; and a stationary point of the program's expected log joint."""
    weights, bias = numbers(6, units=1)
    data = rows("real")
    em = EM(real_combination_machine, structure=Structure.LINEAR)
    params = {"weights": jnp.asarray(weights, float), "bias": jnp.asarray(bias, float)}
    state = em.init(random.key(0), jnp.asarray(data), num_causes=1, init_params=params)
    step = jax.jit(lambda state: em.update(state, jnp.asarray(data), num_causes=1)[0])
    new = step(state).params
    active, cross = 0.0, np.zeros(WIDTH)
    for row in data:
        probability = 1 / (1 + np.exp(-(sum(weights[0] * row) + bias[0])))
        active += probability / ROWS
        cross += probability * row / ROWS
    np.testing.assert_allclose(new["weights"][0], cross / active, rtol=1e-4)
    wanted = -np.log((1 - active) / active) - 0.5 * np.sum((cross / active) ** 2)
    np.testing.assert_allclose(new["bias"][0], wanted, rtol=1e-4)


def test_pursuit_finds_how_many_units_there_are():
    """One unit in ten real dimensions: found, and nothing after it; in noise nothing at all."""
    weights = np.array([2.0, 2, 2, 0, 0, 0, -1, -1, -1, -1])
    generator = np.random.default_rng(0)
    causes = generator.random((600, 1)) < 0.3
    noise = generator.normal(size=(600, 10)).astype(np.float32)
    pursuit = ProjectionPursuit(real_combination_machine, num_starts=5)
    search = lambda data: pursuit.run(  # noqa: E731
        random.key(2), 6, data, num_causes=6, tolerance=0.0
    )
    result = search((causes * weights + noise).astype(np.float32))
    found = np.asarray(result.params["weights"])
    assert found.any(1).sum() == 1
    assert result.reason.startswith("left to gain by estimate")
    assert (np.diff(result.losses) <= 0).all()
    # A mean of 180 rows of unit variance: standard error 0.075.
    np.testing.assert_allclose(found[found.any(1)][0], weights, atol=0.3)
    # What is left is noise about zero: its structure has been removed.
    np.testing.assert_allclose(np.cov(result.state.residual.T), np.eye(10), atol=0.25)
    assert not search(noise).params["weights"].any()


def test_pursuit_integrates_missing_cells_out():
    """The unit found is a maximum of the likelihood of the observed cells, which it reports."""
    weights = np.array([2.0, 2.0, -1.0, -1.0])
    generator = np.random.default_rng(0)
    causes = generator.random((400, 1)) < 0.3
    data = causes * weights + generator.normal(size=(400, 4))
    mask = generator.random(data.shape) < 0.6
    pursuit = ProjectionPursuit(
        real_combination_machine, significant=False, em_steps=200, num_starts=1
    )
    hidden = np.where(mask, data, 50.0)  # what a missing cell holds does not count
    result = quick_run(pursuit, 3, 1, jnp.asarray(hidden, float), mask=mask, num_causes=1)
    state = result.state

    def log_likelihood(weights, bias):
        """Of the observed cells beyond N(0, I): two Gaussians, at zero and at the weights."""
        share = 1 / (1 + np.exp(-(bias + 0.5 * weights @ weights)))
        ratio = np.where(mask, data * weights - 0.5 * weights**2, 0.0).sum(1)
        return np.log(1 - share + share * np.exp(ratio)).sum()

    unit, bias = np.asarray(state.params["weights"][0], float), float(state.bias[0])
    np.testing.assert_allclose(unit, weights, atol=0.4)  # 110 rows, 60 % of the cells: 0.12
    np.testing.assert_allclose(state.gains[0], log_likelihood(unit, bias), rtol=1e-4)
    for step in (*np.eye(4), None):
        there = [
            log_likelihood(unit + d * step, bias) if step is not None
            else log_likelihood(unit, bias + d)
            for d in (-1e-3, 1e-3)
        ]  # fmt: skip
        assert abs(there[1] - there[0]) / 2e-3 < 0.2  # of a log likelihood that curves by 100
    # A unit is taken from the cells that are there.
    assert not np.asarray(state.residual)[~mask].any()
    _, loss = jax.jit(
        lambda s: pursuit.update(
            s, jnp.asarray(hidden, float), mask=jnp.asarray(mask), num_causes=1
        )
    )(state)
    gaussian = np.where(mask, -0.5 * data**2 - 0.5 * np.log(2 * np.pi), 0.0).sum()
    np.testing.assert_allclose(-loss, gaussian + log_likelihood(unit, bias), rtol=1e-5)


@pytest.mark.parametrize("name", MACHINES)
def test_pursuit_reports_the_likelihood_of_the_machine_it_hands_out(name):
    """And its biases are those of most likelihood for its weights: the oracle's slope is zero."""
    model, log_evidence, gradient = MACHINES[name]
    data = rows(name) if name == "real" else copied(copies=15, flip=0.1)
    pursuit = ProjectionPursuit(model, significant=False, em_steps=4, num_starts=2)
    result = quick_run(pursuit, 1, 3, jnp.asarray(data, float), num_causes=3)
    weights, bias = (np.asarray(result.params[site], float) for site in ("weights", "bias"))
    _, loss = jax.jit(lambda s: pursuit.update(s, jnp.asarray(data, float), num_causes=3))(
        result.state
    )
    np.testing.assert_allclose(-loss, log_evidence(weights, bias, data).sum(), rtol=1e-5)
    found_by_pursuit = np.asarray(result.state.bias, float)
    before = log_evidence(weights, found_by_pursuit, data).sum()
    assert log_evidence(weights, bias, data).sum() >= before
    slope = gradient(weights, bias, data)["bias"] / len(data)
    np.testing.assert_allclose(slope, 0.0, atol=2e-3)


def links(table, given=None, *, units):
    """A combination machine under other names, its weights transposed."""
    level = numpyro.sample("level", dist.Normal(0.0, 9.0).expand((units,)).to_event(1))
    size = (table.shape[1], units)
    link = numpyro.sample("link", dist.Normal(0.0, 1.0).expand(size).to_event(2))
    with numpyro.plate("people", len(table)):
        hidden = numpyro.sample("hidden", CombinationCauses(link.T, level))
        answers = dist.Bernoulli(logits=2.0 * (hidden @ link.T))
        answers = answers if given is None else answers.mask(given)
        numpyro.sample("answers", answers.to_event(1), obs=table)


def test_pursuit_takes_a_copy_under_other_names_of_as_many_units():
    """Thirty units, of which no method could sum the states: the copy's first unit is ours."""
    data = jnp.asarray(copied(copies=15, flip=0.1), float)
    mask = jnp.asarray(np.random.default_rng(1).random(data.shape) < 0.8)

    def first(model, *args, **kwargs):
        pursuit = ProjectionPursuit(model, significant=False, em_steps=4, num_starts=2)
        state = pursuit.init(random.key(0), *args, **kwargs)
        state, loss = jax.jit(lambda state: pursuit.update(state, *args, **kwargs))(state)
        return pursuit.get_params(state), loss

    ours, loss = first(combination_machine, data, mask=mask, num_causes=30)
    copy, other = first(links, data, mask, units=30)
    assert ours["weights"][0].any() and not ours["weights"][1:].any()
    np.testing.assert_array_equal(copy["link"].T, ours["weights"])
    np.testing.assert_array_equal(copy["level"], ours["bias"])
    np.testing.assert_array_equal(loss, other)


def stuck_machine():
    """Two units for one shape: one of the opposite sign, and one always on that mends it.

    log(1 + e^z) = log(1 + e^-z) + z.
    """
    shapes = np.zeros((3, 6))
    shapes[0, :3], shapes[1, 3:], shapes[2, 1:5] = 2.0, 2.0, [2.0, -2.0, 2.0, -2.0]
    bias = np.array([-3.0, -3.0, -4.0])
    every = np.indices((2,) * 6).reshape(6, -1).T
    mass = np.exp(np.logaddexp(0.0, (2 * every - 1) @ shapes.T + bias).sum(1))
    rows = np.random.default_rng(0).choice(64, 600, p=mass / mass.sum())
    stuck = {
        "weights": jnp.asarray([-shapes[0], shapes[1], shapes[0]]),
        "bias": jnp.asarray([3.0, -3.0, 9.0]),
    }
    return shapes, stuck, jnp.asarray(every[rows], float)


def variant(way, stuck, data):
    method = ExactGradient(combination_machine)

    def vary(key):
        machine = method._machine(method._open((data,), {"num_causes": 3}))
        return way(machine, key, stuck)["weights"]

    return np.asarray(jax.jit(vary)(random.key(0)))


def test_a_variant_turns_the_units_that_a_unit_always_on_has_to_mend():
    """One of them becomes the shape, and the other is free."""
    shapes, stuck, data = stuck_machine()
    varied = variant(replanted, stuck, data)
    np.testing.assert_allclose(varied[:2], shapes[:2], atol=1e-6)
    assert varied[2] @ shapes[2] > 0.9 * np.linalg.norm(varied[2]) * np.linalg.norm(shapes[2])


def test_a_variant_turns_the_unit_whose_opposite_is_always_on():
    """The unit is turned, and of the one that is always on little is left."""
    shapes, stuck, data = stuck_machine()
    varied = variant(turned, stuck, data)
    np.testing.assert_allclose(varied[:2], shapes[:2], atol=0.2)
    assert np.abs(varied[2]).max() < 0.2


def test_pursuit_refuses_what_it_cannot_do():
    data = jnp.asarray(rows())
    pursuit = ProjectionPursuit(combination_machine)
    with pytest.raises(ProgramError, match="not independent given a row"):
        pursuit.posterior({}, data, mask=data > -1, **SIZES)
    with pytest.raises(ValueError, match="takes no init_params"):
        pursuit.init(random.key(0), data, init_params={}, **SIZES)
    with pytest.raises(ProgramError, match="no combination machine"):
        ProjectionPursuit(bernoulli_mixture).init(random.key(0), data, num_components=2)


def test_a_search_on_a_real_machine_looks_where_its_rows_vary_most():
    """Two units on nine columns: the search has two, in which the truth is as likely as on all."""
    rng = np.random.default_rng(0)
    weights = np.array([[3.0] * 4 + [0.0] * 5, [0.0] * 4 + [-3.0] * 5])
    on = rng.random((200, 2)) < 0.5
    data = jnp.asarray(on @ weights + rng.normal(size=(200, 9)))
    method = ExactGradient(real_combination_machine)

    def rows_of(**sizes):
        return method._open((data,), {"num_causes": 2, **sizes}).rows

    narrow = method.narrowed(rows_of())
    assert narrow.rows.leaves[0].shape == (200, 2)
    few = {"weights": jnp.asarray(rng.normal(size=(3, 2, 2))), "bias": jnp.zeros((3, 2))}
    wide = narrow.widened(few)
    assert wide["weights"].shape == (3, 2, 9)
    inner = np.einsum("kud,nd->knu", wide["weights"], data)
    wanted = np.einsum("kud,nd->knu", few["weights"], narrow.rows.leaves[0])
    np.testing.assert_allclose(inner, wanted, rtol=1e-4, atol=1e-4)
    told = rows_of(num_features=9)  # a program that is told its columns has no fewer
    assert method.narrowed(told).rows is told

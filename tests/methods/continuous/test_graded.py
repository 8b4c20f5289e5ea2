"""Answers on a scale: the closed forms against the program and the oracle, under other names."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from jax import random
from numpyro.distributions.transforms import OrderedTransform
from tools import close, in_double, quick_run

from inference import QuadratureEM, standard_errors
from inference.methods.continuous.bound import bound_posterior
from inference.methods.continuous.opening import open_columns
from inference.methods.continuous.regressions import (
    point_log_likelihood,
    shared_log_likelihood,
)
from inference.reading.log_joint import log_joint
from ppl_models import graded_trait

RNG = np.random.default_rng(0)
NUM_DATA = 150
LEVELS = (4, 2, 3, 4)
TRUTH = {
    "weights": np.array([[1.2, 0.8, -1.5, 1.0]]),
    "cutpoints_2": np.array([[0.4]]),
    "cutpoints_3": np.array([[-0.8, 0.7]]),
    "cutpoints_4": np.array([[-1.2, 0.1, 1.5], [-0.5, 0.6, 1.4]]),
}


def simulated(num_data, params=TRUTH, levels=LEVELS):
    trait, columns = RNG.normal(size=num_data), []
    for place, cuts in enumerate(oracle.levels.cutpoints_of(params, levels)):
        noisy = trait * params["weights"][0, place] + RNG.logistic(size=num_data)
        columns.append((noisy[:, None] > np.array(cuts)).sum(1))
    return np.stack(columns, 1)


TABLE = simulated(NUM_DATA)
SEEN = RNG.random(TABLE.shape) < 0.9


def questionnaire(pair, others, seen_pair, seen_others):
    """The same program under other names: columns of 4 levels apart, one site for each of them."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0).expand((4,)).to_event(1))
    ordered = lambda k: dist.TransformedDistribution(  # noqa: E731
        dist.Normal(0.0, 1.0).expand((k - 1,)).to_event(1), OrderedTransform()
    )
    cuts = {k: numpyro.sample(f"steps {k}", ordered(k)) for k in (2, 3)}
    fours = numpyro.sample("steps 4", ordered(4).expand((2,)).to_event(1))
    with numpyro.plate("people", len(pair)):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))[..., None]
        answers = dist.OrderedLogistic(x * slope[:2], fours).mask(seen_pair)
        numpyro.sample("fours", answers.to_event(1), obs=pair)
        for i, k in enumerate((2, 3)):
            one = dist.OrderedLogistic(x[..., 0] * slope[2 + i], cuts[k]).mask(seen_others[:, i])
            numpyro.sample(f"answer {k}", one, obs=others[:, i])


@in_double
def test_the_closed_form_is_the_program_and_its_bound_lies_below():
    opened = open_columns(graded_trait, (TABLE,), {"mask": SEEN, "levels": LEVELS}, None)
    points = np.random.default_rng(1).normal(0.0, 2.0, (3, NUM_DATA, 1))

    @jax.jit
    def compare(params):
        arguments = opened.rows.whole()
        values, responses = opened.values(params), opened.responses(arguments)
        own = opened.reader._replace(closed=None)
        return {
            "joint": opened.reader.log_joint(params, points, arguments),
            "program": log_joint(own.model, own.anatomy, params, points, arguments),
            "bends": opened.reader.bend(params, points[0], arguments),
            "program bends": own.bend(params, points[0], arguments),
            "at": point_log_likelihood(opened.columns, values, responses, points[:, :1]),
            "shared": shared_log_likelihood(opened.columns, values, responses, points[:, 0]),
            "bound": bound_posterior(
                opened.columns, values, responses, jnp.zeros((NUM_DATA, 1)),
                jnp.ones((NUM_DATA, 1, 1)),
            )[2],
        }  # fmt: skip

    compared = compare(TRUTH)
    close(compared["joint"], compared["program"])
    for one, other in zip(compared["bends"], compared["program bends"], strict=True):
        close(one, other)
    close(compared["shared"], compared["at"])
    evidence = oracle.graded_evidence(TRUTH, TABLE, SEEN, levels=LEVELS)
    gap = evidence - np.asarray(compared["bound"])
    assert gap.min() > 0 and gap.max() < 0.5


@in_double
def test_a_copy_under_other_names_is_fitted_to_the_maximum_of_the_oracles_likelihood():
    own = {"data": TABLE, "mask": SEEN}
    pair, others = ([0, 3], [1, 2])
    args = [own[x][:, at] for x in own for at in (pair, others)]
    assert open_columns(questionnaire, tuple(args), {}, None).columns is not None
    fitted = quick_run(QuadratureEM(questionnaire, num_nodes=41), 0, 50, *args)
    losses = np.asarray(fitted.losses)
    assert np.diff(losses).max() < 1e-8
    grid = QuadratureEM(questionnaire).run(random.key(0), 50, *args, tolerance=1e-7)
    assert grid.stop.converged
    assert float(grid.losses[-1]) == pytest.approx(losses[-1], abs=1e-5)
    for name, value in fitted.params.items():
        np.testing.assert_allclose(grid.params[name], value, atol=1e-3)
    slope = np.asarray(fitted.params["slope"])
    params = {
        "weights": slope[None, [0, 2, 3, 1]],
        **{f"cutpoints_{k}": np.asarray(fitted.params[f"steps {k}"])[None] for k in (2, 3)},
        "cutpoints_4": np.asarray(fitted.params["steps 4"]),
    }

    def total(params):
        return oracle.graded_evidence(params, TABLE, SEEN, levels=LEVELS).sum()

    assert -losses[-1] == pytest.approx(total(params), abs=1e-7)
    assert total(params) > total(TRUTH)
    for _ in range(3):  # a maximum: the oracle's differences are zero in any direction
        way = {name: RNG.normal(size=value.shape) for name, value in params.items()}
        up, down = (
            total({name: value + step * way[name] for name, value in params.items()})
            for step in (1e-4, -1e-4)
        )
        assert abs(up - down) / 2e-4 < 1e-4


def test_standard_errors_are_those_of_the_oracles_likelihood():
    levels = (3, 2, 3)

    def build(vector):
        return {
            "weights": vector[None, :3],
            "cutpoints_2": vector[None, 3:4],
            "cutpoints_3": vector[4:].reshape(2, 2),
        }

    start = np.array([1.5, 2.0, -1.5, 0.4, -0.8, 0.7, -1.2, 0.1])
    table = simulated(1500, build(start), levels)
    patterns, count = np.unique(table, axis=0, return_counts=True)

    def loss(vector):
        return -count @ oracle.graded_evidence(build(vector), patterns, levels=levels)

    run = QuadratureEM(graded_trait).run(
        random.key(0), 50, table, tolerance=1e-7, levels=levels, num_factors=1
    )
    best = np.concatenate([np.ravel(run.params[x]) for x in build(start)]).astype(float)
    size, step = len(best), 1e-3
    moves = step * np.eye(size)
    bend = np.zeros((size, size))
    for i in range(size):
        for j in range(i + 1):
            signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
            parts = [a * b * loss(best + a * moves[i] + b * moves[j]) for a, b in signs]
            bend[i, j] = bend[j, i] = sum(parts) / (4 * step**2)
    wanted = build(np.sqrt(np.diagonal(np.linalg.inv(bend))))
    errors = standard_errors(graded_trait, run.params, table, levels=levels)
    for name, value in wanted.items():
        np.testing.assert_allclose(errors[name], value, rtol=2e-3, err_msg=name)

"""What many tests share: how close is close, one step and a few of EM.

Tolerances: in float64 both sides compute one number, 1e-9 after sums and solves; in float32 a log
joint keeps about 1e-6 of its largest term, so that a sum over data keeps 1e-5.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
import oracle
import pytest
from jax import random
from jax.extend.core import jaxprs_in_params
from numpyro.infer import MCMC
from numpyro.infer.util import log_density

from inference.reading.reader import open_program

EXACT, ROUNDED = 1e-9, 1e-5
in_double = pytest.mark.usefixtures("double")  # the fixture stands in conftest.py


def sample(kernel, num_warmup, num_samples, *args, key=0, num_chains=1, extra_fields=(), **kwargs):
    """Draws and extra fields by chain, as NumPyro's `MCMC` gives them, all of it in one piece."""

    @jax.jit
    def run(key):
        mcmc = MCMC(
            kernel, num_warmup=num_warmup, num_samples=num_samples, num_chains=num_chains,
            chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        mcmc.run(key, *args, extra_fields=extra_fields, **kwargs)
        fields = mcmc.get_extra_fields(group_by_chain=True) if extra_fields else {}
        return mcmc.get_samples(group_by_chain=True), fields

    return jax.device_get(run(random.key(key)))


def noisy_copies(seed, copies, num_features, flip=0.2):
    """Copies of three rows of fair bits, some flipped. By NumPy: as a table at the head of a file
    every worker makes it, and `prototypes` would be compiled by each."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.random((3, num_features)) < 0.5, copies, axis=0)
    return (rows ^ (rng.random(rows.shape) < flip)).astype(np.uint8)


def noisy_bars(seed, num_data):
    """Images of 2 × 2 pixels, by NumPy: four bars of either sign that add up, in noise."""
    rng = np.random.default_rng(seed)
    weights = np.array([[10, 10, 0, 0], [0, 0, -10, -10], [-10, 0, -10, 0], [0, 10, 0, 10]])
    on = rng.random((num_data, 4)) < 0.5
    return (on @ weights + 2.0 * rng.normal(size=(num_data, 4))).astype(np.float32)


def close(found, wanted, tolerance=EXACT):
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale)


def near(found, wanted, tolerance=ROUNDED):
    """As close as float32 keeps a sum over data."""
    close(found, wanted, tolerance)


def hessian_of(function, point, step=1e-3):
    """By central differences, (p, p)."""
    units = step * np.eye(len(point))
    return np.array([
        [function(point + a + b) - function(point + a - b) - function(point - a + b)
         + function(point - a - b) for a in units] for b in units
    ]) / (4 * step**2)  # fmt: skip


def assert_rate(found, probability, trials):
    """A frequency is its probability, within five standard errors."""
    slack = 5.0 * np.sqrt(probability * (1.0 - probability) / trials)
    np.testing.assert_allclose(np.asarray(found), probability, rtol=0.0, atol=slack)


def reader_of(case, structure=None):
    args, kwargs = case.arguments
    return open_program(case.model, args, kwargs, structure=structure or case.structure)


def knowing(method, case):
    """The method, told the form of the case's program, which test_structure finds for all."""
    return dataclasses.replace(method, structure=case.structure)


def update_once(method, case, params=None):
    """Parameters and loss after one step from the case's own parameters."""
    args, kwargs = case.arguments
    method = knowing(method, case)
    state = method.init(random.key(0), *args, init_params=params or case.typed(), **kwargs)
    state, loss = jax.jit(lambda state, args: method.update(state, *args, **kwargs))(state, args)
    return method.get_params(state), loss


def fit(method, num_steps, case, init_params=None, key=1):
    """Parameters and losses of a run; `run` itself compiles longer, and has tests of its own."""
    args, kwargs = case.arguments
    fitted = quick_run(
        knowing(method, case), key, num_steps, *args, init_params=init_params, **kwargs
    )
    return fitted.params, fitted.losses


class Run(NamedTuple):
    params: dict
    state: Any
    losses: jax.Array


def quick_runs(method, num_steps, *args, init_params=None, **kwargs):
    """A function of a key: a run with its start in one compiled piece, sooner ready than `run`."""

    @jax.jit
    def whole(key):
        state = method.init(key, *args, init_params=init_params, **kwargs)
        step = lambda state, _: method.update(state, *args, **kwargs)  # noqa: E731
        state, losses = jax.lax.scan(step, state, None, length=num_steps)
        return Run(method.get_params(state), state, losses)

    return whole


def quick_run(method, key, num_steps, *args, **kwargs):
    return quick_runs(method, num_steps, *args, **kwargs)(random.key(key))


def equations(jaxpr):
    """All equations of a traced function, those of its inner ones too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def oracle_evidence(case, params=None):
    return oracle.log_evidence(case.table(params)[0])


def density(program, case, params, **more):
    """What the data contribute to the log density, compiled: op by op it would take seconds."""
    return jax.jit(lambda params: contribution(program, case, params, **more))(params)


def contribution(program, case, params, **more):
    args, kwargs = case.arguments
    _, trace = log_density(program, args, {**kwargs, **more}, params)
    sites = [site for site in trace.values() if site["type"] == "sample" and site["is_observed"]]
    total = 0.0
    for site in sites:
        scale = 1.0 if site["scale"] is None else site["scale"]
        total = total + scale * site["fn"].log_prob(site["value"]).sum()
    return total

"""Runs of exact and truncated EM: the loss falls, the truth is recovered."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import oracle
import pytest
from jax import random
from scipy.stats import halfnorm, norm
from small_programs import CASES
from tools import ROUNDED, close, fit, knowing

from inference import (
    EM,
    Cut,
    Persistent,
    TruncatedEM,
)
from ppl_models import binary_sparse_coding
from ppl_models.data import bars


def falls(losses, tolerance=1e-5):
    """Never rises by more than rounding: `tolerance` of the loss itself, in float32."""
    losses = np.asarray(losses)
    assert np.isfinite(losses).all()
    assert (np.diff(losses) <= tolerance * np.abs(losses).max()).all(), losses
    assert losses[-1] < losses[0]


def test_loss_never_rises_with_lists_of_states_of_two_sites():
    """On sparse coding: `test_bars_are_recovered`."""
    case = CASES["two_sites"]
    method = TruncatedEM(case.model, persistent=Persistent(5, 4), chunk_size=3)
    falls(fit(method, 12, case)[1])


def test_vmap_over_keys_and_over_data():
    case = CASES["sparse_coding"]
    (data,), kwargs = case.arguments
    keys = random.split(random.key(2), 3)

    def once(method, key, data):
        state = method.init(key, data, **kwargs)
        state, loss = method.update(state, data, **kwargs)
        return loss + state.params["noise"]

    # A method that knows nothing yet finds the form inside the trace.
    tables = jnp.stack([data, data, data - 1.0])
    many = jax.jit(jax.vmap(functools.partial(once, EM(case.model))))(keys, tables)
    assert len(set(np.asarray(many).tolist())) == 3
    one = jax.jit(functools.partial(once, knowing(EM(case.model), case)))
    close(many, [one(*each) for each in zip(keys, tables, strict=True)], ROUNDED)


def test_a_run_can_be_resumed():
    case = CASES["sparse_coding"]
    args, kwargs = case.arguments
    method = TruncatedEM(
        case.model, max_active=2, num_candidates=3, parameter_noise={"weights": 0.1},
        structure=case.structure,
    )  # fmt: skip
    whole = method.run(random.key(3), 6, *args, **kwargs)
    half = method.run(random.key(3), 3, *args, **kwargs)
    rest = method.run(random.key(9), 3, *args, init_state=half.state, **kwargs)
    assert whole.reason == "all steps done"
    np.testing.assert_array_equal(np.concatenate([half.losses, rest.losses]), whole.losses)
    np.testing.assert_array_equal(rest.params["weights"], whole.params["weights"])


def test_map_is_pulled_towards_the_prior():
    """A strong prior moves the estimate, and the loss has the prior's density in it."""
    case = CASES["sparse_coding"]
    narrow = {**case.kwargs, "prior_weights": dist.Normal(0.0, 0.1)}
    held = case._replace(kwargs=narrow)
    params, losses = fit(EM(case.model, prior=True), 15, held, case.typed())
    assert np.abs(params["weights"]).max() < 0.5 < np.abs(case.params["weights"]).max()
    table, _ = case.table()
    prior = norm(0.0, 0.1).logpdf(case.params["weights"]).sum()
    prior += halfnorm(0.0, 10.0).logpdf(0.9)
    close(losses[0], -(oracle.log_evidence(table).sum() + prior), ROUNDED)


@functools.cache
def bars_truth():
    draw = jax.jit(lambda key: bars(key, 400, size=3, active=1.2, noise=1.0))
    return jax.device_get(draw(random.key(4)))


@pytest.mark.parametrize("kind", ["gradient", "truncated", "persistent"])
def test_bars_are_recovered(kind):
    """Every true bar has one learned field close to it, up to the order of the fields."""
    # So few bars an image that hardly any has more than the truncation's three.
    truth = bars_truth()
    method = {
        "gradient": EM(binary_sparse_coding, prior=True),
        # The few images with more than three bars would count as noise: the cut leaves them out.
        "truncated": TruncatedEM(
            binary_sparse_coding, max_active=3, num_candidates=5, cut=Cut(5, 15)
        ),
        "persistent": TruncatedEM(binary_sparse_coding, persistent=Persistent(12, 12)),
    }[kind]
    # Started near the truth: this is a test of the fixed point, not of the search for it.
    noise = np.random.default_rng(5).normal(size=truth.weights.shape)
    start = {"weights": truth.weights[::-1] + 3.0 * noise, "noise": 4.0, "sparsity": 0.3}
    start = {site: jnp.asarray(value, float) for site, value in start.items()}
    case = CASES["sparse_coding"]._replace(data=truth.data, kwargs={"num_causes": 6})
    params, losses = fit(method, 30, case, start)
    if kind != "truncated":  # a cut leaves out more and more rows
        falls(losses)
    distance = np.abs(params["weights"][:, None] - truth.weights[None]).max(-1)
    assert sorted(distance.argmin(1)) == list(range(6))
    # A pixel of a field is the mean of about 80 images: a standard error of 0.11, and of 54 pixels
    # the worst is within five.
    assert distance.min(1).max() < 0.55
    assert abs(float(params["noise"]) - 1.0) < 0.1
    assert abs(float(params["sparsity"]) - 0.2) < 0.05

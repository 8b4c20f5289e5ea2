"""What EM refuses before any work, and what it never holds in memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from jax.lax import Precision
from small_programs import CASES, NUM_CAUSES, NUM_DATA, NUM_FEATURES
from tools import equations, quick_run, reader_of

from inference import (
    EM,
    AtMost,
    BoundEM,
    Cut,
    Persistent,
    ProgramError,
    Structure,
    TruncatedEM,
)
from inference.methods.discrete.updates import SparseCodingUpdate
from inference.methods.shared import chunk_rows
from ppl_models import bernoulli_mixture, binary_sparse_coding, latent_trait


def no_plate(data, *, num_causes):
    numpyro.sample("on", dist.Bernoulli(jnp.full((len(data), num_causes), 0.3)).to_event(2))
    numpyro.sample("y", dist.Normal(0.0, 1.0).expand(data.shape).to_event(2), obs=data)


def fixed_plate(data, *, num_causes):
    with numpyro.plate("data", NUM_DATA):
        on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
        numpyro.sample("y", dist.Normal(on.sum(-1), 1.0), obs=data[:NUM_DATA, 0])


def global_bit(data, *, num_causes):
    switch = numpyro.sample("switch", dist.Bernoulli(0.5))
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
        numpyro.sample("y", dist.Normal(on.sum(-1) + switch, 1.0), obs=data[:, 0])


DATA = np.ones((NUM_DATA, NUM_FEATURES))
BITS = np.random.default_rng(0).integers(0, 2, DATA.shape).astype(np.float32)
BAD = {
    "no_plate": (EM(no_plate), DATA, "nothing that depends on the latents is observed"),
    "fixed_plate": (EM(fixed_plate), DATA, "take its size from the data"),
    "global_bit": (EM(global_bit), DATA, "'switch' is discrete and outside the plate"),
    "too_active": (
        TruncatedEM(binary_sparse_coding, max_active=3, num_candidates=2), DATA, "max_active is 3",
    ),
    "too_many_candidates": (
        TruncatedEM(binary_sparse_coding, num_candidates=9), DATA, "num_candidates is 9",
    ),
    "too_many_lists": (
        TruncatedEM(binary_sparse_coding, persistent=Persistent(17)), DATA, "17 states were asked",
    ),
    "noise_on_nothing": (
        TruncatedEM(binary_sparse_coding, max_active=2, num_candidates=2,
                    parameter_noise={"wieghts": 1.0}),
        DATA, "no parameter 'wieghts'",
    ),
    "cut_by_many_priors": (
        TruncatedEM(partial(binary_sparse_coding, shared_sparsity=False), max_active=2,
                    num_candidates=2, cut=Cut()),
        DATA, r"cut= expects one prior .* 'sparsity' has shape \(4,\)",
    ),
    "corrected_for_many_priors": (
        TruncatedEM(partial(binary_sparse_coding, shared_sparsity=False),
                    m_step=SparseCodingUpdate(max_active=2)),
        DATA, "max_active=2 corrects a prior that all causes share",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors_come_first(name):
    method, data, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        method.run(random.key(0), 3, data, num_causes=NUM_CAUSES)


def test_categories_need_a_table():
    with pytest.raises(ProgramError, match="not binary: use EM"):
        TruncatedEM(bernoulli_mixture).init(random.key(0), DATA, num_components=3)


@pytest.mark.parametrize("form", [Structure.SHARED, Structure.GENERAL])
def test_states_without_room_are_refused_before_they_are_listed(form, monkeypatch):
    """2^24 states of a few rows took 21 GB: what counts is bytes, and they are named."""
    monkeypatch.setattr("latentbits.inference.methods.discrete.tables.available", lambda: 2 * 10**9)
    monkeypatch.setattr("itertools.combinations", None)  # by which a table would be listed
    wanted = r"'causes' has 16777216 states .* take about \d+.\d GB where 2.0 GB .* TruncatedEM"
    with pytest.raises(ProgramError, match=wanted):
        EM(binary_sparse_coding, structure=form).init(random.key(0), DATA, num_causes=24)
    with pytest.raises(ProgramError, match=r"1221246132 states .* lower max_active"):
        EM(binary_sparse_coding, AtMost(10), structure=form).init(
            random.key(0), DATA, num_causes=40
        )


def test_starting_values_are_checked():
    method = EM(binary_sparse_coding, structure=Structure.SHARED)
    with pytest.raises(ValueError, match=r"no parameter \['wieghts'\]"):
        method.init(random.key(0), DATA, init_params={"wieghts": 1.0}, num_causes=2)
    wrong = {"weights": np.ones((NUM_FEATURES, 2))}
    with pytest.raises(ValueError, match=r"'weights' has shape \(5, 2\).* has \(2, 5\)"):
        method.init(random.key(0), DATA, init_params=wrong, num_causes=2)
    given = {"noise": 0.25}
    state = method.init(random.key(0), DATA, init_params=given, num_causes=2)
    assert float(state.params["noise"]) == 0.25
    assert state.params["weights"].shape == (2, NUM_FEATURES)


def test_steps_are_counted():
    for steps in (0, 2.5, 99999999999999):
        with pytest.raises(ValueError, match="num_steps must be a whole number from 1 to 1000000"):
            EM(binary_sparse_coding).run(random.key(0), steps, DATA, num_causes=2)


@pytest.mark.parametrize("name", ["sparse_coding", "sparse_coding_masked"])
@pytest.mark.parametrize("prior", [False, True], ids=["closed", "gradient"])
def test_quadratic_programs_hold_nothing_by_states_and_features(name, prior, monkeypatch):
    """No array of a step is as large as data × states × features.

    A Hessian per datum has no sums that an M-step by gradients could use: there the program runs on
    its states, in chunks that keep to the limit.
    """
    monkeypatch.setattr("inference.rows.chunks.chunk_floats", lambda: 40_000)
    num_data, num_causes, num_features = 50, 6, 40
    data = jnp.ones((num_data, num_features))
    kwargs = {"num_causes": num_causes}
    structure = CASES[name].structure
    if name == "sparse_coding_masked":
        kwargs["mask"] = jnp.ones((num_data, num_features), bool)
    method = EM(binary_sparse_coding, prior=prior, structure=structure)
    params = {"weights": jnp.ones((num_causes, num_features)), "noise": 1.0, "sparsity": 0.2}
    state = method.init(random.key(0), data, init_params=params, **kwargs)
    jaxpr = jax.make_jaxpr(lambda state: method.update(state, data, **kwargs))(state)
    # All arrays but broadcasts (of a mask, say), of which XLA makes none.
    real = [x for x in equations(jaxpr.jaxpr) if x.primitive.name != "broadcast_in_dim"]
    made = [v.aval for x in real for v in x.outvars]
    largest = max(x.size for x in made if hasattr(x, "size"))
    assert largest < num_data * 2**num_causes * num_features / 4


def test_products_have_all_digits_unless_fewer_are_asked_for():
    """By default a GPU takes ten bits: every product of a step must say otherwise."""

    def precisions(method, **kwargs):
        state = jax.eval_shape(lambda: method.init(random.key(0), BITS, **kwargs))
        jaxpr = jax.make_jaxpr(lambda state: method.update(state, BITS, **kwargs))(state)
        products = [x for x in equations(jaxpr.jaxpr) if x.primitive.name == "dot_general"]
        return {x.params["precision"] for x in products if x.outvars[0].aval.size > 1}

    few = partial(TruncatedEM, binary_sparse_coding, max_active=2, num_candidates=3)
    exact, fast = (Precision.HIGHEST,) * 2, (Precision.HIGH,) * 2
    assert precisions(few(), num_causes=NUM_CAUSES) == {exact}
    assert precisions(BoundEM(latent_trait), num_factors=2) == {exact}
    # The states keep theirs.
    assert precisions(few(precision="tensorfloat32"), num_causes=NUM_CAUSES) == {exact, fast}


def test_chunks_count_the_runs_of_the_program(monkeypatch):
    """A Hessian per datum takes a run per bit: the chunk must be smaller by as much."""
    case = CASES["sparse_coding_masked"]
    reader, rows = reader_of(case)
    width = 2 * NUM_FEATURES + NUM_CAUSES
    floats = 2 * (16 + width * (1 + NUM_CAUSES))
    monkeypatch.setattr("inference.rows.chunks.chunk_floats", lambda: floats)
    equal = lambda most: -(-rows.num_data // -(-rows.num_data // most))  # noqa: E731
    assert chunk_rows(None, reader, 16, rows) == equal(2)
    shared = reader._replace(structure=Structure.SHARED)
    assert chunk_rows(None, shared, 16, rows) == equal(5)
    assert chunk_rows(None, shared, 16, rows, num_runs=100) == equal(1)


def test_the_simplest_programs_run():
    """One bit a row, one cause, and a parameter that is a `param` of NumPyro's."""
    data = np.concatenate([np.zeros(30), np.full(20, 4.0)]) + 0.1 * np.arange(50) % 1.0

    def one_bit(data):
        mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
        scale = numpyro.param("scale", 1.0)
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(0.4))
            numpyro.sample("observed", dist.Normal(mean * on, jnp.exp(0.0 * scale)), obs=data)

    fitted = quick_run(EM(one_bit), 0, 5, jnp.asarray(data))
    assert abs(float(fitted.params["mean"]) - data[30:].mean()) < 0.2
    column = jnp.asarray(data)[:, None] * jnp.ones((1, 3))
    fitted = quick_run(EM(binary_sparse_coding), 0, 5, column, num_causes=1)
    assert fitted.params["weights"].shape == (1, 3)

"""Memory that no method takes more of, however many rows there are: that of a chunk of them.

A step is compiled, not run, and asked for the bytes that it needs besides its inputs and outputs.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from numpyro.infer.util import log_density

from inference import (
    EM,
    GibbsEM,
    Given,
    QuadratureEM,
    Structure,
    marginal,
)
from inference.evaluation.surface import Settings, curvature, open_surface
from inference.methods.moments.pairs import count_pairs
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    latent_trait,
    noisy_or_network,
)

ROWS, COLUMNS, CHUNK = 20_000, 6, 50
BITS = np.random.default_rng(0).integers(0, 2, (ROWS, COLUMNS)).astype(np.float32)


def by_chunk(method, **settings):
    return dataclasses.replace(method, chunk_size=CHUNK, **settings)


SHARED, GENERAL = Structure.SHARED, Structure.GENERAL
SIX = {"num_causes": 6}
# What stands beside each is what a row would take if the rows were not read in chunks. One for each
# way to read rows: of every method test_table shows that no array of a step is as long as a file.
METHODS = {
    "EM, 64 states by bits": lambda: (by_chunk(EM(binary_sparse_coding), structure=SHARED), SIX),
    "QuadratureEM, 41 nodes": lambda: (
        by_chunk(QuadratureEM(latent_trait)), {"num_factors": 1}),
    "GibbsEM, 64 states": lambda: (
        GibbsEM(noisy_or_network, block_size=CHUNK), {"layers": (6,)}),
}  # fmt: skip


def floats_a_row(function, *inputs):
    compiled = jax.jit(function).lower(*inputs).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 4 / ROWS


@pytest.mark.parametrize("name", METHODS)
def test_a_step_needs_less_than_the_table_itself(name):
    method, kwargs = METHODS[name]()
    state = jax.eval_shape(lambda: method.init(random.key(0), BITS, **kwargs))
    step = lambda state, data: method.update(state, data, **kwargs)  # noqa: E731
    assert floats_a_row(step, state, BITS) < COLUMNS


def test_counting_pairs_needs_less_than_the_table_itself():
    """All that `MomentInversion` makes of the rows."""
    assert floats_a_row(lambda data: count_pairs(data, None, CHUNK), BITS) < COLUMNS


def test_standard_errors_need_less_than_the_table_itself():
    """Of 8 classes, in float64: 48 floats a row if the rows were not read in chunks."""
    with jax.enable_x64(True):
        opened = open_surface(bernoulli_mixture, (BITS,), {"num_components": 8})
        compute = curvature(opened, Settings(chunk_size=CHUNK))
        params = {"mixing": np.full(8, 1 / 8), "probs": np.full((8, COLUMNS), 0.5)}
        bare = opened.rows._replace(leaves=())
        whole = lambda params, data: compute(bare._replace(leaves=(data,)), params)  # noqa: E731
        assert floats_a_row(whole, params, BITS) < COLUMNS


@pytest.mark.parametrize("name", ["256 states by bits", "32 states of each row"])
def test_a_gradient_of_marginal_needs_less_than_its_states(name):
    if name == "256 states by bits":
        program, kwargs, most = marginal(binary_sparse_coding), {"num_causes": 8}, 256 / 2
        shapes = {"weights": (8, COLUMNS), "noise": (), "sparsity": ()}
    else:
        table = np.random.default_rng(0).integers(0, 2, (32, ROWS, 8), np.int8)
        program = marginal(noisy_or_network, Given(table), structure=GENERAL)
        kwargs, most = {"layers": (8,)}, 32 * 8 / 2
        shapes = {"leak_0": (COLUMNS,), "leak_1": (8,), "weights_1": (8, COLUMNS)}
    params = {site: jnp.full(shape, 0.5) for site, shape in shapes.items()}
    total = lambda params, data: log_density(program, (data,), kwargs, params)[0]  # noqa: E731
    assert floats_a_row(jax.grad(total), params, BITS) < most

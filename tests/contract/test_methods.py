"""What every method keeps to: rows that fill up a table to a size count as if they were not there;
and rows may stay on disk."""

from copy import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from tools import noisy_bars, noisy_copies

from inference import (
    EM,
    BoundEM,
    ContrastiveDivergence,
    Cut,
    ExactGradient,
    GibbsEM,
    GibbsSearch,
    MomentInversion,
    MonteCarloEM,
    Persistent,
    ProjectionPursuit,
    QuadratureEM,
    SplittingEM,
    StepwiseEM,
    TruncatedEM,
)
from inference.rows import disk
from inference.running.restarts import Restarts
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    clipped_gaussian,
    combination_machine,
    latent_trait,
    noisy_or_network,
)

# Two tables each, which are filled up to the same size.
SIZES = 103, 108
PIXELS = [noisy_bars(size, size) for size in SIZES]
BITS = [noisy_copies(size, 36, 6)[:size] for size in SIZES]
GIBBS = GibbsEM(noisy_or_network, block_size=20, keep_states=False)


def my_trait(data, *, num_factors=1):
    """A program that no method was told of."""
    return latent_trait(data, num_factors=num_factors)


CASES = {
    "EM": (EM(binary_sparse_coding, chunk_size=16), PIXELS, {"num_causes": 3}),
    "gradient EM": (EM(noisy_or_network, chunk_size=20, gradient_steps=1), BITS, {"layers": (2,)}),
    "TruncatedEM, cut": (
        TruncatedEM(binary_sparse_coding, chunk_size=16, max_active=1, num_candidates=2, keep=False,
                    cut=Cut(-1, 0)), PIXELS, {"num_causes": 3}),
    "TruncatedEM, persistent": (
        TruncatedEM(binary_sparse_coding, chunk_size=16, persistent=Persistent(4, 2, rounds=3),
                    keep=False), PIXELS, {"num_causes": 3}),
    "BoundEM": (BoundEM(latent_trait, chunk_size=20, remember=False), BITS, {}),
    "BoundEM, any program": (
        BoundEM(my_trait, chunk_size=20, remember=False, gradient_steps=1, accelerate=False), BITS,
        {}),
    "QuadratureEM": (QuadratureEM(latent_trait, chunk_size=20, num_nodes=5, remember=False), BITS,
                     {"num_factors": 1}),
    "MonteCarloEM": (MonteCarloEM(latent_trait, chunk_size=20, num_draws=30), BITS, {}),
    "MomentInversion": (MomentInversion(clipped_gaussian, rank=2, chunk_size=20), BITS, {}),
    "ExactGradient": (ExactGradient(combination_machine, chunk_size=20), BITS, {"num_causes": 2}),
    "SplittingEM": (SplittingEM(bernoulli_mixture, chunk_size=20, steps_per_size=2), BITS,
                    {"num_components": 2}),
    "StepwiseEM": (StepwiseEM(bernoulli_mixture, batch_size=20), BITS, {"num_components": 2}),
    "ContrastiveDivergence": (ContrastiveDivergence(combination_machine, chunk_size=20), BITS,
                              {"num_causes": 2}),
    "ProjectionPursuit": (
        ProjectionPursuit(
            combination_machine, em_steps=2, num_starts=2, significant=False, chunk_size=20),
        BITS, {"num_causes": 2}),
    "GibbsEM": (GIBBS, BITS, {"layers": (2,)}),
    # Rows on disk have one start: so have those in memory here.
    "GibbsSearch": (
        GibbsSearch(GIBBS, population=2, rounds=1, epochs=1, search=None), BITS, {"layers": (2,)},
    ),
    "Restarts": (Restarts(EM(bernoulli_mixture), 2), BITS, {"num_components": 2}),
}  # fmt: skip
# Each has a method of its kind beside it, whose posterior is the same code.
WITHOUT_POSTERIOR = "gradient EM", "TruncatedEM, persistent", "BoundEM, any program"


def widths(jaxpr):
    """The lengths of all axes of all arrays that a traced function makes, inner ones too."""
    for equation in jaxpr.eqns:
        yield from (length for x in equation.outvars for length in getattr(x.aval, "shape", ()))
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from widths(inner)


def unread(jaxpr, get_params, state):
    """The leaves of a state that neither its step reads nor its parameters are made of."""
    shown = jax.make_jaxpr(get_params)(state).jaxpr
    *after, loss = jaxpr.outvars
    read = needed(jaxpr, [loss, *(b for a, b in zip(jaxpr.invars, after, strict=True) if a != b)])
    used = needed(shown, shown.outvars)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    variables = zip(paths, jaxpr.invars, shown.invars, strict=True)
    return {path for path, x, y in variables if x not in read and y not in used}


def needed(jaxpr, results):
    """The variables that some of its variables are computed from."""
    variables = {x for x in results if not hasattr(x, "val")}
    for equation in reversed(jaxpr.eqns):
        if variables.intersection(equation.outvars):
            variables.update(x for x in equation.invars if not hasattr(x, "val"))
    return variables


@pytest.mark.parametrize("name", CASES)
def test_rows_may_stay_on_disk(tmp_path, name):
    """On disk nothing in a step, nor what it leaves, is as long as the file."""
    method, (data, other), settings = CASES[name]

    def whole(key, data, num_steps, tolerance):
        fresh = copy(method)
        result = fresh.run(random.key(key), num_steps, data, tolerance=tolerance, **settings)
        if hasattr(method, "posterior") and name not in WITHOUT_POSTERIOR:
            fresh.posterior(result.params, data, **settings)
        return result

    assert method.pads == (method.fill((data,), settings) is not None)
    if not method.pads:
        other = other[: len(data)]
    data, other = jnp.asarray(data), jnp.asarray(other)
    held = whole(2, data, 3, None)
    second = whole(3, other, 5, 1e-9)
    assert np.isfinite(second.losses).all() and second.losses[-1] != held.losses[-1]

    if isinstance(method, Restarts):
        return  # its starts are side by side in memory
    path = tmp_path / "rows.npy"
    np.save(path, data)
    file = np.load(path, mmap_mode="r")
    stored = method.run(random.key(2), 3, file, **settings)
    np.testing.assert_allclose(stored.losses, held.losses, rtol=1e-6)
    for site, value in held.params.items():
        np.testing.assert_allclose(stored.params[site], value, rtol=1e-4, atol=1e-5)
    rows = disk.as_stored(file)
    step = jax.make_jaxpr(lambda state: method.update(state, rows, **settings))(stored.state)
    assert len(data) not in widths(step.jaxpr)
    # A state is what the next step needs. EM over states has a key, whether or not it draws any;
    # the gain tells whether the run may stop.
    assert unread(step.jaxpr, method.get_params, stored.state) <= {".rng_key", ".trail.gain"}

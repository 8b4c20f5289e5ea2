"""How the time of one iteration grows with rows, columns, latents and states, and at what exponent.

    latentbits bench --only growth

One size grows at a time, the others stay as the base has them; the exponent is that of a power law
fitted to the processor seconds, compilation apart. Where a size matters little beside the others
the exponent is near 0: columns beside the states of EM, for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bench_moments import bits_and_truth
from bench_states import problem
from jax import Array, lax, random
from measuring import exponent, timed
from numpyro.handlers import condition

from inference import EM, BoundEM, LatentGibbs, TruncatedEM
from inference.methods.discrete.step import EMState
from inference.methods.moments.pairs import count_pairs, invert_pairs
from inference.reading.log_joint import Structure
from ppl_models import binary_sparse_coding, latent_trait, noisy_or_network

FORM = Structure.SHARED  # known here: to find it out anew for each size takes seconds

Ready = tuple[Callable, tuple]
"""A compiled function and what to call it with."""


def _sparse_coding(em: Any, rows: int, columns: int, causes: int) -> Ready:
    data, params = problem(rows, columns, causes, active=min(7.5, causes / 5))
    state = EMState(params, jnp.zeros((), int), random.key(0), None)
    return jax.jit(lambda s, x: em.update(s, x, num_causes=causes)[0].params), (state, data)


def exact_em(rows: int, columns: int, states: int) -> Ready:
    """All states of log₂(states) causes."""
    causes = states.bit_length() - 1
    return _sparse_coding(EM(binary_sparse_coding, structure=FORM), rows, columns, causes)


def truncated_em(rows: int, columns: int, causes: int, states: int) -> Ready:
    """All states of log₂(states) candidates a row."""
    count = states.bit_length() - 1
    em = TruncatedEM(
        binary_sparse_coding, max_active=count, num_candidates=count, keep=False,
        structure=FORM,
    )  # fmt: skip
    return _sparse_coding(em, rows, columns, causes)


def bound_em(rows: int, columns: int, factors: int) -> Ready:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(rows, factors)) @ generator.normal(0, 1, (factors, columns))
    data = jnp.asarray(generator.random(logits.shape) < 1 / (1 + np.exp(-logits)), float)
    em = BoundEM(latent_trait, accelerate=False)
    state = jax.jit(lambda x: em.init(random.key(0), x, num_factors=factors))(data)
    return jax.jit(lambda s, x: em.update(s, x, num_factors=factors)[0].params), (state, data)


def moment_inversion(rows: int, columns: int) -> Ready:
    data, _ = bits_and_truth(columns, rows)
    return jax.jit(lambda x: invert_pairs(count_pairs(x)).correlation), (jnp.asarray(data),)


def binary_gibbs(rows: int, columns: int, units: int) -> Ready:
    """One sweep over the bits of one layer."""
    generator = np.random.default_rng(0)
    data = jnp.asarray(generator.random((rows, columns)) < 0.3, float)
    params = {
        "leak_0": jnp.full(columns, 0.1),
        "leak_1": jnp.full(units, 0.3),
        "weights_1": jnp.asarray(generator.gamma(0.3, 1.0, (units, columns)), float),
    }
    kernel = LatentGibbs(condition(noisy_or_network, data=params))
    kwargs = {"layers": (units,)}
    state = jax.jit(lambda x: kernel.init(random.key(0), 0, None, (x,), kwargs))(data)

    def sweep(state: Any, data: Array) -> Any:
        step = lambda _, s: kernel.sample(s, (data,), kwargs)  # noqa: E731
        return lax.fori_loop(0, 3, step, state)

    return jax.jit(sweep), (state, data)


METHODS: dict[str, tuple[Callable[..., Ready], dict[str, int], tuple[str, ...]]] = {
    "EM, all states": (
        exact_em, {"rows": 2000, "columns": 25, "states": 1024}, ("rows", "columns", "states"),
    ),
    "TruncatedEM": (
        truncated_em,
        {"rows": 2000, "columns": 144, "causes": 100, "states": 256},
        ("rows", "columns", "causes", "states"),
    ),
    "BoundEM": (
        bound_em, {"rows": 4000, "columns": 50, "factors": 2}, ("rows", "columns", "factors"),
    ),
    "MomentInversion": (moment_inversion, {"rows": 8000, "columns": 64}, ("rows", "columns")),
    "LatentGibbs": (
        binary_gibbs, {"rows": 2000, "columns": 50, "units": 10}, ("rows", "columns", "units"),
    ),
}  # fmt: skip
"""Method -> (how it is made ready, base sizes, those of them that grow)."""


def lines(full: bool = False) -> Iterator[dict[str, Any]]:
    """A row for each method and size; `full`: a base of four times the rows, and sizes between."""
    for method, (build, base, axes) in METHODS.items():
        base = {**base, "rows": base["rows"] * (4 if full else 1)}
        known: dict[tuple, float] = {}
        for axis in axes:
            values = [base[axis] * factor for factor in ((1, 2, 4) if full else (1, 4))]
            for value in values:
                size = {**base, axis: value}
                key = tuple(size.values())
                if key not in known:
                    function, inputs = build(**size)
                    known[key] = timed(function, *inputs, repeats=3)[1].cpu
            seconds = [known[tuple({**base, axis: value}.values())] for value in values]
            yield {
                "method": method, "in": axis, "sizes": values, "cpu": seconds,
                "exponent": exponent(values, seconds),
            }  # fmt: skip


def growth(full: bool) -> dict[str, Any]:
    """Processor seconds of one iteration by size, and the fitted exponent."""
    return {
        "title": "growth: CPU milliseconds an iteration as one size grows, and the exponent",
        "rows": list(lines(full)),
    }


BENCHMARKS = {"growth": growth}

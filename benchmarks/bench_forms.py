"""What the form in the datum saves: a step of EM and a gradient of `marginal`, beside the program.

    latentbits bench --only forms,steps

Processor seconds, and megabytes that the compiled function needs besides its inputs and outputs.
1000 × 25, 10 causes, 1024 states. Beside each stands the program run on every state of every row.
A gradient M-step is measured on the statistics of 1000 rows and of 100 times as many.

`steps` measures 100 steps of EM on a mixture of Bernoullis, 4000 × 64, 10 components, beside those
of stepmix from the same start.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.scipy.special import logsumexp
from measuring import cpu_of, learning, rival, row, timed
from numpyro.infer.util import log_density

from inference import EM, AllStates, Structure, likelihood, marginal
from inference.methods.m_step import AffineUpdate
from inference.methods.shared import Chunk
from inference.reading.handlers import table_of
from inference.reading.reader import open_program
from ppl_models import bernoulli_mixture, binary_sparse_coding, noisy_or_network
from ppl_models.data import combination_target

NUM_CAUSES, COLUMNS = 10, 25


def measured(method: str, function: Any, *inputs: Any) -> dict[str, Any]:
    """A row: the times of a function, and its memory in megabytes."""
    compiled = jax.jit(function)
    _, taken = timed(compiled, *inputs, repeats=5)
    analysis = compiled.lower(*inputs).compile().memory_analysis()
    return row(method, taken, megabytes=analysis.temp_size_in_bytes / 1e6)


def forms(full: bool) -> dict[str, Any]:
    """Noisy-OR by EM, and binary sparse coding with its causes summed out."""
    del full
    generator = np.random.default_rng(0)
    bits = jnp.asarray(generator.random((1000, COLUMNS)) < 0.3, float)
    layers = {"layers": (NUM_CAUSES,)}
    em = EM(noisy_or_network)
    state = em.init(random.key(0), bits, **layers)
    rows = [
        measured("EM, noisy-OR, a step", lambda s, d: em.update(s, d, **layers), state, bits),
        *maximising(state.params, bits, layers),
    ]
    weights = generator.normal(0.0, 1.0, (NUM_CAUSES, COLUMNS))
    causes = generator.random((1000, NUM_CAUSES)) < 0.2
    real = jnp.asarray(causes @ weights + generator.normal(0.0, 0.7, (1000, COLUMNS)), float)
    params = {"weights": jnp.asarray(weights, float), "noise": 0.8, "sparsity": 0.25}
    params = jax.tree.map(jnp.asarray, params)
    size = {"num_causes": NUM_CAUSES}
    reader, _ = open_program(binary_sparse_coding, (real,), size, structure=Structure.GENERAL)
    table = table_of(reader.anatomy, AllStates())

    def summed(params: dict, data: Array) -> Array:
        return log_density(marginal(binary_sparse_coding), (data,), size, params)[0]

    def by_states(params: dict, data: Array) -> Array:
        return logsumexp(reader.log_joint(params, table, ((data,), size)), axis=0).sum()

    rows.append(measured("marginal, sparse coding, a gradient", jax.grad(summed), params, real))
    rows.append(measured("  the program on every state", jax.grad(by_states), params, real))
    return {"title": "forms: 1000 × 25, 10 causes, 1024 states a row", "rows": rows}


def maximising(params: dict, data: Array, layers: dict) -> list[dict[str, Any]]:
    """The gradient M-step alone, by rows behind its statistics."""
    lines = []
    for times in (1, 100):
        rows_of_data = jnp.tile(data, (times, 1))
        em = EM(noisy_or_network)
        reader, rows = em.open((rows_of_data,), layers)
        table = table_of(reader.anatomy, AllStates())[:, 0]
        update = AffineUpdate(reader, table, rows.slice(0, 1), params, lambda _: jnp.zeros(()), 5)
        # Every copy of a row has the same posterior: the sums are those of one, times so many.
        few = reader.at(len(data))
        posterior = em.sets(few, rows).expect(Chunk(few, params, ((data,), layers)))
        sums = update.statistics(posterior, jnp.full(len(data), float(times)), ((data,), layers))
        lines.append(
            measured(f"  M-step alone, {len(rows_of_data)} rows", update.maximise, params, sums)
        )
    return lines


def steps(full: bool) -> dict[str, Any]:
    """Steps of EM on a mixture of Bernoullis, beside stepmix from the same start."""
    del full
    count, num_steps = 10, 100
    train = jnp.asarray(combination_target(random.key(0), 4000).data, float)
    evidence = likelihood(bernoulli_mixture, train, num_components=count)

    def by_stepmix(num_iterations: int) -> tuple[dict[str, Array], float]:
        from stepmix.stepmix import StepMix

        method = StepMix(
            count, measurement="binary", random_state=0, n_init=1, max_iter=num_iterations,
            abs_tol=0.0, rel_tol=0.0, progress_bar=0,
        )  # fmt: skip
        estimator, cpu = cpu_of(lambda: method.fit(np.asarray(train)))
        params = estimator.get_parameters()
        known = {"mixing": params["weights"], "probs": params["measurement"]["pis"]}
        return jax.tree.map(lambda x: jnp.asarray(x, float), known), cpu

    def judged(params: dict, cpu: float) -> dict[str, float]:
        return {"cpu": cpu, "log_likelihood": float(evidence(params).value.mean())}

    start: dict[str, Array] = {}

    def rivals() -> dict[str, float]:
        first_params, first = by_stepmix(1)
        start.update(first_params)
        params, cpu = by_stepmix(1 + num_steps)
        return judged(params, cpu - first)

    theirs = rival("stepmix", f"{num_steps} steps", rivals)
    rows = [theirs]
    if "cpu" in theirs:
        em = EM(bernoulli_mixture)
        state = em.init(random.key(0), train, init_params=start, num_components=count)
        end, taken = timed(learning(em, num_steps, num_components=count), state, train, repeats=3)
        own = judged(em.get_params(end), taken.cpu)
        rows.insert(0, {"method": f"EM, {num_steps} steps", **own, "compile": taken.compile})
    return {"title": "steps: mixture of 10, 4000 × 64 bits; nats of these rows", "rows": rows}


BENCHMARKS = {"forms": forms, "steps": steps}

"""NUTS and SVI on a marginal program: gradients a processor second, and memory.

    latentbits bench --only nuts,svi

Binary sparse coding on bars, 1000 × 25, 10 causes, 1024 states a row. NUTS with four chains at once
takes trees of a fixed depth, so that all contenders make as many gradients; SVI takes minibatches
of 250 rows. Beside `marginal` stands the program run on every state of every row.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array, lax, random
from jax.scipy.special import logsumexp
from measuring import row, timed
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

from inference import marginal
from ppl_models import binary_sparse_coding
from ppl_models.data import bars
from ppl_models.program import data_plate

NUM_DATA, SIZE, NUM_CAUSES = 1000, 5, 10
CHAINS, DEPTH, DRAWS = 4, 4, 4
STEPS, BATCH = 100, 250


def listed(data: Array, *, num_causes: int, num_data: int | None = None) -> None:
    """The program with every state of every row written out, as enumeration does it."""
    shape = (num_causes, data.shape[1])
    weights = numpyro.sample("weights", dist.Normal(0.0, 10.0).expand(shape).to_event(2))
    noise = numpyro.sample("noise", dist.HalfNormal(10.0))
    sparsity = numpyro.sample("sparsity", dist.Uniform(0.0, 1.0))
    states = (jnp.arange(2**num_causes)[:, None] >> jnp.arange(num_causes)) & 1
    prior = dist.Bernoulli(sparsity).log_prob(states).sum(-1)
    with data_plate(data, num_data):
        each = dist.Normal((states @ weights)[:, None], noise).log_prob(data).sum(-1)
        numpyro.factor("evidence", logsumexp(prior[:, None] + each, axis=0))


def nuts(full: bool) -> dict[str, Any]:
    """NUTS with the causes summed out, four chains at once."""
    del full
    data, start = given()

    def run(model: Callable) -> Callable:
        kernel = NUTS(
            model, step_size=1e-6, adapt_step_size=False, adapt_mass_matrix=False,
            max_tree_depth=DEPTH, init_strategy=init_to_value(values=start),
        )  # fmt: skip

        def draw(key: Array, data: Array) -> Array:
            mcmc = MCMC(
                kernel, num_warmup=0, num_samples=DRAWS, num_chains=CHAINS,
                chain_method="vectorized", progress_bar=False,
            )  # fmt: skip
            mcmc.run(key, data, extra_fields=("num_steps",), num_causes=NUM_CAUSES)
            return mcmc.get_extra_fields()["num_steps"].sum()

        return draw

    contenders = {
        "NUTS(marginal), 4 chains": marginal(binary_sparse_coding),
        "  the program on every state": listed,
    }
    rows = [measured(name, run(model), data) for name, model in contenders.items()]
    return {"title": "nuts: 1000 × 25, 10 causes; gradients a CPU second, MB", "rows": rows}


def svi(full: bool) -> dict[str, Any]:
    """SVI with the causes summed out, a minibatch each step."""
    del full
    data, start = given()

    def run(model: Callable) -> Callable:
        guide = AutoNormal(model, init_loc_fn=init_to_value(values=start))
        method = SVI(model, guide, Adam(1e-3), Trace_ELBO())

        def climb(key: Array, data: Array) -> Array:
            kwargs = {"num_causes": NUM_CAUSES, "num_data": len(data)}
            rows = random.permutation(key, data)
            state = method.init(key, rows[:BATCH], **kwargs)

            def one(step: Array, state: Any) -> Any:
                start = step * BATCH % len(data)
                batch = lax.dynamic_slice_in_dim(rows, start, BATCH)
                return method.update(state, batch, **kwargs)[0]

            state = lax.fori_loop(0, STEPS, one, state)
            finite = jnp.isfinite(method.get_params(state)["noise_auto_loc"])
            return jnp.where(finite, STEPS, jnp.nan)

        return climb

    contenders = {
        "SVI(marginal), 250 rows a step": marginal(binary_sparse_coding),
        "  the program on every state": listed,
    }
    rows = [measured(name, run(model), data) for name, model in contenders.items()]
    return {"title": "svi: 1000 × 25, 10 causes; gradients a CPU second, MB", "rows": rows}


def given() -> tuple[Array, dict[str, Array]]:
    """Bars, and a start that is not at their maximum."""
    data = jnp.asarray(bars(random.key(0), NUM_DATA, size=SIZE).data, float)
    weights = random.normal(random.key(1), (NUM_CAUSES, data.shape[1])) + data.mean(0)
    return data, {"weights": weights, "noise": jnp.array(2.0), "sparsity": jnp.array(0.2)}


def measured(method: str, function: Callable, data: Array) -> dict[str, Any]:
    """A row: gradients a second, what the compiled function needs, what the process has used."""
    compiled = jax.jit(function)
    count, taken = timed(compiled, random.key(2), data)
    memory = compiled.lower(random.key(2), data).compile().memory_analysis().temp_size_in_bytes
    numbers = {"gradients": float(count) / taken.cpu, "megabytes": memory / 1e6}
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return row(method, taken, **numbers, resident=used)


BENCHMARKS = {"nuts": nuts, "svi": svi}

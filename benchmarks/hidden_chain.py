"""A hidden Markov chain with a plate of sequences, to be calibrated like our own programs.

    cd benchmarks
    latentbits calibrate hidden_chain:hidden_chain --methods nuts --set num_data=100

A sequence is a row of the table, a step a column: the held-out row is a sequence.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from ppl_models.program import data_plate

STAY, SHOW = dist.Beta(8.0, 2.0), dist.Beta(3.0, 3.0)
"""With 100 sequences a step that shows the same bit in all of them is rarer than one table in a
thousand."""


def hidden_chain(
    data: Array | None = None,
    *,
    num_data: int | None = None,
    num_steps: int = 4,
    num_states: int = 2,
    prior_stay: dist.Distribution = STAY,
    prior_show: dist.Distribution = SHOW,
) -> Array:
    """Bits shown by a hidden state that stays or moves on.

    A sequence begins in any state with equal probability, stays in state k with probability
    ``stay[k]``, else moves to any other, and shows a 1 with probability ``show[k]``. States may
    change places. The states are sites of a loop: a row has num_states ** num_steps paths, and
    `marginal` sums them step by step.
    """
    stay = numpyro.sample("stay", prior_stay.expand((num_states,)).to_event(1))
    show = numpyro.sample("show", prior_show.expand((num_states,)).to_event(1))
    away = (1.0 - stay) / (num_states - 1)
    move = jnp.where(jnp.eye(num_states, dtype=bool), stay[:, None], away[:, None])
    odds, states = jnp.full(num_states, 1.0 / num_states), []
    with data_plate(data, num_data):
        for step in range(num_steps):
            states.append(numpyro.sample(f"state_{step}", dist.Categorical(probs=odds)))
            odds = move[states[-1]]
        seen = [None] * num_steps if data is None else data.T
        bits = [
            numpyro.sample(f"seen_{step}", dist.Bernoulli(probs=show[state]), obs=seen[step])
            for step, state in enumerate(states)
        ]
    return jnp.stack(bits, -1)

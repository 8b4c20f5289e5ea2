"""From how many keys a run with default arguments ends at the best optimum that is known.

    python tests/benchmarks/keys.py [--keys 100]

Bars are those of Henniges et al. (2010), 1000 × 25 with ten causes; the mixtures have ten
components on 4000 × 64, of even and of uneven weight. The best known is the best of all runs and of
one that starts at the truth; a run is there if it ends within 5 nats of it, one in ten thousand.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from latentbits.models import bernoulli_mixture, binary_sparse_coding
from latentbits.models.data import bars

from latentbits import EM, TruncatedEM


def mixture(even: bool) -> tuple[Array, dict[str, Array]]:
    """Rows of a mixture, and its parameters."""
    rng = np.random.default_rng(0)
    probs = rng.uniform(size=(10, 64))
    mixing = np.full(10, 0.1) if even else rng.dirichlet(2 * np.ones(10))
    member = rng.choice(10, 4000, p=mixing)
    data = jnp.asarray(rng.uniform(size=(4000, 64)) < probs[member], float)
    return data, {"mixing": jnp.asarray(mixing, float), "probs": jnp.asarray(probs, float)}


def ends(name: str, method: Any, data: Array, truth: dict, num_keys: int, **sizes: int) -> None:
    """Print where the runs from many keys end."""
    known = method.run(random.key(0), 200, data, init_params=truth, **sizes).losses[-1]
    losses, agree, began = [], [], time.perf_counter()
    for i in range(num_keys):
        result = method.run(random.key(i), 100, data, progress_bar=False, **sizes)
        losses.append(float(result.losses[-1]))
        agree.append(result.optima.agree >= 2)
    best = min(float(known), *losses)
    there = sum(loss < best + 5.0 for loss in losses)
    seconds = (time.perf_counter() - began) / num_keys
    print(
        f"{name:36} {there:4} of {num_keys} at {-best / len(data):.4f} nats per row; in "
        f"{sum(agree)} two lineages agree; {seconds:.2f} s a run"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100)
    count = parser.parse_args().keys
    drawn = bars(random.key(1), 1000)
    truth = {"weights": drawn.weights, "noise": drawn.noise, "sparsity": drawn.sparsity}
    for kind in (EM, TruncatedEM):
        method = kind(binary_sparse_coding)
        ends(f"{kind.__name__}, bars", method, drawn.data, truth, count, num_causes=10)
    for words, even in (("even", True), ("uneven", False)):
        data, truth = mixture(even)
        method = EM(bernoulli_mixture)
        ends(f"EM, {words} mixture of ten", method, data, truth, count, num_components=10)


if __name__ == "__main__":
    main()

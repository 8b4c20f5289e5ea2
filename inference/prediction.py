"""The chance of a cell given the rest of its row, for any program of bits.

    P(t_j = 1 | the others seen) = logistic( log p(others, t_j = 1) − log p(others, t_j = 0) )

by the marginal likelihood of `inference.evidence`: one way for all programs, whether their latents
are summed, integrated or sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from inference.evidence import Likelihood, likelihood
from inference.local import Params


def cell_probabilities(
    model: Callable,
    draws: Params,
    data: Any,
    cells: np.ndarray,
    *,
    mask: Any = None,
    **kwargs: Any,
) -> np.ndarray:
    """P(cell = 1 | the other observed cells of its row), averaged over draws of the parameters.

    :param draws: parameters with a leading axis of draws; one draw for a point estimate.
    :param cells: (num_cells, 2), row and column of each cell asked for.
    :param mask: what of the rows is observed; the cell asked for is never looked at.
    :return: (num_cells,)

    >>> from ppl_models import bernoulli_mixture
    >>> params = {"mixing": jnp.array([[0.5, 0.5]]), "probs": jnp.array([[[0.9, 0.9], [0.1, 0.1]]])}
    >>> found = cell_probabilities(
    ...     bernoulli_mixture, params, np.array([[1.0, 0.0]]), np.array([[0, 1]]), num_components=2)
    >>> round(float(found[0]), 4)  # 0.9² + 0.1²
    0.82
    """
    asked = ask(model, data, cells, mask=mask, **kwargs)
    return answer(asked, draws)


def ask(
    model: Callable, data: Any, cells: np.ndarray, *, mask: Any = None, **kwargs: Any
) -> Likelihood:
    """The likelihood of every row in question with its cell set to 1, then with it set to 0."""
    data, cells = np.asarray(data, np.float32), np.asarray(cells)
    rows, columns = cells.T
    each = np.arange(len(cells))
    values = np.stack([data[rows], data[rows]])
    values[0, each, columns], values[1, each, columns] = 1.0, 0.0
    values = values.reshape(-1, data.shape[1])
    if mask is not None and not np.all(mask):
        # Without holes no mask is passed: a program may have a shorter way where all is seen.
        seen = np.asarray(mask, bool)[rows]
        seen[each, columns] = True
        kwargs["mask"] = jnp.asarray(np.tile(seen, (2, 1)))
    return likelihood(model, jnp.asarray(values), **kwargs)


def answer(asked: Likelihood, draws: Any) -> np.ndarray:
    """P(cell = 1 | the rest of its row) of each cell that was asked for."""
    found = np.asarray(asked.of_draws(draws).value, np.float64)
    one, nought = found.reshape(len(found), 2, -1).swapaxes(0, 1)
    # P(row with 1) over P(row either way), each averaged over the draws.
    return np.exp(logsumexp(one, axis=0) - logsumexp(np.logaddexp(one, nought), axis=0))


def reliability(chance: np.ndarray, bits: np.ndarray, num_bins: int = 10) -> dict[str, Any]:
    """How often a bit was 1 where its chance was said to be so: by bins of equal count.

    ``error`` is the mean distance between the two over bins of equal count, ``expected`` what it
    would be by chance alone if the chances were right, so that small tables are not blamed.

    >>> rng = np.random.default_rng(0)
    >>> chance = rng.random(4000)
    >>> found = reliability(chance, rng.random(4000) < chance)
    >>> found["error"] < 2 * found["expected"]
    True
    """
    order = np.argsort(chance, kind="stable")
    bins = [part for part in np.array_split(order, num_bins) if len(part)]
    said = np.array([chance[part].mean() for part in bins])
    seen = np.array([bits[part].mean() for part in bins])
    spread = np.array([np.sqrt((chance[p] * (1 - chance[p])).sum()) / len(p) for p in bins])
    share = np.array([len(part) for part in bins]) / len(chance)
    return {
        "said": said,
        "seen": seen,
        "error": float(share @ np.abs(said - seen)),
        "expected": float(share @ spread * np.sqrt(2 / np.pi)),
        "log_score": float(np.mean(np.log(np.where(bits > 0.5, chance, 1 - chance).clip(1e-12)))),
    }

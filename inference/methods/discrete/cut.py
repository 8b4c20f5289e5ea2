"""Which rows to learn from: the paper's schedule of a growing cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ...rows.chunks import Rows, sum_over_chunks
from .ranks import Count, kth_smallest


class Cut(NamedTuple):
    """Learn from the data that the truncation explains well (Henniges et al. 2010, §2).

    All data up to step `begin`, then linearly fewer, from step `end` on only the N·A(π) of highest
    evidence, as many as are expected to have at most `max_active` causes.

    >>> from latentbits import TruncatedEM
    >>> from latentbits.models import binary_sparse_coding
    >>> em = TruncatedEM(binary_sparse_coding, max_active=2, num_candidates=3, cut=Cut(2, 4))
    >>> em.cut
    Cut(begin=2, end=4, sparsity='sparsity')
    """

    begin: int = 20
    end: int = 40
    sparsity: str = "sparsity"  # the site that holds π

    def num_kept(self, step: Array, num_data: int, mass: Array) -> Array:
        """How many of the data to learn from: the size of the set M, from all to N·A(π)."""
        progress = jnp.clip((step - self.begin) / max(1, self.end - self.begin), 0.0, 1.0)
        count = jnp.ceil(num_data * (1.0 - progress * (1.0 - mass))).astype(int)
        return jnp.clip(count, 1, num_data)

    def least(
        self,
        step: Array,
        mass: Array,
        rows: Rows,
        size: int,
        extra: Any,
        evidence: Callable[[Any, Any], Array],
    ) -> Array:
        """The log evidence from which on a row is learned from.

        :param evidence: that of the rows of a chunk, from their arguments and what goes with them.
        """

        def tally(count: Count) -> Array:
            each = lambda arguments, extra, fresh: count(evidence(arguments, extra), fresh)  # noqa: E731
            return sum_over_chunks(each, rows, size, extra)

        threshold = lax.cond(
            step > self.begin,
            lambda: kth_smallest(tally, rows.total - self.num_kept(step, rows.total, mass)),
            lambda: jnp.array(-jnp.inf, jnp.float32),
        )
        # Found anew, evidence may differ in its last digits: what is as good still counts.
        return threshold - 1e-6 * jnp.abs(threshold)


def as_good(evidence: Array, least: Array) -> Array:
    """1 for the data to learn from, 0 for the others; `least` is in float32."""
    return (evidence.astype(least.dtype) >= least).astype(evidence.dtype)

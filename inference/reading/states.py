"""Which latent states to look at.

A state set is a recipe for a table of states, S rows of `num_bits` values. The sets here are the
same for every datum; sets chosen per datum are made by the methods that need them.

    all states           exact: the posterior and the evidence of the program itself
    at most k active     a truncation, so a lower bound of the evidence
    given states         draws, quadrature nodes, or any table of one's own
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .anatomy import ProgramError

# A table larger than this does not fit beside the data; 2^24 states of a few bytes each do.
MAX_STATES = 1 << 24


class AllStates(NamedTuple):
    """Every state: 2^H for H bits, the product of the numbers of values in general.

    >>> AllStates().table((2, 3)).tolist()
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    """

    def count(self, num_values: Sequence[int]) -> int:
        """How many states there are."""
        return math.prod(num_values)

    def table(self, num_values: Sequence[int]) -> np.ndarray:
        _refuse_if_too_many(self.count(num_values), "use AtMost(k), or TruncatedEM")
        grid = np.indices(tuple(num_values), dtype=np.int8 if max(num_values) < 128 else np.int32)
        return grid.reshape(len(num_values), -1).T


class AtMost(NamedTuple):
    """States of bits with at most `max_active` ones, fewest first.

    >>> AtMost(1).table((2, 2, 2)).tolist()
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    """

    max_active: int

    def count(self, num_values: Sequence[int]) -> int:
        """How many states there are."""
        most = min(self.max_active, len(num_values))
        return sum(math.comb(len(num_values), k) for k in range(most + 1))

    def table(self, num_values: Sequence[int]) -> np.ndarray:
        num_bits = len(num_values)
        if any(n != 2 for n in num_values):
            raise ProgramError(
                "AtMost counts active bits, but a latent here has more than two values"
            )
        if self.max_active < 0:
            raise ValueError(f"max_active must be at least 0, found {self.max_active}")
        count = self.count(num_values)
        _refuse_if_too_many(count, "lower max_active")
        table = np.zeros((count, num_bits), np.int8)
        row = 1
        for k in range(1, min(self.max_active, num_bits) + 1):
            for active in itertools.combinations(range(num_bits), k):
                table[row, list(active)] = 1
                row += 1
        return table


class Given:
    """A table of one's own, (S, num_bits), or (S, num_data, num_bits) for states per datum.

    >>> Given([[0, 1], [1, 1]]).table((2, 2)).shape
    (2, 2)
    """

    def __init__(self, states: Any):
        self.states: Any = states if hasattr(states, "ndim") else np.asarray(states)
        if self.states.ndim not in (2, 3):
            raise ValueError(
                "states must be (num_states, num_bits) or (num_states, num_data, num_bits), "
                f"found shape {self.states.shape}"
            )

    def count(self, num_values: Sequence[int]) -> int:
        """How many states there are."""
        del num_values
        return len(self.states)

    def table(self, num_values: Sequence[int]) -> np.ndarray:
        if self.states.shape[-1] != len(num_values):
            raise ProgramError(
                f"the given states have {self.states.shape[-1]} values each, "
                f"but the latents of one datum have {len(num_values)}"
            )
        return self.states


StateSet = AllStates | AtMost | Given


def _refuse_if_too_many(count: int, advice: str) -> None:
    if count > MAX_STATES:
        raise ProgramError(f"{count} states are too many to hold (at most {MAX_STATES}): {advice}")

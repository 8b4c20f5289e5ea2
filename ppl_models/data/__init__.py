"""Data: the papers' synthetic sets with their truth, digits and patches, and a user's own table."""

from .cells import InputError
from .columns import Said
from .combination import (
    CombinationTarget,
    Moments,
    Ring,
    SumConstraint,
    combination_target,
    ring,
    ring_moments,
    sum_constraint,
    sum_constraint_moments,
)
from .images import Digits, Patches, digits, patches, small_digits
from .registry import DATASETS, Dataset
from .streams import Stored, on_disk
from .strokes import (
    LINE_PATTERNS,
    Bars,
    Lines,
    Prototypes,
    Shifter,
    bars,
    lines,
    prototypes,
    shifter,
)
from .tables import MixedTable, Table, load_levels, load_mixed, load_table

__all__ = [
    "DATASETS",
    "LINE_PATTERNS",
    "Bars",
    "CombinationTarget",
    "Dataset",
    "Digits",
    "InputError",
    "Lines",
    "MixedTable",
    "Moments",
    "Patches",
    "Prototypes",
    "Ring",
    "Said",
    "Shifter",
    "Stored",
    "SumConstraint",
    "Table",
    "bars",
    "combination_target",
    "digits",
    "lines",
    "load_levels",
    "load_mixed",
    "load_table",
    "on_disk",
    "patches",
    "prototypes",
    "ring",
    "ring_moments",
    "shifter",
    "small_digits",
    "sum_constraint",
    "sum_constraint_moments",
]

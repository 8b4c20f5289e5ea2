"""Data: the papers' synthetic sets with their truth, digits and patches, and a user's own table."""

from ppl_models.data.cells import InputError
from ppl_models.data.clusters import Prototypes, prototypes
from ppl_models.data.combination import CombinationTarget, combination_target
from ppl_models.data.images import Digits, Patches, digits, patches, small_digits
from ppl_models.data.mixed import MixedTable, load_mixed
from ppl_models.data.registry import DATASETS, Dataset
from ppl_models.data.spins import (
    Moments,
    Ring,
    SumConstraint,
    ring,
    ring_moments,
    sum_constraint,
    sum_constraint_moments,
)
from ppl_models.data.streams import Stored, on_disk
from ppl_models.data.strokes import (
    LINE_PATTERNS,
    Bars,
    Lines,
    Shifter,
    bars,
    lines,
    shifter,
)
from ppl_models.data.tables import Table, load_table

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
    "Shifter",
    "Stored",
    "SumConstraint",
    "Table",
    "bars",
    "combination_target",
    "digits",
    "lines",
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

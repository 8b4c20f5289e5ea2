"""A user's table whose columns are of several kinds: numbers, bits, and categories in words."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .array_tables import unpack_bits
from .cells import Cells, complain, show, understand, user_path
from .decoding import cell_error
from .tables import read_cells

MOST_LEVELS = 30
"""More different words than that are names, not categories."""

LARGEST = float(np.finfo(np.float32).max)

KINDS = ("real", "binary", "categorical", "skip")


class MixedTable(NamedTuple):
    """A table for ``mixed_trait(table.values, mask=table.mask, kinds=table.kinds)``.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = file.write_text("age,smokes\\n31,yes\\n48,no\\n")
    >>> table = load_mixed(file)
    >>> table.columns, table.kinds, table.levels
    (('age', 'smokes'), ('real', 'binary'), ((), ('no', 'yes')))
    """

    values: np.ndarray
    """(num_data, num_features), float32: numbers, 0/1, or levels from 0; 0 in missing cells"""
    mask: np.ndarray
    """(num_data, num_features), bool: True where the cell was observed"""
    columns: tuple[str, ...]
    kinds: tuple[str | int, ...]
    """'real', 'binary' or the number of levels"""
    levels: tuple[tuple[str, ...], ...]
    """what the levels of each column are called; empty for real ones"""
    label: np.ndarray | None
    """(num_data,), text: the column that was set apart, or None"""
    path: str


def load_mixed(
    path: str | PathLike[str],
    *,
    kinds: Mapping[str, str] | None = None,
    label: str | None = None,
    header: bool | None = None,
    key: str | None = None,
    packed: int | None = None,
    levels: Mapping[str, tuple[str, ...]] | None = None,
) -> MixedTable:
    """A table of any kinds of columns from a file, as `load_table` reads files.

    The kind of a column is seen from its cells: 0/1, −1/+1, yes/no and any two words are binary,
    other words categorical (levels in alphabetical order), other numbers real.

    :param kinds: column -> 'real', 'binary', 'categorical' or 'skip', where that guess is wrong.
    :param label: a column that is no feature but names the rows' groups.
    :param packed: the array holds bits as :func:`numpy.packbits` packs them: so many to a row.
    :param levels: column -> its levels, where they are known from another table.
    :raises InputError: one line that names file, row, column, what was found and what is wanted.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = file.write_text("age,smokes,town\\n31,yes,Ulm\\n48,no,Jena\\n?,no,Bonn\\n")
    >>> table = load_mixed(file)
    >>> table.kinds, table.levels[2], table.values[:, 2].tolist()
    (('real', 'binary', 3), ('Bonn', 'Jena', 'Ulm'), [2.0, 1.0, 0.0])
    """
    file = user_path(path)
    cells = read_cells(file, header=header, key=key, kind="real")
    if packed is not None:
        cells = unpack_bits(file, cells, packed)
    wanted = dict(kinds or {})
    for name in [*wanted, *([label] if label is not None else [])]:
        if name not in cells.columns:
            raise complain(file, f"has no column {show(name)}: it has {_listed(cells.columns)}")
    for name, kind in wanted.items():
        if kind not in KINDS:
            raise complain(file, f"kind {show(kind)} is none of {', '.join(KINDS)}", column=name)
    names, values, masks, found, called = [], [], [], [], []
    groups = None
    for place, name in enumerate(cells.columns):
        raw = _column(cells, place)
        if name == label:
            groups = np.array(["?" if understand(x).sort == "missing" else str(x) for x in raw])
            continue
        if wanted.get(name) == "skip":
            continue
        known = (levels or {}).get(name)
        one = _decode(file, cells, place, raw, wanted.get(name), known)
        names.append(name)
        values.append(one[0])
        masks.append(one[1])
        found.append(one[2])
        called.append(one[3])
    if not names:
        raise complain(file, "has no column left to map")
    return MixedTable(
        np.stack(values, 1).astype(np.float32), np.stack(masks, 1), tuple(names), tuple(found),
        tuple(called), groups, str(file),
    )  # fmt: skip


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def _column(cells: Cells, place: int) -> np.ndarray:
    if isinstance(cells.cells, np.ndarray):
        return np.asarray(cells.cells[:, place], object)
    return cells.cells.iloc[:, place].to_numpy(object)


def _decode(
    path: Path,
    cells: Cells,
    place: int,
    raw: np.ndarray,
    wanted: str | None,
    known: tuple[str, ...] | None,
) -> tuple[np.ndarray, np.ndarray, str | int, tuple[str, ...]]:
    """One column: values, mask, kind, names of its levels."""
    name = cells.columns[place]
    tokens = [understand(cell) for cell in raw]
    mask = np.array([token.sort != "missing" for token in tokens])
    if not mask.any():
        raise complain(path, "every cell is missing: drop the column", column=name)
    sorts = {token.sort for token in tokens} - {"missing"}
    numbers = np.array([token.number for token in tokens])
    seen = set(numbers[mask])
    kind = wanted
    if kind is None:
        if sorts == {"number"}:
            kind = "binary" if seen <= {0.0, 1.0} or seen <= {-1.0, 1.0} else "real"
        else:
            kind = "binary" if sorts <= {"word", "truth"} else "categorical"
    if kind == "real":
        for row in np.flatnonzero(mask):
            if tokens[row].sort != "number" or not abs(numbers[row]) <= LARGEST:
                problem = f"found {show(raw[row])}, wanted a finite number (of float32)"
                raise cell_error(path, cells, int(row), place, problem)
        if len(seen) < 2:
            raise complain(path, f"every cell is {show(raw[mask][0])}: skip it", column=name)
        return np.where(mask, numbers, 0.0), mask, "real", ()
    if known is None and kind == "binary" and "text" not in sorts and len(seen) <= 2:
        low = min(seen)
        if len(seen) < 2:
            raise complain(path, f"every cell is {show(raw[mask][0])}: skip it", column=name)
        names = {numbers[i]: _word(raw[i]) for i in np.flatnonzero(mask)}
        return (numbers > low) & mask, mask, "binary", (names[low], names[max(seen)])
    words = np.array([_word(cell) for cell in raw], object)
    return _levels(path, cells, place, words, mask, kind, known)


def _levels(
    path: Path,
    cells: Cells,
    place: int,
    words: np.ndarray,
    mask: np.ndarray,
    kind: str,
    known: tuple[str, ...] | None,
) -> tuple[np.ndarray, np.ndarray, str | int, tuple[str, ...]]:
    name = cells.columns[place]
    levels = known if known is not None else tuple(sorted(set(words[mask])))
    if len(levels) < 2:
        raise complain(path, f"every cell is {show(words[mask][0])}: skip it", column=name)
    if len(levels) > MOST_LEVELS:
        raise complain(
            path, f"has {len(levels)} different words, which is no category: skip it", column=name
        )
    if kind == "binary" and len(levels) > 2:
        raise complain(path, f"has {len(levels)} levels: it is not binary", column=name)
    index = {level: number for number, level in enumerate(levels)}
    for row in np.flatnonzero(mask):
        if words[row] not in index:
            problem = f"found {show(words[row])}, wanted one of {_listed(levels)}"
            raise cell_error(path, cells, int(row), place, problem)
    codes = np.array([index[word] if ok else 0 for word, ok in zip(words, mask, strict=True)])
    return codes.astype(float), mask, "binary" if len(levels) == 2 else len(levels), levels


def _word(cell: Any) -> str:
    """A level as it is called; 3.0 from a column of numbers is called 3."""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()

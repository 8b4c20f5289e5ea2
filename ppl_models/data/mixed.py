"""A user's table whose columns are of several kinds: numbers, bits, and categories in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np

from .array_tables import unpack_bits
from .cells import Cells, show, understand, user_path
from .columns import Said, arrange, column_of, level, listed, order, said_of
from .tables import read_cells

MOST_LEVELS = 30
"""More different words than that are names, not categories."""

LARGEST = float(np.finfo(np.float32).max)


class MixedTable(NamedTuple):
    """A table for ``mixed_trait(table.values, mask=table.mask, kinds=table.kinds)``.

    >>> import tempfile
    >>> from pathlib import Path
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
    ids: tuple[str, ...] | None = None
    """(num_data,): what names the rows, if a column does"""
    notes: tuple[str, ...] = ()
    """a line for each choice that was made in reading"""


def load_mixed(
    path: str | PathLike[str],
    *,
    kinds: Mapping[str, str] | None = None,
    label: str | None = None,
    header: bool | None = None,
    key: str | None = None,
    packed: int | None = None,
    levels: Mapping[str, tuple[str, ...]] | None = None,
    columns: Sequence[str] | None = None,
    said: Said | None = None,
) -> MixedTable:
    """A table of any kinds of columns from a file, as `load_table` reads files.

    The kind of a column is seen from its cells: 0/1, −1/+1, 1/2, yes/no and any two words are
    binary, other words categorical (levels in alphabetical order), other numbers real.

    :param kinds: column -> one of `columns.KINDS`, where that guess is wrong; counts and ordered
        numbers are real here.
    :param label: a column that is no feature but names the rows' groups.
    :param packed: the array holds bits as :func:`numpy.packbits` packs them: so many to a row.
    :param levels: column -> its levels, where they are known from another table.
    :param columns: names of the columns to keep; None: all.
    :param said: columns to leave out, ids, weights, codes of missing cells, kinds.
    :raises InputError: one line that names file, row, column, what was found and what is wanted.

    >>> import tempfile
    >>> from pathlib import Path
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
    said = said or Said()
    wanted = {**said.kinds, **(kinds or {})}
    cells.check_names([] if label is None else [label])
    keep = (*(levels or {}), *([] if label is None else [label]))
    arranged = arrange(cells, said._replace(kinds=wanted), keep)
    cells = arranged.cells
    if columns is not None:
        left = {*columns, *keep[len(levels or {}) :]}
        wide = (name for name in cells.columns if name not in columns and name in left)
        cells = cells.select([*columns, *wide])
    decoded, groups = {}, None
    for place, name in enumerate(cells.columns):
        raw = column_of(cells, place)
        if name == label:
            groups = np.array(["?" if understand(x).sort == "missing" else str(x) for x in raw])
            continue
        decoded[name] = _decode(cells, place, raw, wanted.get(name), (levels or {}).get(name))
    if not decoded:
        raise cells.error("has no column left to map")
    values, masks, column_kinds, called = zip(*decoded.values(), strict=True)
    numbers, mask = np.stack(values, 1).astype(np.float32), np.stack(masks, 1)
    numbers, mask, ids, groups = arranged.repeated(numbers, mask, arranged.ids, groups)
    coded = {
        name: pair
        for name, (_, _, kind, pair) in decoded.items()
        if kind == "binary" and {understand(x).sort for x in pair} - {"word", "truth"}
        and pair not in (("0", "1"), ("-1", "1"))
    }  # fmt: skip
    return MixedTable(
        numbers, mask, tuple(decoded), column_kinds, called, groups, str(file), ids,
        (*arranged.notes, *said_of(coded)),
    )  # fmt: skip


def _decode(
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
        raise cells.error("every cell is missing: drop the column", name)
    sorts = {token.sort for token in tokens} - {"missing"}
    numbers = np.array([token.number for token in tokens])
    distinct = set(numbers[mask])
    kind = wanted
    if kind is not None and kind.partition(":")[0] == "ordinal":
        if sorts != {"number"}:
            problem = "has ordered words: call it categorical here, or fit graded_trait"
            raise cells.error(problem, name)
        kind = "real"
    if kind is None:
        if sorts == {"number"}:
            two = distinct <= {0.0, 1.0} or distinct in ({-1.0, 1.0}, {1.0, 2.0})
            kind = "binary" if two else "real"
        else:
            kind = "binary" if sorts <= {"word", "truth"} else "categorical"
    if kind in ("real", "count"):
        for row in np.flatnonzero(mask):
            number = numbers[row]
            bad = tokens[row].sort != "number" or not abs(number) <= LARGEST
            if bad or (kind == "count" and (number < 0 or number != round(number))):
                what = "a finite number (of float32)" if kind == "real" else "a count"
                problem = f"found {show(raw[row])}, wanted {what}"
                raise cells.wrong(row, place, problem)
        if len(distinct) < 2:
            raise cells.error(f"every cell is {show(raw[mask][0])}: skip it", name)
        return np.where(mask, numbers, 0.0), mask, "real", ()
    if known is None and kind == "binary" and "text" not in sorts and len(distinct) <= 2:
        low = min(distinct)
        if len(distinct) < 2:
            raise cells.error(f"every cell is {show(raw[mask][0])}: skip it", name)
        names = {numbers[i]: level(raw[i]) for i in np.flatnonzero(mask)}
        return (numbers > low) & mask, mask, "binary", (names[low], names[max(distinct)])
    words = np.array([level(cell) for cell in raw], object)
    return _levels(cells, place, words, mask, kind, known)


def _levels(
    cells: Cells,
    place: int,
    words: np.ndarray,
    mask: np.ndarray,
    kind: str,
    known: tuple[str, ...] | None,
) -> tuple[np.ndarray, np.ndarray, str | int, tuple[str, ...]]:
    name = cells.columns[place]
    levels = known if known is not None else tuple(sorted(set(words[mask])))
    if known is None and len(levels) == 2:
        levels = order(levels)
    if len(levels) < 2:
        raise cells.error(f"every cell is {show(words[mask][0])}: skip it", name)
    if len(levels) > MOST_LEVELS:
        problem = f"has {len(levels)} different words, which is no category: skip it"
        raise cells.error(problem, name)
    if kind == "binary" and len(levels) > 2:
        raise cells.error(f"has {len(levels)} levels: it is not binary", name)
    index = {level: number for number, level in enumerate(levels)}
    for row in np.flatnonzero(mask):
        if words[row] not in index:
            problem = f"found {show(words[row])}, wanted one of {listed(levels)}"
            raise cells.wrong(row, place, problem)
    codes = np.array([index[word] if ok else 0 for word, ok in zip(words, mask, strict=True)])
    return codes.astype(float), mask, "binary" if len(levels) == 2 else len(levels), levels

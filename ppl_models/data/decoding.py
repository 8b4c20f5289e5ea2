"""From cells as a file holds them to numbers and a mask, and which cell is in the way if one is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .cells import Cells, InputError, complain, show, understand

BINARY = "0/1, -1/+1, true/false or yes/no"

# Rows are gone through in blocks of about this many cells, so that no copy is larger than that.
BLOCK_CELLS = 4_000_000

Decoded = tuple[np.ndarray, np.ndarray, tuple[str, ...]]
"""values (float32, 0 where missing), mask (True where observed), coding of each column"""


def cell_error(path: Path, cells: Cells, row: int, place: int, problem: str) -> InputError:
    """The complaint about one cell; ``row`` and ``place`` count from 0."""
    in_doubt = isinstance(cells.cells, np.ndarray) or row == 0
    return complain(
        path,
        problem + (cells.hint if in_doubt else ""),
        row=cells.first_row + row,
        column=cells.columns[place],
    )


def to_numbers(path: Path, cells: Cells, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """All cells as numbers, NaN where missing; and which columns are of words (1 yes, 0 no)."""
    width = len(cells.columns)
    if isinstance(cells.cells, np.ndarray):
        words = np.full(width, cells.cells.dtype.kind == "b")
        return cells.cells, words
    frame = cells.cells
    plain = [isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in frame.dtypes]
    words = np.array([isinstance(dtype, np.dtype) and dtype.kind == "b" for dtype in frame.dtypes])
    if all(plain):
        return frame.to_numpy(np.float64), words
    numbers = np.empty(frame.shape, np.float64)
    for place in range(width):
        series = frame.iloc[:, place]
        if plain[place]:
            numbers[:, place] = series.to_numpy()
        else:
            numbers[:, place], words[place] = _words(path, cells, series, place, kind)
    return numbers, words


def _words(path: Path, cells: Cells, series: Any, place: int, kind: str) -> tuple[np.ndarray, bool]:
    """One column of text or objects: each different cell is understood once."""
    import pandas as pd

    wanted = BINARY if kind == "binary" else "a number"
    try:
        codes, different = pd.factorize(series)
    except TypeError:
        raise cell_error(
            path, cells, 0, place, f"found {show(series.iloc[0])}, wanted {wanted}"
        ) from None
    tokens = [understand(cell) for cell in different]
    above = ""
    # Different cells come in the order of their first rows: the first in the way is named.
    for code, (cell, token) in enumerate(zip(different, tokens, strict=True)):
        if token.sort == "missing":
            continue
        sort = "numbers" if token.sort == "number" else "words"
        problem = ""
        if token.sort == "text" or (token.sort == "word" and kind == "real"):
            problem = f"found {show(cell)}, wanted {wanted}"
        elif kind == "binary" and above not in ("", sort):
            problem = f"found {show(cell)}, but the cells above are {above}: wanted {wanted}"
        if problem:
            raise cell_error(path, cells, int(np.argmax(codes == code)), place, problem)
        above = sort
    # The last place serves the cells that pandas knows to be missing: their code is −1.
    table = np.array([token.number for token in tokens] + [np.nan])
    return table[codes], above == "words"


def _blocks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    rows = max(1, BLOCK_CELLS // array.shape[1])
    for start in range(0, len(array), rows):
        yield start, array[start : start + rows]


def decode_binary(path: Path, cells: Cells, numbers: np.ndarray, words: np.ndarray) -> Decoded:
    values = np.zeros(numbers.shape, np.float32)
    mask = np.ones(numbers.shape, bool)
    occurs = np.zeros((3, numbers.shape[1]), bool)
    for start, block in _blocks(numbers):
        minus, zero, one = block == -1, block == 0, block == 1
        here = slice(start, start + len(block))
        if block.dtype.kind == "f":
            mask[here] = ~np.isnan(block)
        bad = mask[here] & ~(minus | zero | one)
        if bad.any():
            row, place = (int(index) for index in np.argwhere(bad)[0])
            problem = f"found {show(block[row, place])}, wanted {BINARY}"
            raise cell_error(path, cells, start + row, place, problem)
        values[here] = one
        occurs |= np.stack([minus.any(axis=0), zero.any(axis=0), one.any(axis=0)])
    torn = np.flatnonzero(occurs[0] & occurs[1])
    if len(torn):
        place = int(torn[0])
        column = numbers[:, place]
        row = max(int(np.argmax(column == -1)), int(np.argmax(column == 0)))
        problem = f"found {show(column[row])}, but the column holds both -1 and 0: wanted {BINARY}"
        raise cell_error(path, cells, row, place, problem)
    signed = occurs[0]
    # Columns that hold 1 alone read the same either way; they are counted with the rest.
    rest = "-1/+1" if signed.any() and not (occurs[1] & ~words).any() else "0/1"
    coding = tuple(
        "words" if words[place]
        else "-1/+1" if signed[place]
        else "0/1" if occurs[1, place]
        else rest if occurs[2, place]
        else ""
        for place in range(len(words))
    )  # fmt: skip
    return values, mask, coding


def decode_real(path: Path, cells: Cells, numbers: np.ndarray) -> Decoded:
    values = np.zeros(numbers.shape, np.float32)
    mask = np.ones(numbers.shape, bool)
    for start, block in _blocks(numbers):
        here = slice(start, start + len(block))
        if block.dtype.kind == "f":
            mask[here] = ~np.isnan(block)
        with np.errstate(over="ignore"):
            values[here] = np.where(mask[here], block, 0)
        bad = ~np.isfinite(values[here])
        if bad.any():
            row, place = (int(index) for index in np.argwhere(bad)[0])
            problem = f"found {show(block[row, place])}, wanted a finite number (of float32)"
            raise cell_error(path, cells, start + row, place, problem)
    observed = mask.sum(axis=0)
    return values, mask, tuple("real" if count else "" for count in observed)

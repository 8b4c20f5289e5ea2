"""Images that an experiment learns from: embedded ones, or a file of one's own."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from latentbits.models.data import InputError, load_table

from ..option import Option

OPTIONS = {
    "data": Option(str, "images of your own, 0/1, one per row", metavar="FILE"),
    "key": Option(str, "which array of an .npz or .nc file", metavar="NAME"),
    "packed": Option(int, "bits per row, if packed", metavar="BITS"),
}


def load_images(
    options: argparse.Namespace,
    embedded: Callable[[], np.ndarray],
    least: int,
    shuffle: bool = False,
) -> np.ndarray:
    """The first ``rows`` of them, or all, (rows, pixels); a row is a square image.

    :param embedded: what is taken without a file.
    :param least: rows that are wanted.
    """
    if options.data is None:
        data = embedded()
    else:
        how = {"key": options.key, "packed": options.packed}
        data = load_table(options.data, **how, allow_constant=True, allow_missing=False).values
        if round(data.shape[1] ** 0.5) ** 2 != data.shape[1]:
            raise InputError(f"{options.data}: {data.shape[1]} columns are no square image")
    if shuffle:
        data = data[np.random.default_rng(options.seed).permutation(len(data))]
    rows = len(data) if options.rows is None else options.rows
    if not least <= rows <= len(data):
        raise InputError(f"--rows {rows}: wanted {least} to {len(data)}")
    return data[:rows]

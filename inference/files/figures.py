"""Drawings that several papers need, in one style: light, safe for colour-blind eyes, for a talk.

Each draws into a figure, a part of one or axes that it is given, so that a study decides about the
whole. Importing this file imports no matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
else:
    Axes = Figure = Any  # for annotations, elsewhere too

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe & Ito (2008): distinguishable with every kind of colour vision."""
MANY = (*PALETTE, "#8624FF", "#CE0C3D", "#8679FF", "#496D6D", "#DB7949", "#CE18B6", "#6D6D49")
"""As many as a comparison has methods. Those beyond have a contrast of at least 3 with white and
with black; of two, the nearest are 15 apart in CIELAB to an eye without red or green, and 23 to
others, so marks tell methods apart too."""

GREY = "#DCDCDC"


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the style of the house.

    >>> import matplotlib
    >>> with house_style():
    ...     matplotlib.rcParams["axes.spines.top"]
    False
    """
    import matplotlib
    from cycler import cycler

    colours: dict[Any, Any] = {"axes.prop_cycle": cycler(color=PALETTE)}
    with matplotlib.rc_context(colours, fname=Path(__file__).with_name("house.mplstyle")):
        yield


def image_grid(
    where: Figure | SubFigure | Axes,
    images: ArrayLike,
    *,
    title: str | None = None,
    row_labels: Sequence[str] | None = None,
    signed: bool | None = None,
    scale: Literal["grid", "row", "image"] = "grid",
    ground: str = GREY,
) -> Axes:
    """Images in rows, as one picture.

    :param images: (rows, columns, height, width); NaN stays empty.
    :param signed: blue and red about zero; False: grey, black is the largest. By default signed if
        some value is negative.
    :param scale: what has one colour scale: the grid, each row, or each image.
    :param ground: the colour between images, and of what is empty.
    """
    from matplotlib import colormaps

    pictures = np.asarray(images, float)
    if pictures.ndim != 4:
        raise ValueError(f"images must be (rows, columns, height, width), found {pictures.shape}")
    if signed is None:
        signed = bool(np.nanmin(pictures, initial=0.0) < 0)
    within = {"grid": (0, 1, 2, 3), "row": (1, 2, 3), "image": (2, 3)}[scale]
    largest = np.nanmax(np.abs(pictures), axis=within, keepdims=True, initial=0.0)
    pictures = pictures / np.where(largest > 0, largest, 1.0)

    # Small images are enlarged, so that the gap between two can be narrower than a pixel.
    zoom = max(1, round(24 / max(pictures.shape[2:])))
    pictures = pictures.repeat(zoom, axis=2).repeat(zoom, axis=3)
    rows, columns, height, width = pictures.shape
    gap = max(1, round(0.08 * max(height, width)))
    tall, wide = height + gap, width + gap
    mosaic = np.full((rows * tall + gap, columns * wide + gap), np.nan)
    for i in range(rows):
        for j in range(columns):
            top, left = gap + i * tall, gap + j * wide
            mosaic[top : top + height, left : left + width] = pictures[i, j]

    axes = where.subplots() if hasattr(where, "subplots") else where
    colours = colormaps["RdBu_r" if signed else "gray_r"].with_extremes(bad=ground)
    axes.imshow(mosaic, cmap=colours, vmin=-1 if signed else 0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    if row_labels is not None:
        centres = gap + np.arange(rows) * tall + (height - 1) / 2
        axes.set_yticks(centres, row_labels)
        axes.tick_params(axis="y", length=0)
    if title is not None:
        axes.set_title(title)
    return axes


def hinton(axes: Axes, weights: ArrayLike, *, largest: float | None = None) -> Axes:
    """Weights as squares whose area is the size: black is positive, white negative.

    :param weights: (rows, columns).
    :param largest: the size that fills a cell; by default the largest weight.
    """
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    values = np.asarray(weights, float)
    if values.ndim != 2:
        raise ValueError(f"weights must be (rows, columns), found shape {values.shape}")
    full = largest if largest is not None else float(np.nanmax(np.abs(values), initial=0.0))
    sides = 0.9 * np.sqrt(np.minimum(np.abs(values) / (full or 1.0), 1.0))
    for positive, colour in ((True, "black"), (False, "white")):
        squares = [
            Rectangle((j - sides[i, j] / 2, i - sides[i, j] / 2), sides[i, j], sides[i, j])
            for i, j in np.argwhere((values > 0) if positive else (values < 0))
        ]
        axes.add_collection(
            PatchCollection(squares, facecolor=colour, edgecolor="black", linewidth=0.4)
        )
    rows, columns = values.shape
    axes.set_facecolor(GREY)
    axes.set(xlim=(-0.6, columns - 0.4), ylim=(rows - 0.4, -0.6), aspect="equal")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return axes


def spectrum(axes: Axes, eigenvalues: Mapping[str, ArrayLike]) -> Axes:
    """Eigenvalues by rank, largest first, one line for each name."""
    from matplotlib.ticker import MaxNLocator

    marks = "osD^v<>"
    for i, (name, values) in enumerate(eigenvalues.items()):
        ordered = np.sort(np.asarray(values, float))[::-1]
        ranks = np.arange(1, len(ordered) + 1)
        mark = marks[i % len(marks)]
        axes.plot(ranks, ordered, marker=mark, markersize=5, linewidth=1.2, label=name)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set(xlabel="rank", ylabel="eigenvalue")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(eigenvalues) > 1:
        axes.legend()
    return axes


def time_course(
    axes: Axes,
    values: Mapping[str, ArrayLike],
    truth: float | Mapping[str, float] | None = None,
    *,
    label: str = "iteration",
) -> Axes:
    """Values over the steps of a run; of several runs each is thin and their median is bold.

    :param values: name -> (num_steps,) or (runs, num_steps).
    :param truth: dashed: one for all, or by name.
    """
    for i, (name, value) in enumerate(values.items()):
        course = np.atleast_2d(np.asarray(value, float))
        when = np.arange(1, course.shape[1] + 1)
        colour = f"C{i}"
        if len(course) > 1:
            faint: dict[str, Any] = {"alpha": max(0.08, min(0.4, 5 / len(course)))}
            axes.plot(when, course.T, color=colour, linewidth=0.8, **faint)
        axes.plot(when, np.nanmedian(course, axis=0), color=colour, label=name)
        if isinstance(truth, Mapping) and name in truth:
            axes.axhline(truth[name], color=colour, linestyle="--", linewidth=1.2)
    if truth is not None and not isinstance(truth, Mapping):
        axes.axhline(truth, color="black", linestyle="--", linewidth=1.2, label="truth")
    axes.set(xlabel=label)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend()
    return axes

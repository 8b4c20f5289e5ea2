"""Drawing a map of data: posterior means with their uncertainty, decision lines, images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..figures import GREY, PALETTE, Axes

MOST_ELLIPSES = 150
MARKS = "osD^vP*Xh<>"


class Spots(NamedTuple):
    """Data that lie at one place, merged."""

    mean: np.ndarray  # (S, 2)
    covariance: np.ndarray  # (S, 2, 2)
    rows: np.ndarray  # (S,), how many
    group: np.ndarray  # (S,), index of the label


def merge(mean: ArrayLike, covariance: ArrayLike, group: ArrayLike | None = None) -> Spots:
    """Rows of equal pattern have equal posteriors: one spot for all of them and each label.

    >>> spots = merge([[0, 0], [1, 0], [0, 0]], np.tile(np.eye(2), (3, 1, 1)))
    >>> spots.rows.tolist()
    [2, 1]
    """
    mean, covariance = np.asarray(mean, float), np.asarray(covariance, float)
    group = np.zeros(len(mean), int) if group is None else np.asarray(group)
    # Equal patterns may differ in the last digit, after another order of sums.
    keys = np.column_stack([np.round(mean, 4), group])
    _, first, count = np.unique(keys, axis=0, return_index=True, return_counts=True)
    return Spots(mean[first], covariance[first], count, group[first])


def draw_map(
    axes: Axes,
    mean: ArrayLike,
    covariance: ArrayLike,
    *,
    label: ArrayLike | None = None,
    behind: ArrayLike | None = None,
    ellipses: bool = True,
    most_ellipses: int = MOST_ELLIPSES,
    title: str | None = None,
) -> Axes:
    """Posterior means, sized by how many rows share one, with ellipses of one standard deviation.

    :param label: what colours the rows, and marks them, so that it also shows in grey.
    :param behind: means of other data, shown faintly.
    :param most_ellipses: of more, a sample is drawn.
    """
    from matplotlib.collections import EllipseCollection

    names: list[str] = []
    group = None
    if label is not None:
        names, group = (list(x) for x in np.unique(np.asarray(label, str), return_inverse=True))
    spots = merge(mean, covariance, group)
    if behind is not None:
        old = np.asarray(behind)
        axes.scatter(old[:, 0], old[:, 1], s=9, color=GREY, linewidths=0, zorder=1, label="map")
    if ellipses:
        # Many ellipses are a fog: a fair sample of them tells as much.
        chosen = np.arange(len(spots.rows))
        if len(chosen) > most_ellipses:
            chosen = np.random.default_rng(0).choice(chosen, most_ellipses, replace=False)
        values, vectors = np.linalg.eigh(spots.covariance[chosen])
        width, height = 2.0 * np.sqrt(np.maximum(values, 0.0)).T
        angle = np.degrees(np.arctan2(vectors[:, 1, 0], vectors[:, 0, 0]))
        colours = [PALETTE[g % len(PALETTE)] for g in spots.group[chosen]]
        drawn = EllipseCollection(
            width, height, angle, units="xy", offsets=spots.mean[chosen],
            offset_transform=axes.transData, facecolors="none", edgecolors=colours,
            linewidths=0.6, alpha=0.35, zorder=2,
        )  # fmt: skip
        axes.add_collection(drawn)
    size = 14.0 * np.sqrt(spots.rows)
    for number in range(max(1, len(names))):
        own = spots.group == number
        axes.scatter(
            spots.mean[own, 0], spots.mean[own, 1], s=size[own],
            color=PALETTE[number % len(PALETTE)], marker=MARKS[number % len(MARKS)],
            alpha=0.8, linewidths=0.3, edgecolors="white",
            zorder=3, label=names[number] if names else None,
        )  # fmt: skip
    out = np.abs(spots.mean)
    if ellipses:  # as far as the ellipses go: none is cut off
        out = out + np.sqrt(np.diagonal(spots.covariance, axis1=1, axis2=2))
    reach = 1.06 * max(out.max(initial=0.5), 0.0 if behind is None else np.abs(old).max())
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.set(xlabel="factor 1", ylabel="factor 2")
    if 1 < len(names) <= 12 or behind is not None:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), markerscale=1.2)
    if title is not None:
        axes.set_title(title)
    return axes


ARROW = 0.03
"""The length of an arrow, as a share of the width of the map."""


def draw_lines(axes: Axes, weights: ArrayLike, bias: ArrayLike) -> Axes:
    """Decision lines w·x + b = 0; an arrow points to the side where the bit is more likely 1."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for w, b in zip(np.asarray(weights).T, np.asarray(bias), strict=True):
        ends = []
        for x in (left, right):
            if abs(w[1]) > 1e-9 and low <= (y := -(b + w[0] * x) / w[1]) <= high:
                ends.append((x, y))
        for y in (low, high):
            if abs(w[0]) > 1e-9 and left <= (x := -(b + w[1] * y) / w[0]) <= right:
                ends.append((x, y))
        if len(ends) >= 2:
            across, up = zip(ends[0], ends[-1], strict=True)
            axes.plot(across, up, color="0.45", linewidth=0.7, zorder=1.5)
            style = {"arrowstyle": "->", "color": "0.45", "linewidth": 0.9, "shrinkA": 0}
            for share in (0.05, 0.95):
                begin = share * np.array(ends[0]) + (1.0 - share) * np.array(ends[-1])
                tip = begin + ARROW * (right - left) * w / np.hypot(*w)
                axes.annotate("", tuple(tip), tuple(begin), arrowprops=style, zorder=4.5)
    axes.set(xlim=(left, right), ylim=(low, high))
    return axes


def mark_places(axes: Axes, places: ArrayLike) -> None:
    """Numbers at the places whose images are shown beside the map."""
    for number, place in enumerate(np.asarray(places), start=1):
        axes.annotate(
            str(number), place, fontsize=11, fontweight="bold", ha="center", va="center", zorder=5,
            bbox={"boxstyle": "circle,pad=0.25", "facecolor": "white", "edgecolor": "black"},
        )  # fmt: skip


def spread_places(mean: ArrayLike, number: int = 4) -> np.ndarray:
    """Places that tell the map's story: data far from each other and not alone, (number, 2)."""
    points = np.asarray(mean, float)
    # Outliers are no story: keep the nine tenths that have the most neighbours.
    sample = points[np.linspace(0, len(points) - 1, min(len(points), 1000)).astype(int)]
    apart = np.linalg.norm(sample[:, None] - sample[None], axis=-1)
    lonely = np.sort(apart, axis=1)[:, min(8, len(sample) - 1)]
    sample = sample[lonely <= np.quantile(lonely, 0.9)]
    chosen = [int(np.argmax(np.linalg.norm(sample - sample.mean(0), axis=1)))]
    while len(chosen) < min(number, len(sample)):
        apart = np.linalg.norm(sample[:, None] - sample[chosen][None], axis=-1).min(1)
        chosen.append(int(np.argmax(apart)))
    return sample[chosen]


MOST_LABELS = 24
FONT = 9.0


Placed = list[tuple[float, float, float]]
"""Labels that stand already: left, right, height of the middle."""


def _put(axes: Axes, name: str, spots: np.ndarray, placed: Placed, **look: Any) -> None:
    """A name at the first of these spots (S, 2) where it is over no other."""
    reach = axes.get_xlim()[1]
    # A letter in units of the axes, which are about 4.6 inches wide.
    tall = 2 * reach * FONT * 1.25 / (4.6 * 72)
    short = name if len(name) <= 14 else name[:13] + "…"
    wide = tall * 0.55 * (len(short) + 1)
    short = short.replace("$", r"\$")
    for x, y in spots:
        inside = abs(x) + wide / 2 < 0.99 * reach and abs(y) + tall / 2 < 0.99 * reach
        apart = all(
            x + wide / 2 < left or x - wide / 2 > right or abs(y - middle) > tall
            for left, right, middle in placed
        )
        if inside and apart:
            placed.append((x - wide / 2, x + wide / 2, y))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.75}
            how: Any = {"fontsize": FONT, "ha": "center", "va": "center", "zorder": 4, "bbox": box}
            axes.annotate(short, (x, y), **how, **look)
            return


def label_lines(axes: Axes, weights: np.ndarray, bias: np.ndarray, names: Sequence[str]) -> Placed:
    """Names beside decision lines w·x + b = 0, none over another: one without room has none."""
    placed: Placed = []
    reach = axes.get_xlim()[1]
    for name, w, b in zip(names, weights.T, bias, strict=True):
        size = float(np.hypot(*w))
        if len(names) <= MOST_LABELS and size >= 1e-9:
            near, along = -b * w / size**2, np.array([-w[1], w[0]]) / size
            steps = np.linspace(1.4 * reach, -1.4 * reach, 57)
            _put(axes, name, near + steps[:, None] * along, placed)
    return placed


def label_categories(
    axes: Axes, mean: ArrayLike, members: Mapping[str, np.ndarray], placed: Placed
) -> None:
    """Names of categories at the mean of their rows, or a little above or below.

    :param members: name -> which rows, (num_data,).
    """
    step = axes.get_xlim()[1] / 20.0 * np.array([0, 1, -1, 2, -2, 3, -3])
    for name, rows in members.items():
        if len(members) <= MOST_LABELS and rows.any():
            x, y = np.asarray(mean)[rows].mean(0)
            spots = np.stack([np.full(len(step), x), y + step], 1)
            _put(axes, name, spots, placed, fontweight="bold")

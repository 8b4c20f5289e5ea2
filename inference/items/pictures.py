"""Pictures of a fit, from the tables that `latentbits fit` writes.

Items have curves, information and a map of items and persons, or a heat map of loadings where there
are several factors; classes have profiles; other programs show the parameters of their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..files.figures import MANY, PALETTE, Figure, image_grid

Columns = Mapping[str, Any]
MOST_NAMED = 40
"""Lines with their names beside them; more are drawn without."""
MOST_IMAGES = 200
NORMAL = 1.96
"""Standard errors on each side of an interval of 95 %."""
WORDS = {
    "Item curves": "The expected answer of each item at each value of the factor: of bits the "
    "probability of a 1, of scales the share of the highest level.",
    "Information of the test": "What the items together tell of the factor; right: 1/√information, "
    "the standard error without a prior.",
    "Items and persons": "Above, how many persons have which score; below, the difficulties of "
    "each item with intervals of 95 %. An item tells most about persons right above it.",
    "Loadings": "Standardised: red is positive, blue negative.",
    "Class profiles": "Probability of each answer in each class, with an interval of 95 %; of two "
    "answers the second. A probability at 0 or 1 has no interval.",
    "Class probabilities": "Probability of each answer in each class; of two the second.",
    "Parameters": "Each row belongs to a column of the table: red is positive, blue negative.",
    "Images": "One for each, from the first.",
}


class Drawing(NamedTuple):
    """A picture that can be drawn into a figure, or a part of one."""

    title: str
    words: str
    height: float  # inches, of a width of 6
    draw: Callable[[Any], Any]
    pale: bool = False  # black and white mean something


def drawings(
    tables: Mapping[str, Columns],
    point: Mapping[str, Any],
    columns: Sequence[str],
    image: tuple[int, int] | None = None,
) -> list[Drawing]:
    """The pictures of a fit.

    :param tables: name of a table (items, information, scores, profile, ...) -> its columns.
    :param point: the parameters, by site.
    :param columns: the names of the columns of the table.
    :param image: height and width, where the columns are the pixels of an image.
    """
    items, profile = tables.get("items"), tables.get("profile")
    if items is not None and "slope_2" in items:
        loadings = _numbers(items, "loading_")[0]
        heads = [f"factor {q + 1}" for q in range(loadings.shape[1])]
        return [_heat("Loadings", loadings, items["item"], heads)]
    if items is not None:
        lines = 1.0 + _room(len(items["item"]))
        made = [_drawing("Item curves", 4.4, partial(_curves, items))]
        if "information" in tables:
            draw = partial(_information, tables["information"])
            made.append(_drawing("Information of the test", 2.8, draw))
        if "scores" in tables:
            draw = partial(_person_map, items, tables["scores"]["factor_1"])
            made.append(_drawing("Items and persons", 2.2 + lines, draw))
        return made
    if profile is not None and image is None:
        return [_of_classes(profile)]
    sites = {x: np.asarray(v, float) for x, v in point.items() if np.ndim(v) == 2}
    sites = {x: v for x, v in sites.items() if v.shape[1] == len(columns)}
    made = []
    for site, table in sites.items():
        if image is None:
            heads = [str(k + 1) for k in range(len(table))]
            made.append(_heat("Parameters", table.T, columns, heads, site))
            continue
        pictures = table[:MOST_IMAGES].reshape(-1, *image)
        wide = min(10, len(pictures))
        blank = np.full((-len(pictures) % wide, *image), np.nan)
        grid = np.append(pictures, blank, 0).reshape(-1, wide, *image)
        height = 0.3 + 6.0 * len(grid) * image[0] / (wide * image[1])
        shown = partial(image_grid, images=grid)
        made.append(Drawing(f"Images of {site}", WORDS["Images"], height, shown, True))
    return made


def sheet(made: Sequence[Drawing]) -> Figure:
    """All of them in one figure, one below the other."""
    from matplotlib.figure import Figure

    heights = [one.height + 0.4 for one in made]
    figure = Figure(figsize=(6.4, sum(heights)))
    parts = figure.subfigures(len(made), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, one in zip(parts, made, strict=True):
        one.draw(part)
        part.suptitle(one.title, fontsize=13)
    return figure


def curves_of(items: Columns, points: np.ndarray) -> np.ndarray:
    """The expected answer of each item, as a share of its highest level, (points, items).

    >>> items = {"discrimination": [2.0, 1.0], "intercept_1": [0.0, 1.0]}
    >>> curves_of({**items, "intercept_2": [0.0, np.nan]}, np.zeros(1)).round(3).tolist()
    [[0.5, 0.731]]
    """
    slopes = np.asarray(items["discrimination"], float)
    bias = _numbers(items, "intercept")[0].T
    above = 0.5 + 0.5 * np.tanh(0.5 * (points[:, None, None] * slopes + bias))
    guess = np.asarray(items.get("guessing", 0.0), float)
    return guess + (1.0 - guess) * np.nanmean(above, axis=1)


def _numbers(table: Columns, begin: str) -> tuple[np.ndarray, np.ndarray]:
    """The columns whose names begin so, side by side, and half the widths of their intervals."""
    names = [x for x in table if x.startswith(begin) and not x.endswith("_se")]
    blank = np.full(len(table[names[0]]), np.nan)
    each = [(table[x], table.get(f"{x}_se", blank)) for x in names]
    value, error = np.moveaxis(np.array(each, float), 0, -1)
    return value, NORMAL * np.nan_to_num(error)


def _room(lines: int) -> float:
    return (0.24 if lines <= MOST_NAMED else 0.06) * min(lines, MOST_IMAGES)


def _names(axes: Any, names: Sequence[Any]) -> None:
    """Names of lines from the top, if there is room for them."""
    some = list(map(str, names)) if len(names) <= MOST_NAMED else []
    axes.set_yticks(range(len(some)), some)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def _drawing(title: str, height: float, draw: Callable[[Any], Any]) -> Drawing:
    return Drawing(title, WORDS[title], height, draw)


def _curves(items: Columns, where: Any) -> None:
    points, axes = np.linspace(-4.0, 4.0, 161), where.subplots()
    lines = axes.plot(points, curves_of(items, points))
    axes.set(xlim=(-4, 4), ylim=(0, 1), xlabel="factor", ylabel="expected answer")
    if len(lines) > len(MANY):
        for line in lines:
            line.set(color=PALETTE[0], linewidth=0.8, alpha=0.4)
        return
    for k, line in enumerate(lines):
        line.set(color=MANY[k], linestyle=("-", (0, (4, 2)))[k // 7])
    short = [x if len(x) <= 16 else f"{x[:15]}…" for x in map(str, items["item"])]
    columns = max(1, min(5, 56 // (max(map(len, short)) + 5)))
    where.legend(lines, short, loc="outside lower center", ncols=columns, fontsize=10)


def _information(table: Columns, where: Any) -> None:
    axes, curve = where.subplots(), np.asarray(table["factor_1"], float)
    axes.fill_between(table["at"], curve, color=PALETTE[0], alpha=0.15, linewidth=0)
    axes.plot(table["at"], curve, color=PALETTE[0])
    axes.set(xlim=(-4, 4), ylim=(0, 1.08 * curve.max()), xlabel="factor", ylabel="information")
    right, ticks = axes.twinx(), np.linspace(0.0, 1.08 * curve.max(), 5)[1:]
    right.spines["right"].set_visible(True)
    right.set(ylim=axes.get_ylim(), ylabel="standard error")
    right.set_yticks(ticks, [f"{1 / np.sqrt(x):.2f}" for x in ticks])


def _person_map(items: Columns, scores: Any, where: Any) -> None:
    ratios = (1.6, 0.6 + _room(len(items["item"])))
    top, below = where.subplots(2, 1, sharex=True, height_ratios=ratios)
    bins, clipped = np.linspace(-4.0, 4.0, 33), np.clip(np.asarray(scores, float), -4.0, 4.0)
    top.hist(clipped, bins, color=PALETTE[0], alpha=0.6)
    top.set(ylabel="persons")
    places, errors = _numbers(items, "difficulty")
    order = np.argsort(-np.nanmean(places, axis=1))
    style: dict[str, Any] = {"fmt": "o", "markersize": 4, "linewidth": 1.0}
    for place, error in zip(places[order].T, errors[order].T, strict=True):
        below.errorbar(place, np.arange(len(order)), xerr=error, **style)
    _names(below, [items["item"][i] for i in order])
    below.set(xlabel="factor", xlim=(-4, 4))


def _of_classes(profile: Columns) -> Drawing:
    """Probabilities of each category but, of two, the first."""
    item = np.asarray(profile["item"])
    new = np.append(True, item[1:] != item[:-1])
    two = new & np.append(~new[1:], False) & np.append(new[2:], [True, True])
    shown = np.flatnonzero(~two)
    names = [f"{item[i]} = {profile['category'][i]}" for i in shown]
    probs, errors = (x[shown] for x in _numbers(profile, "class_"))
    heads = [f"class {c + 1}" for c in range(probs.shape[1])]
    if len(names) > MOST_NAMED or len(heads) > len(PALETTE):
        return _heat("Class probabilities", probs, names, heads)
    draw = partial(_profiles, probs, errors, names, heads)
    return _drawing("Class profiles", 1.6 + _room(len(names)), draw)


def _profiles(
    probs: np.ndarray, errors: np.ndarray, names: Sequence[str], heads: Sequence[str], where: Any
) -> None:
    axes, lines = where.subplots(), np.arange(len(names))
    for c, head in enumerate(heads):
        style: dict[str, Any] = {"fmt": "osD^v<>"[c], "color": PALETTE[c], "label": head}
        place = lines + (c - (len(heads) - 1) / 2) * 0.6 / len(heads)
        ends = np.minimum(errors[:, c], [probs[:, c], 1.0 - probs[:, c]])
        axes.errorbar(probs[:, c], place, xerr=ends, markersize=5, linewidth=1.2, **style)
    _names(axes, names)
    axes.set(xlim=(-0.02, 1.02), xlabel="probability")
    axes.hlines(lines[:-1] + 0.5, 0, 1, color="#737373", linewidth=0.3)
    where.legend(loc="outside lower center", ncols=min(4, len(heads)), fontsize=10)


def _heat(
    title: str, table: np.ndarray, rows: Sequence[Any], heads: Sequence[str], site: str = ""
) -> Drawing:
    """A table as colours, with its numbers where there is room."""
    least = 1.0 if title == "Loadings" else 1e-9  # what has the deepest colour

    def draw(where: Any) -> None:
        axes, most = where.subplots(), float(np.nanmax(np.abs(table), initial=least))
        axes.imshow(table, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        axes.set_xticks(range(len(heads)), heads)
        _names(axes, rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.spines[:].set_visible(False)
        few = len(rows) <= MOST_NAMED and len(heads) <= 8
        for (i, k), value in np.ndenumerate(table) if few else ():
            colour = "white" if abs(value) > 0.6 * most else "black"
            axes.text(k, i, f"{value:.2f}", ha="center", va="center", fontsize=9, color=colour)

    return Drawing(f"{title} {site}".strip(), WORDS[title], 1.0 + _room(len(rows)), draw, True)

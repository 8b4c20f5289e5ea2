"""The figures of a report, as SVG that takes its ink from the page: light and dark alike.

Every program has the general ones. Those of the papers' kinds (map, spectrum, morph, weights) are
drawn for a public program from the mean parameters of the methods, after those were brought
together, and from some rows of the table; what the sites of a user's own program mean is not known.
Their words are in `words.toml`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from latentbits.models.mixed_trait import Layout

from ...files.cards import CARDS
from ...files.catalogue import find_program
from ...files.figures import GREY, MANY, PALETTE, Axes, Figure, hinton, image_grid, spectrum
from ...files.map.figure import draw_lines, draw_map, label_lines
from ...files.output import as_picture
from ...methods.continuous.quadrature import QuadratureEM
from ..checks import CLOSE, Mark

if TYPE_CHECKING:
    from ..compare import Comparison

INK = "#123456"
"""Drawn in this colour, then replaced by the page's own."""
WIDTH = 6.0
"""Inches. On a phone the letters of such a figure still have ten pixels."""
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#ffffff": "var(--paper)",
    "#737373": "var(--faint)",
    "#0072b2": "var(--blue)",
    "#d55e00": "var(--red)",
    "#009e73": "var(--green)",
}
MARKS = "osD^vPX<>*h"
MOST_PANELS = 6
"""Methods whose parameters are shown beside the truth."""
LEAST = 1e-4
"""Nats per row: what is nearer to the best is drawn there, for a logarithm has no zero."""
MOST_UNITS = 10
MOST_METHODS = 6
MORPH_STEPS = 9
MOST_ELLIPSES = 40
GROUND = "#c6d8ea"
"""Between pictures in greys: no grey, which would be a value."""


class Picture(NamedTuple):
    """One figure, and its words for those who see it and those who do not."""

    title: str
    words: str
    alt: str
    figure: Figure
    pale: bool = False  # black and white mean something: drawn on a pale ground, not in ink


@cache
def words() -> dict[str, Any]:
    """The words of a report: question, marks, columns, figures.

    >>> words()["figures"]["paths"]["title"]
    'Accuracy against time'
    """
    return tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8"))


def picture(kind: str, figure: Figure, pale: bool = False, **facts: Any) -> Picture:
    """A figure with the words of its kind.

    :param facts: what stands in their braces.
    """
    texts = {part: text.format(**facts) for part, text in words()["figures"][kind].items()}
    return Picture(**texts, figure=figure, pale=pale)


def sheet(height: float) -> Figure:
    """An empty figure of the page's width."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height))


def panel(height: float, across: str = "", up: str = "") -> tuple[Figure, Axes]:
    """A figure of the page's width with one panel, and the names of its axes."""
    figure = sheet(height)
    axes = figure.subplots()
    axes.set(xlabel=across, ylabel=up)
    return figure, axes


def ranked(comparison: Comparison) -> list[str]:
    """Methods with a finite score, the best first."""
    rows = {x: r for x, r in comparison.rows.items() if x in comparison.paths and "behind" in r}
    return sorted(rows, key=lambda x: rows[x]["behind"])


def styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """How each method is drawn, in every figure alike."""
    colours = [INK if colour == "#000000" else colour for colour in MANY]
    return {
        name: {
            "color": colours[i % len(colours)],
            "marker": MARKS[i % len(MARKS)],
            "linestyle": "-" if comparison.rows[name]["bespoke"] else (0, (4, 2)),
        }
        for i, name in enumerate(x for x in comparison.rows if x in comparison.paths)
    }


def legend_below(figure: Figure, names: list[str], axes: Any = None) -> None:
    """A legend that takes its own room: nothing is drawn over, nothing is cut off.

    :param axes: whose own legend it replaces, if that has one; without it there is none.
    """
    if axes is not None:
        if axes.get_legend() is None:
            return
        axes.get_legend().remove()
    columns = max(1, min(3, 58 // (max(map(len, names)) + 6)))
    lines = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + 0.25 * lines)
    figure.legend(loc="outside lower center", ncols=columns, fontsize=11, markerscale=1.4)


def as_svg(picture: Picture, prefix: str) -> str:
    """A figure as inline SVG: transparent, with words for those who cannot see it.

    :param prefix: of all names in it: two figures in one page must not share one.
    """
    figure = picture.figure
    figure.patch.set_alpha(0.0)
    if not picture.pale:
        for axes in figure.axes:
            axes.patch.set_alpha(0.0)
    text = as_picture(figure, ".svg").decode()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    if not picture.pale:
        # Lines and marks are lighter on a dark ground: the style of the page has both.
        for drawn, shown in PAGE_COLOURS.items():
            text = text.replace(drawn, shown)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)  # HTML knows what an SVG is
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r'href="#', f'href="#{prefix}', text)
    text = text.replace("url(#", f"url(#{prefix}")
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(picture.alt)}" ', 1)


def general_pictures(comparison: Comparison) -> Iterator[Picture]:
    """What can be drawn for any program, a user's own too."""
    done = ranked(comparison)
    if not done:
        return
    where = ", on the first data set" if comparison.about.get("replicates", 1) > 1 else ""
    order = "Best first: " + ", ".join(done) + "."
    late = any(comparison.rows[x]["score"] == Mark.NOT_YET.name for x in done)
    ended = " Where a line ends in an arrow, the limit of time ended it." if late else ""
    facts = {"where": where, "order": order, "mark": comparison.about["mark"], "ended": ended}
    yield picture("paths", draw_paths(comparison), **facts)
    if len(done) > 1:
        yield picture("differences", draw_differences(comparison), **facts)
    shown = [x for x in done if x in comparison.reliability]
    if shown:
        errors = ", ".join(f"{x} {comparison.reliability[x]['error']:.3f}" for x in shown)
        yield picture("reliability", draw_reliability(comparison, shown), errors=errors)
    checked = comparison.about.get("predictive", {})
    drawn = next((x for x in done if x in checked), None)
    if drawn is not None:
        one = checked[drawn]
        facts = {"name": drawn, "count": len(one["observed"]), "outside": one["outside"]}
        yield picture("totals", draw_totals(one), **facts)
    sites = [site for site, value in comparison.truth.items() if np.size(value) > 1]
    if sites:
        figure, far = draw_recovery(comparison, sites)
        note = " Triangles lie further off than there is room." if far else ""
        listed = " and ".join([", ".join(sites[:-1]), sites[-1]] if len(sites) > 1 else sites)
        yield picture("recovery", figure, sites=listed, far=note, order=order)


def draw_paths(comparison: Comparison) -> Figure:
    done, style = ranked(comparison), styles(comparison)
    figure, axes = panel(4.2, "seconds, compilation left out", "nats per row behind the best")
    axes.axhline(comparison.about["mark"], color=INK, linewidth=0.8, linestyle=":")
    for name in done:
        score, clock = comparison.paths[name]
        # From its end, which all rows that judge say: some of them score what is before.
        behind = comparison.rows[name]["behind"] + score[-1] - score
        gap = np.where(np.isfinite(score), np.maximum(behind, LEAST), np.nan)
        seconds = np.maximum(clock, 1e-3)
        axes.loglog(seconds, gap, label=name, markersize=4, linewidth=1.4, **style[name])
        if comparison.rows[name]["score"] == Mark.NOT_YET.name:
            axes.plot(seconds[-1], gap[-1], ">", color=style[name]["color"], markersize=10)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, LEAST / 1.5), max(high, 0.03))
    # Where all ends come within a second, ticks would have no short names.
    first, last = axes.get_xlim()
    if last < 10.0 * first:
        axes.set_xlim(first / 5.0, last * 5.0)
    legend_below(figure, done)
    return figure


def draw_differences(comparison: Comparison) -> Figure:
    done, style = ranked(comparison), styles(comparison)
    figure, axes = panel(1.2 + 0.32 * len(done), "nats per row behind the best")
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.axvline(CLOSE, color=INK, linewidth=0.8, linestyle=":")
    for place, name in enumerate(done):
        row, colour = comparison.rows[name], style[name]["color"]
        axes.errorbar(
            row["behind"], place, xerr=row["behind_upper"] - row["behind"],
            color=colour, fmt=style[name]["marker"], markersize=7, linewidth=1.6,
            markerfacecolor=colour if row["bespoke"] else "none",
        )  # fmt: skip
    # One that is far off would press all others together.
    largest = max(comparison.rows[name]["behind"] for name in done)
    if largest > 1.0:
        axes.set_xscale("symlog", linthresh=0.1, linscale=0.6)
        axes.set_xlim(right=2 * largest)
    axes.set_yticks(range(len(done)), done)
    axes.set_ylim(len(done) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def draw_totals(one: dict[str, Any]) -> Figure:
    figure, axes = panel(3.6, "total of a row", "rows")
    axes.fill_between(one["middle"], one["low"], one["high"], color=PALETTE[0], alpha=0.3, lw=0)
    axes.plot(one["middle"], one["mean"], color=PALETTE[0], linewidth=1.6)
    axes.plot(one["middle"], one["observed"], "o", color=INK, markersize=5)
    return figure


def draw_reliability(comparison: Comparison, shown: list[str]) -> Figure:
    style = styles(comparison)
    figure, axes = panel(5.0, "predicted probability", "share of ones")
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
    for name in shown:
        one = comparison.reliability[name]
        axes.plot(one["said"], one["seen"], label=name, markersize=4, linewidth=1.2, **style[name])
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    legend_below(figure, shown)
    return figure


def draw_recovery(comparison: Comparison, sites: list[str]) -> tuple[Figure, bool]:
    """Estimates beside the truth, and whether some lie further off than there is room.

    The methods are the best that have all sites in the shape of the truth.
    """
    truth, params = comparison.truth, comparison.params
    shown = [
        x for x in ranked(comparison)
        if all(s in params[x] and params[x][s].shape == np.shape(truth[s]) for s in sites)
    ][:MOST_PANELS]  # fmt: skip
    widest = 3 if max(map(len, shown), default=0) <= 16 else 2  # names stand above the panels
    columns = 2 if len(shown) == 4 else min(widest, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = sheet(1.2 + (WIDTH / columns) * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    every = np.concatenate([np.ravel(truth[x]) for x in sites])
    low, high = float(every.min()), float(every.max())
    span = high - low or 1.0
    ends = np.array([low - 0.08 * span, low + 1.08 * span])
    # One estimate that ran away would press all others together.
    least, largest = low - 0.5 * span, low + 1.5 * span
    far = False
    for place, axes in enumerate(grid.flat):
        if place >= len(shown):
            axes.set_visible(False)
            continue
        axes.plot(ends, ends, color=INK, linewidth=0.8, linestyle=":")
        for number, site in enumerate(sites):
            true, mean = np.ravel(truth[site]), np.ravel(params[shown[place]][site])
            drawn: dict[str, Any] = {"color": PALETTE[number % 6], "linewidths": 0, "alpha": 0.8}
            near = (mean >= least) & (mean <= largest)
            far |= not near.all()
            axes.scatter(true[near], mean[near], s=16, marker=MARKS[number], label=site, **drawn)
            for off, edge, mark in ((mean < least, least, "v"), (mean > largest, largest, "^")):
                axes.scatter(true[off], np.full(off.sum(), edge), s=30, marker=mark, **drawn)
        axes.set_title(shown[place], fontsize=11)
        axes.tick_params(labelbottom=place + columns >= len(shown))
    figure.supxlabel("true", fontsize=12)
    figure.supylabel("estimated", fontsize=12)
    if len(sites) > 1 and shown:
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=11)
    return figure, far


def model_pictures(comparison: Comparison) -> Iterator[Picture]:
    """Those of a public program; nothing for another."""
    if not ranked(comparison):
        return
    kinds: dict[str, Callable[..., Iterator[Picture]]] = {
        kind.__name__: kind for kind in (maps, spectra, morphs, basis_functions, influences, layers)
    }
    for figure in CARDS[comparison.model].figures if comparison.model in CARDS else ():
        yield from kinds[figure.kind](comparison, **figure.settings)


def chiefs(comparison: Comparison) -> list[str]:
    """The best bespoke and the best generic method, the better first.

    Of a side one whose score has arrived comes first, then one that may arrive yet.
    """
    done, rows, order = ranked(comparison), comparison.rows, [x.name for x in Mark]
    sides: dict[bool, str] = {}
    for name in sorted(done, key=lambda x: order.index(rows[x]["score"])):
        sides.setdefault(rows[name]["bespoke"], name)
    return sorted(sides.values(), key=done.index)


def compared(comparison: Comparison, site: str, names: list[str]) -> dict[str, np.ndarray]:
    """A site by method, the truth first where it is known."""
    params = comparison.params
    values = {name: params[name][site] for name in names if site in params[name]}
    return {"truth": comparison.truth[site], **values} if site in comparison.truth else values


def image_shape(comparison: Comparison, num_features: int) -> tuple[int, int] | None:
    """Height and width, if a row is an image."""
    shape = comparison.about.get("image_shape")
    if not shape or shape[0] * shape[1] != num_features:
        return None
    return int(shape[0]), int(shape[1])


def _some(count: int, what: str) -> str:
    return f" The first {MOST_UNITS} of {count} {what}." if count > MOST_UNITS else ""


def sizes_of(comparison: Comparison) -> dict[str, Any]:
    """Arguments of the program as they were when the comparison was made, without its priors."""
    written = comparison.about["sizes"].items()
    return {x: ast.literal_eval(text) for x, text in written if not x.startswith("prior")}


def places(comparison: Comparison, method: str) -> Any:
    """The posterior of the factors of each row shown under a method's parameters, with means
    (num_rows, 2) and covariances; None without two factors, or if a hard clip leaves no density."""
    params: Any = comparison.params[method]
    table, sizes = comparison.table, sizes_of(comparison)
    clipped = not (np.asarray(sizes.get("noise", 1.0)) > 0).all()
    if "values" not in table or len(params["weights"]) != 2 or clipped:
        return None
    method_of_rows = QuadratureEM(find_program(comparison.model))
    return method_of_rows.posterior(params, table["values"], mask=table["mask"], **sizes)


def maps(comparison: Comparison) -> Iterator[Picture]:
    """Tipping (1998), figures 1 and 3."""
    columns = [str(x) for x in comparison.table.get("columns", ())]
    kinds, bits = sizes_of(comparison).get("kinds"), slice(None)
    if kinds is not None:  # lines are drawn for bits alone
        layout = Layout.of(kinds)
        bits, columns = layout.bits, [columns[i] for i in layout.binary] if columns else []
    for name in chiefs(comparison):
        found = places(comparison, name)
        if found is None:
            continue
        figure, axes = panel(5.8)
        label = np.where(comparison.table["held_out"], "held out", "learned from")
        draw_map(axes, found.mean, found.covariance, label=label, most_ellipses=MOST_ELLIPSES)
        legend_below(figure, ["held out", "learned from"], axes)
        weights, bias = (comparison.params[name][x][..., bits] for x in ("weights", "bias"))
        draw_lines(axes, weights, bias)
        label_lines(axes, weights, bias, columns)
        yield picture("map", figure, name=name, count=len(found.mean))


def spectra(comparison: Comparison) -> Iterator[Picture]:
    """Lee & Sompolinsky (1998), figures 2 to 4."""
    from ...methods.moments.spectrum import implied_correlation

    noise = sizes_of(comparison).get("noise", 1.0)
    each = compared(comparison, "weights", ranked(comparison)[:MOST_METHODS])
    values = {}
    for name, weights in each.items():
        params: Any = {"weights": weights}
        values[name] = np.linalg.eigvalsh(np.asarray(implied_correlation(params, noise)))
    figure, axes = panel(4.2)
    spectrum(axes, values)
    drawn = {"truth": {"color": INK, "marker": "", "linestyle": "-"}, **styles(comparison)}
    for line, name in zip(axes.lines, values, strict=False):
        line.set(**drawn[name])
    axes.set_ylim(bottom=0.0)
    legend_below(figure, list(values), axes)
    largest = ", ".join(f"{name} {value[-1]:.2f}" for name, value in values.items())
    yield picture("spectrum", figure, largest=largest)


def morphs(comparison: Comparison) -> Iterator[Picture]:
    """Lee & Sompolinsky (1998), figure 4: from one row to another, a straight line clipped."""
    name = ranked(comparison)[0]
    found = places(comparison, name)
    if found is None:
        return
    mean = np.asarray(found.mean)
    apart = np.linalg.norm(mean[:, None] - mean[None], axis=-1)
    first, last = np.unravel_index(np.argmax(apart), apart.shape)
    share = np.linspace(0.0, 1.0, MORPH_STEPS)[:, None]
    path = (1 - share) * mean[first] + share * mean[last]
    params = comparison.params[name]
    bits = (path @ params["weights"] + params["bias"] > 0).astype(float)
    shape = image_shape(comparison, bits.shape[1])
    if shape is None:
        figure = sheet(0.6 + WIDTH * MORPH_STEPS / max(bits.shape[1], 12))
        axes = image_grid(figure, bits[None, None], signed=False, ground=GROUND)
        axes.set_ylabel("from one row to the other", color=INK)
        axes.set_xlabel("columns", color=INK)
    else:
        figure = sheet(1.3)
        image_grid(figure, bits.reshape(1, -1, *shape), signed=False, ground=GROUND)
    changed = int(np.abs(np.diff(bits, axis=0)).sum())
    yield picture("morph", figure, True, name=name, steps=MORPH_STEPS, changed=changed)


def basis_functions(
    comparison: Comparison,
    site: str = "weights",
    units: str = "causes",
    what: str = "basis functions",
    words: str = "What each cause adds to a row",
) -> Iterator[Picture]:
    """Henniges et al. (2010), figures 2 and 4; patterns of a mixture likewise.

    :param units: what the rows of the site are called.
    """
    each = compared(comparison, site, ranked(comparison)[:MOST_METHODS])
    each = {x: v for x, v in each.items() if v.shape == next(iter(each.values())).shape}
    count, size = next(iter(each.values())).shape
    shape = image_shape(comparison, size)
    stacked = np.stack(list(each.values()))[:, :MOST_UNITS]
    negative = bool((stacked < 0).any())
    rows = f" The rows of a picture are the {units}, its columns those of the table."
    yield picture(
        "basis", draw_images(stacked, list(each), shape), True, what=what.capitalize(),
        words=words, names=", ".join(each), some=_some(count, what),
        colours="Red is more, blue is less than zero." if negative else "Black is most.",
        shape="" if shape else rows,
    )  # fmt: skip


def draw_images(values: np.ndarray, names: list[str], shape: tuple[int, int] | None) -> Figure:
    """Units as images, a row for each method; without a shape one picture (units, columns) each."""
    # A row of one method: its units side by side, or one picture of all of them.
    pictures = values.reshape(*values.shape[:2], *shape) if shape else values[:, None]
    rows, columns, height, width = pictures.shape
    room = WIDTH - 0.11 * max(map(len, names))
    side = min(1.1, room / columns) if shape else room
    figure = sheet(0.25 + rows * (side * height / width * 1.08))
    # Letters drawn as outlines are wider than those that the layout measured.
    figure.set_layout_engine("constrained", w_pad=0.2)
    image_grid(figure, pictures, row_labels=names, ground=GREY if (values < 0).any() else GROUND)
    return figure


def influences(comparison: Comparison, push: str) -> Iterator[Picture]:
    """Freund & Haussler (1994): the weights of each hidden unit as a Hinton diagram.

    :param push: what a unit does to what, in words.
    """
    each = compared(comparison, "weights", chiefs(comparison))
    count, size = next(iter(each.values())).shape
    figure = draw_hintons(each, image_shape(comparison, size))
    facts = {"push": push, "some": _some(count, "units"), "names": ", ".join(each)}
    yield picture("influences", figure, True, count=min(count, MOST_UNITS), **facts)


def layers(comparison: Comparison) -> Iterator[Picture]:
    """Lewicki & Sejnowski (1996), figure 2: what the units of each layer turn on."""
    from ...methods.gibbs.noisy_or import strengths

    below: dict[str, np.ndarray] = {}
    number = 1
    while each := compared(comparison, f"weights_{number}", chiefs(comparison)):
        weights: dict[str, Any] = each
        turned = {name: np.asarray(strengths(value)) for name, value in weights.items()}
        # Of a higher layer: the inputs that its units turn on through those below.
        below = {x: v @ below[x] if number > 1 else v for x, v in turned.items()}
        count, size = next(iter(below.values())).shape
        through = "" if number == 1 else ", through the layers below"
        yield picture(
            "layer", draw_hintons(below, image_shape(comparison, size), largest=1.0), True,
            number=number, through=through, some=_some(count, "units"), names=", ".join(below),
        )  # fmt: skip
        number += 1


def draw_hintons(
    each: dict[str, np.ndarray], shape: tuple[int, int] | None, largest: float | None = None
) -> Figure:
    """Weights (units, columns) of each method: a diagram a unit if it is an image, else one."""
    units = min(MOST_UNITS, next(iter(each.values())).shape[0])
    if largest is None:
        largest = max(float(np.abs(value[:units]).max()) for value in each.values())
    columns = max(units, 4) if shape else 1  # a few of them are not blown up
    size = next(iter(each.values())).shape[1]
    height = WIDTH / columns * shape[0] / shape[1] if shape else WIDTH * units / size
    figure = sheet(len(each) * (height + 0.35))
    grid = figure.subplots(len(each), columns, squeeze=False)
    for row, (name, value) in zip(grid, each.items(), strict=True):
        row[0].set_title(name, fontsize=12, color=INK)
        if shape is None:
            hinton(row[0], value[:units], largest=largest)
            continue
        for axes, unit in zip(row, value[:units], strict=False):
            hinton(axes, unit.reshape(shape), largest=largest)
        for axes in row[units:]:
            axes.set_visible(False)
    return figure

"""Figures of the papers' kinds for the program at hand: map, spectrum, morph, weights.

They are drawn from the mean parameters of the methods, after those were brought together, and from
some rows of the table. A user's own program has none of them: what its sites mean is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from latentbits.models.mixed_trait import Layout

from ...files.cards import CARDS
from ...files.catalogue import find_program
from ...files.figures import GREY, Figure, hinton, image_grid, spectrum
from ...files.map.figure import draw_lines, draw_map, label_lines
from ...methods.continuous.quadrature import QuadratureEM
from ..checks import Standing
from .general_figures import (
    INK,
    WIDTH,
    Picture,
    legend_below,
    panel,
    picture,
    ranked,
    sheet,
    styles,
)

if TYPE_CHECKING:
    from ..compare import Comparison

MOST_UNITS = 10
MOST_METHODS = 6
MORPH_STEPS = 9
MOST_ELLIPSES = 40
GROUND = "#c6d8ea"
"""Between pictures in greys: no grey, which would be a value."""


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

    One that is not to be trusted gives way to the next of its side that is as good.
    """
    done = ranked(comparison)
    sides: dict[bool, str] = {}
    passes, fails = Standing.PASSES.name, Standing.FAILS.name
    for wanted in (lambda r: r["standing"] == passes, lambda r: r["standing"] != fails, None):
        for name in done:
            row = comparison.rows[name]
            if wanted is None or (row["as_good"] and wanted(row)):
                sides.setdefault(row["bespoke"], name)
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
    params, table, sizes = comparison.params[method], comparison.table, sizes_of(comparison)
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
        lines = [comparison.params[name][x][..., bits] for x in ("weights", "bias")]
        draw_lines(axes, *lines)
        label_lines(axes, *lines, columns)
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

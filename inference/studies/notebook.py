"""What notebooks need beside the rest: experiments by name, figures as pictures in the page."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .papers.experiment import Outcome

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from .comparison.compare import Comparison

DOTS = 110
"""An inch: sharp on a fine screen, and a notebook stays small."""
SHOWN = 80
"""Pixels of the page for an inch."""


class Shown(NamedTuple):
    """A figure that was drawn, which a notebook shows and a script passes over."""

    png: bytes
    width: int

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return self.png, {"width": self.width}

    def __repr__(self) -> str:
        return f"<figure of {len(self.png) // 1000} kB>"


def show(draw: Callable[..., Figure], *args: Any, **kwargs: Any) -> Shown:
    """Draw a figure of the package in the style of the house.

    :param draw: makes the figure from the arguments that follow.

    >>> from matplotlib.figure import Figure
    >>> shown = show(Figure, figsize=(2, 1))
    >>> shown.png[1:4], shown.width
    (b'PNG', 160)
    """
    import matplotlib
    from matplotlib import pyplot

    from .figures import house_style
    from .output import as_picture

    with house_style(), matplotlib.rc_context({"savefig.dpi": DOTS}):
        figure = draw(*args, **kwargs)
        png = _light(as_picture(figure, ".png"))
    pyplot.close(figure)  # or the notebook shows it once more
    return Shown(png, round(figure.get_figwidth() * SHOWN))


def _light(png: bytes) -> bytes:
    """The picture in 256 colours: no eye sees the difference, and it takes a third of the room."""
    from PIL import Image

    few = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    few.save(stream, "png", optimize=True)
    return stream.getvalue()


class Words(NamedTuple):
    """Text that a notebook sets as Markdown."""

    text: str

    def _repr_markdown_(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def source(function: Callable) -> Words:
    """A program as it is written, without its docstring.

    >>> from latentbits.models import bernoulli_product
    >>> print(source(bernoulli_product).text.splitlines()[1])
    def bernoulli_product(
    """
    import ast
    import inspect

    lines = inspect.getsource(function).splitlines()
    first = ast.parse("\n".join(lines)).body[0]
    assert isinstance(first, ast.FunctionDef)
    if ast.get_docstring(first) is not None:
        words = first.body[0]
        del lines[words.lineno - 1 : words.end_lineno]
    return Words("\n".join(["```python", *lines, "```"]))


def contest(
    name: str, methods: Sequence[str], *, num_draws: int = 250, small: bool = False
) -> tuple[Comparison, dict[str, Any]]:
    """Methods on a program and its example, as `latentbits compare NAME` judges them.

    No method has a budget of seconds: what a notebook says must not depend on how busy it was. Two
    run side by side where there are two cores, as they do for the command.

    :param num_draws: of each of a sampler's four chains, after three tenths as many of warm-up.
    :param small: a program that compiles in a moment takes the place of this one, for tests.
    :return: the comparison, and by method all draws as ArviZ has them.

    >>> found, data = contest("latent_trait", ["NUTS"], small=True)
    >>> found.rows["NUTS"]["status"], "posterior" in data["NUTS"]
    ('done', True)
    """
    if small:
        return _contest("bernoulli_product", ("NUTS",), 50, 20)
    return _contest(name, tuple(methods), num_draws)


@cache
def _contest(
    name: str, methods: tuple[str, ...], num_draws: int, num_data: int | None = None
) -> tuple[Comparison, dict[str, Any]]:
    import jax

    from latentbits import models

    from .arviz import container
    from .comparison.compare import compare
    from .comparison.files import method_groups
    from .comparison.side_by_side import close, processes
    from .examples import example

    given = example(name, num_data, which="small")
    kept: dict[str, Any] = {}
    several = len(methods) > 1 and (os.cpu_count() or 1) > 1 and jax.default_backend() == "cpu"
    pool = processes(2, [compare.__module__, container.__module__]) if several else None
    try:
        found = compare(
            getattr(models, name), given.values, methods, truth=given.truth, name=name,
            budget=None, num_draws=num_draws, keep=kept, pool=pool, **given.sizes,
        )  # fmt: skip
    finally:
        if pool is not None:
            close(pool)
    found.about["image_shape"] = given.image_shape
    columns = [f"x{i + 1}" for i in range(given.values.shape[1])]
    model = getattr(models, name)
    groups = {
        x: method_groups(model, one, columns, {"method": x}, given.sizes) for x, one in kept.items()
    }
    return found, {x: container(one) for x, one in groups.items()}


def scores(found: Comparison) -> pandas.DataFrame:
    """The table of a comparison, the best method first."""
    import pandas

    from .comparison.columns import COLUMNS
    from .report.ink import ranked

    done = ranked(found)
    values = {
        heading: [_cell(found.rows[name].get(key), form) for name in done]
        for key, (heading, form) in COLUMNS.items()
        if any(found.rows[name].get(key) is not None for name in done)
    }
    return pandas.DataFrame(values, index=done)


def _cell(value: Any, form: str) -> str:
    return "" if value is None else form.format(value)


def said(found: Comparison) -> Words:
    """The verdict on each method, and what follows from all of them."""
    each = [f"- {words}" for _, words in found.verdict]
    return Words("\n".join([f"**{found.headline}**", "", *each]))


def beside(**columns: dict[str, Any]) -> pandas.DataFrame:
    """Numbers of the paper beside ours: a column each, a row for each name that is in all.

    >>> print(beside(paper={"a": 2, "b": 0.5}, here={"a": 2, "b": 0.4321, "c": 1}))
      paper   here
    a     2      2
    b   0.5  0.432
    """
    import pandas

    first, *rest = columns.values()
    names = [name for name in first if all(name in other for other in rest)]
    return pandas.DataFrame(
        {head: [_short(values[name]) for name in names] for head, values in columns.items()},
        index=names,
    )


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def reproduce(name: str, **options: Any) -> Outcome:
    """Run an experiment as `latentbits reproduce NAME` does, with the defaults of the command.

    :param options: of the command, by name: ``num_data=400`` is ``--num-data 400``.

    >>> outcome = reproduce("clipped-constraint")
    >>> round(outcome.numbers["min_eigenvalue"], 6)
    -0.5
    """
    import argparse

    from .papers.experiment import add_options, experiments

    experiment = experiments()[name]
    parser = argparse.ArgumentParser()
    add_options(parser, experiment)
    settings = parser.parse_args([])
    unknown = sorted(set(options) - set(vars(settings)))
    if unknown:
        known = ", ".join(sorted(vars(settings)))
        raise ValueError(f"{name} has no option {', '.join(unknown)}: choose from {known}")
    vars(settings).update(options)
    return experiment.run(settings)

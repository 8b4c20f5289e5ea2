"""What an experiment of a paper is: options, numbers, one figure.

`experiment` makes one of the function that runs it; `latentbits list` and `latentbits reproduce`
find those of all files of `studies/papers`.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..option import SEED, Option, add, settled

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Page
else:
    Page = Any


class Outcome(NamedTuple):
    """What an experiment ends with; its figure is drawn only if it is asked for."""

    numbers: dict[str, Any]  # goes into the JSON file as it is
    size: tuple[float, float]  # of the figure, inches
    draw: Callable[..., None]  # onto an empty figure, from
    drawn: tuple[Any, ...] = ()  # these

    def figure(self) -> Page:
        from matplotlib.figure import Figure

        page = Figure(figsize=self.size)
        self.draw(page, *self.drawn)
        return page

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return picture(self.figure)

    def __repr__(self) -> str:
        return "<outcome of an experiment: numbers, figure>"


class Experiment(NamedTuple):
    """One experiment of a paper."""

    name: str
    summary: str  # one line
    study: Callable[[argparse.Namespace], Outcome]
    options: Mapping[str, Option] = {}

    @property
    def smallest(self) -> dict[str, Any]:
        """Options at which all of it runs in seconds, and little is learned."""
        return {k: x.smallest for k, x in self.options.items() if x.smallest is not None}

    def run(self, namespace: argparse.Namespace) -> Outcome:
        return self.study(settled(self.options, namespace))


def experiment(
    name: str, summary: str, **options: Option
) -> Callable[[Callable[[argparse.Namespace], Outcome]], Experiment]:
    """Make an experiment of the function below: its name, one line on it, and its options."""
    return lambda study: Experiment(name, summary, study, options)


DOTS = 110
"""An inch: sharp on a fine screen, and a notebook stays small."""
SHOWN = 80
"""Pixels of the page for an inch."""


def picture(draw: Callable[[], Page]) -> tuple[bytes, dict[str, int]]:
    """A figure in the style of the house, as a notebook shows it: a PNG file, and its width.

    In 256 colours, which look like the original and take a third of the space.

    >>> from matplotlib.figure import Figure
    >>> png, shown = picture(lambda: Figure(figsize=(2, 1)))
    >>> png[1:4], shown
    (b'PNG', {'width': 160})
    """
    import io

    import matplotlib
    from PIL import Image

    from ..figures import house_style
    from ..output import as_picture

    with house_style(), matplotlib.rc_context({"savefig.dpi": DOTS}):
        figure = draw()
        png = as_picture(figure, ".png")
    few = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    few.save(stream, "png", optimize=True)
    return stream.getvalue(), {"width": round(figure.get_figwidth() * SHOWN)}


def experiments() -> dict[str, Experiment]:
    """All experiments, by name."""
    from .. import papers

    by_name = {}
    for module in pkgutil.iter_modules(papers.__path__):
        listed = importlib.import_module(f"{papers.__name__}.{module.name}")
        by_name.update({x.name: x for x in vars(listed).values() if isinstance(x, Experiment)})
    return dict(sorted(by_name.items()))


def add_options(parser: argparse.ArgumentParser, experiment: Experiment) -> None:
    """Its settings, as opposed to where its results are written."""
    full = Option(False, "at the size of the paper")
    add(parser, {"seed": SEED, "full": full, **experiment.options})

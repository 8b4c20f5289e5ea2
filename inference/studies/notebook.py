"""What notebooks need beside the rest: experiments by name, figures as pictures in the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from inference.studies.experiment import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    from inference.studies.figures import house_style
    from inference.studies.output import as_picture

    with house_style(), matplotlib.rc_context({"savefig.dpi": DOTS}):
        figure = draw(*args, **kwargs)
        png = as_picture(figure, ".png")
    pyplot.close(figure)  # or the notebook shows it once more
    return Shown(png, round(figure.get_figwidth() * SHOWN))


def reproduce(name: str, **options: Any) -> Outcome:
    """Run an experiment as `latentbits reproduce NAME` does, with the defaults of the command.

    :param options: of the command, by name: ``num_data=400`` is ``--num-data 400``.

    >>> outcome = reproduce("clipped-constraint")
    >>> round(outcome.numbers["min_eigenvalue"], 6)
    -0.5
    """
    import argparse

    from inference.studies.experiment import experiments
    from inference.studies.reproduce import add_options

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

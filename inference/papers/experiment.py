"""What an experiment of a paper is: options, numbers, one figure; and what many of them need.

`experiment` makes one of the function that runs it; `latentbits list` and `latentbits reproduce`
find those of all files of `inference/papers`. Many run trials in one compiled call, or learn from
images: embedded ones, or a file of one's own.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from latentbits.models.data import InputError, load_table

from ..files.figures import Figure as Page
from ..files.option import SEED, Option, add, settled


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

    def __call__(self, **options: Any) -> Outcome:
        """Run it with the defaults of the command, but for these."""
        parser = argparse.ArgumentParser()
        add_options(parser, self)
        settings = vars(parser.parse_args([]))
        if unknown := sorted(set(options) - set(settings)):
            there = ", ".join(sorted(settings))
            raise ValueError(f"{self.name} has no option {', '.join(unknown)}: choose from {there}")
        return self.run(argparse.Namespace(**settings | options))


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

    from ..files.figures import house_style
    from ..files.output import as_picture

    with house_style(), matplotlib.rc_context({"savefig.dpi": DOTS}):
        figure = draw()
        png = as_picture(figure, ".png")
    few = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    few.save(stream, "png", optimize=True)
    return stream.getvalue(), {"width": round(figure.get_figwidth() * SHOWN)}


def experiments(package: ModuleType | None = None) -> dict[str, Experiment]:
    """All experiments of the modules of a package, by name; of the papers by default."""
    package = package or importlib.import_module(__package__)
    by_name = {}
    for module in pkgutil.iter_modules(package.__path__):
        listed = importlib.import_module(f"{package.__name__}.{module.name}")
        by_name.update({x.name: x for x in vars(listed).values() if isinstance(x, Experiment)})
    return dict(sorted(by_name.items()))


def add_options(parser: argparse.ArgumentParser, experiment: Experiment) -> None:
    """Its settings, as opposed to where its results are written."""
    full = Option(False, "at the size of the paper")
    add(parser, {"seed": SEED, "full": full, **experiment.options})


def in_batches(
    trial: Callable[..., Any], seed: int, trials: int, batch: int | None = None, *shared: Any
) -> tuple[Any, dict[str, float]]:
    """Map a trial over keys, a batch in one compiled call; the results end to end, and seconds.

    :param trial: a function of the arrays that all trials share, and of a key.
    :param batch: trials at once; by default all, on a processor one.
    """
    from tqdm import tqdm

    batch = min(batch or (1 if jax.default_backend() == "cpu" else trials), trials)
    keys = random.split(random.key(seed), trials)
    # The last batch is filled up with trials that are not counted: one shape, one compilation.
    padded = jnp.concatenate([keys, keys[: -trials % batch]]) if trials % batch else keys
    began = time.perf_counter()
    # One trial is traced in half of the time without a batch around it.
    every = lax.map if batch == 1 else lambda one, keys: jax.vmap(one)(keys)
    mapped = jax.jit(lambda keys, *shared: every(partial(trial, *shared), keys))
    compiled = mapped.lower(padded[:batch], *shared).compile()
    seconds = {"compile_seconds": time.perf_counter() - began}
    began, began_cpu, parts = time.perf_counter(), time.process_time(), []
    for i in tqdm(range(0, len(padded), batch), disable=None, unit="batch"):
        parts.append(jax.device_get(compiled(padded[i : i + batch], *shared)))
    seconds["seconds_per_trial"] = (time.perf_counter() - began) / len(padded)
    seconds["cpu_seconds_per_trial"] = (time.process_time() - began_cpu) / len(padded)
    return jax.tree.map(lambda *x: np.concatenate(x)[:trials], *parts), seconds


def stack(trees: Sequence[Any]) -> Any:
    """Trees of one structure as one, their leaves stacked."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def pick(tree: Any, index: Any) -> Any:
    """One element of each leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def across(where: Any, *widths: float) -> list[Any]:
    """Parts of a figure side by side."""
    return list(where.subfigures(1, len(widths), width_ratios=widths, squeeze=False)[0])


def down(where: Any, *heights: float) -> list[Any]:
    """Parts of a figure one below the other."""
    return list(where.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])


def in_rows(images: Any, side: int, columns: int) -> np.ndarray:
    """Square images for `image_grid`, (rows, columns, side, side); what is left over stays empty.

    >>> in_rows(np.ones((5, 4)), 2, 3).shape
    (2, 3, 2, 2)
    """
    columns = min(columns, len(images))
    grid = np.full((-(-len(images) // columns) * columns, side, side), np.nan)
    grid[: len(images)] = np.reshape(images, (-1, side, side))
    return grid.reshape(-1, columns, side, side)


IMAGES = {
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

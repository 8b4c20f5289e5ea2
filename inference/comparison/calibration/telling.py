"""A calibration in words, as a table and as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...files.figures import GREY, PALETTE, Figure, house_style
from ...files.output import align
from .uniformity import LEVEL, LEVELS, NUM_DRAWS, POWER, band, curve, held, power

if TYPE_CHECKING:
    from .calibrate import Calibration, Judged


DOUBT = 0.005
"""Of a p-value: between this and 0.05 one run does not decide. With nine programs and up to three
samplers each, one in twenty is to be expected."""
LEAST_P = 1e-9
"""Below, what is reported is rounding: it is one less a sum of float64."""


def verdict(name: str, judged: Judged) -> str:
    """One method in one line."""
    count = len(next(iter(judged.scalars.values())).ranks)
    worst = min(judged.scalars, key=lambda x: judged.scalars[x].p_value)
    one = judged.scalars[worst]
    level = f"p = {judged.p_value:.2g}" if judged.p_value > LEAST_P else f"p < {LEAST_P:g}"
    covers = f"coverage {'within sampling error' if judged.covers else 'off'}"
    if judged.calibrated:
        return f"{name}: nothing wrong that {count} trials would show ({level}), {covers}"
    foremost = f"foremost {worst}: its draws are {one.shape}"
    if judged.p_value > DOUBT and not judged.lost:
        return (
            f"{name}: in doubt ({level}), {covers}, {foremost}; so far off are right draws in one "
            f"run of {1 / judged.p_value:.0f}, so try another --seed or more --trials"
        )
    words = f"{name}: not calibrated ({level}), {covers}, {foremost}"
    if judged.lost:
        words += f"; in {_trials(judged.lost)} its draws are no numbers: it diverges"
    if judged.stuck:
        words += (
            f"; in {_trials(judged.stuck)} none of its draws came near the likelihood of the "
            "truth: it sticks where it should not be"
        )
    elif one.effective < 0.5 * NUM_DRAWS and not judged.lost:
        words += f"; strongly autocorrelated: effective sample size {one.effective:.0f}"
    return words


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"


JUDGED = ("p_value", "seconds", "diverging", "stuck", "lost")


def summary(calibration: Calibration) -> dict[str, Any]:
    """The numbers, as JSON has them."""
    from .calibrate import describe

    trials = calibration.trials
    return {
        "model": trials.name,
        "num_trials": len(trials.data),
        "num_draws": NUM_DRAWS,
        "num_data": trials.data.shape[1],
        "num_features": trials.data.shape[2],
        "sizes": trials.kwargs,
        "priors": describe(trials),
        "methods": {
            name: {
                "verdict": verdict(name, one),
                "calibrated": one.calibrated,
                "covers": one.covers,
                **{x: getattr(one, x) for x in JUDGED},
                "scalars": {x: r._asdict() for x, r in one.scalars.items()},
            }
            for name, one in calibration.methods.items()
        },
        "refused": calibration.refused,
        "failed": calibration.failed,
    }


def lines(calibration: Calibration) -> list[str]:
    """What was tried, the p-values, the coverage, what would show, the verdicts."""
    numbers = summary(calibration)
    sizes = "".join(f", {x} = {v}" for x, v in calibration.trials.kwargs.items())
    each = list(calibration.methods.values())
    effective = [min(x.effective for x in one.scalars.values()) for one in each]
    names = [f"{100 * level:g} % intervals that hold the truth, %" for level in LEVELS]
    shift, narrow = power(numbers["num_trials"], numbers["num_draws"], len(each[0].scalars))
    cells = [
        ["p-value of", *calibration.methods],
        *([s, *(f"{x.scalars[s].p_value:.3f}" for x in each)] for s in each[0].scalars),
        ["all together", *(f"{x.p_value:.3f}" for x in each)],
        *map(list, zip(names, *map(_covered, each), strict=True)),
        ["draws that count", *(f"{x:.0f} of {numbers['num_draws']}" for x in effective)],
        ["trials it sticks in", *(str(x.stuck) for x in each)],
        ["seconds", *(f"{x.seconds:.0f}" for x in each)],
    ]
    return [
        f"{numbers['model']}: {numbers['num_trials']} data sets of {numbers['num_data']} × "
        f"{numbers['num_features']}{sizes}",
        "prior     " + ", ".join(f"{x} {v}" for x, v in numbers["priors"].items()),
        "",
        *align(cells),
        "",
        f"With probability {100 * POWER:.0f} %, {numbers['num_trials']} tables show a shift of one "
        f"scalar by {shift:.2f} posterior standard deviations, or draws {100 * narrow:.0f} % too "
        "narrow.",
        "",
        *(x["verdict"] for x in numbers["methods"].values()),
        *(f"{x}: {reason}" for x, reason in calibration.failed.items()),
        *(f"{x}: does not apply, {reason}" for x, reason in calibration.refused.items()),
    ]


def _covered(judged: Judged) -> list[str]:
    """How many of the intervals of all scalars hold the truth, by level, in per cent.

    The intervals of one trial are dependent: the standard error is that of a mean over trials.
    """
    inside = np.mean([held(x.ranks, NUM_DRAWS)[0] for x in judged.scalars.values()], axis=0)
    error = inside.std(0) / np.sqrt(len(inside))
    return [f"{100 * x:.1f} ± {100 * e:.1f}" for x, e in zip(inside.mean(0), error, strict=True)]


def draw(calibration: Calibration) -> Figure:
    """A panel for each scalar: how the ranks' distribution function strays from the diagonal."""
    from matplotlib.figure import Figure

    from .calibrate import METHODS

    names = list(calibration.methods)
    panels = list(calibration.methods[names[0]].scalars)
    # In one row, or in two; more than ten in threes.
    columns = len(panels) if len(panels) <= 4 else -(-len(panels) // 2) if len(panels) <= 10 else 5
    rows = -(-len(panels) // columns)
    wide = int(1.5 * columns)  # names side by side
    limits = band(len(calibration.trials.data), NUM_DRAWS)

    def ended(values: np.ndarray) -> np.ndarray:
        """A curve less the diagonal, which it meets at both ends."""
        return np.pad(values - limits.points, 1)

    with house_style():
        figure = Figure(figsize=(3.1 * columns, 2.6 * rows + 0.5 + 0.3 * -(-len(names) // wide)))
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        edge = np.array([0.0, *limits.points, 1.0])
        for axes, scalar in zip(grid.flat, panels, strict=False):
            axes.fill_between(edge, ended(limits.lower), ended(limits.upper), color=GREY, lw=0)
            for name in names:
                share = curve(calibration.methods[name].scalars[scalar].ranks, NUM_DRAWS)[1]
                colour = PALETTE[list(METHODS).index(name)]  # of one program as of another
                axes.plot(edge, ended(share), color=colour, linewidth=1.5, label=name)
            axes.set(title=scalar, xlim=(0, 1))
            axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
        for place, axes in enumerate(grid.flat):
            axes.set_visible(place < len(panels))
            if len(panels) - columns <= place < len(panels):
                axes.tick_params(labelbottom=True)
        figure.supxlabel(
            f"rank of the truth among the draws; if they are right, {LEVEL:.0%} stay in the grey",
            fontsize=13,
        )
        figure.supylabel("share of trials below,\nless uniform", fontsize=13)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=wide)
    return figure

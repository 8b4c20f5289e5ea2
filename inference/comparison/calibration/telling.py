"""A calibration in words, as a table and as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...files.figures import Figure

if TYPE_CHECKING:
    from .calibrate import Calibration, Judged


DOUBT = 0.005
"""Of a p-value: between this and 0.05 one run does not decide. With nine programs and up to three
samplers each, one in twenty is to be expected."""
LEAST_P = 1e-9
"""Below, what is reported is rounding: it is one less a sum of float64."""


def verdict(name: str, judged: Judged) -> str:
    """One method in one line."""
    from .calibrate import NUM_DRAWS

    count = len(next(iter(judged.scalars.values())).ranks)
    worst = min(judged.scalars, key=lambda x: judged.scalars[x].p_value)
    one = judged.scalars[worst]
    level = f"p = {judged.p_value:.2g}" if judged.p_value > LEAST_P else f"p < {LEAST_P:g}"
    if judged.calibrated:
        return f"{name}: nothing wrong that {count} trials would show ({level})"
    foremost = f"foremost {worst}: its draws are {one.shape}"
    if judged.p_value > DOUBT and not judged.lost:
        return (
            f"{name}: in doubt ({level}), {foremost}; so far off are right draws in one run of "
            f"{1 / judged.p_value:.0f}, so try another --seed or more --trials"
        )
    words = f"{name}: not calibrated ({level}), {foremost}"
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
    from .calibrate import NUM_DRAWS, describe

    trials = calibration.trials
    return {
        "model": trials.name,
        "num_trials": len(trials.data),
        "num_draws": NUM_DRAWS,
        "num_data": trials.data.shape[1],
        "num_features": trials.data.shape[2],
        "sizes": trials.kwargs,
        "priors": describe(trials.model, trials.setting),
        "methods": {
            name: {
                "verdict": verdict(name, one),
                "calibrated": one.calibrated,
                **{x: getattr(one, x) for x in JUDGED},
                "scalars": {x: r._asdict() for x, r in one.scalars.items()},
            }
            for name, one in calibration.methods.items()
        },
        "refused": calibration.refused,
        "failed": calibration.failed,
        "coverage": calibration.coverage,
    }


def lines(calibration: Calibration) -> list[str]:
    """What was tried, the p-values, the verdicts, the coverage."""
    from ...files.output import align

    numbers = summary(calibration)
    sizes = "".join(f", {x} = {v}" for x, v in calibration.trials.kwargs.items())
    each = list(calibration.methods.values())
    effective = [min(x.effective for x in one.scalars.values()) for one in each]
    cells = [
        ["p-value of", *calibration.methods],
        *([s, *(f"{x.scalars[s].p_value:.3f}" for x in each)] for s in each[0].scalars),
        ["all together", *(f"{x.p_value:.3f}" for x in each)],
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
        *(x["verdict"] for x in numbers["methods"].values()),
        *(f"{x}: {reason}" for x, reason in calibration.failed.items()),
        *(f"{x}: does not apply, {reason}" for x, reason in calibration.refused.items()),
        *(["", *align(_coverage_table(calibration.coverage))] if calibration.coverage else []),
    ]


def _coverage_table(coverage: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Rows of cells: how many of the intervals of each kind hold the truth."""
    first = next(iter(coverage.values()))
    places = [(site, level) for site, levels in first.items() for level in levels]
    names = (f"{site} {level}" for site, level in places)
    cells = [["intervals that hold the truth", *names, "tables without an interval"]]
    for name, by_site in coverage.items():
        each = [by_site[site][level] for site, level in places]
        held = [f"{100 * x['share']:.1f} ± {100 * x['error']:.1f}" for x in each]
        cells.append([name, *held, f"{max(x['without'] for x in each)} of {each[0]['trials']}"])
    return cells


def draw(calibration: Calibration) -> Figure:
    """A panel for each scalar: how the ranks' distribution function strays from the diagonal."""
    from matplotlib.figure import Figure

    from ...files.figures import GREY, PALETTE, house_style
    from .calibrate import METHODS, NUM_DRAWS
    from .uniformity import LEVEL, band, curve

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

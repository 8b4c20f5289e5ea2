"""A calibration in words, as a table and as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..figures import Figure

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
    notes = []
    if judged.lost:
        notes.append(f"in {_trials(judged.lost)} its draws are no numbers: it diverges")
    if judged.stuck:
        notes.append(
            f"in {_trials(judged.stuck)} none of its draws came near the likelihood of the truth: "
            "it sticks where it should not be"
        )
    elif one.effective < 0.5 * NUM_DRAWS and not judged.lost:
        notes.append(f"strongly autocorrelated: effective sample size {one.effective:.0f}")
    if judged.p_value > DOUBT and not judged.lost:
        return (
            f"{name}: in doubt ({level}), {foremost}; so far off are right draws in one run of "
            f"{1 / judged.p_value:.0f}, so try another --seed or more --trials"
        )
    return "; ".join([f"{name}: not calibrated ({level}), {foremost}", *notes])


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"


def summary(calibration: Calibration) -> dict[str, Any]:
    """The numbers, as JSON has them."""
    from .calibrate import NUM_DRAWS
    from .many import describe

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
                "p_value": one.p_value,
                "seconds": one.seconds,
                "diverging": one.diverging,
                "stuck": one.stuck,
                "lost": one.lost,
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
    from ..output import align

    numbers = summary(calibration)
    sizes = ", ".join(f"{x} = {v}" for x, v in calibration.trials.kwargs.items())
    out = [
        f"{numbers['model']}: {numbers['num_trials']} data sets of {numbers['num_data']} × "
        f"{numbers['num_features']}{sizes and ', '}{sizes}",
        "prior     " + ", ".join(f"{x} {v}" for x, v in numbers["priors"].items()),
        "",
    ]
    names = list(calibration.methods)
    cells = [["p-value of", *names]]
    for scalar in calibration.methods[names[0]].scalars:
        ranked = [calibration.methods[x].scalars[scalar] for x in names]
        cells.append([scalar, *(f"{r.p_value:.3f}" for r in ranked)])
    cells.append(["all together", *(f"{calibration.methods[x].p_value:.3f}" for x in names)])
    worth = [f"{_worth(calibration.methods[x]):.0f} of {numbers['num_draws']}" for x in names]
    cells.append(["draws that count", *worth])
    cells.append(["trials it sticks in", *(str(calibration.methods[x].stuck) for x in names)])
    cells.append(["seconds", *(f"{calibration.methods[x].seconds:.0f}" for x in names)])
    out += [*align(cells), "", *(verdict(x, calibration.methods[x]) for x in names)]
    out += [f"{x}: {reason}" for x, reason in calibration.failed.items()]
    out += [f"{x}: does not apply, {reason}" for x, reason in calibration.refused.items()]
    return (
        out
        if calibration.coverage is None
        else [*out, "", *align(_coverage_table(calibration.coverage))]
    )


def _worth(judged: Judged) -> float:
    return min(x.effective for x in judged.scalars.values())


def _coverage_table(coverage: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Rows of cells: how many of the intervals of each kind hold the truth."""
    sites = next(iter(coverage.values()))
    levels = list(next(iter(sites.values())))
    cells = [
        [
            "intervals that hold the truth",
            *(f"{s} {x}" for s in sites for x in levels),
            "tables without an interval",
        ]
    ]
    for name, by_site in coverage.items():
        cells.append(
            [
                name,
                *(
                    f"{100 * by_site[s][x]['share']:.1f} ± {100 * by_site[s][x]['error']:.1f}"
                    for s in sites
                    for x in levels
                ),
                f"{max(by_site[s][x]['without'] for s in sites for x in levels)} of "
                f"{by_site[next(iter(sites))][levels[0]]['trials']}",
            ]
        )
    return cells


def draw(calibration: Calibration) -> Figure:
    """A panel for each scalar: how the ranks' distribution function strays from the diagonal."""
    from matplotlib.figure import Figure

    from ..figures import GREY, PALETTE, house_style
    from .calibrate import METHODS, NUM_DRAWS
    from .uniformity import LEVEL, band, curve

    names = list(calibration.methods)
    panels = list(calibration.methods[names[0]].scalars)
    # In one row, or in two; more than ten in threes.
    columns = len(panels) if len(panels) <= 4 else -(-len(panels) // 2) if len(panels) <= 10 else 5
    rows = -(-len(panels) // columns)
    wide = int(1.5 * columns)  # names side by side
    limits = band(len(calibration.trials.data), NUM_DRAWS)
    with house_style():
        figure = Figure(figsize=(3.1 * columns, 2.6 * rows + 0.5 + 0.3 * -(-len(names) // wide)))
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, scalar in zip(grid.flat, panels, strict=False):
            edge = np.concatenate([[0.0], limits.points, [1.0]])
            low = np.concatenate([[0.0], limits.lower - limits.points, [0.0]])
            high = np.concatenate([[0.0], limits.upper - limits.points, [0.0]])
            axes.fill_between(edge, low, high, color=GREY, linewidth=0)
            for name in names:
                points, share = curve(calibration.methods[name].scalars[scalar].ranks, NUM_DRAWS)
                stray = np.concatenate([[0.0], share - points, [0.0]])
                colour = PALETTE[list(METHODS).index(name)]  # of one program as of another
                axes.plot(edge, stray, color=colour, linewidth=1.5, label=name)
            axes.set(title=scalar, xlim=(0, 1))
            axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
            axes.tick_params(labelbottom=True)
        figure.supxlabel(
            f"rank of the truth among the draws; if they are right, {LEVEL:.0%} stay in the grey",
            fontsize=13,
        )
        figure.supylabel("share of trials below,\nless uniform", fontsize=13)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=wide)
    return figure

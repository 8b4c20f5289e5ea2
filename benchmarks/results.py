"""The table and the picture of all comparisons: `python benchmarks/results.py [FILE.jsonl …]`.

Each file has lines of `latentbits compare --results`, as benchmarks/until_trusted.py leaves them;
what they say is added to results.jsonl beside this script, the newest of a program and seed counts.
The section "Until trusted" of docs/results.md and notebooks/pictures/results.png are made anew.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import date
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from inference.files.cards import CARDS
from inference.files.figures import PALETTE, house_style

HERE = Path(__file__).resolve().parent
KEPT, PAGE = HERE / "results.jsonl", HERE.parent / "docs" / "results.md"
PICTURE = HERE.parent / "notebooks" / "pictures" / "results.png"
TITLE = "## Until trusted"
COMMAND = "`python benchmarks/until_trusted.py --out DIR --limit 120 --seeds 0`"
WORDS = """{title}

Processor seconds until a method is trusted, at the papers' sizes: to a score / to intervals.
"bespoke" is the paper's own inference; "then Laplace" and "then NUTS" begin at its fit.
A column shows the fastest of its methods, without compiling.
"> {limit:g}" is not yet there; "–" falls short or does not apply.
Programs without a line were not measured.

{table}

![Time to a score and to intervals, by program and kind of method](../notebooks/pictures/{picture})

{made}
`python benchmarks/results.py DIR/*.jsonl` makes this section and its picture.

"""
QUESTIONS = ("score", "uncertainty")
FAMILIES = {
    "then Laplace": r".*, Laplace", "then NUTS": r".*, NUTS", "NUTS": "NUTS",
    "Gibbs": r"DiscreteGibbs|LatentGibbs", "SVI": "SVI .*", "MAP": "MAP", "bespoke": ".*",
}  # fmt: skip
"""Methods by name; the first pattern that matches."""
COLUMNS = ("bespoke", "then Laplace", "then NUTS", "NUTS", "Gibbs", "SVI", "MAP")


def family(method: str) -> str:
    """The column of a method."""
    return next(x for x, pattern in FAMILIES.items() if re.fullmatch(pattern, method))


def earliest(methods: dict, column: str, question: str) -> tuple[float | None, str]:
    """The least time of a family to an answer, or None with the mark that comes next to it."""
    rows = [x for name, x in methods.items() if family(name) == column]
    times = [x[f"seconds_to_{question}"] for x in rows if x[question] == "ARRIVED"]
    marks = {x[question] for x in rows}
    return (min(times), "ARRIVED") if times else (None, "NOT_YET" if "NOT_YET" in marks else "")


def cell(row: dict, column: str) -> str:
    """Time to a score / time to intervals."""
    texts = []
    for question in QUESTIONS:
        seconds, mark = earliest(row["methods"], column, question)
        if seconds is None:
            texts.append(f"> {row['limit']:g}" if mark else "–")
        else:
            texts.append(f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}")
    alone = column in ("bespoke", "MAP") or texts[0] == texts[1]
    return texts[0] if alone else " / ".join(texts)


def section(rows: list[dict]) -> str:
    """The table with what made it."""
    last = max(rows, key=lambda row: row["date"])
    versions = ", ".join(f"{x} {y}" for x, y in sorted(last["versions"].items()))
    machine = f"one core of {last['machine']['processor']}, {last['machine']['backend']}"
    lines = [
        [f"{row['program']}, {row['rows']} × {row['columns']}", *(cell(row, x) for x in COLUMNS)]
        for row in rows
    ]
    table = [[COMMAND, *COLUMNS], ["---"] * (1 + len(COLUMNS)), *lines]
    shown = "\n".join("| " + " | ".join(line) + " |" for line in table)
    return WORDS.format(
        title=TITLE, limit=rows[0]["limit"], table=shown, picture=PICTURE.name,
        made=f"{last['date']}, {machine}; {versions}.",
    )  # fmt: skip


def draw(rows: list[dict]) -> None:
    """A line for each program: when each family gave a score, and when intervals."""
    shown = dict(zip(COLUMNS, [*PALETTE[:6], "#737373"], strict=True))
    with house_style():
        figure = Figure(figsize=(8.5, 1.8 + 0.52 * len(rows)))
        axes = figure.subplots()
        for i, row in enumerate(rows):
            for j, (column, colour) in enumerate(shown.items()):
                height = i + 0.1 * (j - (len(shown) - 1) / 2)
                for question, face in zip(QUESTIONS, ("white", colour), strict=True):
                    seconds, mark = earliest(row["methods"], column, question)
                    if question == "uncertainty" and column in ("bespoke", "MAP"):
                        continue
                    marker, at = ("o", seconds) if seconds is not None else (">", row["limit"])
                    if mark:
                        axes.plot(
                            max(at, 0.003), height, marker, color=colour, markerfacecolor=face,
                            markersize=6, clip_on=False,
                        )  # fmt: skip
            if i % 2:
                axes.axhspan(i - 0.5, i + 0.5, color="#F4F4F4", zorder=-2)
        axes.set(xscale="log", ylim=(len(rows) - 0.5, -0.5), xlabel="processor seconds")
        axes.set_yticks(range(len(rows)), [row["program"] for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        line = {"linestyle": "", "marker": "o", "markersize": 6}
        handles = [Line2D([], [], color=c, label=x, **line) for x, c in shown.items()]
        ink = {"color": "black", "linestyle": "", "markersize": 6}
        handles += [
            Line2D([], [], marker="o", markerfacecolor="white", label="score", **ink),
            Line2D([], [], marker="o", label="intervals", **ink),
            Line2D([], [], marker=">", label=f"not yet after {rows[0]['limit']:g} s", **ink),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=11)
        figure.savefig(PICTURE)


def main(given: list[str]) -> None:
    kept = [json.loads(x) for x in KEPT.read_text().splitlines()] if KEPT.exists() else []
    for path in given:
        news = [json.loads(x) for x in Path(path).read_text().splitlines()]
        made = str(date.fromtimestamp(Path(path).stat().st_mtime))
        kept += [{**x, "date": made, "command": x["command"].split(" --out")[0]} for x in news]
    newest = {(row["program"], row["seed"]): row for row in kept}
    kept = sorted(newest.values(), key=lambda row: ([*CARDS].index(row["program"]), row["seed"]))
    KEPT.write_text("".join(json.dumps(row) + "\n" for row in kept))
    rows = [row for row in kept if row["seed"] == kept[0]["seed"]]
    page = PAGE.read_text()
    start = page.index("## ")  # the section is the first of the page
    old = page.startswith(TITLE, start)
    end = page.index("\n## ", start) + 1 if old else start
    PAGE.write_text(page[:start] + section(rows) + page[end:])
    draw(rows)


if __name__ == "__main__":
    main(sys.argv[1:])

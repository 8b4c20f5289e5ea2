"""The report: one page of HTML that holds everything it shows, also without network or scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from inference.studies.verdict import RULES, doubts

if TYPE_CHECKING:
    from inference.studies.compare import Comparison

COLUMNS = {
    "held_out": ("held out", "{:.3f}", "mean log likelihood of a held-out row, in nats"),
    "held_out_error": ("±", "{:.3f}", "standard error over the held-out rows"),
    "behind": ("behind", "{:.3f}", "mean difference from the best, row by row"),
    "distance": ("distance", "{:.4f}", "mean distance from the reference, row by row"),
    "compile_seconds": ("compile s", "{:.1f}", "seconds to compile"),
    "seconds": ("run s", "{:.2f}", "seconds to run, compiled"),
    "seconds_to_best": ("to 0.01 s", "{:.2f}", "seconds until within 0.01 nats a row of the best"),
    "rhat": ("R̂", "{:.3f}", "of the log joint, which knows no labels"),
    "ess_bulk": ("ESS", "{:.0f}", "effective draws, bulk"),
    "ess_tail": ("tail", "{:.0f}", "effective draws, tail"),
    "ess_per_second": ("ESS/s", "{:.1f}", "effective draws a second"),
    "divergences": ("div.", "{:.0f}", "divergent transitions"),
    "bound_gap": ("gap", "{:.3f}", "evidence less the method's own bound, nats a row"),
    "missed_mass": ("missed", "{:.2%}", "posterior mass outside the states looked at"),
    "pareto_k": ("k̂", "{:.2f}", "Pareto's k̂ of log p − log q"),
    "recovery": ("recovery", "{:.3f}", "correlation with the true parameters"),
    "calibration_error": ("calibr.", "{:.3f}", "mean error of the chance of a single cell"),
}
"""Key -> heading, format, what it means."""


def render(found: Comparison) -> bytes:
    """The page."""
    from inference.studies.report_figures import figures

    parts = [
        f"<h1>{escape(found.model)}: bespoke against generic inference</h1>",
        f'<p class="lead">{escape(found.headline)}</p>',
        f"<p>{escape(_about(found))}</p>",
        _table(found),
    ]
    for title, words, svg in figures(found):
        caption = f"<figcaption><b>{escape(title)}.</b> {escape(words)}</figcaption>"
        parts.append(f"<figure>{caption}{svg}</figure>")
    parts.append("<h2>Verdict</h2><ul>")
    for name, words in found.verdict:
        parts.append(
            f'<li><a href="#{_anchor(name)}">{escape(name)}</a>{escape(words[len(name) :])}</li>'
        )
    parts.append("</ul><h2>By which rules</h2><pre>" + escape(RULES) + "</pre>")
    parts.append(_settings(found))
    title = escape(f"{found.model}: bespoke against generic inference")
    page = PAGE.format(title=title, style=STYLE, body="\n".join(parts))
    return page.encode()


def _about(found: Comparison) -> str:
    about = found.about
    missing = f", {about['missing']:.1%} of the cells missing" if about["missing"] else ""
    reference = about["reference"]
    referred = (
        f" Distances are from {reference}, the sampler that passes its own checks."
        if reference
        else " No sampler passed its own checks, so there is no reference to measure distance from."
    )
    return (
        f"{about.get('words', 'Data')}: {about['num_data']} rows of {about['num_features']} "
        f"columns{missing}; {about['num_train']} rows to learn from, the rest held out. Likelihood "
        f"of a row: {about['likelihood']}, the same for all methods.{referred}"
    )


def _anchor(name: str) -> str:
    return "row-" + "".join(c if c.isalnum() else "-" for c in name)


def _table(found: Comparison) -> str:
    rows = found.rows
    done = sorted((x for x in rows if "behind" in rows[x]), key=lambda x: rows[x]["behind"])
    shown = [c for c in COLUMNS if any(rows[x].get(c) is not None for x in done)]
    head = "".join(
        f'<th scope="col" title="{escape(COLUMNS[c][2])}">{escape(COLUMNS[c][0])}</th>'
        for c in shown
    )
    lines = []
    for name in done:
        row, problems = rows[name], doubts(rows[name])
        mark = "–" if problems is None else "no" if problems else "yes"
        cells = "".join(f"<td>{_cell(row, c)}</td>" for c in shown)
        kind = "bespoke" if row["bespoke"] else "generic"
        best = ' class="best"' if row["best"] else ""
        lines.append(
            f'<tr id="{_anchor(name)}"{best}><th scope="row">{escape(name)}</th><td>{kind}</td>'
            f"{cells}<td>{mark}</td></tr>"
        )
    for name in (x for x in rows if "behind" not in rows[x]):
        lines.append(
            f'<tr id="{_anchor(name)}" class="out"><th scope="row">{escape(name)}</th>'
            f'<td colspan="{len(shown) + 2}">{escape(rows[name]["reason"])}</td></tr>'
        )
    return (
        '<div class="scroll"><table><thead><tr><th scope="col">method</th><th scope="col">kind</th>'
        f'{head}<th scope="col" title="by the rules below">trusted</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(row: dict[str, Any], column: str) -> str:
    value = row.get(column)
    return "" if value is None else escape(COLUMNS[column][1].format(value))


def _settings(found: Comparison) -> str:
    about = found.about
    pairs = {
        "seed": about.get("seed"),
        "seconds for each method": about["budget"],
        **about.get("versions", {}),
        **about["sizes"],
    }
    items = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in pairs.items())
    return f"<h2>Settings</h2><dl>{items}</dl>"


STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d5d9de; --mark: #e8f1fb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7ec; --paper: #14171b; --line: #363c44; --mark: #1d2c3d; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } .lead { font-size: 1.15rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
tbody th, thead th:first-child { text-align: left; } td:nth-child(2) { text-align: left; }
tr.best { background: var(--mark); }
tr.out td { text-align: left; white-space: normal; opacity: .75; }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; color: var(--ink); }
figcaption { margin-bottom: .5rem; } pre { overflow-x: auto; font-size: .85rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dd { margin: 0; }
a { color: inherit; }
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""

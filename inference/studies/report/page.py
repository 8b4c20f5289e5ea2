"""The report: one page of HTML that holds everything it shows, also without network or scripts."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

from ..comparison.checks import CLOSE, Standing, doubts, in_words
from ..comparison.verdict import RULES
from .general_figures import general_pictures
from .ink import INK, as_svg

if TYPE_CHECKING:
    from ..comparison.compare import Comparison

COLUMNS = {
    "held_out": (
        "held out",
        "{:.3f}",
        "mean log likelihood of a held-out row, in nats, ± its standard error",
    ),
    "behind": (
        "behind",
        "{:.3f}",
        "mean difference from the best, row by row, ± its standard error",
    ),
    "excess": (
        "excess",
        "{:.4f}",
        "log likelihood of a row under the true program less that under this one, ± its error",
    ),
    "distance": (
        "distance",
        "{:.4f}",
        "mean distance from the reference, row by row, ± that one's own error",
    ),
    "compile_seconds": ("comp. s", "{:.1f}", "seconds to compile"),
    "seconds": ("run s", "seconds", "seconds to run, compiled; on a CPU processor seconds"),
    "peak_memory": ("GB", "gigabytes", "most memory that its process held, in GB"),
    "seconds_to_best": (
        "s to 0.01",
        "seconds",
        "seconds until it stays within 0.01 nats of the best",
    ),
    "rhat": ("R̂", "{:.3f}", "of the log joint, which knows no labels"),
    "rhat_parameters": ("R̂ par.", "{:.2f}", "largest of the parameters, after relabelling"),
    "ess_bulk": ("ESS", "{:.0f}", "effective draws, bulk"),
    "ess_tail": ("tail", "{:.0f}", "effective draws, tail"),
    "ess_per_second": ("ESS/s", "{:.1f}", "effective draws a second"),
    "divergences": ("div.", "{:.0f}", "divergent transitions"),
    "bound_gap": (
        "gap",
        "{:.2f}",
        "evidence less the method's own approximation of it, nats a row",
    ),
    "missed_mass": ("missed ≥", "{:.1%}", "posterior mass outside the truncated set, at least"),
    "pareto_k": ("k̂", "{:.2f}", "Pareto's k̂ of log p − log q"),
    "recovery": ("recov.", "{:.3f}", "correlation with the true parameters"),
    "calibration_error": (
        "calibr.",
        "{:.3f}",
        "mean error of the chance of a single cell (what it would be if all chances were right)",
    ),
}
"""Key -> heading, format, what it means. Its error, if there is one, stands beside it."""

MARKS = {
    Standing.PASSES: "yes",
    Standing.FAILS: "no",
    Standing.ONE_START: "one start",
    Standing.UNCHECKED: "–",
}
"""What stands in the column that says whether a method is trusted."""

NUMBER = re.compile(r"(?<![\w.])(?:-?\d+(?:\.\d+)?(?:e[+-]?\d+)?%?|-?inf\b|nan\b)")


def render(found: Comparison) -> bytes:
    """The page."""

    title = escape(f"{found.model}: bespoke against generic inference")
    made = figures(found)
    said = [f"<li>{linked(words, [name])}</li>" for name, words in found.verdict]
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="lead">{linked(found.headline, list(found.rows))}</p>',
        f"<p>{escape(_about(found))}</p>",
        _table(found),
        _figures(made[:2]),  # the race and its end
        "<h2>Verdict</h2>",
        f"<ul>{''.join(said)}</ul>",
        _figures(made[2:]),
        f'<h2 id="rules">By which rules</h2>{_rules()}',
        _settings(found),
    ]
    page = PAGE.format(title=title, style=STYLE, body="\n".join(parts))
    return page.encode()


def linked(words: str, names: list[str]) -> str:
    """Words in which each method, and each number said of it, links to its row of the table.

    >>> linked("MAP: 0.2 behind", ["MAP"])
    '<a href="#row-MAP">MAP</a>: <a href="#row-MAP">0.2</a> behind'
    """
    longest = sorted(map(re.escape, names), key=len, reverse=True)
    either = re.compile("|".join([rf"(?P<name>{'|'.join(longest) or '(?!)'})", NUMBER.pattern]))
    mentioned = either.search(words)
    row = names[0] if len(names) == 1 else None
    parts, end = [], 0
    while mentioned is not None:
        text = mentioned.group()
        if mentioned["name"]:
            row = text
        parts.append(escape(words[end : mentioned.start()]))
        if text == str(CLOSE):  # no result: it is what the rules call near
            parts.append(f'<a href="#rules">{text}</a>')
        elif row is not None:
            parts.append(f'<a href="#{_anchor(row)}">{escape(text)}</a>')
        else:
            parts.append(escape(text))
        end = mentioned.end()
        mentioned = either.search(words, end)
    return "".join(parts) + escape(words[end:])


def _about(found: Comparison) -> str:
    about = found.about
    missing = f", {about['missing']:.1%} of the cells missing" if about["missing"] else ""
    stopped = (
        " The comparison was interrupted: methods are missing." if about["interrupted"] else ""
    )
    how = about["likelihood"]
    judged_by = "the rest held out"
    if about.get("fresh"):
        judged_by = f"judged by {about['num_test']} fresh rows of what made them"
    return (
        f"Data: {about.get('words', 'a table')}; {about['num_data']} rows of "
        f"{about['num_features']} columns{missing}; {about['num_train']} rows to learn from, "
        f"{judged_by}. Likelihood of a row: {how}, the same for all methods. "
        f"{about['reference']}{stopped}"
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
        row, stands = rows[name], Standing[rows[name]["standing"]]
        mark = MARKS[stands]
        why = escape("; ".join(doubts(row)) or in_words(row, stands))
        cells = "".join(_cell(row, c) for c in shown)
        kind = "bespoke" if row["bespoke"] else "generic"
        best = ' class="best"' if row["best"] else ""
        lines.append(
            f'<tr id="{_anchor(name)}"{best}>'
            f'<th scope="row">{escape(name)} <small>{kind}</small></th>'
            f'<td title="{why}">{mark}</td>{cells}</tr>'
        )
    for name in (x for x in rows if "behind" not in rows[x]):
        lines.append(
            f'<tr id="{_anchor(name)}" class="out"><th scope="row">{escape(name)}</th>'
            f'<td colspan="{len(shown) + 1}">{escape(rows[name]["reason"])}</td></tr>'
        )
    meanings = "".join(f"<dt>{escape(COLUMNS[c][0])}</dt><dd>{COLUMNS[c][2]}</dd>" for c in shown)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="results">'
        '<table><thead><tr><th scope="col">method</th>'
        f'<th scope="col"><a href="#rules">trusted</a></th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        f"<details><summary>What the columns mean</summary><dl>{meanings}</dl></details>"
    )


def _cell(row: dict[str, Any], column: str) -> str:
    value, form = row.get(column), COLUMNS[column][1]
    if value is None:
        return "<td></td>"
    if form == "gigabytes":
        value, form = value / 1e9, "{:.2f}"
    if form == "seconds":
        form = "{:.2g}" if value < 10 else "{:.0f}"
    text = re.sub(r"^-(0\.?0*%?)$", r"\1", form.format(value))  # no nought is negative
    error = row.get(f"{column}_error")
    if error is not None:
        text += f" <small>± {form.format(error)}</small>"
    if column == "calibration_error" and "calibration_expected" in row:
        text += f" <small>({form.format(row['calibration_expected'])})</small>"
    return f'<td title="{value:.6g}">{text}</td>'


def _figures(made: list[tuple[str, str, str]]) -> str:
    each = [
        f"<figure><figcaption><b>{escape(title)}.</b> {escape(words)}</figcaption>{svg}</figure>"
        for title, words, svg in made
    ]
    return f'<div class="figures">{"".join(each)}</div>'


def _rules() -> str:
    """The rules as a list of terms; what is indented goes on with the term above."""
    terms: list[tuple[str, list[str]]] = []
    for line in RULES.strip().splitlines():
        term, _, words = line.strip().partition("  ") if line[:1].strip() else ("", "", line)
        if term:
            terms.append((term, []))
        terms[-1][1].append(words.strip())
    return "<dl>" + "".join(
        f"<dt>{escape(term)}</dt><dd>{'<br>'.join(map(escape, words))}</dd>"
        for term, words in terms
    ) + "</dl>"  # fmt: skip


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
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d5d9de;
  --mark: #e8f1fb; --faint: #6b7280; --link: #0b5cad; --hit: #fff3c4;
  --blue: #0072b2; --red: #d55e00; --green: #009e73; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7ec; --paper: #14171b; --line: #363c44; --mark: #1d2c3d; --faint: #8b95a1;
    --link: #8ec5ff; --hit: #4a3d0c; --blue: #4aa8e8; --red: #f0803c; --green: #2fc39a; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 76rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: min(1.5rem, 5.4vw); line-height: 1.25; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
.lead { font-size: 1.15rem; }
a { color: var(--link); text-decoration-thickness: 1px; text-underline-offset: .15em; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .8125rem;
  width: 100%; overflow-wrap: normal; }
th, td { padding: .35rem .3rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; white-space: nowrap; }
th small, td small { display: block; color: var(--faint); font-weight: normal; }
thead th { white-space: normal; vertical-align: bottom; }
tbody tr:last-child > * { border-bottom: 0; }
tbody th, thead th:nth-child(-n+2), tbody td:nth-child(2) { text-align: left; }
tbody th, thead th:first-child { position: sticky; left: 0; background: var(--paper); }
tr.best > * { background: var(--mark); }
tr.out td { text-align: left; white-space: normal; color: var(--faint); min-width: 20rem; }
tr:target > * { background: var(--hit); }
details { margin: .5rem 0 1rem; } summary { cursor: pointer; }
.figures { display: grid; gap: 2rem 2.5rem; margin-top: 1.5rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); }
figure { margin: 0; min-width: 0; max-width: 38rem; }
figure svg { display: block; width: 100%; height: auto; color: var(--ink); margin-top: .5rem; }
figcaption { font-size: .95rem; }
ul { padding-left: 1.2rem; } li { margin: .3rem 0; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .15rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; }
@media print { .scroll { overflow: visible; border: 0; } figure { break-inside: avoid; } }
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


def figures(found: Comparison) -> list[tuple[str, str, str]]:
    """Title, words and SVG of each figure."""
    import matplotlib

    from ..figures import house_style
    from .model_figures import model_pictures

    matplotlib.use("Agg")
    parts = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    ink: Any = {**dict.fromkeys(parts, INK), "svg.fonttype": "path"}
    with house_style(), matplotlib.rc_context(ink):
        pictures = [*general_pictures(found), *model_pictures(found)]
        return [
            (one.title, one.words, as_svg(one, f"f{number}-"))
            for number, one in enumerate(pictures, start=1)
        ]

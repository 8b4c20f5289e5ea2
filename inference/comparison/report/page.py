"""The report: one page of HTML that holds everything it shows, also without network or scripts."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ...files.figures import house_style
from ..checks import CLOSE, Standing, doubts, in_words
from ..verdict import RULES
from .general_figures import INK, as_svg, general_pictures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..compare import Comparison


COLUMNS = {
    "held_out": ("held out", "{:.3f}", "held out"),
    "behind": ("behind", "{:.3f}", "behind"),
    "excess": ("excess", "{:.4f}", "excess"),
    "data_sets": ("sets", "{:.0f}", "data sets"),
    "distance": ("distance", "{:.4f}", "reference"),
    "compile_seconds": ("comp. s", "{:.1f}", "compile time"),
    "seconds": ("run s", "seconds", "run time"),
    "peak_memory": ("GB", "gigabytes", "peak memory"),
    "seconds_to_best": ("s to 0.01", "seconds", "time to within 0.01 nats"),
    "rhat": ("R̂", "{:.3f}", "R̂"),
    "rhat_parameters": ("R̂ par.", "{:.2f}", "R̂ of parameters"),
    "ess_bulk": ("ESS", "{:.0f}", "effective draws"),
    "ess_tail": ("tail", "{:.0f}", "effective draws"),
    "ess_per_second": ("ESS/s", "{:.1f}", "effective draws"),
    "divergences": ("div.", "{:.0f}", "divergent transitions"),
    "bound_gap": ("gap", "{:.2f}", "bound gap"),
    "missed_mass": ("missed ≥", "{:.1%}", "missed mass"),
    "pareto_k": ("k̂", "{:.2f}", "Pareto k̂"),
    "starts_near": ("starts", "{:.0f}", "starts"),
    "prior_sensitivity": ("prior", "{:.2f}", "prior sensitivity"),
    "recovery": ("recov.", "{:.3f}", "recovery"),
    "calibration_error": ("calibr.", "{:.3f}", "calibration"),
}
"""Key -> heading, format, term of the glossary. Its error, if there is one, stands beside it."""

QUESTION = (
    "Does inference made for this kind of program (bespoke) beat NUTS, SVI and NumPyro's Gibbs "
    "(generic) here, and can its results be trusted?"
)

MARKS = {
    Standing.PASSES: "yes",
    Standing.FAILS: "no",
    Standing.ONE_START: "one start",
    Standing.NOT_FINISHED: "not finished",
    Standing.UNCHECKED: "–",
}
"""What stands in the column that says whether a method is trusted."""

NUMBER = re.compile(r"(?<![\w.])(?:-?\d+(?:\.\d+)?(?:e[+-]?\d+)?%?|-?inf\b|nan\b)")


def render(comparison: Comparison) -> bytes:
    """The page. Whatever comes from a table or a program is escaped by Jinja."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    here = PackageLoader(__package__, ".")
    page = Environment(loader=here, autoescape=True, undefined=StrictUndefined)
    shown, rows = _rows(comparison)
    words = page.get_template("page.html.jinja").render(
        title=f"{comparison.model}: bespoke against generic inference",
        headline=linked(comparison.headline, list(comparison.rows)),
        question=linked(QUESTION),
        certainty=linked(comparison.certainty),
        about=linked(_about(comparison)),
        columns=[{"head": COLUMNS[c][0], "term": anchor(COLUMNS[c][2])} for c in shown],
        rows=rows,
        left_out=[
            {"name": name, "anchor": _anchor(name), "reason": row["reason"]}
            for name, row in comparison.rows.items()
            if "behind" not in row
        ],
        figures=figures(comparison),
        verdict=[linked(words, [name]) for name, words in comparison.verdict],
        rules=[(linked(term), linked(" ".join(lines))) for term, lines in _rules()],
        terms=[(anchor(term), term, meaning) for term, meaning in glossary().items()],
        settings={
            "seed": comparison.about.get("seed"),
            "seconds for each method": comparison.about["budget"],
            **comparison.about.get("versions", {}),
            **comparison.about["sizes"],
        },
    )
    return words.encode()


def linked(words: str, names: Sequence[str] = ()) -> Markup:
    """Words in which each method, and each number said of it, links to its row of the table, and
    the first mention of a term to the glossary.

    >>> linked("MAP: 0.2 nats", ["MAP"])
    Markup('<a href="#row-MAP">MAP</a>: <a href="#row-MAP">0.2</a> nats')
    >>> linked("an excess")
    Markup('an <a class="term" href="#term-excess">excess</a>')
    """
    longest = sorted(map(re.escape, names), key=len, reverse=True)
    name = rf"(?P<name>{'|'.join(longest) or '(?!)'})"
    either = re.compile("|".join([name, rf"(?P<term>{mention()})", NUMBER.pattern]))
    row = names[0] if len(names) == 1 else None
    parts, end, explained = Markup(), 0, set()
    for mentioned in either.finditer(words):
        text = mentioned.group()
        row = text if mentioned["name"] else row
        # The number that the rules call near is no result.
        place = "rules" if text == str(CLOSE) else row and _anchor(row)
        link = Markup('<a href="#{}">{}</a>')
        if mentioned["term"]:
            place = anchor(text) if text.lower() not in explained else None
            link = Markup('<a class="term" href="#{}">{}</a>')
            explained.add(text.lower())
        parts += words[end : mentioned.start()]
        parts += link.format(place, text) if place else text
        end = mentioned.end()
    return parts + words[end:]


def _about(comparison: Comparison) -> str:
    about = comparison.about
    missing = f", {about['missing']:.1%} of the cells missing" if about["missing"] else ""
    words = " The comparison was interrupted: methods are missing."
    stopped = words if about["interrupted"] else ""
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


def _rows(comparison: Comparison) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns that have something in them, and the methods that ran, the best first."""
    rows = comparison.rows
    done = sorted((x for x in rows if "behind" in rows[x]), key=lambda x: rows[x]["behind"])
    shown = [c for c in COLUMNS if any(rows[x].get(c) is not None for x in done)]
    lines = []
    for name in done:
        row, stands = rows[name], Standing[rows[name]["standing"]]
        why = "; ".join(doubts(row)) or in_words(row, stands)
        line = {"name": name, "anchor": _anchor(name), "best": row["best"], "kind": _kind(row)}
        cells = [_cell(row, c) for c in shown]
        lines.append({**line, "mark": MARKS[stands], "why": why, "cells": cells})
    return shown, lines


def _kind(row: dict[str, Any]) -> str:
    """Whose method it is, what it finds, and whether its predictions average over that."""
    side = "bespoke" if row["bespoke"] else "generic"
    return ", ".join(x for x in (side, row.get("objective"), row.get("prediction")) if x)


def _cell(row: dict[str, Any], column: str) -> dict[str, Any] | None:
    value, form = row.get(column), COLUMNS[column][1]
    if value is None:
        return None
    if form == "gigabytes":
        value, form = value / 1e9, "{:.2f}"
    if form == "seconds":
        form = "{:.2g}" if value < 10 else "{:.0f}"
    text = re.sub(r"^-(0\.?0*%?)$", r"\1", form.format(value))  # no zero is negative
    beside, error = [], row.get(f"{column}_error")
    if error is not None:
        beside.append(f"± {form.format(error)}")
    if column == "calibration_error" and "calibration_expected" in row:
        beside.append(f"({form.format(row['calibration_expected'])})")
    if column == "starts_near":
        beside.append(f"of {row['starts']} ({row['starts_another']:.2f})")
    return {"exact": f"{value:.6g}", "text": text, "beside": beside}


def _rules() -> list[tuple[str, list[str]]]:
    """The rules as a list of terms; what is indented goes on with the term above."""
    terms: list[tuple[str, list[str]]] = []
    for line in RULES.strip().splitlines():
        term, _, words = line.strip().partition("  ") if line[:1].strip() else ("", "", line)
        if term:
            terms.append((term, []))
        terms[-1][1].append(words.strip())
    return terms


def figures(comparison: Comparison) -> list[dict[str, str]]:
    """Title, words and SVG of each figure."""
    import matplotlib

    from .model_figures import model_pictures

    parts = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    ink: Any = {**dict.fromkeys(parts, INK), "svg.fonttype": "path"}
    with house_style(), matplotlib.rc_context(ink):
        pictures = [*general_pictures(comparison), *model_pictures(comparison)]
        return [
            {"title": one.title, "words": one.words, "svg": Markup(as_svg(one, f"f{number}-"))}
            for number, one in enumerate(pictures, start=1)
        ]


@cache
def glossary() -> dict[str, str]:
    """Term -> meaning.

    >>> glossary()["bespoke"]
    'Made for a kind of program by one of the papers.'
    """
    text = files(__package__).joinpath("glossary.md").read_text("utf-8")
    entries = (entry.split("\n: ", 1) for entry in text.strip().split("\n\n"))
    return {term: meaning.replace("\n", " ") for term, meaning in entries}


@cache
def mention() -> str:
    """A regular expression of a term in running text, the longest first."""
    longest = sorted(map(re.escape, glossary()), key=len, reverse=True)
    return rf"(?<!\w)(?i:{'|'.join(longest)})(?!\w)"


def anchor(term: str) -> str:
    """Where a term is explained.

    >>> anchor("Missed mass")
    'term-missed-mass'
    """
    return "term-" + "-".join(re.findall(r"[^\W_]+", term.lower()))

"""The report: one page of HTML that holds everything it shows, also without network or scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ...files.figures import house_style
from ...files.output import in_seconds
from ..checks import CLOSE, Mark
from ..verdict import RULES
from .figures import INK, Picture, as_svg, general_pictures, model_pictures, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..compare import Comparison


NUMBER = re.compile(r"(?<![\w.])(?:-?\d+(?:\.\d+)?(?:e[+-]?\d+)?%?|-?inf\b|nan\b)")


def template(name: str) -> Any:
    """A template of this folder. Whatever comes from a table or a program is escaped by Jinja."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    page = Environment(
        loader=PackageLoader(__package__, "."), autoescape=True, undefined=StrictUndefined
    )
    page.filters |= {"linked": linked, "anchor": anchor, "row": _anchor}
    return page.get_template(name)


def render(comparison: Comparison) -> bytes:
    """The page."""
    rows, about = comparison.rows, comparison.about
    done = sorted((x for x in rows if "behind" in rows[x]), key=lambda x: _order(rows[x]))
    entries = {c for x in done for c in rows[x] if rows[x][c] is not None}
    left = "held_out" if "excess" in entries else "excess"
    shown = [c for c in words()["columns"] if c != left]
    folded = [c for c in words()["numbers"] if c in entries - set(shown)]
    text = template("page.html.jinja").render(
        comparison=comparison,
        question=words()["question"],
        about=_about(comparison),
        columns=[words()["columns"][c] for c in shown],
        rows={name: _row(rows[name], shown) for name in done},
        left_out={x: _row(row, shown[:2]) for x, row in rows.items() if "behind" not in row},
        numbers=[words()["numbers"][c] for c in folded],
        folded={name: _row(rows[name], folded) for name in done},
        figures=figures(comparison),
        rules=_rules(),
        glossary=glossary(),
        settings={
            "seed": about.get("seed"), "most seconds for each method": about["limit"],
            **about.get("versions", {}), **about["sizes"],
        },
    )  # fmt: skip
    return text.encode()


def _order(row: dict[str, Any]) -> tuple[float, float]:
    """Sorts methods as the headline names them: by when their score arrived, then by how far they
    are behind."""
    seconds = row["seconds_to_score"]
    return float("inf") if seconds is None else seconds, row["behind"]


def linked(text: str, names: Sequence[str] = ()) -> Markup:
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
    for found in either.finditer(text):
        said, link = found.group(), Markup('<a href="#{}">{}</a>')
        row = said if found["name"] else row
        # The number that the rules call near is no result.
        place = "rules" if said == str(CLOSE) else row and _anchor(row)
        if found["term"]:
            place = anchor(said) if said.lower() not in explained else None
            link = Markup('<a class="term" href="#{}">{}</a>')
            explained.add(said.lower())
        parts += text[end : found.start()]
        parts += link.format(place, said) if place else said
        end = found.end()
    return parts + text[end:]


def _about(comparison: Comparison) -> str:
    about = comparison.about
    missing = f", {about['missing']:.1%} of the cells missing" if about["missing"] else ""
    judged_by = "the rest held out"
    if about.get("fresh"):
        judged_by = f"judged by {about['num_test']} fresh rows of what made them"
    stopped = " The comparison was interrupted: methods are missing."
    return (
        f"Data: {about.get('words', 'a table')}; {about['num_data']} rows of "
        f"{about['num_features']} columns{missing}; {about['num_train']} rows to learn from, "
        f"{judged_by}. Likelihood of a row: {about['likelihood']}, the same for all methods. "
        f"{about['reference']}{stopped if about['interrupted'] else ''}"
    )


def _anchor(name: str) -> str:
    return "row-" + "".join(c if c.isalnum() else "-" for c in name)


def _row(row: dict[str, Any], shown: list[str]) -> dict[str, Any]:
    """What a table shows of a method."""
    # Whose method it is, what it finds, and whether its predictions average over that.
    side = {True: "bespoke", False: "generic", None: ""}[row.get("bespoke")]
    kind = (side, row.get("objective"), row.get("prediction"))
    return {
        "best": row.get("best", False),
        "kind": ", ".join(x for x in kind if x),
        "reason": row["reason"],
        "cells": [_cell(row, column) for column in shown],
    }


def _cell(row: dict[str, Any], column: str) -> dict[str, Any] | None:
    """Text of a cell, what stands below it, and its exact value or what kind of cell it is."""
    value, (_, form, _) = row.get(column), {**words()["numbers"], **words()["columns"]}[column]
    # Where the limit ended a method, it needs longer than all that it ran.
    question = column.removeprefix("seconds_to_")
    late = question != column and row.get(question) == Mark.NOT_YET.name
    value = row.get("seconds") if late else value
    if value is None:
        return None
    if form == "mark":
        return {"text": words()["marks"][value], "beside": row.get(f"{column}_why")}
    if form == "gigabytes":
        value, form = value / 1e9, "{:.2f}"
    text = "> " * late + in_seconds(value) if form == "seconds" else form.format(value)
    text = re.sub(r"^-(0\.?0*%?)$", r"\1", text)  # no zero is negative
    beside, error = [], row.get(f"{column}_error")
    if column == "behind":
        beside.append("the best" if row["best"] else f"≤ {form.format(row['behind_upper'])}")
    elif error is not None:
        beside.append(f"± {form.format(error)}")
    if column == "data_sets":
        text = f"{row['arrived_on']} of {text}"
    if column == "calibration_error" and "calibration_expected" in row:
        beside.append(f"({form.format(row['calibration_expected'])})")
    if column == "starts_near":
        beside.append(f"of {row['starts']} ({row['starts_another']:.2f})")
    return {"exact": f"{value:.6g}", "text": text, "beside": beside}


def _rules() -> list[tuple[str, str]]:
    """Terms of the rules and what they mean; what is indented goes on with the term above.

    >>> _rules()[0][0], _rules()[-1][0]
    ('first', 'remarks')
    """
    entries = re.findall(r"^(\S.*?)  +(.*(?:\n .*)*)", RULES, flags=re.MULTILINE)
    return [(term, " ".join(meaning.split())) for term, meaning in entries]


def figures(comparison: Comparison) -> list[dict[str, str]]:
    """Title, words and SVG of each figure."""
    with in_ink():
        pictures = [*general_pictures(comparison), *model_pictures(comparison)]
        return inline(pictures)


def inline(pictures: Sequence[Picture]) -> list[dict[str, str]]:
    """Title, words and SVG of figures that were drawn in ink."""
    return [
        {"title": one.title, "words": one.words, "svg": Markup(as_svg(one, f"f{number}-"))}
        for number, one in enumerate(pictures, start=1)
    ]


@contextmanager
def in_ink() -> Iterator[None]:
    """Draw in the style of the house, letters and axes in the page's own ink."""
    import matplotlib

    parts = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    ink: Any = {**dict.fromkeys(parts, INK), "svg.fonttype": "path"}
    with house_style(), matplotlib.rc_context(ink):
        yield


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

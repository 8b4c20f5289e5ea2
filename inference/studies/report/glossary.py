"""What the words of a report mean: `glossary.md`, which is part of the documentation too."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


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

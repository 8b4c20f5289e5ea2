"""In which order the words of a scale stand: the rules, in the order in which they are tried.

1. what a person says: ``--kind COLUMN=ordinal:low<middle<high``;
2. numbers by their size, and words that begin with different numbers ("1 - never") by these;
3. words that all stand in one of `SCALES`, in any case, as they stand there;
4. two words: the one that denies first (`columns.order`).

Other words have no order that could be known.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from .cells import understand
from .columns import order

SCALES = (
    "never; almost never, hardly ever, very rarely; rarely, seldom; occasionally, once in a while; "
    "sometimes; half the time; often, frequently; very often, very frequently, usually, "
    "most of the time; almost always, nearly always; always",
    "strongly disagree, disagree strongly, completely disagree; disagree, mostly disagree; "
    "somewhat disagree, slightly disagree, disagree slightly, disagree somewhat, tend to disagree; "
    "neutral, neither, neither agree nor disagree, undecided, unsure, not sure; "
    "somewhat agree, slightly agree, agree slightly, agree somewhat, tend to agree; "
    "agree, mostly agree; strongly agree, agree strongly, completely agree",
    "terrible; very poor, very bad; poor, bad; fair, average, acceptable; good; very good; "
    "excellent, outstanding",
    "not at all, none; a little, a little bit, slightly, mild; somewhat, moderately, moderate; "
    "quite a bit, a lot, considerably; very much, very, severe; extremely",
    "very unlikely, extremely unlikely; unlikely; somewhat unlikely; neutral; somewhat likely; "
    "likely; very likely, extremely likely",
    "very dissatisfied; dissatisfied; somewhat dissatisfied; neutral; somewhat satisfied; "
    "satisfied; very satisfied",
    "very low; low; medium, middle, moderate; high; very high",
    "no; maybe, unsure, don't know; yes",
    "wrong, incorrect, fail; partly, partial; right, correct, pass",
)
"""From the lowest level to the highest; words between commas are the same level."""
_RANKS = [
    {word.strip(): rank for rank, words in enumerate(line.split(";")) for word in words.split(",")}
    for line in SCALES
]


def in_order(words: Collection[str]) -> tuple[str, ...] | None:
    """The words of a scale from the lowest to the highest; None where no rule says so.

    >>> in_order({"Always", "never", "often"})
    ('never', 'often', 'Always')
    >>> in_order({"3", "10", "1"}), in_order({"1: low", "2: high"})
    (('1', '3', '10'), ('1: low', '2: high'))
    >>> in_order({"disagree", "agree"}), in_order({"cats", "dogs", "fish"})
    (('disagree', 'agree'), None)
    """
    tokens = {word: understand(word) for word in words}
    if all(token.sort == "number" for token in tokens.values()):
        return tuple(sorted(words, key=lambda word: tokens[word].number))
    first = {word: re.match(r"\s*(-?\d+)\b", word) for word in words}
    numbers = [int(match[1]) for match in first.values() if match]
    if len(set(numbers)) == len(words):
        return tuple(word for _, word in sorted(zip(numbers, words, strict=True)))
    plain = {word: " ".join(word.lower().replace("_", " ").split()) for word in words}
    for ranks in _RANKS:
        places = [ranks.get(plain[word]) for word in words]
        if None not in places and len(set(places)) == len(words):
            return tuple(sorted(words, key=lambda word: ranks[plain[word]]))
    return order(words) if len(words) == 2 else None

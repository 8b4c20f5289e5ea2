"""Which method fits a table under a program, with which settings, and why.

The card of a public program names its method. Of a user's own program the latents decide: a sum
over all states where that is cheap, a search where it is not. Where answers are too few to
determine a column, or hardly determine how often items are guessed, the parameters have priors.
"""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from latentbits.models.data import InputError, Table

from ..files.catalogue import find_method
from ..files.output import in_seconds
from ..methods.continuous.quadrature import few_rows
from ..reading.anatomy import Anatomy
from .checks import Mark, Row
from .contenders import Contender, contenders

MOST, MOST_BITS = 1e9, 12
"""Multiplications of a sum over all states of all rows, as `check` prints them, and bits of a row
up to which a fit sums them in every step: less than a second on two cores."""
EXACT = ("QuadratureEM",)
"""Methods that take priors of items where answers are few."""
FEW_ANSWERS = 20
"""To a column on average, below which priors are used."""


class Recommendation(NamedTuple):
    """How to fit a table, and why."""

    method: Contender
    settings: dict[str, Any]  # of the method
    kwargs: dict[str, Any]  # of the program, with the priors that hold columns of few answers
    reasons: tuple[str, ...]


def recommend(
    program: Callable,
    table: Table,
    anatomy: Anatomy,
    kwargs: dict[str, Any],
    *,
    name: str | None = None,
    method: str | None = None,
    settings: dict[str, Any] | None = None,
) -> Recommendation:
    """The method for a program and a table.

    :param anatomy: of the program on the table.
    :param kwargs: keyword arguments of the program.
    :param name: of the program; that of a public one has a card.
    :param method: the user's choice, by default the recommended one.
    :param settings: the user's settings of the method, which stand.
    :raises InputError: if the method does not apply.
    """
    from ..files.cards import CARDS

    card, reasons = CARDS.get(name or ""), []
    own = card.method if card else None
    draws = own is not None and getattr(find_method(own), "draws", False)
    admitted, refused = contenders(anatomy)
    admitted = {x: v for x, v in admitted.items() if "," not in x}  # those are a fit --posterior
    chosen = method or own
    if method is None and (draws or own not in admitted):
        chosen = preferred(program, table.values, anatomy, kwargs, admitted)
        if own in refused:
            reasons.append(f"{chosen} is used, since {own} does not apply: {refused[own]}")
    assert chosen is not None
    if chosen not in admitted:
        why = f"does not apply to {name}: {refused[chosen]}" if chosen in refused else "is unknown"
        raise InputError(f"--method {chosen} {why}; choose from {', '.join(admitted)}")
    settings = dict(settings or {})
    if card and card.prior and getattr(find_method(chosen), "prior", None) is False:
        settings.setdefault("prior", True)
    if chosen in EXACT and "prior" not in settings:
        if sparse(table):
            kwargs, words = with_priors(program, table.mask, kwargs)
            settings["prior"] = True
            reasons.append(words)
        elif guesses(program, table, kwargs):
            settings["prior"] = True
            reasons.append("priors are used: answers alone hardly determine how often items are "
                           "guessed (--option prior=False: maximum likelihood)")  # fmt: skip
    return Recommendation(admitted[chosen], settings, kwargs, tuple(reasons))


def advice(choice: Recommendation, rows: dict[str, Row]) -> list[str]:
    """Which method to take for estimates and for draws, by what a comparison on the table found.

    The recommended one stands unless its score has not arrived and that of another has.
    """
    prior = f"{choice.method.name} MAP"
    method = prior if choice.settings.get("prior") and prior in rows else choice.method.name

    def arrived(mark: str) -> dict[str, str]:
        """When methods, the score of all of which has arrived, were at a mark, the first first."""
        some = [x for x, r in rows.items() if {r["score"], r[mark]} == {Mark.ARRIVED.name}]
        times = {x: rows[x][f"seconds_to_{mark}"] for x in some}
        return {x: f"after {in_seconds(times[x])}" for x in sorted(some, key=lambda x: times[x])}

    near, trusted = arrived("score"), arrived("uncertainty")
    first = next(iter(near), method)
    take = method if method in near or method not in rows else first
    words = [f"Take {take} for estimates, as `fit` does: no score of it has arrived here."]
    if take in near:
        when = f"first, {near[take]}" if take == first else f"{near[take]}, {first} {near[first]}"
        words = [f"Take {take} for estimates: none predicts clearly better. It was there {when}."]
    if take != method:
        why = "; ".join(rows[method].get("score_why") or [rows[method]["reason"]])
        words.append(f"{method}, which `fit` takes by default, is not there: {why}.")
    late = [x for x in rows if rows[x]["uncertainty"] == Mark.NOT_YET.name]
    if trusted:
        name, when = next(iter(trusted.items()))
        words.append(f"Take {name} for draws from the posterior: its intervals arrived {when}.")
    elif late:
        words.append(f"Draws from the posterior need a longer --limit: {', '.join(late)} not yet.")
    return [*words, *choice.reasons]


def preferred(
    program: Callable,
    values: np.ndarray,
    anatomy: Anatomy,
    kwargs: dict[str, Any],
    admitted: Iterable[str],
) -> str:
    """Where none is recommended: the exact method if that is cheap, else what asks least."""
    from ..reading.strategy import every_state

    many = False
    if anatomy.latents and anatomy.binary:
        cost = every_state(program, anatomy, (values,), kwargs)
        many = cost > MOST or anatomy.num_bits > MOST_BITS
    order = ["EM", "QuadratureEM", "MonteCarloEM", "BoundEM"]
    order = ["GibbsSearch", "TruncatedEM", "EM"] if many else order
    return next(name for name in (*order, *admitted) if name in admitted)


def guesses(program: Callable, table: Table, kwargs: dict[str, Any]) -> bool:
    """Whether the columns of the program have lower asymptotes."""
    from ..methods.continuous.opening import open_columns
    from ..reading.recognition.papers import Form

    known = open_columns(program, (table.values,), kwargs, None).known
    return known is not None and known.form is Form.GUESSING


def sparse(table: Table) -> bool:
    """Whether columns have too few answers to determine them: few rows of very many columns, or a
    table most of whose cells are missing."""
    few = not table.mask.all() and table.mask.sum() < FEW_ANSWERS * table.mask.shape[1]
    return few or few_rows(table.mask.shape)


def with_priors(
    program: Callable, mask: np.ndarray, kwargs: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Arguments of the program with priors that hold columns of few answers, and why.

    Only where it takes them and none were given: those of latent_trait are wide, and many columns
    would outweigh the factors' own.
    """
    takes = signatures.signature(program).parameters
    size = kwargs.get("num_factors", getattr(takes.get("num_factors"), "default", 0))
    words = "priors are used"
    if {"prior_weights", "prior_bias"} <= set(takes) - set(kwargs) and size:
        if size > 1 and few_rows(mask.shape):
            raise InputError(
                f"--set num_factors={size}: {mask.shape[0]} rows do not determine the scale of a "
                f"second factor of {mask.shape[1]} columns; wanted num_factors=1, or "
                "--set prior_weights=... that do"
            )
        mean = np.eye(size, 1, dtype=np.float32)
        priors = {"prior_weights": dist.Normal(mean, 0.5), "prior_bias": dist.Normal(0.0, 2.0)}
        kwargs = {**kwargs, **priors}
        words += ", of discriminations Normal(1, 0.5), of intercepts Normal(0, 2)"
        words += ", which leave factors beyond the first undetermined" if size > 1 else ""
    words += f": {mask.sum() / mask.shape[1]:.3g} answers do not determine a column (--set "
    return kwargs, words + "prior_weights=... for others, --option prior=False: maximum likelihood)"

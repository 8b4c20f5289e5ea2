"""Which of the papers' programs a program is, whatever its sites and arguments are called.

A closed form belongs to a form, not to a name. A program is recognised if, under some naming of its
parameters, it has the log joint of one of `latentbits.models`:

1. its sites are read where the latents are zero: what a site's distribution has there and how it
   changes with the latents are the biases and weights of the form, if it has that form;
2. at random parameters, which are all different, each of these numbers is found again among the
   parameters: that says which site holds what, transposed or in pieces as it may be. Every number
   of every parameter must be found exactly once;
3. the judge is the log joint: on random parameters, latents, observations and masks, in float64,
   it must be that of our program.

Methods then run their closed forms on the numbers by the form's own names (`Known.read`), and hand
them back under the program's (`Known.write`). What is not recognised runs by the general way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.distribution import validation_enabled

from latentbits import models

from ..rows.chunks import Rows
from ..types import Params
from .abstract import run_abstractly, unseen
from .anatomy import Anatomy, ProgramError, inspect
from .forms import READERS, Form, Run
from .known import Known, Place, codes, columns
from .local import anywhere, few_rows, log_joint
from .naturals import (
    KINDS,
    NotThisError,
    Seen,
    Site,
    cells_of,
    columns_of,
    observed,
    observed_sites,
    run_program,
)
from .probe import probe
from .reader import examined


def recognise(
    model: Callable,
    anatomy: Anatomy,
    rows: Rows,
    among: Collection[Form] = tuple(Form),
    under: Callable[[Callable], Callable] | None = None,
) -> Known | None:
    """Which of our programs this one is, None if it is none; tested once for each program.

    :param among: the forms that are of interest.
    :param under: the handler that the program is read under: ours is compared under it too.

    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from latentbits.inference.reading.reader import open_program
    >>> def clusters(table):
    ...     rates = numpyro.sample("rates", dist.Beta(2.0, 2.0).expand((3, 2)).to_event(2))
    ...     share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
    ...     with numpyro.plate("people", len(table)):
    ...         group = numpyro.sample("group", dist.Categorical(share))
    ...         bits = dist.Bernoulli(jnp.asarray(rates).T[group])
    ...         numpyro.sample("answers", bits.to_event(1), obs=table)
    >>> reader, rows = open_program(clusters, (jnp.eye(3),), {})
    >>> recognise(reader.model, reader.anatomy, rows)
    Known(bernoulli_mixture, {'mixing': 'share', 'probs': 'rates'})
    """
    unknown = any(isinstance(x, jax.core.Tracer) for x in rows.rest)
    if unknown or anatomy.nesting != 1 or not anatomy.observed:
        return None
    for form in _candidates(anatomy):
        if form in among:
            ours: Any = getattr(models, form.value)
            test = partial(_recognise, form, ours if under is None else under(ours))
            name = f"recognise {form.value} {under and under.__name__}"
            known = examined(test, model, anatomy, rows, name=name)
            if known is not None:
                return known
    return None


def _candidates(anatomy: Anatomy) -> list[Form]:
    """What a program can be at all, by its latents and the kinds of its observed sites."""
    kinds = {KINDS.get(name, "other") for name in anatomy.likelihoods}
    values = {latent.num_values for latent in anatomy.latents}
    forms = []
    if values == {None} and not any(latent.odd for latent in anatomy.latents):
        if kinds <= {"real", "binary", "levels"}:
            forms.append(Form.TRAIT)
        if kinds == {"binary"} and len(anatomy.parameters) > 2:
            forms.append(Form.GUESSING)
        if kinds == {"ordered"}:
            forms.append(Form.GRADED)
        if kinds == {"clipped"}:
            forms.append(Form.CLIPPED)
    if anatomy.num_bits == 1 and None not in values and kinds == {"binary"}:
        forms.append(Form.MIXTURE)
    if anatomy.num_bits == 1 and None not in values and kinds == {"levels"}:
        forms.append(Form.CLASSES)
    if values == {2}:
        if kinds == {"real"}:
            forms += [Form.SPARSE_CODING, Form.REAL_MACHINE]
        if kinds == {"binary"}:
            forms.append(Form.MACHINE)
        if kinds == {"noisy-or"}:
            forms.append(Form.NOISY_OR)
    return forms


def _recognise(
    form: Form, ours: Callable, model: Callable, anatomy: Anatomy, rows: Rows
) -> Known | None:
    num_rows = min(rows.num_data, 5)
    with jax.enable_x64(True), validation_enabled(False):
        leaves, few = few_rows(model, anatomy, rows, num_rows)
        if few.num_data != num_rows:
            return None
        try:
            read = partial(observed_sites, few)
            sites = unseen(lambda x: run_abstractly(model, *rows.join(x), read), leaves)
            return _try(form, ours, model, few, rows, leaves, sites)
        except (NotThisError, ProgramError):
            return None


class _Trial(NamedTuple):
    """What one run at random parameters shows."""

    params: Params
    values: Params  # by the form's names, as they were read
    error: Array  # of the log joint
    inside: dict[str, Array]  # whether each parameter may take the values of `PROBES`
    coded: Array  # what is observed where each cell of the arguments holds the number of its column
    seen: Seen  # and where they hold what they do


PROBES = (-1e4, 1e4, 1e-6, 1.0 - 1e-6)
REACH = {"noise": (2, 1), "sparsity": (2, 3), "probs": (2, 3), "guessing": (2, 3), "mixing": ()}
"""Which of the probes a parameter of the form must be able to take; those not named, the first two,
of noisy-OR networks the second and third. A program with a narrower support is another one."""


def _try(
    form: Form,
    ours: Callable,
    model: Callable,
    anatomy: Anatomy,
    rows: Rows,
    leaves: list[np.ndarray],
    sites: tuple[Site, ...],
) -> Known | None:
    zeros = {x.name: np.zeros(x.shape, int if x.num_values else float) for x in anatomy.latents}

    def trial(
        seed: Array, leaves: list[Array], codes: list[Array], drawn: list[Array], points: Array
    ) -> _Trial:
        arguments = rows.join(leaves)
        params = anywhere(model, anatomy, random.key(seed), arguments)
        values, settings = READERS[form](Run(model, anatomy, params, arguments, sites))
        still = handlers.substitute(model, data={**params, **zeros})
        trace = run_program(still, arguments)
        seen = observed([trace[site.name] for site in sites])
        own = handlers.substitute(
            model, data={site.name: cells_of(x, site) for site, x in zip(sites, drawn, strict=True)}
        )
        direct = log_joint(own, anatomy, params, points, arguments)
        table = jnp.concatenate([jnp.asarray(x, float) for x in drawn], -1)
        our_arguments = ((table,), {**settings, "mask": seen.mask})
        wanted = log_joint(ours, inspect(ours, *our_arguments), values, points, our_arguments)
        gap = jnp.where(wanted == direct, 0.0, jnp.abs(wanted - direct))
        size = jnp.where(jnp.isfinite(wanted), jnp.abs(wanted), 0.0).max()
        coded = run_program(still, rows.join(codes))
        return _Trial(
            params,
            values,
            gap.max() / (1.0 + size),
            {name: _inside(trace[name]) for name in anatomy.parameters},
            jnp.concatenate([columns_of(coded[site.name]["value"], site) for site in sites], -1),
            seen,
        )

    inputs = [(np.int32(i), leaves, codes(leaves, i), *_draw(i, anatomy, sites)) for i in range(2)]
    trials = probe(trial, inputs)
    if not all(trial.error <= 1e-9 for trial in trials):  # also when NaN
        return None
    shapes = {name: value.shape for name, value in trials[0].params.items()}
    places = _places(form, shapes, trials)
    if places is None:
        return None
    return Known(
        form,
        shapes,
        places,
        tuple(site.name for site in sites),
        tuple(kind for site in sites for kind in site.kinds),
        columns(leaves, [t.coded for t in trials], trials[0].seen.mask),
        trials[0].seen.mask is not None,
        tuple(i for i, x in enumerate(rows.rest) if x is None),
    )


def _places(
    form: Form, shapes: dict[str, tuple[int, ...]], trials: list[_Trial]
) -> dict[str, Place] | None:
    """Find the numbers of the form among the parameters; None unless each is there once."""
    flats = [np.concatenate([np.ravel(t.params[name]) for name in shapes]) for t in trials]
    order = np.argsort(flats[0])
    ranked = flats[0][order]
    positions: dict[str, np.ndarray] = {}
    for role, value in trials[0].values.items():
        right = np.clip(np.searchsorted(ranked, value), 1, len(ranked) - 1)
        nearer = np.abs(ranked[right] - value) < np.abs(ranked[right - 1] - value)
        positions[role] = order[
            np.where(nearer, right, right - 1) if len(ranked) > 1 else 0 * right
        ]
    used = np.concatenate([np.ravel(index) for index in positions.values()])
    if len(used) != len(order) or (np.sort(used) != np.arange(len(order))).any():
        return None
    for flat, trial in zip(flats, trials, strict=True):
        for role, index in positions.items():
            if not np.allclose(flat[index], trial.values[role], rtol=1e-9, atol=1e-12):
                return None
    ends = dict(zip(shapes, np.cumsum([int(np.prod(x)) for x in shapes.values()]), strict=True))
    places = {}
    for role, index in positions.items():
        places[role] = Place(index, None, False)
        reach = (1, 2) if form is Form.NOISY_OR else REACH.get(role, (0, 1))
        reach = () if form is Form.CLASSES else reach  # shares of a whole, as `mixing`
        for name, end in ends.items():
            start = end - int(np.prod(shapes[name]))
            mine = np.arange(start, end)
            if np.isin(index, mine).any() and not trials[0].inside[name][list(reach)].all():
                return None  # its support is narrower than what the closed form may give
            if index.size == len(mine) and (np.ravel(index) == mine).all():
                places[role] = Place(index, name, False)
            elif index.shape == shapes[name][::-1] and (np.ravel(index.T) == mine).all():
                places[role] = Place(index, name, True)
    return places


# --- what a run of the program shows


def _draw(
    seed: int, anatomy: Anatomy, sites: tuple[Site, ...]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Values for the observed sites, (n, columns) each, and states (S, n, bits)."""
    rng = np.random.default_rng(seed)
    drawn: list[np.ndarray] = []
    for site in sites:
        shape = (anatomy.num_data, site.size)
        if site.kind == "real":
            drawn.append(rng.normal(size=shape))
        elif site.levels:
            drawn.append(rng.integers(0, site.levels, shape))
        else:
            drawn.append(rng.integers(0, 2, shape).astype(float))
    wanted = (6, anatomy.num_data, anatomy.num_bits)
    values = anatomy.latents[0].num_values
    points = rng.normal(size=wanted) if values is None else rng.integers(0, values, wanted)
    return drawn, points


def _inside(site: dict) -> Array:
    if site["type"] == "sample":
        support = site["fn"].support
    else:
        support = site["kwargs"].get("constraint", constraints.real)
    shape = jnp.shape(site["value"])
    # They rise a little, for what must be in order.
    ramp = np.linspace(0.0, 1e-7, shape[-1]) if shape else 0.0
    values = np.reshape(PROBES, (-1,) + (1,) * len(shape)) + np.broadcast_to(ramp, shape)
    return jnp.asarray(support(jnp.asarray(values))).reshape(len(PROBES), -1).all(1)

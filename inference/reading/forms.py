"""The forms of the papers' programs, and a reader of each.

A run of the program where its latents are zero gives the biases of a form, and the slopes there
its weights: `READERS` has a reader for each form, which names what it reads as our program does.
Whether the program has that form is not said here: `inference.reading.recognise` tests it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..types import Arguments, Params
from .abstract import innermost
from .anatomy import Anatomy
from .handlers import states
from .naturals import KINDS, NotThisError, Site, run_program


class Form(Enum):
    """Our program of which another one is a copy.

    >>> Form.MIXTURE.value
    'bernoulli_mixture'
    """

    TRAIT = "mixed_trait"
    GUESSING = "latent_trait"
    GRADED = "graded_trait"
    CLIPPED = "clipped_gaussian"
    SPARSE_CODING = "binary_sparse_coding"
    MIXTURE = "bernoulli_mixture"
    CLASSES = "categorical_mixture"
    MACHINE = "combination_machine"
    REAL_MACHINE = "real_combination_machine"
    NOISY_OR = "noisy_or_network"


def _part(value: Any, size: int, event_dim: int, last: bool = False) -> Array:
    """A parameter of a site's distribution for each state and column: (states × rows, columns).

    :param last: there is one more axis behind the columns, that of levels.
    """
    value = jnp.asarray(value)
    if not event_dim:
        value = value[..., None, :] if last else value[..., None]
    tail = (size, value.shape[-1]) if last else (size,)
    return jnp.broadcast_to(value, jnp.broadcast_shapes(value.shape, tail)).reshape(-1, *tail)


Read = tuple[Params, dict[str, Any]]
"""The parameters by our names, and the settings of our program."""


class Run(NamedTuple):
    """A program at some parameters, whose form is to be read."""

    model: Callable
    anatomy: Anatomy
    params: Params
    arguments: Arguments
    sites: tuple[Site, ...]  # observed

    def naturals(self, points: Array) -> dict[str, dict[str, Array]]:
        """Site -> what its distribution has, for each state of (S, 1, bits) and column."""
        program = states(self.model, self.anatomy.unpack(points))
        trace = run_program(program, self.arguments, self.params)
        naturals: dict[str, dict[str, Array]] = {}
        for name in (*self.anatomy.names, *self.anatomy.observed):
            fn = trace[name]["fn"]
            base = innermost(fn)
            size = fn.event_shape[-1] if fn.event_dim else 1
            part = partial(_part, size=size, event_dim=fn.event_dim)
            kind = KINDS.get(type(base).__name__)
            if kind in ("real", "clipped"):
                naturals[name] = {"at": part(base.loc), "scale": part(base.scale)}
            elif kind == "binary":
                naturals[name] = {"at": part(base.logits), "probs": part(base.probs)}
            elif kind == "levels":
                logits = part(base.logits, last=True)
                naturals[name] = {"at": logits[..., 1:] - logits[..., :1]}
                naturals[name]["probs"] = part(base.probs, last=True)
            elif kind == "ordered":
                naturals[name] = {"at": part(base.predictor)}
                naturals[name]["cutpoints"] = part(base.cutpoints, last=True)
            elif kind == "noisy-or":
                naturals[name] = {"at": part(base.causal_input)}
        return naturals

    def affine(self) -> tuple[dict[str, dict[str, Array]], dict[str, Array]]:
        """What the sites have where all latents are zero; the slopes of `at`, (bits, columns)."""

        def read(point: Array) -> tuple[dict[str, Array], Any]:
            naturals = self.naturals(point[None, None])
            naturals = {
                name: {k: v[0] for k, v in parts.items()} for name, parts in naturals.items()
            }
            return {name: parts["at"].ravel() for name, parts in naturals.items()}, naturals

        slopes, naturals = jax.jacfwd(read, has_aux=True)(jnp.zeros(self.anatomy.num_bits))
        return naturals, {name: value.T for name, value in slopes.items()}


def _joined(parts: list[Array]) -> Array:
    return jnp.concatenate(parts, -1)


def _read_trait(run: Run) -> Read:
    at, slope = run.affine()
    values = {
        "weights": _joined([slope[site.name] for site in run.sites]),
        "bias": _joined([at[site.name]["at"].ravel() for site in run.sites]),
    }
    shared = False
    if run.sites[0].kind == "real":
        noise = _joined([at[s.name]["scale"] for s in run.sites if s.kind == "real"])
        # One noise for all columns, or one of each: as many numbers as the program has.
        count = sum(x.size for x in run.params.values())
        shared = noise.size > 1 and count == values["weights"].size + values["bias"].size + 1
        values["noise"] = noise[0] if shared else noise
    kinds = tuple(kind for site in run.sites for kind in site.kinds)
    return values, {"num_factors": run.anatomy.num_bits, "kinds": kinds, "shared_noise": shared}


def _read_graded(run: Run) -> Read:
    at, slope = run.affine()
    values = {"weights": _joined([slope[site.name] for site in run.sites])}
    cutpoints = {site.name: at[site.name]["cutpoints"] for site in run.sites}
    values |= _by_levels("cutpoints", cutpoints, run.sites, 0)
    kinds = tuple(kind for site in run.sites for kind in site.kinds)
    return values, {"num_factors": run.anatomy.num_bits, "levels": kinds}


def _read_guessing(run: Run) -> Read:
    """Far away on either side of zero, a probability is at its asymptotes, of which one is 1."""
    way = jnp.sin(1.0 + jnp.arange(run.anatomy.num_bits))
    points = jnp.stack([FAR * way, -FAR * way])[:, None]
    far = run.naturals(points)
    at, slope = run.affine()
    low, prob, bend = [], [], []
    for site in run.sites:
        ends = far[site.name]["probs"]
        low.append(jnp.minimum(ends[0], ends[-1]))
        prob.append(at[site.name]["probs"].ravel())
        bend.append(slope[site.name] * (prob[-1] * (1.0 - prob[-1])))
    guess, own = _joined(low), _joined(prob)
    share = (own - guess) / (1.0 - guess)
    values = {
        "weights": _joined(bend) / ((1.0 - guess) * share * (1.0 - share)),
        "bias": jnp.log(share) - jnp.log1p(-share),
        "guessing": guess,
    }
    return values, {"num_factors": run.anatomy.num_bits, "guessing": True}


FAR = 1e6
"""Of a point at which a logistic curve is 0 or 1 to all digits."""


def _read_clipped(run: Run) -> Read:
    values, _ = _read_trait(run)
    at, _ = run.affine()
    scale = _joined([at[site.name]["scale"] for site in run.sites])
    return values, {"num_factors": run.anatomy.num_bits, "noise": scale}


def _read_sparse_coding(run: Run) -> Read:
    at, slope = run.affine()
    prior = at.get(run.anatomy.names[0], {})
    if "probs" not in prior:
        raise NotThisError
    weights, num_causes = _joined([slope[site.name] for site in run.sites]), run.anatomy.num_bits
    # One prior for all causes, or one of each: as many numbers as the program has.
    count = sum(x.size for x in run.params.values())
    shared = num_causes == 1 or count != weights.size + 1 + num_causes
    values = {
        "weights": weights,
        "noise": at[run.sites[0].name]["scale"][0],
        "sparsity": prior["probs"][0] if shared else prior["probs"],
    }
    return values, {"num_causes": num_causes, "shared_sparsity": shared}


def _read_machine(run: Run) -> Read:
    _, slope = run.affine()
    half = 1.0 if run.sites[0].kind == "real" else 0.5
    # The biases show in the prior of the causes alone: what has their shape is tried.
    bias = [value for value in run.params.values() if value.shape == (run.anatomy.num_bits,)]
    if len(run.params) != 2 or not bias:
        raise NotThisError
    weights = half * _joined([slope[site.name] for site in run.sites])
    return {"weights": weights, "bias": bias[-1]}, {"num_causes": run.anatomy.num_bits}


def _read_mixture(run: Run) -> Read:
    count = run.anatomy.latents[0].num_values
    assert count is not None
    table = jnp.arange(count)[:, None, None]
    naturals = run.naturals(table)

    def by_state(x: Array) -> Array:
        """The first row of each state, or what all of them share: (states, columns, ...)."""
        first = x.reshape(count if len(x) > 1 else 1, -1, *x.shape[1:])[:, 0]
        return jnp.broadcast_to(first, (count, *x.shape[1:]))

    probs = {site.name: by_state(naturals[site.name]["probs"]) for site in run.sites}
    mixing = naturals[run.anatomy.names[0]]["probs"].ravel()
    if len(mixing) != count:  # a bit: it has one probability, and no simplex
        raise NotThisError
    values, settings = {"mixing": mixing}, {"num_components": count}
    if not run.sites[0].levels:
        return {**values, "probs": _joined(list(probs.values()))}, settings
    kinds = tuple(kind for site in run.sites for kind in site.kinds)
    return values | _by_levels("probs", probs, run.sites, 1), settings | {"levels": kinds}


def _by_levels(name: str, parts: dict[str, Array], sites: Any, axis: int) -> Params:
    """The numbers of columns that have as many levels, in one."""
    return {
        f"{name}_{k}": jnp.concatenate([parts[x.name] for x in sites if x.levels == k], axis)
        for k in dict.fromkeys(site.levels for site in sites)
    }


def _read_noisy_or(run: Run) -> Read:
    at, slope = run.affine()
    layers = run.anatomy.latents[::-1]  # the lowest first
    if set(at) != {*run.anatomy.names, *run.anatomy.observed}:
        raise NotThisError
    values = {"leak_0": _joined([at[site.name]["at"] for site in run.sites])}
    end, below = run.anatomy.num_bits, [site.name for site in run.sites]
    for level, layer in enumerate(layers, 1):
        start = end - layer.size
        values[f"leak_{level}"] = at[layer.name]["at"]
        values[f"weights_{level}"] = _joined([slope[name][start:end] for name in below])
        end, below = start, [layer.name]
    return values, {"layers": tuple(layer.size for layer in layers)}


READERS: dict[Form, Callable[[Run], Read]] = {
    Form.TRAIT: _read_trait,
    Form.GUESSING: _read_guessing,
    Form.GRADED: _read_graded,
    Form.CLIPPED: _read_clipped,
    Form.SPARSE_CODING: _read_sparse_coding,
    Form.MIXTURE: _read_mixture,
    Form.CLASSES: _read_mixture,
    Form.MACHINE: _read_machine,
    Form.REAL_MACHINE: _read_machine,
    Form.NOISY_OR: _read_noisy_or,
}

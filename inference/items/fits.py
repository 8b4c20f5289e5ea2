"""A saved fit: load it, and put it to use on rows."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from latentbits.models.data import InputError, Said, Table, load_levels, load_table

from ..files.catalogue import find_method, find_program, programs
from ..numerics.rotation import ROTATIONS
from ..reading.anatomy import inspect
from ..types import Arguments
from .classes import by_row, memberships, open_classes, score_columns, with_shares
from .covariates import ARGUMENT

KIND = "latentbits fit"
CELLS = ("binary", "real", "ordinal", "categorical")


class Fit(NamedTuple):
    """A program with parameters: enough to be used on new rows."""

    name: str
    program: Callable
    method: str
    params: dict[str, np.ndarray]  # (num_draws, ...), one draw for a point estimate
    sizes: dict[str, Any]  # keyword arguments of the program
    columns: tuple[str, ...]
    kind: str  # what a cell is, one of `CELLS`
    levels: dict[str, tuple[str, ...]]  # column -> what 0, 1, … stand for, if not for themselves
    missing: tuple[str, ...]  # codes of missing cells
    rotation: str  # of the loadings and scores, one of `numerics.rotation.ROTATIONS`
    covariates: tuple[str, ...] = ()  # columns on which latents depend

    @property
    def point(self) -> dict[str, np.ndarray]:
        """The point estimate, or the mean of the draws brought together."""
        from ..evaluation.symmetry import align_to

        last = {x: v[-1] for x, v in self.params.items()}
        rows = np.zeros((2, len(self.columns)), np.float32)
        own = {ARGUMENT: np.zeros((2, len(self.covariates)))} if self.covariates else {}
        arguments = ((rows,), {**own, **self.sizes})
        aligned = align_to(self.program, self.params, last, arguments)
        return {x: v.mean(0) for x, v in aligned.items()}

    def arguments(self, table: Table) -> dict[str, Any]:
        """The keyword arguments of the program on new rows."""
        holes = {} if table.mask.all() else {"mask": table.mask}
        own = {} if table.covariates is None else {ARGUMENT: table.covariates}
        return {**holes, **own, **self.sizes}


def read_rows(
    path: str, columns: tuple[str, ...], kind: Any, key: str | None, said: Said, levels: Any
) -> Table:
    """New rows of a table with known columns; a column may be constant, a row unseen."""
    how = {"key": key, "columns": columns, "allow_empty": True, "said": said, "levels": levels}
    if kind in ("ordinal", "categorical"):
        return load_levels(path, ordered=kind == "ordinal", **how)
    return load_table(path, kind=kind, allow_constant=True, **how)


def load_fit(path: str, model: str | None = None) -> Fit:
    """A fit that was kept before.

    :param model: the program, where it is the user's own. A file is data: it does not decide which
        module is imported.
    """
    from ..files.arviz import load, opened

    groups, attrs = load(path)
    if attrs.get("kind") != KIND:
        raise InputError(f"{path}: holds no fit; `latentbits fit` writes one")
    name = str(attrs.get("model"))
    if name != model and (model is not None or name not in programs()):
        said = f"--model says {model}" if model else f"say --model {name} if you trust that"
        raise InputError(f"{path}: was made with the program {name!r}; {said}")
    program = find_program(name)
    with opened(path, "fit"):
        return _read_fit(groups, attrs, program)


def _read_fit(groups: Any, attrs: dict[str, Any], program: Callable) -> Fit:
    if "posterior" not in groups:
        params = {str(x): v.values[None] for x, v in groups["point_estimate"].items()}
    else:
        stacked = {str(x): v.values for x, v in groups["posterior"].items()}
        params = {x: v.reshape((-1, *v.shape[2:])) for x, v in stacked.items()}
        step = max(1, -(-len(next(iter(params.values()))) // 100))
        params = {x: v[step - 1 :: step] for x, v in params.items()}
    sizes = {x: ast.literal_eval(v) for x, v in json.loads(attrs["sizes"]).items()}
    rotation = str(attrs.get("rotation", "none"))
    if attrs["cells"] not in CELLS or rotation not in ROTATIONS:
        raise ValueError(attrs["cells"], rotation)
    return Fit(
        attrs["model"], program, str(attrs["method"]), params, sizes,
        tuple(str(x) for x in json.loads(attrs["columns"])), attrs["cells"],
        {str(x): tuple(map(str, v)) for x, v in json.loads(attrs["levels"]).items()},
        tuple(str(x) for x in json.loads(attrs["missing"])), rotation,
        tuple(str(x) for x in json.loads(attrs.get("covariates", "[]"))),
    )  # fmt: skip


Answer = tuple[list[str], np.ndarray, str]


def score(fit: Fit, table: Table) -> Answer:
    """The log likelihood of each row, latents summed out, averaged over draws if there are any."""
    from scipy.special import logsumexp

    from ..evaluation.evidence import likelihood

    evaluator = likelihood(fit.program, table.values, **fit.arguments(table))
    if all(len(x) == 1 for x in fit.params.values()):
        point: Any = {x: v[0] for x, v in fit.params.items()}
        one, how = evaluator.explained(point)
        each = type(one)(one.value[None], one.error[None])
    else:
        each, how = evaluator.of_draws(fit.params), evaluator.how
    value = logsumexp(np.asarray(each.value, np.float64), axis=0) - np.log(len(each.value))
    error = np.asarray(each.error).mean(0)
    spread = value.std(ddof=1) / np.sqrt(len(value)) if len(value) > 1 else float("nan")
    words = f"score     {value.mean():.4f} ± {spread:.4f} nats per row ({how})"
    return ["log_likelihood", "error"], np.stack([value, error], 1), words


def certified(program: Callable, point: Any, values: Any, kwargs: Any) -> tuple[Any, str]:
    """Columns of a proved bracket of the log likelihood of each row, and words."""
    from ..certificates.certify import certify

    proved = certify(program, point, values, **kwargs)
    columns = {"lower": proved.lower, "upper": proved.upper, "width": proved.width}
    return columns, f"certified {proved}"


def complete(fit: Fit, table: Table) -> Answer:
    """Every cell: what was seen, or the probability that it is 1 given the rest of its row."""
    from ..evaluation.prediction import cell_probabilities

    if fit.kind != "binary":
        raise InputError(
            f"{fit.name} observes {fit.kind} cells: only bits have a probability of being 1"
        )
    holes = np.argwhere(~table.mask)
    values = table.values.astype(np.float64)
    if len(holes):
        params: Any = fit.params
        values[tuple(holes.T)] = cell_probabilities(
            fit.program, params, table.values, holes, **fit.arguments(table)
        )
    return list(fit.columns), values, f"complete  missing cells filled in: {len(holes)}"


def transform(fit: Fit, table: Table) -> Answer:
    """The posterior mean of each row's latents, its spread where they are continuous, and the
    probability of each value where they are categories."""
    extra = fit.arguments(table)
    anatomy = inspect(fit.program, (table.values,), extra)
    if not anatomy.latents:
        raise InputError(f"{fit.name} has no latents: there is nothing to place")
    known = open_classes(fit.program, ((table.values,), extra))
    if known is not None:
        point = {x: np.asarray(v, np.float64) for x, v in fit.point.items()}
        values = known.read(with_shares(point, table.covariates))
        values = by_row(values, point, table.covariates)
        posterior, _ = memberships(known, values, table.values, extra.get("mask"))
        scores = score_columns(posterior)
        words = f"transform {len(posterior)} rows, the posterior of their classes"
        return list(scores), np.stack(list(scores.values()), 1), words
    categories = any(x.num_values not in (None, 2) for x in anatomy.latents)
    # An exact posterior, as `fit` has for its scores; else the method's own, or one that applies.
    order = ("QuadratureEM", fit.method, "EM", "BoundEM", "TruncatedEM")
    for name in order:
        method: Any = find_method(name)
        if method is None or not hasattr(method, "posterior") or method.admits(anatomy) is not None:
            continue
        params: Any = fit.point
        posterior = method(fit.program).posterior(params, table.values, **extra)
        if categories and not getattr(posterior, "probabilities", None):
            continue
        if fit.rotation != "none":
            posterior = _rotated(fit, params, ((table.values,), extra), posterior)
        names, columns = _columns(anatomy, posterior)
        return names, columns, f"transform {len(columns)} rows, the posterior of {name}"
    raise InputError(f"no method gives the posterior of the latents of {fit.name}")


def _rotated(fit: Fit, params: Any, arguments: Arguments, posterior: Any) -> Any:
    """The posterior of the rotated factors Tᵀ x."""
    from .study import open_items, rotated_loadings

    opened = open_items(fit.program, arguments)
    assert opened is not None  # `fit` rotates no other program
    turn = rotated_loadings(opened, params, fit.rotation).turn
    mean, covariance = (np.asarray(x, float) for x in (posterior.mean, posterior.covariance))
    return posterior._replace(mean=mean @ turn, covariance=turn.T @ covariance @ turn)


def _columns(anatomy: Any, posterior: Any) -> tuple[list[str], np.ndarray]:
    """A posterior as columns with names: of each site its parts, of a category its values."""
    rows = len(posterior.mean)
    mean = np.asarray(posterior.mean).reshape(rows, -1)
    names: list[str] = []
    columns: list[np.ndarray] = []
    place = 0
    for latent in anatomy.latents:
        parts = [f"{latent.name}_{i + 1}" for i in range(latent.size)]
        if latent.num_values in (None, 2):
            names += parts
            columns.append(mean[:, place : place + latent.size])
        else:
            parts = [latent.name] if latent.size == 1 else parts
            values = range(latent.lowest, latent.lowest + latent.num_values)
            names += [f"{part}_{value}" for part in parts for value in values]
            columns.append(np.asarray(posterior.probabilities[latent.name]).reshape(rows, -1))
        place += latent.size
    if getattr(posterior, "covariance", None) is not None:
        spread = np.sqrt(np.diagonal(np.asarray(posterior.covariance), axis1=1, axis2=2))
        names, columns = [*names, *(f"{x}_sd" for x in names)], [*columns, spread]
    return names, np.hstack(columns)

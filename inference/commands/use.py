"""`latentbits transform`, `complete`, `score`: use a fit on new rows."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from inference.commands.fit import Fit, load_fit, read_rows
from inference.commands.options import blame
from inference.reading.arguments import check_params
from inference.studies.output import check_output, write_whole
from ppl_models.data import InputError, Table

VERBS = {
    "transform": "where rows lie: the posterior mean of their latents",
    "complete": "fill in missing cells with the chance that they are 1",
    "score": "the log likelihood of each row",
}


def add_parser(subparsers: Any) -> None:
    for verb, words in VERBS.items():
        parser = subparsers.add_parser(
            verb, help=words, description=words.capitalize() + ".", allow_abbrev=False
        )
        parser.add_argument("fit", metavar="FIT.nc", help="what `latentbits fit` wrote")
        parser.add_argument("--data", metavar="FILE", required=True, help="the rows")
        parser.add_argument("--model", metavar="MODEL", help="the program, if it is your own")
        parser.add_argument("--key", metavar="NAME", help="which array of an .npz or .nc file")
        parser.add_argument("--out", metavar="FILE.csv", required=True, help="where to write")
        parser.set_defaults(verb=verb)


def main(namespace: argparse.Namespace) -> int:
    out = check_output("--out", namespace.out, (".csv",))
    fit = load_fit(namespace.fit, namespace.model)
    table = read_rows(namespace.data, fit.columns, fit.kind, namespace.key)
    with blame(namespace.fit):
        point: Any = {x: v[0] for x, v in fit.params.items()}
        check_params(fit.program, point, (table.values,), fit.sizes)
    names, values, words = {"transform": transform, "complete": complete, "score": score}[
        namespace.verb
    ](fit, table)
    lines = [",".join(("row", *names))]
    lines += [
        ",".join((str(i + 1), *(f"{x:.6g}" for x in row)))
        for i, row in enumerate(np.asarray(values))
    ]
    write_whole(out, ("\n".join(lines) + "\n").encode())
    print(f"fit       {fit.name}, {fit.method}")
    print(words)
    print(f"written   {namespace.out}")
    return 0


Answer = tuple[list[str], np.ndarray, str]


def score(fit: Fit, table: Table) -> Answer:
    """The log likelihood of each row, latents summed out, averaged over draws if there are any."""
    from scipy.special import logsumexp

    from inference.evaluation.evidence import likelihood

    found = likelihood(fit.program, table.values, **_mask(table), **fit.sizes)
    each = found.of_draws(fit.params)
    value = logsumexp(np.asarray(each.value, np.float64), axis=0) - np.log(len(each.value))
    error = np.asarray(each.error).mean(0)
    spread = value.std(ddof=1) / np.sqrt(len(value)) if len(value) > 1 else float("nan")
    words = f"score     {value.mean():.4f} ± {spread:.4f} nats a row ({found.how})"
    return ["log_likelihood", "error"], np.stack([value, error], 1), words


def complete(fit: Fit, table: Table) -> Answer:
    """Every cell: what was seen, or the chance that it is 1 given the rest of its row."""
    from inference.evaluation.prediction import cell_probabilities

    if fit.kind != "binary":
        raise InputError(f"{fit.name} observes real numbers: only bits have a chance to be 1")
    holes = np.argwhere(~table.mask)
    values = table.values.astype(np.float64)
    if len(holes):
        params: Any = fit.params
        values[tuple(holes.T)] = cell_probabilities(
            fit.program, params, table.values, holes, mask=table.mask, **fit.sizes
        )
    return list(fit.columns), values, f"complete  {len(holes)} cells filled in"


def transform(fit: Fit, table: Table) -> Answer:
    """The posterior mean of each row's latents, and its spread where they are continuous."""
    from inference.reading.anatomy import inspect
    from inference.studies.catalogue import methods

    extra = {**_mask(table), **fit.sizes}
    anatomy = inspect(fit.program, (table.values,), extra)
    if not anatomy.latents:
        raise InputError(f"{fit.name} has no latents: there is nothing to place")
    if any(x.num_values not in (None, 2) for x in anatomy.latents):
        return _categories(fit, table, extra)
    names = [f"{x.name}_{i + 1}" for x in anatomy.latents for i in range(x.size)]
    # The method's own posterior, or else the most exact one that applies.
    order = (fit.method, "QuadratureEM", "EM", "BoundEM", "TruncatedEM")
    known = methods()
    for name in order:
        method: Any = known.get(name)
        if method is None or not hasattr(method, "posterior") or method.admits(anatomy) is not None:
            continue
        params: Any = fit.point
        found = method(fit.program).posterior(params, table.values, **extra)
        mean = np.asarray(found.mean).reshape(len(table.values), -1)
        if hasattr(found, "covariance"):
            spread = np.sqrt(np.diagonal(np.asarray(found.covariance), axis1=1, axis2=2))
            names, mean = [*names, *(f"{x}_sd" for x in names)], np.hstack([mean, spread])
        return names, mean, f"transform {len(mean)} rows, the posterior of {name}"
    raise InputError(f"no method gives the posterior of the latents of {fit.name}")


def _categories(fit: Fit, table: Table, extra: dict[str, Any]) -> Answer:
    """The chance of each value of a categorical latent: its mean would mean nothing."""
    import jax

    from inference.reading.handlers import table_of
    from inference.reading.local import Structure
    from inference.reading.reader import open_program
    from inference.reading.states import AllStates

    reader, rows = open_program(fit.program, (table.values,), extra, structure=Structure.GENERAL)
    latents = reader.anatomy.latents
    if len(latents) != 1 or latents[0].size != 1:
        raise InputError(f"{fit.name} has several categorical latents a row: no table holds them")
    states = table_of(reader.anatomy, AllStates())
    params: Any = fit.point
    chance = jax.jit(
        lambda: jax.nn.softmax(reader.log_joint(params, states, rows.whole()), axis=0)
    )()
    names = [f"{latents[0].name}_{k}" for k in range(len(states))]
    return (
        names,
        np.asarray(chance).T,
        f"transform {len(table.values)} rows, all {len(states)} values",
    )


def _mask(table: Table) -> dict[str, Any]:
    return {} if table.mask.all() else {"mask": table.mask}

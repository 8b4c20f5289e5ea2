"""A program and a table as a person names them: the options of every command that takes both.

    latentbits check MODEL --data FILE [--drop COLUMN ...] [--set NAME=VALUE ...]

Whatever is wrong with them is said here in one line, in the words of their owner.
"""

from __future__ import annotations

import argparse
import ast
import csv
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from latentbits.models.data import InputError, Said, Table, load_levels, load_table
from latentbits.models.data.columns import KINDS

from ..files.catalogue import SETTINGS, _nearest, blame, called, find_program
from ..files.option import Option
from ..reading.anatomy import ProgramError
from ..reading.anatomy import inspect as anatomy_of
from ..reading.handlers import WEIGHTS, weighted
from ..reading.tracing import each_value, innermost, trace_shapes
from ..running.settings import check_settings

METHOD = Option(
    str, "by default the recommended one: for latent_trait, mixed_trait and trait_mixture "
    "QuadratureEM, where their paper has BoundEM",
)  # fmt: skip


class Given(NamedTuple):
    """A program with its data, to be called as ``program(table.values, **kwargs)``."""

    name: str
    program: Callable
    table: Table
    kwargs: dict[str, Any]  # the settings, and the mask if the table has holes


def add_options(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """MODEL, --data, --key, --constant and --set.

    :param optional: without --data there is an example for every public program.
    """
    add_program_options(parser, nargs="?" if optional else None)
    more = "; by default an example drawn from the program" if optional else ""
    words = f"the table, one row per datum{more}"
    parser.add_argument("--data", metavar="FILE", required=not optional, help=words)
    parser.add_argument("--constant", action="store_true", help="accept columns of one value")
    add_table_options(parser)


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """What a person can say of the columns of a file: the same for every command that reads one."""
    add: Any = parser.add_argument
    again: Any = {"action": "append", "default": []}
    words = "the first row of a text file holds the names of the columns, or it does not"
    add("--header", action=argparse.BooleanOptionalAction, default=None, help=words)
    add("--key", metavar="NAME", help="which array of an .npz or .nc file")
    add("--drop", metavar="COLUMN", help="leave this out; repeatable", **again)
    add("--id", metavar="COLUMN", help="column that names the rows")
    add("--weights", metavar="COLUMN", help="how many times each row counts")
    add("--missing", metavar="CODE", help="code of missing cells", **again)
    add(
        "--kind", "--kinds", metavar="COLUMN=KIND", nargs="+", action="extend", default=[],
        type=_kind,
        help="real, binary, categorical, ordinal, count or skip, where the guess is wrong; "
        "ordinal:low<middle<high says the order too",
    )  # fmt: skip
    words = "answers are scored: lines of item,right answer (one item may have several lines)"
    add("--key-of-answers", metavar="FILE", type=_answers, default={}, help=words)
    add("--group", metavar="COLUMN", help="column with the group of each row")
    words = "each row holds one answer"
    add("--long", metavar="PERSON,ITEM,RESPONSE", type=_three, help=words)


def said(namespace: argparse.Namespace, guess: bool = True) -> Said:
    """What the options of `add_table_options` say."""
    return Said(
        tuple(namespace.drop), namespace.id, namespace.weights, tuple(namespace.missing),
        dict(namespace.kind), guess, namespace.group, namespace.long, namespace.header,
        answers=namespace.key_of_answers, covariates=getattr(namespace, "covariates", ()),
        fractions=getattr(namespace, "fractions", False),
    )  # fmt: skip


def tell(notes: Iterable[str]) -> None:
    """Choices that were made in reading, on stderr: what is printed may be read by a program."""
    for note in notes:
        print(f"note      {note}", file=sys.stderr)


def _kind(text: str) -> tuple[str, str]:
    column, equals, kind = text.rpartition("=")
    name, colon, words = kind.partition(":")
    if not equals or name not in KINDS or (colon and (name != "ordinal" or "<" not in words)):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be COLUMN=KIND with {', '.join(KINDS[:-1])} or {KINDS[-1]}"
        )
    return column, kind


def two(kind: type, between: str, words: str, text: str) -> tuple[Any, Any]:
    """Two numbers: a size HxW, a place X,Y."""
    try:
        first, second = map(kind, text.lower().split(between))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be {words}") from None
    return first, second


SIZE = partial(two, int, "x", "HxW, such as 16x16")


def _answers(path: str) -> dict[str, tuple[str, ...]]:
    """Item -> its right answers, from a file."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = [[x.strip() for x in row] for row in csv.reader(file) if row]
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: cannot be read ({error.strerror})") from None
    if not rows or any(len(row) != 2 for row in rows):
        raise argparse.ArgumentTypeError(f"{path}: wanted lines of two cells, item,right answer")
    return {item: tuple(x for y, x in rows if y == item) for item, _ in rows}


def _three(text: str) -> tuple[str, str, str]:
    names = text.split(",")
    if len(names) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} must be PERSON,ITEM,RESPONSE: three columns")
    return names[0], names[1], names[2]


def add_program_options(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """MODEL and --set: for a command that makes its own data."""
    words = "a public program, or module:function"
    parser.add_argument("model", metavar="MODEL", nargs=nargs, help=words)
    words = "an argument of the program, such as num_causes=10; may be repeated"
    again: Any = {"action": "append", "default": []}
    parser.add_argument("--set", metavar="NAME=VALUE", type=setting, help=words, **again)


def open_given(namespace: argparse.Namespace, vary: bool = False) -> Given:
    """The program and the table that the options of `add_options` name.

    :param vary: columns of one value or none are left out with a note.
    """
    name, program, settings = program_of(namespace)
    _check_call(name, program, settings)
    table = _load(name, program, settings, namespace, vary and not namespace.constant)
    tell(table.notes)
    kwargs = {**settings, **_mask(name, program, table)}
    if _wants_levels(program, settings):
        kwargs["levels"] = table.num_levels
    if said(namespace).covariates:
        kwargs["covariates"] = _covariates(name, program, table)
    with blame(name, "fails on this table"):
        if table.weights is not None:
            plate = getattr(namespace, "plate", None)
            plate = anatomy_of(program, (table.values,), kwargs, plate=plate).plate
            program, kwargs[WEIGHTS] = weighted(program, plate), table.weights.astype(np.float32)
            total = f"{table.weights.sum():.6g}"
            tell([f"weights sum to {total} over {len(table.weights)} rows: AIC and BIC are those "
                  f"of {total} rows"])  # fmt: skip
        _check_memory(name, program, table, kwargs)
    return Given(name, program, table, kwargs)


def program_of(namespace: argparse.Namespace) -> tuple[str, Callable, dict[str, Any]]:
    """The program that is asked for, by any of its names, and its settings, by its own."""
    name, implied = called(namespace.model)
    program = find_program(name)
    return name, program, {**implied, **dict(own_names(program, namespace.set))}


def own_names(program: Callable, pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Settings by the names of the program's own arguments, where other packages have others.

    >>> from latentbits.models import categorical_mixture
    >>> own_names(categorical_mixture, [("num_classes", 3)])
    [('num_components', 3)]
    """
    takes = inspect.signature(program).parameters
    return [(x if x in takes else SETTINGS.get(x, x), value) for x, value in pairs]


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE: a literal, a distribution of NumPyro's or an optimiser of optax's.

    >>> setting("layers=(10, 5)"), setting("guessing=true")
    (('layers', (10, 5)), ('guessing', True))
    >>> setting("prior_weights=Normal(0, 0.5)")[1].scale
    0.5
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE, such as num_causes=10")
    if value.strip() in ("true", "false", "none"):  # as shells and other languages write them
        value = value.strip().capitalize()
    try:
        tree = ast.parse(value.strip(), mode="eval").body
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            return name, _made(tree.func.id, [ast.literal_eval(x) for x in tree.args])
        return name, tree.id if isinstance(tree, ast.Name) else ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, AttributeError):
        raise argparse.ArgumentTypeError(
            f"{text!r}: a value is a number, True, False, None, a tuple such as (10, 5), 'text', a "
            "distribution such as Normal(0, 1), or an optimiser such as adam(0.01)"
        ) from None


def _made(name: str, arguments: list[Any]) -> Any:
    """An object of the two libraries whose names are known; nothing else is ever called."""
    import optax

    kind = getattr(dist, name, None)
    if inspect.isclass(kind) and issubclass(kind, dist.Distribution):
        return kind(*arguments)
    if name not in ("adam", "adabelief", "sgd", "rmsprop", "lamb"):
        raise ValueError(name)
    return getattr(optax, name)(*arguments)


def _check_call(name: str, program: Callable, settings: dict[str, Any]) -> None:
    """The program can be called as ``program(data, **settings)``."""
    arguments = list(inspect.signature(program).parameters.values())
    if not arguments or arguments[0].kind in (
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    ):
        raise ProgramError(f"{name} must take the data as its first argument")
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [x for x in arguments[1:] if x.kind not in variable]
    if all(x.kind is not inspect.Parameter.VAR_KEYWORD for x in arguments):
        names = [x.name for x in named]
        for wrong in [x for x in settings if x not in names]:
            raise InputError(
                f"--set {wrong}: {name} has no such argument{_nearest(wrong, names)}, "
                f"it takes {', '.join(names) or 'none'}"
            )
    for x in named:
        if x.default is x.empty and x.name not in (*settings, "levels"):
            raise InputError(f"{name} needs {x.name}: add --set {x.name}=VALUE")
    check_settings(program, settings, "--set ")


def _check_memory(name: str, program: Callable, table: Table, kwargs: dict[str, Any]) -> None:
    """The sites of the program fit into this machine: --set num_causes=1000000000 does not."""
    sites = trace_shapes(program, (table.values,), kwargs).values()
    size = 4 * sum(math.prod(np.shape(x["value"])) for x in sites if x["type"] == "sample")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise InputError(
            f"{name} at these sizes takes {size / 2**30:.3g} GiB for its sites alone, and this "
            f"machine has {memory / 2**30:.3g}: lower a size with --set"
        )


def _load(
    name: str,
    program: Callable,
    settings: dict[str, Any],
    namespace: argparse.Namespace,
    vary: bool,
) -> Table:
    """The table as the program wants it: levels, bits where it observes bits, else real numbers."""
    how: dict[str, Any] = {"key": namespace.key, "said": said(namespace)._replace(vary=vary)}
    if _wants_levels(program, settings):
        with blame(name, "fails on any table"):
            observed = _observed(program, np.zeros((5, 2), np.int8), {**settings, "levels": (3, 3)})
        ordered = any(isinstance(innermost(fn), dist.OrderedLogistic) for fn in observed)
        return load_levels(namespace.data, ordered=ordered, **how)
    how["allow_constant"] = namespace.constant
    problems: list[InputError] = []
    for kind in ("binary", "real"):
        try:
            table = load_table(namespace.data, kind=kind, **how)
        except InputError as error:
            problems.append(error)
            continue
        with blame(name, "fails on this table"):
            bits = _observes_bits(program, table.values, settings)
        if bits and problems:  # real numbers where bits are wanted
            raise _advised(problems[0])
        if bits or kind == "real":
            return table
    if len(problems) == 1:
        raise problems[0]
    # Which of the two complaints is of use? What a program observes shows on any table.
    try:
        bits = _observes_bits(program, np.zeros((5, 3), np.float32), settings)
    except Exception:
        bits = True
    raise _advised(problems[0]) if bits else problems[1]


def _advised(error: InputError) -> InputError:
    """An error about a cell that is no bit, with the programs that take such cells."""
    found = re.search(r"found '?(-?[\d.]+|\w+)'?, wanted 0/1", str(error))
    if found is None:
        return error
    try:
        number = float(found[1])
    except ValueError:
        number = 2.0  # an answer such as 'c'
    if number == round(number):
        words = "graded_trait takes answers on a scale, categorical_mixture any categories, and "
        words += "--key-of-answers FILE scores right answers"
    else:
        words = "mixed_trait takes proportions and other numbers"
    return InputError(f"{error}; {words}")


def _wants_levels(program: Callable, settings: dict[str, Any]) -> bool:
    """Whether the program wants to know how many levels each column has, which the table says."""
    levels = inspect.signature(program).parameters.get("levels")
    return levels is not None and levels.default is levels.empty and "levels" not in settings


def _observed(program: Callable, values: np.ndarray, settings: dict[str, Any]) -> list[Any]:
    """The distributions of the observed sites."""
    sites = trace_shapes(program, (values,), settings).values()
    return [x["fn"] for x in sites if x["type"] == "sample" and x["is_observed"]]


def _observes_bits(program: Callable, values: np.ndarray, settings: dict[str, Any]) -> bool:
    supports = [fn.support for fn in _observed(program, values, settings)]
    return any(x.is_discrete and not _counts(x) for x in supports)


def _counts(support: Any) -> bool:
    """Whether a discrete value may be more than 1.

    >>> _counts(dist.Poisson(2.0).support), _counts(dist.Bernoulli(0.5).support)
    (True, False)
    """
    support = each_value(support)
    upper = getattr(support, "upper_bound", 1)
    unbounded = hasattr(support, "lower_bound") and not hasattr(support, "upper_bound")
    return unbounded or not (isinstance(upper, int) and upper == 1)


def _covariates(name: str, program: Callable, table: Table) -> np.ndarray:
    if "covariates" not in inspect.signature(program).parameters:
        raise InputError(
            f"--covariates: {name} takes no argument covariates, as bernoulli_mixture, "
            "categorical_mixture, latent_trait and graded_trait do"
        )
    if table.covariates is None:
        raise InputError("--covariates: wanted one row per datum, and here a row is one answer")
    return table.covariates


def _mask(name: str, program: Callable, table: Table) -> dict[str, np.ndarray]:
    if table.mask.all():
        return {}
    arguments = inspect.signature(program).parameters.values()
    if any(x.name == "mask" or x.kind is x.VAR_KEYWORD for x in arguments):
        return {"mask": table.mask}
    row, column = (int(i) for i in np.argwhere(~table.mask)[0])
    raise ProgramError(
        f"{table.path} has {int((~table.mask).sum())} missing cells (the first: datum {row + 1}, "
        f"column {table.columns[column]}), but {name} takes no argument mask"
    )

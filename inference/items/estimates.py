"""What a fit estimated, in lines: parameters with their errors, likelihood, AIC and BIC, starts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpyro.distributions import biject_to

from ..files.output import align
from ..reading.handlers import WEIGHTS
from ..running.contract import Optima

MOST_LINES = 30
"""Of a table of parameters: the file holds the rest."""
MOST_WORK = 300_000_000
"""Cells × free parameters up to which standard errors are computed without being asked for; ten
times as many where each is for every state of a row."""
MOST_FREE = 2_000
"""And free parameters, whose information is a matrix."""
QUICK = 0.1
"""Share of that work up to which Newton's steps are taken: each is as much."""
SAME = 5e-5
"""Nats from its optimum within which the end of a start then is, what is left to gain aside."""


class Measures(NamedTuple):
    """How well parameters explain the rows they were fitted to."""

    log_likelihood: float
    error: float  # of it, if it is estimated
    how: str
    num_free: int
    num_rows: float  # the sum of their weights

    @property
    def aic(self) -> float:
        return 2.0 * (self.num_free - self.log_likelihood)

    @property
    def bic(self) -> float:
        return float(self.num_free * np.log(self.num_rows) - 2.0 * self.log_likelihood)

    @property
    def sabic(self) -> float:
        """BIC adjusted for the sample size (Sclove 1987)."""
        return float(self.num_free * np.log((self.num_rows + 2) / 24) - 2.0 * self.log_likelihood)

    @property
    def caic(self) -> float:
        """The consistent AIC (Bozdogan 1987)."""
        return self.bic + self.num_free


def measure_fit(program: Callable, point: Any, values: Any, kwargs: dict[str, Any]) -> Measures:
    """The log likelihood of all rows, latents summed out, and what it was bought with.

    >>> from latentbits.models import bernoulli_product
    >>> fit = measure_fit(bernoulli_product, {"probs": np.array([0.5])}, np.eye(2)[:, :1], {})
    >>> round(fit.log_likelihood, 3), fit.num_free, round(fit.aic, 3)
    (-1.386, 1, 4.773)
    """
    from ..evaluation.evidence import likelihood

    once = {name: value for name, value in kwargs.items() if name != WEIGHTS}
    each, how = likelihood(program, values, **once).explained(point)
    free, times = num_free(program, (values,), kwargs), kwargs.get(WEIGHTS, np.ones(len(values)))
    error = float(np.linalg.norm(np.asarray(each.error, np.float64) * times))
    total = float(np.asarray(each.value, np.float64) @ times)
    return Measures(total, error, how, free, float(np.sum(times, dtype=float)))


def num_free(program: Callable, args: tuple, kwargs: dict[str, Any]) -> int:
    """Free parameters: a simplex has one less than entries, Q factors may turn by Q(Q − 1)/2."""
    from ..methods.continuous.opening import FORMS
    from ..reading.anatomy import inspect
    from ..reading.arguments import rows_of
    from ..reading.recognition.papers import recognise
    from ..reading.tracing import trace_shapes

    anatomy, sites = inspect(program, args, kwargs), trace_shapes(program, args, kwargs)
    count = 0
    for name in anatomy.parameters:
        shape = np.shape(sites[name]["value"])
        if sites[name]["type"] == "sample":
            shape = biject_to(sites[name]["fn"].support).inverse_shape(shape)
        count += int(np.prod(shape))
    if recognise(program, anatomy, rows_of(anatomy, args, kwargs), FORMS) is not None:
        count -= anatomy.num_bits * (anatomy.num_bits - 1) // 2
    return count


def errors_of(
    program: Callable,
    point: Any,
    values: Any,
    kwargs: dict[str, Any],
    free: int,
    prior: bool = False,
) -> tuple[dict[str, np.ndarray], str, tuple[Any, ...]]:
    """Standard errors of a maximum of the likelihood or posterior, or none; how they were found or
    the reason why not; and the parameters at a bound, each a `Bound`."""
    from ..evaluation.standard_errors import BoundWarning, standard_errors
    from ..reading.anatomy import ProgramError

    try:
        large = _work(program, values, kwargs, free) > 1.0
    except ProgramError as error:
        return {}, " ".join(str(error).split()), ()
    if large:
        return {}, "not computed for so large a table: latentbits.standard_errors gives them", ()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            spread = standard_errors(
                program, point, values, prior=prior, sandwich=WEIGHTS in kwargs, **kwargs
            )
        except (ProgramError, ValueError) as error:
            return {}, " ".join(str(error).split()), ()
    bounds = next((x.message.bounds for x in heard if isinstance(x.message, BoundWarning)), ())
    errors = {name: np.asarray(value) for name, value in spread.items()}
    if not any(np.isfinite(value).any() for value in errors.values()):
        said = " ".join(str(heard[0].message).split()) if heard else ""
        return {}, said or "not determined by these data", bounds
    how = "from the observed information" + " and the priors" * prior
    return errors, how + ", robust (sandwich)" * (WEIGHTS in kwargs), bounds


def _work(program: Callable, values: Any, kwargs: dict[str, Any], free: int) -> float:
    """Terms of the second derivatives, as a share of the most that are computed unasked."""
    from ..reading.anatomy import inspect

    latents = inspect(program, (values,), kwargs).latents
    states = math.prod(float(x.num_values) ** x.size for x in latents if x.num_values is not None)
    return max(max(1.0, 0.1 * states) * free * values.size / MOST_WORK, free / MOST_FREE)


def finished(
    program: Callable, params: Any, optima: Optima | None, values: Any, kwargs: dict, prior: bool
) -> tuple[Any, Optima | None, float]:
    """The end of a run of EM moved to the maximum, where second derivatives are soon computed.

    All starts that agree as far as their steps tell go there: the best of them is the result, and
    those that then agree with it differ by what is left to gain.

    :return: parameters, optima, and the nats that are left to gain; NaN where that is not known.
    """
    from ..evaluation.standard_errors import finish
    from ..reading.anatomy import ProgramError
    from ..running.search import optima_of, slack_of

    several = optima if optima is not None and optima.params is not None else None
    starts: Any = {x: v[None] for x, v in params.items()} if several is None else several.params
    count = 1 if several is None else several.agree
    try:
        if _work(program, values, kwargs, num_free(program, (values,), kwargs)) > QUICK:
            return params, optima, math.nan
        found = [
            finish(program, {x: v[i] for x, v in starts.items()}, values, prior=prior, **kwargs)
            for i in range(count)
        ]
    except (ProgramError, ValueError):
        return params, optima, math.nan
    places, reached, left = zip(*found, strict=True)
    if not np.isfinite(left).all():
        return params, optima, math.nan
    best = int(np.argmax(reached))
    if several is not None:
        losses = np.append(-np.array(reached), several.values[count:])
        rest = np.append(np.array(left) + SAME, [slack_of(losses[0])] * (len(losses) - count))
        order = np.argsort(losses)
        of = {x: np.append([y[x] for y in places], v[count:], 0)[order] for x, v in starts.items()}
        optima = optima_of(losses[None], rest)._replace(params=of)
    return places[best], optima, left[best]


def bound_lines(
    bounds: Sequence[Any], params: dict[str, np.ndarray], columns: Sequence[str]
) -> list[str]:
    """A line on parameters at a bound, as the table of parameters calls them.

    >>> from latentbits.inference.evaluation.standard_errors import Bound
    >>> rates = {"probs": np.array([[0.0, 0.4]])}
    >>> bound_lines([Bound("probs", (0, 0), 0.0, 0.125)], rates, ["age", "size"])
    ['at bounds probs of age = 0 (below 0.12): no se but a limit, one-sided, of 95 %']
    """
    from ..evaluation.standard_errors import MOST_LIMITS

    told = []
    for each in bounds[:MOST_LIMITS]:
        shape, label, index, of = np.shape(params[each.site]), each.site, each.place, ""
        if shape[-1:] == (len(columns),):
            index, of = index[:-1], f" of {columns[index[-1]]}"
        if math.prod(shape[: len(index)]) > 1:
            label += f"[{np.ravel_multi_index(index, shape[: len(index)]) + 1}]"
        told.append(str(each._replace(site=label + of, place=())))
    listed = ", ".join(told) + (", …" if len(bounds) > len(told) else "")
    return [f"at bounds {listed}: no se but a limit, one-sided, of 95 %"] if told else []


def parameter_lines(
    params: dict[str, np.ndarray],
    errors: dict[str, np.ndarray],
    columns: Sequence[str],
    levels: Sequence[Sequence[str]] = (),
    spread_name: str = "se",
) -> list[str]:
    """Parameters as a table: a line for each column of the data, then those that have none.

    :param levels: of each column, in a table of levels: parameters of levels have a line for each.
    :param spread_name: what `errors` are, at the head of their columns.

    >>> print("\\n".join(parameter_lines(
    ...     {"bias": np.array([0.5, 2.0]), "noise": np.array(0.3)},
    ...     {"bias": np.array([0.1, 0.2])}, ["age", "size"])))
            bias    se
    age      0.5   0.1
    size       2   0.2
    noise    0.3
    """
    below = _level_lines(params, errors, columns, levels)
    params = {x: v for x, v in params.items() if x not in below}
    wide = {x: v for x, v in params.items() if np.shape(v)[-1:] == (len(columns),)}
    heads, cells = [""], [[column] for column in columns[:MOST_LINES]]
    for name, value in wide.items():
        table = np.reshape(value, (-1, len(columns)))
        spread = np.reshape(errors[name], (-1, len(columns))) if name in errors else None
        for k in range(len(table)):
            heads.append(name if len(table) == 1 else f"{name}[{k + 1}]")
            heads += [] if spread is None else [spread_name]
            for i, line in enumerate(cells):
                line.append(_shown(table[k, i], 3))
                line += [] if spread is None else [_shown(spread[k, i])]
    rows = [heads, *cells] if wide else []
    if wide and len(columns) > MOST_LINES:
        rows.append([f"… {len(columns) - MOST_LINES} more"])
    for name, value in params.items():
        if name in wide:
            continue
        flat, error = np.ravel(value), errors.get(name)
        for k in range(min(len(flat), MOST_LINES)):
            label = name if len(flat) == 1 else f"{name}[{k + 1}]"
            extra = [] if error is None else [_shown(np.ravel(error)[k])]
            rows.append([label, f"{flat[k]:.3g}", *extra])
        if len(flat) > MOST_LINES:
            rows.append([f"{name}: … {len(flat) - MOST_LINES} more"])
    return align([*rows, *(line for lines in below.values() for line in lines)])


def _level_lines(
    params: dict[str, np.ndarray],
    errors: dict[str, np.ndarray],
    columns: Sequence[str],
    levels: Sequence[Sequence[str]],
) -> dict[str, list[list[str]]]:
    """Parameters of the columns of K levels, a line for each level or for each step between two.

    >>> cuts = {"cutpoints_3": np.array([[-1.0, 0.5]])}
    >>> _level_lines(cuts, {}, ["calm"], [("never", "often", "always")])["cutpoints_3"]
    [['calm ≥ often', '-1'], ['calm ≥ always', '0.5']]
    """
    blocks = {}
    for name, value in params.items():
        _, _, number = name.rpartition("_")
        places = [i for i, x in enumerate(levels) if number == str(len(x))]
        shape = np.shape(value)
        steps = int(number) - shape[-1] if places and len(shape) > 1 else -1
        if steps not in (0, 1) or shape[-2] != len(places):
            continue
        sign = "≥" if steps else "="
        table = np.reshape(value, (-1, *shape[-2:]))
        spread = np.reshape(errors[name], table.shape) if name in errors else None
        lines = []
        for c, place in enumerate(places):
            for k in range(shape[-1]):
                line = [f"{columns[place]} {sign} {levels[place][k + steps]}"]
                for one in range(len(table)):
                    line.append(f"{table[one, c, k]:.3g}")
                    line += [] if spread is None else [_shown(spread[one, c, k])]
                lines.append(line)
        more = [[f"{name}: … {len(lines) - MOST_LINES} more"]] if len(lines) > MOST_LINES else []
        blocks[name] = [*lines[:MOST_LINES], *more]
    return blocks


def starts_lines(optima: Optima | None) -> list[str]:
    """A warning where starts ended at different optima; where they agree there is nothing to say.

    >>> starts_lines(Optima(np.array([10.0, 12.5]), 1, 1))
    ['warning   1 of 2 starts agree on the best optimum (losses 10, 12.5): --starts 20 tries more']
    >>> starts_lines(Optima(np.array([10.0, 10.0]), 2, 0)), starts_lines(None)
    ([], [])
    """
    if optima is None or optima.agree == len(optima.values):
        return []
    return [f"warning   {optima}: --starts {max(20, 2 * len(optima.values))} tries more"]


def _shown(number: float, digits: int = 2) -> str:
    return "—" if np.isnan(number) else f"{number:.{digits}g}"

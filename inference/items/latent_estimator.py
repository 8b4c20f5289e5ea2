"""What the estimators for scikit-learn share: fit, transform, score, sample, save.

They take arrays and data frames, a missing cell as NaN, and work inside a `Pipeline` and under
`GridSearchCV`, whose score is the mean log likelihood of rows held out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jax import random
from latentbits.models.data import InputError
from numpyro import handlers
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..evaluation.evidence import likelihood
from ..reading.anatomy import inspect
from ..reading.arguments import put
from ..reading.handlers import WEIGHTS, weighted
from .classes import by_size, open_classes


@dataclass(kw_only=True, eq=False, repr=False)
class LatentEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What the estimators share.

    :param max_steps: most steps of the method; by default as many as most runs take.
    :param tolerance: stop when less than this share of the loss is left to gain.
    :param random_state: of the starts and of `sample`.

    After `fit`: ``params_`` by site of the program, ``losses_`` by step, ``converged_``, and
    ``kept_``, the columns that vary: a constant one says nothing of the latents, and is left out.
    """

    max_steps: int | None = None
    tolerance: float = 1e-7
    random_state: Any = None

    _program: ClassVar[Callable]
    _setting: ClassVar[str]  # of the program and of the estimator: its size
    _solver: ClassVar[Any]  # the method
    _most: ClassVar[float] = math.inf  # the largest size for it
    _beyond: ClassVar[Any] = None  # the method for larger ones
    _bits: ClassVar[bool] = True
    _classes: ClassVar[bool] = False

    def _size(self) -> dict[str, Any]:
        """The keyword arguments of the program."""
        return {self._setting: getattr(self, self._setting)}

    def _method(self) -> Any:
        small = getattr(self, self._setting) <= self._most
        return self._solver if small else self._beyond

    def _outputs(self) -> int:
        """How many numbers `transform` gives of a row."""
        (size,) = self._size().values()
        return int(np.sum(size))

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: N803
        """Fit the program to rows X, (num_rows, num_columns).

        :param sample_weight: how often each row counts, (num_rows,); fractions too.
        """
        del y
        table = self._table(X, first=True)
        times = _weights(sample_weight, len(table))
        table, times = table[times > 0], times[times > 0]
        values, mask = self._coded(table, times)
        least, most = (f(values, axis=0, initial=e, where=mask) for f, e in ENDS)
        self.kept_ = most > least
        if not self.kept_.any():
            raise ValueError("every column is constant: there is nothing to explain")
        args, kwargs = self._arguments(values, mask)
        program = type(self)._program
        if sample_weight is not None:
            program, kwargs[WEIGHTS] = weighted(program), times.astype(np.float32)
        anatomy = inspect(program, args, kwargs)
        method = self._method()
        engine = method.of(program, anatomy)
        steps = self.max_steps or engine.default_steps(anatomy)
        tolerance = None if engine.staged else self.tolerance
        result = engine.run(
            self._key(), steps, *args, tolerance=tolerance, progress_bar=False, **kwargs
        )
        self.params_ = {name: np.asarray(value) for name, value in result.params.items()}
        if self._classes:
            known: Any = open_classes(program, (args, kwargs))
            self.params_ = by_size(known, self.params_)
        self.losses_ = np.asarray(result.losses)
        self.converged_ = bool(result.stop.converged or len(self.losses_) == 1)
        self._n_features_out = self._outputs()
        return self

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """The posterior mean of each row's latents; of classes, their probabilities."""
        args, kwargs = self._arguments(*self._read(X))
        # In double precision: the last digit of a float32 depends on where in the table a row
        # stands, which scikit-learn's checks see.
        with jax.enable_x64(True):
            return self._place(*args, **kwargs)

    def score_samples(self, X: Any) -> np.ndarray:  # noqa: N803
        """The log likelihood of each row, latents summed out, (num_rows,)."""
        args, kwargs = self._arguments(*self._read(X))
        with jax.enable_x64(True):  # as in `transform`
            evidence = likelihood(type(self)._program, *args, **kwargs)(self._params())
            return np.asarray(evidence.value, np.float64)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: N803
        """The mean log likelihood per row."""
        del y
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> np.ndarray:
        """Rows drawn from the fitted program; columns that were left out are NaN."""
        check_is_fitted(self)
        program = handlers.substitute(type(self)._program, data=self._params())
        sizes = {"num_data": n_samples, "num_features": int(self.kept_.sum()), **self._size()}

        @jax.jit
        def draw(key: Any) -> Any:
            return handlers.seed(program, key)(None, **sizes)

        rows = np.full((n_samples, self.n_features_in_), np.nan)
        rows[:, self.kept_] = np.asarray(draw(self._key()))
        return rows

    def plot(self) -> Any:
        """A figure: curves of items, loadings, profiles of classes, or parameters."""
        from ..files.figures import house_style
        from .pictures import drawings, sheet

        check_is_fitted(self)
        columns = [str(name) for name in np.asarray(self._names())[self.kept_]]
        with house_style():
            return sheet(drawings(self._tables(columns), self.params_, columns))

    def _tables(self, columns: list[str]) -> dict[str, dict[str, Any]]:
        """The tables to draw, as `latentbits fit` writes them."""
        del columns
        return {}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fit as ``latentbits fit`` does: `transform`, `complete` and `score` use it."""
        from ..files.arviz import point_groups, save
        from ..files.output import versions
        from .fits import KIND

        check_is_fitted(self)
        columns = [str(name) for name in np.asarray(self._names())[self.kept_]]
        attrs = {
            "kind": KIND, "model": type(self)._program.__name__, "method": self._method().__name__,
            "cells": "binary" if self._bits else "real",
            "sizes": json.dumps({name: repr(value) for name, value in self._size().items()}),
            "columns": json.dumps(columns), "levels": json.dumps({}), "missing": json.dumps([]),
            "settings": json.dumps(self.get_params(), default=str),
            "estimator": json.dumps({
                "kept": self.kept_.tolist(), "outputs": self._n_features_out,
                "converged": self.converged_, "named": hasattr(self, "feature_names_in_"),
                "names": [str(name) for name in self._names()],
                "thresholds": np.asarray(getattr(self, "thresholds_", [])).tolist(),
            }),
            **versions(),
        }  # fmt: skip
        groups = point_groups(type(self)._program, self.params_, self.losses_, columns=columns)
        save(groups, path, attrs)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """An estimator as `save` kept it."""
        from ..files.arviz import load

        groups, attrs = load(path)
        name = cls._program.__name__
        if attrs.get("model") != name or "estimator" not in attrs:
            raise InputError(f"{path}: holds no saved {cls.__name__}, but {attrs.get('model')!r}")
        about, settings = json.loads(attrs["estimator"]), json.loads(attrs["settings"])
        estimator = cls(**{x: v for x, v in settings.items() if x != "random_state"})
        estimator.params_ = {str(x): v.values for x, v in groups["point_estimate"].items()}
        estimator.losses_ = groups["optimization"]["loss"].values
        estimator.kept_, estimator.converged_ = np.array(about["kept"]), about["converged"]
        estimator.n_features_in_, estimator._n_features_out = len(about["names"]), about["outputs"]
        if about["thresholds"]:
            estimator.thresholds_ = np.array(about["thresholds"])
        if about["named"]:
            estimator.feature_names_in_ = np.array(about["names"], dtype=object)
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags

    # --- what the methods above share

    def _names(self) -> list[Any]:
        named = getattr(self, "feature_names_in_", None)
        return list(range(1, self.n_features_in_ + 1)) if named is None else list(named)

    def _key(self) -> Any:
        return random.key(int(check_random_state(self.random_state).randint(2**31 - 1)))

    def _params(self) -> dict[str, Any]:
        return {name: put(np.asarray(x, np.float64)) for name, x in self.params_.items()}

    def _read(self, X: Any) -> tuple[np.ndarray, np.ndarray]:  # noqa: N803
        """The cells of a table, zero where missing, and which there are."""
        check_is_fitted(self)
        return self._coded(self._table(X))

    def _table(self, X: Any, first: bool = False) -> np.ndarray:  # noqa: N803
        return validate_data(
            self, X, reset=first, dtype=np.float64, ensure_all_finite="allow-nan",
            ensure_min_samples=2 if first else 1,
        )  # fmt: skip

    def _coded(
        self, table: np.ndarray, times: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """:param times: how often each row counts, of the table that is fitted."""
        mask = ~np.isnan(table)
        return np.where(mask, self._cells(table, mask, times), 0.0).astype(np.float32), mask

    def _cells(self, table: np.ndarray, mask: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        del mask, times
        return table

    def _arguments(self, values: np.ndarray, mask: np.ndarray) -> tuple[tuple, dict[str, Any]]:
        values, mask = values[:, self.kept_], mask[:, self.kept_]
        holes = {} if mask.all() else {"mask": mask}
        return (values,), {**self._size(), **holes}

    def _place(self, *args: Any, **kwargs: Any) -> np.ndarray:
        engine = self._method()(type(self)._program)
        posterior = engine.posterior(self._params(), *args, **kwargs)
        if self._classes:  # a category's mean says nothing
            (posterior,) = posterior.probabilities.values()
            return np.asarray(posterior, np.float64).reshape(len(args[0]), -1)
        return np.asarray(posterior.mean, np.float64)


def _weights(sample_weight: Any, count: int) -> np.ndarray:
    times = np.ones(count) if sample_weight is None else np.asarray(sample_weight, float)
    if times.shape != (count,) or not (np.isfinite(times) & (times >= 0)).all():
        raise ValueError(f"sample_weight: wanted a number from 0 on for each of {count} rows")
    if not times.any():
        raise ValueError("sample_weight: every weight is zero")
    return times


ENDS = ((np.min, np.inf), (np.max, -np.inf))


@dataclass(kw_only=True, eq=False, repr=False)
class BitEstimator(LatentEstimator):
    """An estimator of tables of 0 and 1.

    :param binarize: numbers above it are 1, others 0; "mean": above the mean of their column in the
        rows fitted. By default the cells must be 0 or 1.
    """

    binarize: float | str | None = None

    def _cells(self, table: np.ndarray, mask: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        if self.binarize is not None:
            if times is not None and self.binarize == "mean":
                each = mask * times[:, None]
                total = (np.where(mask, table, 0.0) * each).sum(0)
                self.thresholds_ = total / np.where(each.any(0), each.sum(0), 1.0)
            elif times is not None:
                self.thresholds_ = np.full(table.shape[1], float(self.binarize))
            return (table > self.thresholds_).astype(float)
        wrong = mask & (table != 0) & (table != 1)
        if wrong.any():
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            name = self._names()[column]
            raise ValueError(
                f"row {row + 1}, column {name} holds {table[row, column]:g}: wanted 0 or 1, or NaN "
                "where it is missing; binarize=... makes bits of numbers"
            )
        return table

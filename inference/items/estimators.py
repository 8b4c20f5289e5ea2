"""The programs as scikit-learn estimators: each names its program, the setting that is its size,
and the method that fits it; see `latent_estimator`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from latentbits import models

from ..methods.continuous.bound import BoundEM
from ..methods.continuous.quadrature import QuadratureEM
from ..methods.discrete.em import EM
from ..methods.discrete.truncated import TruncatedEM
from ..methods.gibbs.gibbs_em import GibbsEM
from ..methods.machines.exact_gradient import ExactGradient
from ..methods.moments.inversion import MomentInversion
from .latent_estimator import BitEstimator, LatentEstimator
from .statistics import loadings

MOST_LISTED = 10
"""Causes of a row up to which all their states are listed."""


@dataclass(eq=False, repr=False)
class LatentTrait(BitEstimator):
    """Item response theory: a logistic regression of each column on latent factors (2PL).

    :param num_factors: up to 3 by maximum likelihood, more by a bound on it.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> probability = 1 / (1 + np.exp(-rng.normal(size=(200, 1)) * [1.0, 2.0, 1.5, 1.0, 0.5]))
    >>> X = (rng.random((200, 5)) < probability).astype(float)
    >>> trait = LatentTrait(random_state=0).fit(X)
    >>> trait.transform(X).shape, trait.get_feature_names_out().tolist()
    ((200, 1), ['latenttrait0'])
    >>> bool(trait.score(X) > -5 * np.log(2)), trait.sample(3).shape
    (True, (3, 5))
    """

    num_factors: int = 1
    _program = staticmethod(models.latent_trait)
    _setting, _solver, _most, _beyond = "num_factors", QuadratureEM, 3, BoundEM

    def _tables(self, columns: list[str]) -> dict[str, dict[str, Any]]:
        weights, bias = self.params_["weights"], self.params_["bias"]
        if len(weights) > 1:
            each = {f"loading_{q + 1}": x for q, x in enumerate(loadings(weights))}
            return {"items": {"item": columns, "slope_2": weights[1], **each}}
        place = {"intercept": bias, "difficulty": -bias / weights[0]}
        return {"items": {"item": columns, "discrimination": weights[0], **place}}


@dataclass(eq=False, repr=False)
class LatentClasses(BitEstimator):
    """Latent classes: a mixture of rows of independent bits.

    >>> import numpy as np
    >>> X = np.array([[1, 1, 1, 0], [0, 0, 0, 1]] * 20)
    >>> classes = LatentClasses(2, max_steps=20, random_state=0).fit(X)
    >>> classes.transform(X[:2]).round().sum(0).tolist()
    [1.0, 1.0]
    """

    num_components: int = 2
    _program = staticmethod(models.bernoulli_mixture)
    _classes = True
    _setting, _solver = "num_components", EM

    def _tables(self, columns: list[str]) -> dict[str, dict[str, Any]]:
        both = {"item": np.repeat(columns, 2), "category": ["0", "1"] * len(columns)}
        for c, one in enumerate(self.params_["probs"]):
            both[f"class_{c + 1}"] = np.stack([1.0 - one, one], 1).ravel()
        return {"profile": both}


@dataclass(eq=False, repr=False)
class ClippedGaussian(BitEstimator):
    """Bits as signs of a Gaussian, its factors by inversion of the pairs' moments.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = (rng.normal(size=(40, 1)) + 0.5 * rng.normal(size=(40, 4)) > 0).astype(float)
    >>> ClippedGaussian(random_state=0).fit(X).params_["weights"].shape
    (1, 4)
    """

    num_factors: int = 1
    _program = staticmethod(models.clipped_gaussian)
    _setting, _solver = "num_factors", MomentInversion


@dataclass(eq=False, repr=False)
class CombinationMachine(BitEstimator):
    """Hidden bits whose log odds add up, by the gradient of the exact likelihood.

    >>> import numpy as np
    >>> X = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]] * 10)
    >>> CombinationMachine(2, max_steps=5, random_state=0).fit(X).losses_.shape
    (5,)
    """

    num_causes: int = 2
    _program = staticmethod(models.combination_machine)
    _setting, _solver = "num_causes", ExactGradient


@dataclass(eq=False, repr=False)
class SparseCoding(LatentEstimator):
    """Rows of numbers as sums of few of several patterns, and noise.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> SparseCoding(2, max_steps=5, random_state=0).fit(X).params_["weights"].shape
    (2, 3)
    """

    num_causes: int = 2
    _program = staticmethod(models.binary_sparse_coding)
    _bits = False
    _setting, _solver, _most, _beyond = "num_causes", EM, MOST_LISTED, TruncatedEM


@dataclass(eq=False, repr=False)
class NoisyOr(BitEstimator):
    """Hidden causes, each of which may turn a bit on.

    >>> import numpy as np
    >>> X = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]] * 10)
    >>> NoisyOr(2, max_steps=5, random_state=0).fit(X).transform(X).shape
    (40, 2)
    """

    num_causes: int = 2
    _program = staticmethod(models.noisy_or_network)
    _setting, _solver, _most, _beyond = "num_causes", EM, MOST_LISTED, GibbsEM

    def _size(self) -> dict[str, Any]:
        return {"layers": (self.num_causes,)}

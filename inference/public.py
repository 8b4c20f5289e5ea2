"""Every public name, and the file that it lives in.

The estimators and the groups for ArviZ load when they are first used: they want scikit-learn and
xarray.
"""

from typing import TYPE_CHECKING, Any

from .certificates.certify import certify
from .comparison.notebook import contest, reproduce
from .compiling import cache_compilations
from .evaluation.evidence import Evidence, Likelihood, likelihood, log_likelihood
from .evaluation.measures import Measure, measure
from .evaluation.prediction import complete, log_conditional, most_probable_state
from .evaluation.standard_errors import (
    BoundWarning,
    UndeterminedWarning,
    confidence_intervals,
    standard_errors,
)
from .evaluation.symmetry import align
from .evaluation.validation import keep_best
from .methods.continuous.bound import BoundEM
from .methods.continuous.factor_em import canonical
from .methods.continuous.factors import FactorPosterior
from .methods.continuous.monte_carlo import MonteCarloEM
from .methods.continuous.quadrature import QuadratureEM
from .methods.discrete.em import EM
from .methods.discrete.persistent import Persistent
from .methods.discrete.splitting import SplittingEM
from .methods.discrete.stepwise import StepwiseEM
from .methods.discrete.truncated import Cut, TruncatedEM
from .methods.gibbs.gibbs_em import GibbsEM, GibbsPosterior
from .methods.gibbs.gibbs_search import GibbsSearch
from .methods.gibbs.informed import GradientFlips
from .methods.gibbs.kernel import LatentGibbs
from .methods.machines.contrastive import ContrastiveDivergence
from .methods.machines.exact_gradient import ExactGradient, from_base_rates
from .methods.machines.partition import annealed, normalizer, truncated
from .methods.machines.pursuit import ProjectionPursuit
from .methods.machines.units import universal_machine
from .methods.moments.cells import count_cells, entropy, enumerate_cells
from .methods.moments.factor_errors import factor_errors
from .methods.moments.hidden import draw_hidden, hidden_values
from .methods.moments.inversion import MomentInversion
from .methods.moments.polychoric_pairs import Polychoric, polychoric
from .methods.moments.probit import morph
from .methods.moments.spectrum import implied_correlation
from .methods.shared import Posterior
from .numerics.annealed import anneal, log_mean
from .posterior.draws import PosteriorDraws, posterior_draws
from .reading.anatomy import Anatomy, ProgramError, inspect
from .reading.handlers import quadratic_bound, states, weighted
from .reading.latent_counts import left_out, up_to
from .reading.log_joint import Structure, log_joint
from .reading.marginal import marginal
from .reading.recover import LatentPosterior, latent_posterior, recover
from .reading.states import AllStates, AtMost, Given
from .running.algorithm import Algorithm
from .running.contract import CheckpointError, DivergedError, Optima, RunResult
from .running.search import Search

BinaryGibbs = LatentGibbs
"""Its name when it took bits alone."""

if TYPE_CHECKING:
    from .files.arviz import latent_groups
    from .files.predictive import to_arviz
    from .items.estimators import (
        ClippedGaussian,
        CombinationMachine,
        LatentClasses,
        LatentTrait,
        NoisyOr,
        SparseCoding,
    )

__all__ = [
    "EM",
    "Algorithm",
    "AllStates",
    "Anatomy",
    "AtMost",
    "BoundEM",
    "BoundWarning",
    "CheckpointError",
    "ClippedGaussian",
    "CombinationMachine",
    "ContrastiveDivergence",
    "Cut",
    "DivergedError",
    "Evidence",
    "ExactGradient",
    "FactorPosterior",
    "GibbsEM",
    "GibbsPosterior",
    "GibbsSearch",
    "Given",
    "GradientFlips",
    "LatentClasses",
    "LatentGibbs",
    "LatentPosterior",
    "LatentTrait",
    "Likelihood",
    "Measure",
    "MomentInversion",
    "MonteCarloEM",
    "NoisyOr",
    "Optima",
    "Persistent",
    "Polychoric",
    "Posterior",
    "PosteriorDraws",
    "ProgramError",
    "ProjectionPursuit",
    "QuadratureEM",
    "RunResult",
    "Search",
    "SparseCoding",
    "SplittingEM",
    "StepwiseEM",
    "Structure",
    "TruncatedEM",
    "UndeterminedWarning",
    "align",
    "anneal",
    "annealed",
    "cache_compilations",
    "canonical",
    "certify",
    "complete",
    "confidence_intervals",
    "contest",
    "count_cells",
    "draw_hidden",
    "entropy",
    "enumerate_cells",
    "factor_errors",
    "from_base_rates",
    "hidden_values",
    "implied_correlation",
    "inspect",
    "keep_best",
    "latent_groups",
    "latent_posterior",
    "left_out",
    "likelihood",
    "log_conditional",
    "log_joint",
    "log_likelihood",
    "log_mean",
    "marginal",
    "measure",
    "morph",
    "most_probable_state",
    "normalizer",
    "polychoric",
    "posterior_draws",
    "quadratic_bound",
    "recover",
    "reproduce",
    "standard_errors",
    "states",
    "to_arviz",
    "truncated",
    "universal_machine",
    "up_to",
    "weighted",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from .files import arviz, predictive
        from .items import estimators

        places = {"latent_groups": arviz, "to_arviz": predictive}
        return getattr(places.get(name, estimators), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

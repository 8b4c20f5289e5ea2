"""The readings of a program, and the methods built on them.

Read in this order: `handlers` (what a reading is), `anatomy` and `local` (what it looks at),
`algorithm` (the contract), then any file of `methods`.
"""

from inference.evaluation.evidence import Evidence, Likelihood, likelihood, log_likelihood
from inference.evaluation.measures import Measure, measure
from inference.evaluation.queries import complete, log_conditional, most_probable_state
from inference.evaluation.standard_errors import standard_errors
from inference.evaluation.validation import keep_best
from inference.methods.continuous.bound import BoundEM
from inference.methods.continuous.factor_em import canonical
from inference.methods.continuous.factors import FactorPosterior
from inference.methods.continuous.monte_carlo import MonteCarloEM
from inference.methods.continuous.quadrature import QuadratureEM
from inference.methods.discrete.cut import Cut
from inference.methods.discrete.em import EM
from inference.methods.discrete.persistent import Persistent
from inference.methods.discrete.splitting import SplittingEM
from inference.methods.discrete.stepwise import StepwiseEM
from inference.methods.discrete.truncated import TruncatedEM
from inference.methods.gibbs.gibbs_em import GibbsEM, GibbsPosterior
from inference.methods.gibbs.gibbs_search import GibbsSearch
from inference.methods.gibbs.kernel import BinaryGibbs
from inference.methods.machines.contrastive import ContrastiveDivergence
from inference.methods.machines.exact_gradient import ExactGradient, from_base_rates
from inference.methods.machines.partition import annealed, normalizer, truncated
from inference.methods.machines.pursuit import ProjectionPursuit
from inference.methods.machines.universality import universal_machine
from inference.methods.moments.cells import count_cells, entropy, enumerate_cells
from inference.methods.moments.inversion import MomentInversion
from inference.methods.moments.probit import morph
from inference.methods.moments.spectrum import implied_correlation
from inference.methods.shared import Posterior
from inference.numerics.annealed import anneal, log_mean
from inference.reading.anatomy import Anatomy, ProgramError, inspect
from inference.reading.handlers import marginal, quadratic_bound, states
from inference.reading.local import Structure, log_joint
from inference.reading.states import AllStates, AtMost, Given
from inference.running.algorithm import Algorithm
from inference.running.checkpoint import CheckpointError
from inference.running.contract import DivergedError, RunResult

__all__ = [
    "EM",
    "Algorithm",
    "AllStates",
    "Anatomy",
    "AtMost",
    "BinaryGibbs",
    "BoundEM",
    "CheckpointError",
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
    "Likelihood",
    "Measure",
    "MomentInversion",
    "MonteCarloEM",
    "Persistent",
    "Posterior",
    "ProgramError",
    "ProjectionPursuit",
    "QuadratureEM",
    "RunResult",
    "SplittingEM",
    "StepwiseEM",
    "Structure",
    "TruncatedEM",
    "anneal",
    "annealed",
    "canonical",
    "complete",
    "count_cells",
    "entropy",
    "enumerate_cells",
    "from_base_rates",
    "implied_correlation",
    "inspect",
    "keep_best",
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
    "quadratic_bound",
    "standard_errors",
    "states",
    "truncated",
    "universal_machine",
]

"""The readings of a program, and the methods built on them.

Read in this order: `handlers` (what a reading is), `anatomy` and `local` (what it looks at),
`algorithm` (the contract), then any file of `methods`.
"""

from inference.algorithm import Algorithm, DivergedError, RunResult
from inference.anatomy import Anatomy, ProgramError, inspect
from inference.annealed import anneal, log_mean
from inference.cells import count_cells, entropy, enumerate_cells
from inference.continuous import FactorPosterior
from inference.evidence import Evidence, Likelihood, likelihood, log_likelihood
from inference.factor_em import canonical
from inference.handlers import marginal, quadratic_bound, states
from inference.information import standard_errors
from inference.local import Structure, log_joint
from inference.methods.bound import BoundEM
from inference.methods.em import EM, Posterior
from inference.methods.gibbs import BinaryGibbs
from inference.methods.moments import MomentInversion
from inference.methods.monte_carlo import MonteCarloEM
from inference.methods.quadrature import QuadratureEM
from inference.methods.truncated import Cut, TruncatedEM
from inference.persistent import Persistent
from inference.probit import morph
from inference.spectrum import implied_correlation
from inference.states import AllStates, AtMost, Given

__all__ = [
    "EM",
    "Algorithm",
    "AllStates",
    "Anatomy",
    "AtMost",
    "BinaryGibbs",
    "BoundEM",
    "Cut",
    "DivergedError",
    "Evidence",
    "FactorPosterior",
    "Given",
    "Likelihood",
    "MomentInversion",
    "MonteCarloEM",
    "Persistent",
    "Posterior",
    "ProgramError",
    "QuadratureEM",
    "RunResult",
    "Structure",
    "TruncatedEM",
    "anneal",
    "canonical",
    "count_cells",
    "entropy",
    "enumerate_cells",
    "implied_correlation",
    "inspect",
    "likelihood",
    "log_joint",
    "log_likelihood",
    "log_mean",
    "marginal",
    "morph",
    "quadratic_bound",
    "standard_errors",
    "states",
]

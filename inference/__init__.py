"""The readings of a program, and the methods built on them.

Read in this order: `handlers` (what a reading is), `anatomy` and `local` (what it looks at),
`algorithm` (the contract), then any file of `methods`.
"""

from inference.algorithm import Algorithm, DivergedError, RunResult
from inference.anatomy import Anatomy, ProgramError, inspect
from inference.handlers import marginal, quadratic_bound, states
from inference.local import Structure, log_joint
from inference.methods.em import EM, Posterior
from inference.methods.truncated import Cut, TruncatedEM
from inference.persistent import Persistent
from inference.states import AllStates, AtMost, Given

__all__ = [
    "EM",
    "Algorithm",
    "AllStates",
    "Anatomy",
    "AtMost",
    "Cut",
    "DivergedError",
    "Given",
    "Persistent",
    "Posterior",
    "ProgramError",
    "RunResult",
    "Structure",
    "TruncatedEM",
    "inspect",
    "log_joint",
    "marginal",
    "quadratic_bound",
    "states",
]

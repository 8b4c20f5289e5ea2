"""Import this, with `STEPS_TAKEN` in the environment, to let comparisons of this checkout do the
work that those of the flat layout did.

What a setting can say is said by settings (`SETTINGS`); where there is none, constants and
functions of the modules are replaced, in the processes of a benchmark alone:

    steps            as many as `STEPS_TAKEN` in the environment names, no tolerance
    starts           4 side by side where there were, else 1: no search, no further rounds; of MAP
                     and of a guide 1
    TruncatedEM      3 of 5 candidates active; ExactGradient by momentum instead of L-BFGS
    GibbsEM          always by draws, from each block by itself; GibbsSearch 8 members, 6 rounds of
                     5 epochs a layer, no polish
    scores           by 100 draws, on the way by 16, with 9 nodes in each dimension
    point estimates  no information matrix; single cells are predicted by them too
    samplers         Monte-Carlo errors of single held-out rows

Without a budget, which the benchmark leaves out, NUTS neither measures what a gradient takes nor
has its trajectories limited, as in the flat layout.
"""

import dataclasses
import json
import os
from typing import Any

from inference.baselines import variational
from inference.evaluation.prediction import answer, reliability
from inference.methods.gibbs.gibbs_em import GibbsEM
from inference.running.restarts import Restarts
from inference.studies.catalogue import methods
from inference.studies.comparison import contenders, field, judge, scoring, turns

SINGLE = {"MomentInversion", "ProjectionPursuit", "SplittingEM", "GibbsEM", "GibbsSearch",
          "BoundEM", "QuadratureEM", "MonteCarloEM"}  # fmt: skip
"""Methods that had one start."""
STEPS: dict[str, int] = json.loads(os.environ.get("STEPS_TAKEN", "{}"))
MOST_DRAWS, NUM_NODES = 100, 9
BY_DRAWS = {"max_states": 1, "learn_from": "block"}
SETTINGS: dict[str, dict[str, Any]] = {
    "ExactGradient": {"learning_rate": 0.1, "momentum": 0.9},
    "GibbsEM": BY_DRAWS,
    "GibbsSearch": {"population": 8, "rounds": 6, "epochs": 5, "replaced": 0.2, "polish": 0},
}


def _of(name: str, method: Any) -> Any:
    searches = any(x.name == "search" and x.init for x in dataclasses.fields(method))

    def of(model: Any, anatomy: Any) -> Any:
        settings = {**SETTINGS.get(name, {}), **({"search": None} if searches else {})}
        if name == "TruncatedEM":
            most = anatomy.num_bits
            settings |= {"max_active": min(3, most), "num_candidates": min(5, most)}
        return method(GibbsEM(model, **BY_DRAWS) if name == "GibbsSearch" else model, **settings)

    return of


def _steps(name: str, default: Any) -> Any:
    return lambda self, anatomy: STEPS.get(name) or default(self, anatomy)


def _restarts(engine: Any, count: int) -> Any:
    return engine if type(engine).__name__ in SINGLE else Restarts(engine, count)


def _spacing(judges: Any, chains: int, count: int) -> tuple[int, int]:
    del judges
    step = max(1, -(-chains * count // MOST_DRAWS))
    return step, step


def _judge(shared: Any, contender: Any, draws: Any, engine: Any) -> Any:
    judged = judge.judge(shared, contender, draws, engine)
    if contender.kind == "sampler":
        judged.scores.row_errors()
    if contender.kind == "point" and shared.cells is not None:
        point = {x: v[0] for x, v in draws.params.items()}
        reliability(answer(shared.cells, point), shared.bits)
    return judged


def install() -> None:
    """Replace what has no setting, in this process."""
    nodes = field.enough_nodes
    for name, method in methods().items():
        if hasattr(method, "default_steps"):
            method.of = staticmethod(_of(name, method))
            method.default_steps = _steps(name, method.default_steps)
    contenders.TOLERANCE = None
    contenders.Restarts = _restarts
    variational.NUM_STARTS = variational.NUM_GUIDES = 1
    turns.MOST_ROUNDS, turns.judge = 1, _judge
    judge.information = lambda *_: {}
    judge.MOST_INEXACT = judge.MOST_ON_THE_WAY
    scoring.spacing = _spacing
    field.enough_nodes = lambda *about: None if nodes(*about) is None else NUM_NODES


if "STEPS_TAKEN" in os.environ:
    install()

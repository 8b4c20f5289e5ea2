"""What a posterior costs after a fit, at the papers' sizes, beside NUTS from its own start.

    python benchmarks/posteriors.py [--seed 0] [--limit 300] [MODEL …]

For each program: processor seconds of its recommended method; of `posterior_draws` after it, k̂ and
effective draws; where k̂ fails, of NUTS from there until its checks pass; and of NUTS alone until
the same checks pass. Compilation is apart. A time above the limit is printed as "> limit".
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from jax import random

from inference.baselines.pacing import BudgetError
from inference.baselines.samplers import nuts
from inference.files.cards import CARDS, example
from inference.files.catalogue import find_method, find_program
from inference.posterior.chains import advise, chains, faults
from inference.posterior.draws import about_fit, posterior_draws


def sampled(run, model, arguments):
    """Seconds until the checks of a sampler pass, its effective draws, and what is missing."""
    until = lambda draws, plan: advise(chains(model, arguments, draws), draws, plan)  # noqa: E731
    try:
        draws = run(until)
    except BudgetError as error:
        return {"trusted": False, "missing": str(error)}
    row = chains(model, arguments, draws)
    found = {x: row.get(x) for x in ("rhat", "rhat_parameters", "ess_bulk", "ess_tail")}
    missing = sorted(faults(row))
    return {"trusted": not missing, "missing": missing, "seconds": draws.seconds, **found}


def one(name, seed, limit):
    """All numbers of one program."""
    card, model = CARDS[name], find_program(name)
    made = example(name, number=seed)
    args, kwargs = (np.asarray(made.values, np.float32),), dict(made.sizes)
    key = random.key(seed)
    engine = find_method(card.method)(model)
    fit = engine.run(key, 500, *args, tolerance=1e-7, progress_bar=False, **kwargs)
    row = {"program": name, "rows": len(args[0]), "method": card.method, "fit": fit.seconds}
    print(json.dumps(row), flush=True)
    found = posterior_draws(model, fit.params, *args, rng_key=key, fall_back=False, **kwargs)
    row |= {
        "parameters": sum(np.size(x) for x in fit.params.values()), "posterior": found.seconds,
        "compile": found.compile_seconds, "how": found.how, "pareto_k": found.pareto_k,
        "effective": found.effective, "sound": found.sound, "notes": found.notes,
        "log_evidence": found.log_evidence,
    }  # fmt: skip
    print(json.dumps(row), flush=True)
    arguments = args, kwargs
    if not found.sound:
        about = about_fit(model, fit.params, args, kwargs)
        follow = lambda until: about.nuts(model, key, *arguments, budget=limit, until=until)  # noqa: E731
        row["from_fit"] = sampled(follow, model, arguments)
        print(json.dumps(row), flush=True)
    cold = lambda until: nuts(model, key, *args, budget=limit, until=until, **kwargs)  # noqa: E731
    row["alone"] = sampled(cold, model, arguments)
    print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[*CARDS], metavar="MODEL")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=300.0)
    options = parser.parse_args()
    for name in options.models:
        one(name, options.seed, options.limit)


if __name__ == "__main__":
    main()

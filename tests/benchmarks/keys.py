"""From how many keys a run with default arguments ends at the best optimum that is known.

    python tests/benchmarks/keys.py SET METHOD NUM_KEYS [--steps N] [--batch B] [--golden]

    python tests/benchmarks/keys.py bars TruncatedEM 100

All keys are one compiled call; so many side by side (`--batch`) as memory holds. A run is at the
optimum if it ends within 5e-5 of it (0.05 nats at least), and the combination machine if its
held-out log-loss is within 0.01 bits per bit of the true model's. The best known is the golden
number of the set (tests/golden/optima.json), or the best of these runs and of one from the truth,
if that is better; `--golden` writes it down, with its parameters and what found it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from latentbits.inference.running.search import Lineages, optima_of
from latentbits.models import (
    bernoulli_mixture,
    binary_sparse_coding,
    clipped_gaussian,
    combination_machine,
    latent_trait,
    noisy_or_network,
)
from latentbits.models.data import bars, combination_target, lines, load_table, prototypes
from latentbits.models.data.strokes import stroke_masks

import latentbits

GOLDEN = Path(__file__).parents[1] / "golden" / "optima.json"


class Case(NamedTuple):
    """A table, the program for it, and where it comes from if that is known."""

    model: Callable
    data: Array
    sizes: dict[str, Any]
    methods: tuple[str, ...]  # the default of `latentbits fit` first
    steps: int
    truth: dict[str, Any] | None = None
    held_out: Array | None = None


def mixture(even: bool) -> Case:
    """Ten components on 4000 × 64, of even and of uneven weight."""
    rng = np.random.default_rng(0)
    probs = rng.uniform(size=(10, 64))
    mixing = np.full(10, 0.1) if even else rng.dirichlet(2 * np.ones(10))
    member = rng.choice(10, 4000, p=mixing)
    data = rng.uniform(size=(4000, 64)) < probs[member]
    truth = {"mixing": mixing, "probs": probs}
    return Case(bernoulli_mixture, data, {"num_components": 10}, ("EM",), 100, truth)


def ten_bars() -> Case:
    """Henniges et al. (2010): 1000 × 25, ten causes."""
    drawn = bars(random.key(1), 1000)
    truth = {"weights": drawn.weights, "noise": drawn.noise, "sparsity": drawn.sparsity}
    methods = ("TruncatedEM", "EM")
    return Case(binary_sparse_coding, drawn.data, {"num_causes": 10}, methods, 100, truth)


def targets() -> Case:
    """Freund & Haussler (1994): ten units, 4000 × 64, and as many rows that are held out."""
    key_train, key_test = random.split(random.key(0))
    drawn, test = combination_target(key_train, 4000), combination_target(key_test, 4000)
    truth = {"weights": drawn.weights, "bias": drawn.bias}
    sizes, methods = {"num_causes": 10}, ("ExactGradient",)
    return Case(combination_machine, drawn.data, sizes, methods, 500, truth, test.data)


def items(model: Callable, count: int, methods: tuple[str, ...]) -> Case:
    """Two factors, 2000 rows."""
    rng = np.random.default_rng(0)
    truth = {"weights": rng.normal(0.0, 1.2, (2, count)), "bias": rng.normal(0.0, 0.7, count)}
    inner = rng.normal(size=(2000, 2)) @ truth["weights"] + truth["bias"]
    noise = (
        rng.logistic(size=inner.shape) if model is latent_trait else rng.normal(size=inner.shape)
    )
    return Case(model, inner + noise > 0, {"num_factors": 2}, methods, 100, truth)


def clusters() -> Case:
    """Tipping (1998): three prototypes of 16 bits, 200 copies of each."""
    data = prototypes(random.key(0)).data
    return Case(latent_trait, data, {"num_factors": 2}, ("QuadratureEM", "BoundEM"), 200)


def ten_lines() -> Case:
    """Lewicki & Sejnowski (1996): 1000 × 25, ten causes, whose states can all be summed."""
    data = lines(random.key(1), 1000).data
    truth = {"weights_1": 6.0 * stroke_masks(5), "leak_0": np.full(25, 0.005)}
    truth["leak_1"] = np.full(10, 0.4)
    methods = ("EM", "TruncatedEM", "GibbsSearch")
    return Case(noisy_or_network, data, {"layers": (10,)}, methods, 500, truth)


def carcinoma(classes: int, path: str | None = None) -> Case:
    """Landis & Koch (1977): 118 slides, seven pathologists; the table is not part of this."""
    if path is None:
        raise SystemExit("the carcinoma sets want --table FILE: 118 rows, seven columns of 0 and 1")
    data = load_table(path).values
    return Case(bernoulli_mixture, data, {"num_components": classes}, ("EM",), 2000)


CASES: dict[str, Callable[..., Case]] = {
    "bars": ten_bars,
    "even-mixture": lambda: mixture(True),
    "uneven-mixture": lambda: mixture(False),
    "combination": targets,
    "prototypes": clusters,
    "lines": ten_lines,
    "items": lambda: items(latent_trait, 20, ("QuadratureEM", "BoundEM")),
    "clipped": lambda: items(clipped_gaussian, 12, ("QuadratureEM",)),
    **{f"carcinoma-{k}": partial(carcinoma, k) for k in (2, 3, 4)},
}


class End(NamedTuple):
    """Where the run from a key ended."""

    losses: Array  # (num_lineages,)
    last: Array  # (3, num_lineages)
    params: Any


def method_of(name: str, case: Case) -> Any:
    kind = getattr(latentbits, name)
    if name == "GibbsSearch":
        return kind(latentbits.GibbsEM(case.model))
    return kind(case.model)


def from_keys(method: Any, case: Case, steps: int, num_keys: int, batch: int) -> tuple[End, float]:
    """The runs from many keys in one compiled call, and the seconds it took."""
    lineages = Lineages(method, method.search)

    def run(key: Array, data: Array) -> End:
        state, _ = lineages.whole(key, steps, (data,), case.sizes)
        return End(state.losses[-1], state.losses, lineages.get_params(state))

    def every(keys: Array, data: Array) -> End:
        return lax.map(lambda key: run(key, data), keys, batch_size=batch)

    keys, data = random.split(random.key(0), num_keys), jnp.asarray(case.data, float)
    method.init(keys[0], data, **case.sizes)  # what is tested of a program is tested here
    compiled = jax.jit(every).lower(keys, data).compile()
    began = time.perf_counter()
    ends = jax.device_get(compiled(keys, data))
    return ends, time.perf_counter() - began


def excess(case: Case, params: Any) -> np.ndarray:
    """Held-out log-loss beyond the true model's, bits per bit, of many parameters."""
    judge = latentbits.ExactGradient(case.model)
    score = jax.jit(lambda p: judge.log_likelihood(p, case.held_out, **case.sizes).mean())
    true = score(jax.tree.map(lambda x: jnp.asarray(x, float), case.truth))
    each = lax.map(score, jax.tree.map(jnp.asarray, params))
    assert case.held_out is not None
    return np.asarray((true - each) / case.held_out.shape[1] / np.log(2.0))


def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("set", choices=list(CASES))
    parser.add_argument("method", nargs="?", help="by default that of the set")
    parser.add_argument("keys", nargs="?", type=int, default=100)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int, help="of the search; see `Search`")
    parser.add_argument("--round-steps", type=int, help="steps of each of them")
    parser.add_argument("--table", help="of the carcinoma sets")
    parser.add_argument("--batch", type=int, help="keys side by side; 25 on a GPU, 1 on a CPU")
    parser.add_argument("--golden", action="store_true", help="write the best down")
    options = parser.parse_args()
    case = CASES[options.set](*([options.table] if options.table else []))
    name = options.method or case.methods[0]
    method, data = method_of(name, case), jnp.asarray(case.data, float)
    given = {"rounds": options.rounds, "steps": options.round_steps}
    asked = {name: value for name, value in given.items() if value is not None}
    method = dataclasses.replace(method, search=dataclasses.replace(method.search, **asked))
    steps = options.steps or case.steps
    if name == "GibbsSearch":
        steps = options.steps or method.rounds
    batch = options.batch or (1 if jax.default_backend() == "cpu" else 25)
    ends, seconds = from_keys(method, case, steps, options.keys, min(batch, options.keys))
    least = ends.losses.min(1)
    best, found_by = float(least.min()), name
    params = jax.tree.map(lambda x: x[int(least.argmin())], ends.params)
    objective = "bound" if name == "BoundEM" else "evidence"
    if case.truth is not None and name != "GibbsSearch":
        truth = jax.tree.map(lambda x: jnp.asarray(x, float), case.truth)
        from_truth = method.run(random.key(0), 2 * steps, data, init_params=truth, **case.sizes)
        if float(from_truth.losses[-1]) < best:
            best, found_by = float(from_truth.losses[-1]), f"{name} from the true parameters"
            params = from_truth.params
    known = golden().get(options.set, {}).get(objective)
    if known is not None and -known["log_likelihood"] < best:
        best, found_by = -known["log_likelihood"], known["found_by"]
        params = known["params"]
    slack = max(0.05, 5e-5 * abs(best))
    there = least < best + slack
    optima = [optima_of(np.asarray(x, np.float64)) for x in ends.last]
    print(f"{options.set}, {name}, {steps} steps, {options.keys} keys, {jax.default_backend()}")
    print(f"  at the best known ({-best:.4f} in all, by {found_by}): {int(there.sum())}")
    print(
        f"  the others end {np.sort(np.round(least[~there] - best, 2))[:12].tolist()} nats behind"
    )
    agree = np.array([x.agree >= 2 for x in optima])
    both = int((agree & there).sum())
    print(f"  two lineages agree: {int(agree.sum())}; and are at the best: {both}")
    if case.held_out is not None:
        beyond = excess(case, ends.params)
        print(f"  within 0.01 bits per bit of the true model: {int((beyond <= 0.01).sum())}"
              f" (largest {beyond.max():.4f}, mean {beyond.mean():.4f})")  # fmt: skip
    print(f"  {seconds:.1f} s for all, compilation apart")
    if options.golden:
        write(options.set, case, objective, best, found_by, params, steps, options.keys)


def write(
    name: str, case: Case, objective: str, best: float, found_by: str, params: Any, steps: int,
    num_keys: int,
) -> None:  # fmt: skip
    """The best known optimum, with what found it."""
    table = golden()
    numbers = {x: np.round(np.asarray(v, float), 5).tolist() for x, v in params.items()}
    entry = {
        "log_likelihood": -best, "found_by": found_by, "steps": steps, "keys": num_keys,
        "rows": len(case.data), "params": numbers,
    }  # fmt: skip
    table.setdefault(name, {})[objective] = entry
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(table, indent=None).replace('}, "', '},\n"') + "\n")


if __name__ == "__main__":
    main()

"""From how many keys a run with default arguments ends at the best optimum that is known.

    python benchmarks/keys.py SET METHOD NUM_KEYS [--steps N] [--batch B]

    python benchmarks/keys.py bars TruncatedEM 100
    python benchmarks/keys.py all --golden           # the best of 200 starts of any method
    python benchmarks/keys.py bars EM 3 --cost       # of a run, in plain runs
    python benchmarks/keys.py bars EM 20 --out cpu.json             # on one machine,
    python benchmarks/keys.py bars EM 20 --against cpu.json         # and on another
    python benchmarks/keys.py network EM 100 --prior --table IMG.npz
    python benchmarks/keys.py many-network GibbsSearch --sets 1..20

All keys are one compiled call; so many side by side (`--batch`) as memory holds. A run is at the
optimum if it ends within 5e-5 of it (0.05 nats at least), and the combination machine if its
held-out log-loss is within 0.01 bits per bit of the true model's. The best known is the golden
number of the set (tests/golden/optima.json), or the best of these runs and of one from the truth,
if that is better. `--golden` looks for it and writes it down, with its parameters and what found
it: 200 plain starts of every method of the set, and as many keys with the search of the first.

Networks are judged by what they were drawn from: a cause counts as found if its weights differ from
those of its match by at most 1 and its prior is at least 0.02 (Buhai et al. 2020), and a run if the
held-out log likelihood is within 0.04 nats per row of the true network's. A table of one's own is
an ``.npz`` of packed ``bits`` with ``.priors.txt`` and ``.weights.txt`` beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from key_cases import CASES, Case, drawn_network
from latentbits.inference.files.output import versions
from latentbits.inference.methods.gibbs.network_evidence import annealed_evidence
from latentbits.inference.reading.anatomy import inspect
from latentbits.inference.running.algorithm import Algorithm
from latentbits.inference.running.contract import Starts, follow
from latentbits.inference.running.search import Lineages, LineageState, optima_of, remaining
from latentbits.models import noisy_or_network
from scipy.optimize import linear_sum_assignment

import latentbits

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "optima.json"


class End(NamedTuple):
    """Where the run from a key ended."""

    losses: Array  # (num_lineages,)
    last: Array  # (3, num_lineages)
    params: Any


def from_keys(method: Any, case: Case, steps: int, num_keys: int, batch: int) -> tuple[End, float]:
    """The runs from many keys in one compiled call, and the seconds it took.

    A method without a search has one start a key.
    """
    lineages = method.search and Lineages(method, method.search)
    if type(method).finish is not Algorithm.finish:  # what a run ends with is no part of its steps
        return one_by_one(method, case, steps, num_keys)

    def run(key: Array, data: Array) -> End:
        if lineages:
            state = searched(lineages, key, steps, (data,), case.sizes)
            return End(state.losses[-1], state.losses, lineages.get_params(state))
        step = lambda state, _: method.update(state, data, **case.sizes)  # noqa: E731
        apart = method.starts is Starts.DATA  # from where the data say, all would agree
        given = {"init_params": method.propose(key, data, **case.sizes)} if apart else {}
        start = method.init(key, data, **given, **case.sizes)
        state, losses = lax.scan(step, start, None, length=steps)
        return End(losses[-1:], losses[-3:, None], method.get_params(state))

    def every(keys: Array, data: Array) -> End:
        return lax.map(lambda key: run(key, data), keys, batch_size=batch)

    keys, data = random.split(random.key(0), num_keys), jnp.asarray(case.data, float)
    method.init(keys[0], data, **case.sizes)  # what is tested of a program is tested here
    compiled = jax.jit(every).lower(keys, data).compile()
    began = time.perf_counter()
    ends = jax.device_get(compiled(keys, data))
    return ends, time.perf_counter() - began


def searched(
    lineages: Lineages, rng_key: Array, num_steps: int, args: tuple, kwargs: dict[str, Any]
) -> LineageState:
    """The search and a run of `num_steps` as one pure function: the last state of the lineages."""
    key_rows, key_search, key_init = random.split(rng_key, 3)
    search, count = lineages.search, lineages.count
    if search.straight:
        params = lineages.propose(random.split(key_search, count), args, kwargs)
    else:
        narrow = lineages.method.narrowed(lineages.fewer(key_rows, lineages.rows(args, kwargs)))
        some = narrow.rows.whole()
        screening, rounds, steps = search.plan(num_steps, narrow.more)

        def one_round(number: Array, state: LineageState) -> LineageState:
            step = lambda _, state: lineages.update(state, *some[0], **some[1])[0]  # noqa: E731
            state = lax.fori_loop(0, jnp.where(number == 0, screening, steps), step, state)
            return lineages.turn(key_search, number, state, *some)

        state = lax.fori_loop(0, 1 + rounds, one_round, lineages.start(key_search, *some))
        params = narrow.widened(lineages.params(state.part(slice(count))))
    state = lineages.enter(random.split(key_init, count), params, args, kwargs)
    return follow(lineages, state, num_steps, *args, **kwargs)[0]


def one_by_one(method: Any, case: Case, steps: int, num_keys: int) -> tuple[End, float]:
    """The same, a run after the other; the first compiles for all."""
    data, ends, seconds = jnp.asarray(case.data, float), [], 0.0
    for key in random.split(random.key(0), num_keys):
        began = time.perf_counter()
        result = method.run(key, steps, data, **case.sizes)
        seconds += time.perf_counter() - began - result.compile_seconds
        last = np.tile(result.optima.values, (3, 1))
        ends.append(jax.device_get(End(last[-1], last, result.params)))
    return jax.tree.map(lambda *x: np.stack(x), *ends), seconds


def behind(case: Case, params: Any) -> np.ndarray:
    """Held-out nats per row by which many parameters are worse than the true model."""
    held = jnp.asarray(case.held_out, float)
    if case.model is noisy_or_network and len(case.truth["leak_1"]) > MOST_SUMMED:
        count = len(params["leak_1"])
        networks = [case.truth, *(jax.tree.map(lambda x: x[i], params) for i in range(count))]  # noqa: B023
        evidence = [annealed_evidence(case.model, p, held, num_chains=16, num_densities=100,
                                   **case.sizes).value.mean() for p in networks]  # fmt: skip
        return np.asarray(evidence[0] - np.array(evidence[1:]))
    judge = latentbits.ExactGradient(case.model)
    score = jax.jit(lambda p: judge.log_likelihood(p, held, **case.sizes).mean())
    true = score(jax.tree.map(lambda x: jnp.asarray(x, float), case.truth))
    return np.asarray(true - lax.map(score, jax.tree.map(jnp.asarray, params)))


def causes_found(case: Case, params: Any) -> np.ndarray:
    """How many causes of the true network each of many networks has."""
    wanted, counts = np.asarray(case.truth["weights_1"]), []
    for weights, leak in zip(params["weights_1"], params["leak_1"], strict=True):
        apart = np.abs(np.minimum(weights, 50.0)[:, None] - wanted).max(-1)
        matches = (apart <= 1.0) & (-np.expm1(-leak) >= 0.02)[:, None]
        counts.append(matches[linear_sum_assignment(~matches)].sum())
    return np.array(counts)


MOST_SUMMED = 14
"""Causes of a network up to which its held-out likelihood is summed, and not estimated."""


def golden(path: Path = GOLDEN) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("set", choices=[*CASES, "all"])
    parser.add_argument("method", nargs="?", help="by default that of the set")
    parser.add_argument("keys", nargs="?", type=int, help="100 by default; 200 with --golden")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--lineages", type=int, help="of the search; see `Search`")
    parser.add_argument("--rounds", type=int, help="of it")
    parser.add_argument("--round-steps", type=int, help="steps of each of them")
    parser.add_argument("--table", help="of the carcinoma sets, or of a network")
    parser.add_argument("--batch", type=int, help="keys side by side; 25 on a GPU, 1 on a CPU")
    parser.add_argument(
        "--prior", action="store_true", help="maximise the posterior, as `fit` does"
    )
    parser.add_argument("--cost", action="store_true", help="of a run, in plain ones, from 3 keys")
    parser.add_argument("--sets", help="seeds of drawn networks, as 1..20: one key on each of them")
    parser.add_argument("--golden", action="store_true", help="find the best, and write it down")
    parser.add_argument("--into", type=Path, default=GOLDEN, help="the file for it")
    parser.add_argument("--out", help="write down where each key ended")
    parser.add_argument("--against", help="compare with what another machine wrote down")
    options = parser.parse_args()
    if options.set != "all":
        case = CASES[options.set](*([options.table] if options.table else []))
        if options.sets:
            over_sets(options, options.set.removesuffix("-network"), options.method)
            return
        if options.golden:
            look(options, options.set, case)
            return
        if options.cost:
            cost(options, case, options.method or case.methods[0])
            return
        count(options, options.set, case, options.method or case.methods[0], options.keys or 100)
        return
    for name, make in CASES.items():
        own = name.startswith("carcinoma")
        if name.endswith("network") or (own and not options.table):
            continue  # its truth is known, or its table is not part of this
        case = make(options.table) if own else make()
        if options.golden:
            look(options, name, case)
            continue
        for method in case.methods:
            count(options, name, case, method, options.keys or 100)


def count(options: argparse.Namespace, set_name: str, case: Case, name: str, num_keys: int) -> None:
    """Run a method from many keys, and say where they end."""
    method, data = getattr(latentbits, name)(case.model), jnp.asarray(case.data, float)
    if options.prior:
        method = dataclasses.replace(method, prior=True)
    given = {"num_lineages": options.lineages, "rounds": options.rounds}
    given["steps"] = options.round_steps
    asked = {name: value for name, value in given.items() if value is not None}
    method = dataclasses.replace(method, search=dataclasses.replace(method.search, **asked))
    staged = name == "GibbsSearch"
    steps = options.steps or (method.rounds if staged else case.steps)
    batch = options.batch or (1 if jax.default_backend() == "cpu" else 25)
    ends, seconds = from_keys(method, case, steps, num_keys, min(batch, num_keys))
    least = ends.losses.min(1)
    best, found_by = float(least.min()), name
    objective = "bound" if name == "BoundEM" else "evidence"
    if case.truth is not None and not staged and not options.prior:  # weights of zero have none
        truth = jax.tree.map(lambda x: jnp.asarray(x, float), case.truth)
        from_truth = method.run(random.key(0), 2 * steps, data, init_params=truth, **case.sizes)
        if float(from_truth.losses[-1]) < best:
            best, found_by = float(from_truth.losses[-1]), f"{name} from the true parameters"
    known = golden().get(set_name, {}).get(objective)
    if known is not None and -known["log_likelihood"] < best:
        best, found_by = -known["log_likelihood"], known["found_by"]
    slack = slack_of(best)
    there = least < best + slack
    optima = [optima_of(np.asarray(x[-1], np.float64), np.asarray(remaining(x))) for x in ends.last]
    print(f"{set_name}, {name}, {steps} steps, {num_keys} keys, {jax.default_backend()}")
    print(f"  at the best known ({-best:.4f} in all, by {found_by}): {int(there.sum())}")
    print(
        f"  the others end {np.sort(np.round(least[~there] - best, 2))[:12].tolist()} nats behind"
    )
    agree = np.array([x.agree >= 2 for x in optima])
    both = int((agree & there).sum())
    print(f"  two lineages agree: {int(agree.sum())}; and are at the best: {both}")
    if case.held_out is not None:
        judged(case, ends.params)
    print(f"  {seconds:.1f} s for all, compilation apart", flush=True)
    if options.out:
        ended = {"set": set_name, "method": name, "slack": slack, "losses": least.tolist()}
        Path(options.out).write_text(json.dumps(ended) + "\n")
    if options.against:
        other = json.loads(Path(options.against).read_text())
        if (other["set"], other["method"], len(other["losses"])) != (set_name, name, num_keys):
            raise SystemExit(f"{options.against} is of {other['set']}, {other['method']}")
        apart = np.abs(least - np.array(other["losses"]))
        print(f"  same optimum as in {options.against}: {int((apart < slack).sum())} of {num_keys}"
              f" (largest difference {apart.max():.4f})")  # fmt: skip


def over_sets(options: argparse.Namespace, kind: str, name: str | None) -> None:
    """Run a method once on each of many drawn networks; the first compiles for all."""
    first, last = map(int, options.sets.split(".."))
    whole = held = 0
    for seed in range(first, last + 1):
        case, began = drawn_network(kind, seed), time.process_time()
        method = getattr(latentbits, name or case.methods[0])(case.model)
        if options.prior:
            method = dataclasses.replace(method, prior=True)
        data, steps = jnp.asarray(case.data, float), options.steps or case.steps
        if method.staged:
            steps = method.default_steps(inspect(case.model, (data,), case.sizes))
        result = method.run(random.key(seed), steps, data, tolerance=1e-7, **case.sizes)
        spent, params = time.process_time() - began, jax.tree.map(lambda x: x[None], result.params)
        matched, nats = int(causes_found(case, params)[0]), float(behind(case, params)[0])
        wanted = len(case.truth["leak_1"])
        whole, held = whole + (matched == wanted), held + (nats <= 0.04)
        print(f"  {kind}, set {seed}: {matched} of {wanted} causes, held out {nats:.4f} nats behind"
              f" the true network, {spent:.0f} processor seconds", flush=True)  # fmt: skip
    print(f"{kind}: all causes in {whole} of {last - first + 1} sets, within 0.04 nats in {held}")


def cost(options: argparse.Namespace, case: Case, name: str) -> None:
    """Seconds of runs with their search over those of plain runs, compilation apart."""
    method, data = getattr(latentbits, name)(case.model), jnp.asarray(case.data, float)
    steps, plain = options.steps or case.steps, dataclasses.replace(method, search=None)
    spent = []
    for key in random.split(random.key(0), options.keys or 3):
        runs = [x.run(key, steps, data, **case.sizes) for x in (plain, method)]
        spent.append([x.seconds for x in runs])
        print(f"  plain {spent[-1][0]:.2f} s to {runs[0].losses[-1]:.3f}, all {spent[-1][1]:.2f} s"
              f" ({runs[1].search_seconds:.2f} s search) to {runs[1].losses[-1]:.3f};"
              f" {runs[1].optima}", flush=True)  # fmt: skip
    first, every = np.sum(spent, 0)
    print(f"{options.set}, {name}, {steps} steps: {every / first:.2f} plain runs", flush=True)


def slack_of(loss: float) -> float:
    """What runs that end at one optimum differ by."""
    return max(0.05, 5e-5 * abs(loss))


def judged(case: Case, params: Any) -> None:
    """Say how far held-out rows are explained worse than by what they were drawn from."""
    assert case.held_out is not None and case.truth is not None
    nats = behind(case, params)
    if case.model is noisy_or_network:
        counts, wanted = causes_found(case, params), len(case.truth["leak_1"])
        print(f"  all {wanted} causes: {int((counts == wanted).sum())} (fewest {counts.min()})")
        print(f"  within 0.04 nats of the true network: {int((nats <= 0.04).sum())}"
              f" (largest {nats.max():.4f}, mean {nats.mean():.4f})")  # fmt: skip
        return
    bits = nats / case.held_out.shape[1] / np.log(2.0)
    print(f"  within 0.01 bits per bit of the true model: {int((bits <= 0.01).sum())}"
          f" (largest {bits.max():.4f}, mean {bits.mean():.4f})")  # fmt: skip


def look(options: argparse.Namespace, set_name: str, case: Case) -> None:
    """The best of many plain starts of every method of a set, and of as many keys with the search
    of the first."""
    num_keys, data = options.keys or 200, jnp.asarray(case.data, float)
    batch = min(num_keys, options.batch or (1 if jax.default_backend() == "cpu" else 25))
    runs: dict[str, list] = {"evidence": [], "bound": []}
    for name, plain in [*((name, True) for name in case.methods), (case.methods[0], False)]:
        method = getattr(latentbits, name)(case.model)
        steps = options.steps or case.steps
        if method.staged:
            steps = method.default_steps(inspect(case.model, (data,), case.sizes))
        how = {"method": name, "search": not plain, "steps": steps, "seed": 0, "keys": num_keys}
        if plain and method.search is not None:
            method = dataclasses.replace(method, search=None)
        ends, seconds = from_keys(method, case, steps, num_keys, batch)
        losses = ends.losses.min(1)
        params = jax.tree.map(lambda x: x[int(np.nanargmin(losses))], ends.params)  # noqa: B023
        runs["bound" if name == "BoundEM" else "evidence"].append((losses, how, params))
        print(f"{set_name}, {how}: {-np.nanmin(losses):.4f}, {seconds:.1f} s", flush=True)
        keep(options.into, set_name, case, runs)


def keep(path: Path, set_name: str, case: Case, found: dict[str, list]) -> None:
    """Write down the best of what was found so far, and what found it how often."""
    table = golden(path)
    for objective, tried in found.items():
        if not tried:
            continue
        losses, how, params = min(tried, key=lambda one: np.nanmin(one[0]))
        best = float(np.nanmin(losses))
        there = [{**x, "at_best": int((one < best + slack_of(best)).sum())} for one, x, _ in tried]
        numbers = {x: np.round(np.asarray(v, float), 5).tolist() for x, v in params.items()}
        table.setdefault(set_name, {})[objective] = {
            "log_likelihood": -best, "found_by": how["method"], "settings": how, "tried": there,
            "rows": len(case.data), "backend": jax.default_backend(), **versions(),
            "params": numbers,
        }  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(table).replace('}, "', '},\n"') + "\n")


if __name__ == "__main__":
    main()

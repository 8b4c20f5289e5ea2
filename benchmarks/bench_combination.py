"""Combination machine: exact gradient steps against scikit-learn's RBM, and larger machines.

    python benchmarks/bench_combination.py [--units 20 23] [--cores 1] [--json FILE]

The data: 4000 + 4000 rows of 64 bits from ten simple shapes, `combination_target`. To be reached:
1000 exact gradient steps of 10 units in under 2 processor seconds, warm, with a lower test log-loss
than `BernoulliRBM` after 200 epochs (its learning rate the best of three on the test rows
themselves); 20 units in seconds a step on 2 cores; 23 in under 0.2 s on an H200 (``--units 23``).
Measured on one core of a Neoverse N1: 1.62 processor seconds and 0.641 bits per bit, `BernoulliRBM`
2.39 and 0.682; 20 units 0.58 s a step; 23 units on an H200 0.0054 s.

The log-loss of either machine is exact: all 1024 hidden states are summed. On one core by default:
threads that wait for each other count as processor seconds.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from measuring import cpu_of, fitted, rival, timed, true_row
from scipy.special import logsumexp

from inference import EM, likelihood
from inference.methods.machines.exact_gradient import ExactGradient
from inference.running.restarts import Restarts
from ppl_models import bernoulli_mixture, combination_machine
from ppl_models.data import combination_target

STEPS, UNITS, STARTS = 1000, 10, 4


def bits_a_bit(log_likelihood: np.ndarray, width: int) -> float:
    return float(-np.mean(log_likelihood) / width / np.log(2))


@jax.jit
def log_likelihood(params: Any, data: jax.Array) -> jax.Array:
    """Exact, of each row."""
    return ExactGradient(combination_machine).log_likelihood(params, data, num_causes=UNITS)


def exact_gradient(train: jax.Array, test: jax.Array, repeats: int = 5) -> dict[str, float]:
    """Processor seconds of 1000 steps, warm and to compile, and the test log-loss they end at."""
    method = ExactGradient(combination_machine, learning_rate=0.05, momentum=0.99)
    state = jax.jit(lambda x: method.init(random.key(0), x, num_causes=UNITS))(train)

    def run(state: Any, train: jax.Array) -> Any:
        step = lambda state, _: method.update(state, train, num_causes=UNITS)  # noqa: E731
        return lax.scan(step, state, None, length=STEPS)

    (end, _), taken = timed(jax.jit(run), state, train, repeats=repeats)
    each = log_likelihood(end.params, test)
    return {
        "processor_seconds": taken.cpu,
        "seconds": taken.wall,
        "compile_processor_seconds": taken.compile,
        "test_log_loss": bits_a_bit(np.asarray(each), test.shape[1]),
    }


def rbm_log_likelihood(rbm: Any, data: np.ndarray) -> np.ndarray:
    """Exact: log Z over the 1024 hidden states of visible units in {0, 1}."""
    weights, hidden = rbm.components_, rbm.intercept_hidden_
    states = (np.arange(2 ** len(hidden))[:, None] >> np.arange(len(hidden))) & 1
    field = states @ weights + rbm.intercept_visible_
    log_z = logsumexp(states @ hidden + np.logaddexp(0, field).sum(axis=1))
    free = data @ rbm.intercept_visible_
    return free + np.logaddexp(0, data @ weights.T + hidden).sum(axis=1) - log_z


def scikit_learn(train: np.ndarray, test: np.ndarray) -> dict[str, float]:
    """`BernoulliRBM`, 200 epochs of persistent contrastive divergence, the best of three rates."""
    from sklearn.neural_network import BernoulliRBM

    scores = []
    for rate in (0.01, 0.05, 0.2):
        rbm = BernoulliRBM(
            n_components=UNITS, learning_rate=rate, batch_size=100, n_iter=200, random_state=0
        )
        _, seconds = cpu_of(lambda: rbm.fit(train))  # noqa: B023
        loss = bits_a_bit(rbm_log_likelihood(rbm, test), test.shape[1])
        scores.append({"processor_seconds": seconds, "test_log_loss": loss, "learning_rate": rate})
    return min(scores, key=lambda one: one["test_log_loss"])


def large(train: jax.Array, units: int, repeats: int = 3) -> dict[str, float]:
    """Seconds of one exact gradient step with so many hidden units."""
    method = ExactGradient(combination_machine)
    state = method.init(random.key(0), train, num_causes=units)
    step = jax.jit(lambda state, train: method.update(state, train, num_causes=units))
    _, taken = timed(step, state, train, repeats=repeats)
    return {
        "units": units,
        "states": 2**units,
        "seconds_a_step": taken.wall,
        "processor_seconds_a_step": taken.cpu,
    }


def nats_a_row(bits: float, width: int) -> float:
    return -bits * width * np.log(2)


def combination(full: bool) -> dict[str, Any]:
    """Combination machine: exact gradient steps, beside scikit-learn's BernoulliRBM."""
    truth = combination_target(random.key(0))
    test = combination_target(random.key(1)).data
    width = test.shape[1]
    known = log_likelihood({"weights": truth.weights, "bias": truth.bias}, test)
    ours = exact_gradient(truth.data, test, 5 if full else 1)

    def by_machine() -> dict[str, float]:
        scored = scikit_learn(np.asarray(truth.data), np.asarray(test))
        nats = nats_a_row(scored["test_log_loss"], width)
        return {"cpu": scored["processor_seconds"], "log_likelihood": nats}

    return {
        "title": f"combination: {len(test)} × {width} bits of a machine of {UNITS} units; "
        f"nats of {len(test)} others, exact",
        "rows": [
            true_row({"log_likelihood": float(known.mean())}),
            {
                "method": f"ExactGradient, {STEPS} steps",
                "cpu": ours["processor_seconds"],
                "compile": ours["compile_processor_seconds"],
                "log_likelihood": nats_a_row(ours["test_log_loss"], width),
            },
            rival("scikit-learn", "BernoulliRBM, 200 epochs, best of 3 rates", by_machine),
        ],
    }


def mixture(full: bool) -> dict[str, Any]:
    """Mixture of Bernoullis: EM, beside stepmix."""
    count, num_data = 10, 40_000 if full else 4000
    train = combination_target(random.key(0), num_data).data
    test = combination_target(random.key(1), num_data).data
    evidence = likelihood(bernoulli_mixture, test, num_components=count)

    def judge(params: Any) -> dict[str, float]:
        return {"log_likelihood": float(evidence(params).value.mean())}

    def by_stepmix() -> dict[str, float]:
        from stepmix.stepmix import StepMix

        method = StepMix(
            count, measurement="binary", random_state=0, n_init=STARTS, max_iter=100, progress_bar=0
        )
        estimator, cpu = cpu_of(lambda: method.fit(np.asarray(train)))
        params = estimator.get_parameters()
        known = {"mixing": params["weights"], "probs": params["measurement"]["pis"]}
        return {"cpu": cpu, **judge(jax.tree.map(lambda x: jnp.asarray(x, float), known))}

    em = Restarts(EM(bernoulli_mixture), STARTS)
    return {
        "title": f"mixture: {num_data} × {train.shape[1]} bits, {count} components; "
        f"best of {STARTS} starts; nats of {num_data} others",
        "rows": [
            fitted("EM", em, 100, train, judge, num_components=count),
            rival("stepmix", "at most 100 steps", by_stepmix),
        ],
    }


BENCHMARKS = {"combination": combination, "mixture": mixture}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, nargs="*", default=[20], help="larger machines")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--cores", type=int, default=1, help="to run on (%(default)s)")
    namespace = parser.parse_args()
    # Before JAX counts them.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: namespace.cores])
    train = jnp.asarray(combination_target(random.key(0)).data)
    test = jnp.asarray(combination_target(random.key(1)).data)
    report: dict[str, Any] = {
        "device": str(jax.devices()[0]),
        "exact gradient, 1000 steps": exact_gradient(train, test),
        "BernoulliRBM, 200 epochs": scikit_learn(np.asarray(train), np.asarray(test)),
    }
    for units in namespace.units:
        report[f"one step of {units} units"] = large(train, units)
    for name, numbers in report.items():
        print(name if isinstance(numbers, dict) else f"{name}: {numbers}")
        for key, value in numbers.items() if isinstance(numbers, dict) else ():
            print(f"  {key:28} {value:.4g}")
    if namespace.json is not None:
        namespace.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()

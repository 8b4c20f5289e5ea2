"""Runs that are ended by the clock, and several starts at once."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from short_runs import DATA
from tools import noisy_copies, quick_runs

from inference import EM, Algorithm, ProgramError, SplittingEM
from inference.baselines.pacing import BudgetError, Pace
from inference.baselines.samplers import DISCRETE, nuts
from inference.baselines.variational import svi
from inference.running import clock
from inference.running.contract import Stop
from inference.running.memory import DoesNotFitError
from inference.running.restarts import Restarts
from inference.running.search import Search
from ppl_models import bernoulli_mixture, bernoulli_product, binary_sparse_coding


def test_a_run_out_of_budget_says_so_and_its_search_is_part_of_it(monkeypatch):
    """A step from one start takes a second. Without a budget the search would take for ever; with
    5 s, which a step from each start is too long for, there is one start."""
    now, length, growth = np.zeros(1), np.ones(1), np.zeros(1)

    def tick(loss):
        now[:] += length
        length[:] += growth
        return loss

    class Slow(EM):
        def update(self, state, *args, **kwargs):
            state, loss = super().update(state, *args, **kwargs)
            return state, jax.pure_callback(tick, loss, loss)

    monkeypatch.setattr(clock, "seconds", lambda: float(now[0]))
    search = Search(num_lineages=2, screening=10**6, rounds=10**6, steps=100)
    method = Slow(bernoulli_mixture, search=search)
    runs = [
        method.run(random.key(0), 100, DATA, budget=x, num_components=2) for x in (0.0, 5.0, 40.0)
    ]  # fmt: skip
    assert [run.stop for run in runs] == [Stop.BUDGET] * 3
    assert runs[0].reason == "out of budget after 1 of 100 steps" and runs[0].seconds == 1.0
    assert np.isfinite(runs[0].params["probs"]).all()
    assert runs[1].seconds == 5.0 == len(runs[1].losses) and np.diff(runs[1].losses).max() < 0
    assert [len(run.optima.values) for run in runs] == [1, 1, 2]
    assert 20.0 < runs[2].search_seconds < 26.0 and 40.0 < runs[2].seconds <= 44.0
    growth[:] = 1.0  # steps of 1, 2, 3 s: a third is not begun, although a second of 2 would do
    growing = method.run(random.key(0), 100, DATA, budget=5.0, num_components=2)
    assert growing.seconds == 3.0 and growing.stop is Stop.BUDGET


def test_a_budget_counts_what_is_computed_not_how_long_others_kept_us_waiting():
    """Each step sleeps: a second in all, of which next to none is spent on the processor."""

    def wait(mixing):
        time.sleep(0.05)
        return mixing

    def record(params):
        return jax.pure_callback(wait, params["mixing"], params["mixing"])

    began = time.perf_counter()
    result = EM(bernoulli_mixture).run(
        random.key(0), 20, DATA, budget=0.9, record=record, num_components=2
    )
    assert time.perf_counter() - began > 1.0
    assert result.stop is Stop.STEPS and len(result.losses) == 20 and result.seconds < 0.9


class Wave(Algorithm):
    """Its loss falls by a tenth a step, but stands still in every eighth of them, as momentum does
    where it turns."""

    def __init__(self, model, window):
        self.model, self.window = model, window

    def init(self, *_, **__):
        return jnp.zeros((), int)

    def update(self, state, *_):
        return state + 1, 1.0 + 100.0 * 0.9 ** (7.0 * (state // 8) + jnp.minimum(state % 8, 6))

    def get_params(self, _):
        return {"probs": jnp.full(5, 0.5)}


def test_a_loss_that_stands_still_for_a_step_is_not_the_end_of_a_method_with_momentum():
    run = lambda window: Wave(bernoulli_product, window).run(None, 400, DATA, tolerance=1e-6)  # noqa: E731
    assert len(run(1).losses) < 10
    assert float(run(10).losses[-1]) == pytest.approx(1.0, abs=1e-4)


def test_restarts_run_the_method_from_each_key_and_keep_the_best():
    """Of 103 rows, which `run` pads and `update` does not."""
    em, data = EM(bernoulli_mixture), noisy_copies(3, 36, 5)[:103]
    four = Restarts(em, 4).run(random.key(3), 10, data, num_components=3)
    run = quick_runs(em, 10, data, num_components=3)
    alone = [run(key).losses for key in random.split(random.key(3), 4)]
    np.testing.assert_allclose(four.losses, np.min(alone, axis=0), rtol=1e-5)
    best = int(np.argmin([losses[-1] for losses in alone]))
    assert int(np.argmin(four.state.losses)) == best


def test_a_start_that_goes_astray_does_not_stop_the_others():
    def start(key, data, num_components):
        probs = random.uniform(key, (num_components, data.shape[1]), minval=0.2, maxval=0.8)
        probs = probs.at[0, 0].set(jnp.where(random.uniform(key) < median, probs[0, 0], jnp.nan))
        return {"mixing": jnp.ones(num_components) / num_components, "probs": probs}

    # EM hands its start the first half of its own key.
    first = jax.jit(jax.vmap(lambda key: random.uniform(random.split(key)[0])))
    median = np.median(first(random.split(random.key(0), 3)))

    result = Restarts(EM(bernoulli_mixture, start=start), 3).run(
        random.key(0), 3, DATA, num_components=2
    )
    assert np.isfinite(result.losses).all() and np.isinf(np.asarray(result.state.losses)).sum() >= 1
    assert np.isfinite(result.params["probs"]).all()


def test_nuts_finds_the_posterior_of_a_product(compilations):
    """Each column's rate has a Beta posterior: its mean within 5 Monte Carlo errors. The second
    table is drawn from by what was compiled for the first."""
    for data in (DATA, DATA * jnp.roll(DATA, 1, 1)):
        compilations.clear()
        drawn = nuts(bernoulli_product, random.key(0), data, num_warmup=200, num_samples=200)
        assert bool(compilations) == (data is DATA)
        draws = drawn.params["probs"]
        assert draws.shape == (4, 200, 5) and drawn.clock.shape == (200,)
        ones, rows = np.asarray(data).sum(0), len(data)
        wanted = (ones + 1) / (rows + 2)
        deviation = np.sqrt(wanted * (1 - wanted) / (rows + 3))
        # At least 200 of the 800 draws' worth: NUTS on five independent scalars.
        assert np.all(np.abs(draws.mean((0, 1)) - wanted) < 5 * deviation / np.sqrt(200))
        assert set(drawn.stats) == {"diverging", "n_steps", "acceptance_rate", "energy", "lp"}
        assert (np.diff(drawn.clock) >= 0).all() and drawn.reason == "all draws made"


def test_variational_draws_carry_both_densities(compilations):
    """Mean-field is exact up to its family here: log p − log q hardly varies. A second table takes
    what was compiled for the first, but draws of its own."""
    other = svi(bernoulli_product, random.key(2), DATA[::-1], num_steps=1000)
    compilations.clear()
    drawn = svi(bernoulli_product, random.key(1), DATA, num_steps=1000)
    assert not compilations
    both = [np.ravel(x.params["probs"] - x.params["probs"].mean((0, 1))) for x in (other, drawn)]
    assert abs(np.corrcoef(*both)[0, 1]) < 0.1  # 2500 pairs: five standard errors
    ratio = drawn.stats["log_p"] - drawn.stats["log_q"]
    assert drawn.params["probs"].shape == (1, 500, 5) and ratio.shape == (1, 500)
    assert ratio.std() < 0.5
    ones, rows = np.asarray(DATA).sum(0), len(DATA)
    log_evidence = sum(_log_beta(o + 1, rows - o + 1) for o in ones)
    # The mean of the ratio is the evidence, less what the family cannot reach.
    assert abs(np.log(np.mean(np.exp(ratio - ratio.max()))) + ratio.max() - log_evidence) < 0.1
    assert drawn.snapshots["probs"].shape == (50, 100, 5)


def _log_beta(a, b):
    from scipy.special import betaln

    return float(betaln(a, b))


def test_warm_up_that_outlasts_the_budget_is_an_error_for_people():
    with pytest.raises(BudgetError, match="warm-up"):
        nuts(bernoulli_product, random.key(0), DATA, num_warmup=200, num_samples=200, budget=0.0)


def test_no_block_is_longer_than_what_is_left_of_the_budget():
    """Steps of 0.02 s in warm-up and, all at once, 0.5 s later: the end is within one step."""

    class Timer:
        limit, seconds = 10.0, 0.0

    timer, counts = Timer(), []
    pace = Pace(timer, 20)
    while timer.seconds < timer.limit:
        each = 0.02 if timer.seconds < 2.0 else 0.5
        counts.append(pace.next(10**6))
        timer.seconds += each * counts[-1]
    assert max(counts) > 5 and counts[-1] == 1
    assert timer.seconds < timer.limit + 0.5


def test_what_does_not_fit_into_memory_says_so_before_it_runs():
    with pytest.raises(DoesNotFitError, match=r"a step of its chains takes .* MB, more than the 0"):
        nuts(bernoulli_product, random.key(0), DATA, num_warmup=200, num_samples=200, memory=100.0)


def test_numpyros_own_gibbs_runs_on_bits_and_parameters():
    how = {"num_warmup": 20, "num_samples": 20, "num_chains": 2, "num_components": 2}
    drawn = nuts(bernoulli_mixture, random.key(1), DATA, bits=DISCRETE, **how)
    with pytest.raises(BudgetError, match=r"before a draw it takes about .* s, so none"):
        nuts(bernoulli_mixture, random.key(1), DATA, bits=DISCRETE, budget=1e-9, **how)
    assert drawn.params["probs"].shape == (2, 20, 2, 5)
    assert drawn.params["mixing"].std() > 0
    with pytest.raises(ProgramError, match="'causes' is a vector of bits"):
        nuts(binary_sparse_coding, random.key(1), DATA, bits=DISCRETE, num_causes=2)


def test_splitting_with_a_tolerance_goes_on_to_its_last_split():
    method = SplittingEM(bernoulli_mixture, steps_per_size=6)
    result = method.run(random.key(0), 60, DATA, num_components=4, tolerance=1e-2)
    assert int(result.state.level) == 2
    assert 2 * 6 + 1 < len(result.losses) < 60

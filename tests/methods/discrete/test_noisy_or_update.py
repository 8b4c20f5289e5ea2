"""Equation (9) as an M-step: EM with competing causes, for networks under whatever names."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from small_programs import CASES
from tools import close, in_double, quick_run

from inference import EM, AllStates, Structure, TruncatedEM
from inference.methods.discrete.tables import Table
from inference.methods.discrete.updates import NoisyOrUpdate, closed_form
from inference.methods.shared import Chunk
from inference.reading.log_joint import log_shared
from inference.reading.reader import open_program
from ppl_models import noisy_or_network
from ppl_models.distributions import NoisyOr

CASE = CASES["noisy_or"]
RNG = np.random.default_rng(4)
MASK = RNG.random(CASE.data.shape) < 0.8
MORE = (RNG.random((40, 5)) < [0.3, 0.6, 0.5, 0.4, 0.7]).astype(float)


def steps(method, params, count, *args, **kwargs):
    fitted = quick_run(method, 0, count, *args, init_params=params, **kwargs)
    return fitted.params, np.asarray(fitted.losses)


@in_double
@pytest.mark.parametrize("layers", [(4,), (3, 2)])
def test_one_step_is_the_papers_sum_over_states(layers):
    """(9) with loops over rows, states, causes and units."""
    rng = np.random.default_rng(1)
    sizes = (5, *layers)
    params = {f"leak_{i}": rng.uniform(0.1, 0.8, n) for i, n in enumerate(sizes)}
    for i, (n, below) in enumerate(zip(layers, sizes, strict=False), 1):
        params[f"weights_{i}"] = rng.gamma(1.0, 1.0, (n, below))
    data = MORE[:6]
    kwargs = {"layers": layers, "mask": MASK[:6]}
    reader, rows = open_program(noisy_or_network, (data,), kwargs, structure=Structure.GENERAL)
    assert isinstance(closed_form(reader, rows), NoisyOrUpdate)
    arguments = ((data,), kwargs)
    weighted = jax.jit(lambda p: Table(AllStates()).expect(Chunk(reader, p, arguments)).weighted())
    states, probability = map(np.asarray, weighted(params))
    share = {x: np.zeros_like(v) for x, v in params.items()}
    count = {x: np.zeros_like(v) for x, v in params.items()}
    for s, state in enumerate(states[:, 0]):
        ends = np.cumsum(layers[::-1])[::-1]  # the top layer stands first
        unit = [None, *(state[end - n : end] for end, n in zip(ends, layers, strict=True))]
        for n, row in enumerate(data):
            unit[0] = row
            for level in range(len(sizes)):
                for j in range(sizes[level]):
                    if level == 0 and not kwargs["mask"][n, j]:
                        continue
                    causes = [(f"leak_{level}", (j,), 1)]
                    if level < len(layers):
                        causes += [
                            (f"weights_{level + 1}", (i, j), unit[level + 1][i])
                            for i in range(layers[level])
                        ]
                    total = sum(params[x][at] * on for x, at, on in causes)
                    for x, at, on in causes:
                        heavy = probability[s, n] * on
                        count[x][at] += heavy
                        own = (1 - np.exp(-params[x][at])) / (1 - np.exp(-total))
                        share[x][at] += heavy * unit[level][j] * own
    updated, _ = steps(EM(noisy_or_network), params, 1, data, **kwargs)
    for x, value in updated.items():
        close(1 - np.exp(-np.asarray(value)), share[x] / count[x], 1e-8)


@in_double
@pytest.mark.parametrize("prior", [False, True])
def test_the_loss_never_rises_and_rests_where_the_gradient_is_zero(prior):
    """Where (9) rests, so would a gradient step on the program's own expected log joint."""
    kwargs = {"layers": (2,)}
    start = {
        "leak_0": np.full(5, 0.4), "leak_1": np.array([0.5, 0.9]),
        "weights_1": np.random.default_rng(0).gamma(1.0, 1.0, (2, 5)),
    }  # fmt: skip
    params, losses = steps(EM(noisy_or_network, prior=prior), start, 400, MORE, **kwargs)
    assert np.diff(losses).max() <= 1e-10 * losses[0]
    reader, rows = open_program(noisy_or_network, (MORE,), kwargs, structure=Structure.GENERAL)

    @jax.jit
    @jax.grad
    def slope(params):
        expected = (
            Table(AllStates()).expect(Chunk(reader, params, ((MORE,), kwargs))).evidence.sum()
        )
        extra = log_shared(noisy_or_network, reader.anatomy, params, rows, prior)
        return expected + extra

    for x, value in slope(params).items():
        # In log w: a weight that goes to zero has a slope that keeps it there.
        np.testing.assert_allclose(params[x] * value, 0.0, atol=1e-3, err_msg=x)


@in_double
def test_states_of_each_row_give_the_sums_of_shared_ones():
    """TruncatedEM over all states, one state of all rows at a time, is EM."""
    args, kwargs = CASE.arguments
    exact, _ = steps(EM(CASE.model), CASE.typed(), 2, *args, **kwargs)
    few = TruncatedEM(CASE.model, max_active=4, num_candidates=4, keep=False)
    updated, losses = steps(few, CASE.typed(), 2, *args, **kwargs)
    for x, value in exact.items():
        close(updated[x], value, 1e-8)
    cut = TruncatedEM(CASE.model, max_active=2, num_candidates=3)
    _, losses = steps(cut, CASE.typed(), 12, *args, **kwargs)
    assert np.diff(losses).max() <= 1e-9 * abs(losses[0])


def test_other_priors_take_gradient_steps():
    """With α below 1 the density has no maximum where (9) rests: gradient steps are taken."""

    def network(table, alpha):
        leak = numpyro.sample("leak", dist.Gamma(alpha, 1.0).expand((5,)).to_event(1))
        odds = numpyro.sample("odds", dist.Exponential(1.0).expand((2,)).to_event(1))
        link = numpyro.sample("link", dist.Gamma(1.0, 1.5).expand((2, 5)).to_event(2))
        with numpyro.plate("rows", len(table)):
            on = numpyro.sample("on", NoisyOr(odds).to_event(1))
            numpyro.sample("table", NoisyOr(on @ link + leak).to_event(1), obs=table)

    for alpha, wanted in ((1.0, True), (2.0, True), (0.5, False)):
        opened = open_program(network, (MORE,), {"alpha": alpha}, structure=Structure.GENERAL)
        assert isinstance(closed_form(*opened, prior=True), NoisyOrUpdate) is wanted
        assert isinstance(closed_form(*opened), NoisyOrUpdate)

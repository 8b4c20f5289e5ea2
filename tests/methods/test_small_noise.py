"""Data that are large beside their noise, or far from zero: float32 must not cost the noise.

The oracle is NumPy in float64: residuals of every state of every row, and a Gaussian with the
covariance of the factors.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from scipy.special import logsumexp
from scipy.stats import binom, multivariate_normal

from inference import (
    EM,
    BoundEM,
    MonteCarloEM,
    QuadratureEM,
    TruncatedEM,
    log_likelihood,
)
from inference.cli import main
from inference.files.arviz import load
from inference.reading.small_scales import PrecisionWarning, at_floor, lost_digits
from ppl_models import binary_sparse_coding, mixed_trait

NUM_ROWS, NUM_COLUMNS, NUM_CAUSES = 200, 6, 4


def states_of(count):
    return np.indices((2,) * count).reshape(count, -1).T


STATES = states_of(NUM_CAUSES)


def evidence(params, data, mask=None):
    """log p(y_n) of sparse coding, by what each state leaves of each row."""
    weights, noise, prob = (np.asarray(params[x], float) for x in ("weights", "noise", "sparsity"))
    states = states_of(len(weights))
    away = data[:, None] - (states @ weights)[None]
    seen = np.ones(data.shape) if mask is None else mask
    each = -0.5 * (away / noise) ** 2 - np.log(noise) - 0.5 * np.log(2 * np.pi)
    prior = states.sum(1) * np.log(prob) + (1 - states).sum(1) * np.log1p(-prob)
    return logsumexp((each * seen[:, None]).sum(-1) + prior, axis=1)


def climbed(params, data, mask=None, steps=100):
    """EM of sparse coding from these parameters, state by state and column by column."""
    weights, noise, prob = (np.asarray(params[x], float) for x in ("weights", "noise", "sparsity"))
    seen = np.ones(data.shape) if mask is None else mask
    for _ in range(steps):
        away = (data[:, None] - (STATES @ weights)[None]) * seen[:, None]
        prior = STATES.sum(1) * np.log(prob) + (1 - STATES).sum(1) * np.log1p(-prob)
        joint = -0.5 * (away**2).sum(-1) / noise**2 + prior
        share = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        for d in range(data.shape[1]):
            heavy = share * seen[:, d, None]
            second = (STATES.T * heavy.sum(0)) @ STATES
            weights[:, d] = np.linalg.solve(second, (heavy @ STATES).T @ data[:, d])
        away = (data[:, None] - (STATES @ weights)[None]) * seen[:, None]
        noise = np.sqrt((share * (away**2).sum(-1)).sum() / seen.sum())
        prob = (share @ STATES).mean()
    return {"weights": weights, "noise": noise, "sparsity": prob}


@pytest.fixture(scope="module")
def large():
    """Weights of about 3000 and noise of 1; at most two causes a row."""
    rng = np.random.default_rng(0)
    weights = 3000.0 * rng.normal(size=(NUM_CAUSES, NUM_COLUMNS))
    states = STATES[STATES.sum(1) <= 2]
    data = states[rng.integers(0, len(states), NUM_ROWS)] @ weights
    data = (data + rng.normal(size=data.shape)).astype(np.float32)
    near = {"weights": 1.01 * weights, "noise": 40.0, "sparsity": 0.3}
    return data, near


METHODS = {
    "EM": EM(binary_sparse_coding),
    "EM in chunks": EM(binary_sparse_coding, chunk_size=70),
    "candidates": TruncatedEM(binary_sparse_coding, num_candidates=3, max_active=2),
}


@pytest.mark.parametrize(
    ("name", "holes"),
    [("EM", False), ("EM in chunks", True), ("candidates", False), ("candidates", True)],
)
def test_sparse_coding_ends_at_the_maximum(large, name, holes):
    data, near = large
    mask = np.random.default_rng(1).random(data.shape) < 0.9 if holes else None
    more = {"mask": mask} if holes else {}
    with pytest.warns(PrecisionWarning, match=r"column \d of 'observed' is .* times its noise of"):
        result = METHODS[name].run(
            random.key(0), 60, data, num_causes=NUM_CAUSES, init_params=near, **more
        )
    exact, params = data.astype(float), result.params
    # The prior of truncated EM is that of states with at most two causes.
    best = {**climbed(params, exact, mask), "sparsity": params["sparsity"]}
    reached = evidence(params, exact, mask).sum()
    assert reached == pytest.approx(evidence(best, exact, mask).sum(), abs=0.02)
    # n cells determine σ to σ / √(2n).
    assert abs(float(params["noise"]) - 1.0) < 4.0 / np.sqrt(2 * data.size)
    mass = 1.0 if name != "candidates" else binom(NUM_CAUSES, float(params["sparsity"])).cdf(2)
    assert float(result.losses[-1]) == pytest.approx(NUM_ROWS * np.log(mass) - reached, abs=0.2)
    posterior = METHODS[name].posterior(params, data, num_causes=NUM_CAUSES, **more)
    np.testing.assert_allclose(posterior.evidence, evidence(params, exact, mask), atol=0.05)
    np.testing.assert_allclose(posterior.missed, 0.0, atol=0.01)


def test_sparse_coding_finds_the_maximum_by_itself(large):
    """From the starts of a search, which compares them by their losses."""
    data, _ = large
    with pytest.warns(PrecisionWarning):
        result = EM(binary_sparse_coding).run(random.key(3), 100, data, num_causes=NUM_CAUSES)
    best = climbed(result.params, data.astype(float))
    reached = evidence(result.params, data.astype(float)).sum()
    assert reached == pytest.approx(evidence(best, data.astype(float)).sum(), abs=0.02)
    assert abs(float(result.params["noise"]) - 1.0) < 4.0 / np.sqrt(2 * data.size)
    np.testing.assert_allclose(-result.optima.values.min(), reached, atol=0.2)


def test_gradient_steps_keep_a_small_noise(large):
    """A noise of each column has no closed form here: L-BFGS on moments of the causes."""

    def own_noise(data, num_causes):
        shape = (num_causes, data.shape[1])
        weights = numpyro.sample("weights", dist.Normal(0.0, 1e4).expand(shape).to_event(2))
        noise = numpyro.sample("noise", dist.HalfNormal(9.0).expand(shape[1:]).to_event(1))
        with numpyro.plate("data", len(data)):
            on = dist.Bernoulli(0.3).expand((num_causes,)).to_event(1)
            mean = numpyro.sample("causes", on) @ weights
            numpyro.sample("seen", dist.Normal(mean, noise).to_event(1), obs=data)

    data, near = large
    method = TruncatedEM(own_noise, num_candidates=3, max_active=2, gradient_steps=20)
    best = climbed(near, data.astype(float))
    start = {"weights": best["weights"], "noise": np.full(NUM_COLUMNS, 1.5)}
    with pytest.warns(PrecisionWarning):
        result = method.run(random.key(0), 10, data, num_causes=NUM_CAUSES, init_params=start)
    away = (data[:, None] - (STATES @ best["weights"])[None]).astype(float)
    left = (away**2)[np.arange(NUM_ROWS), (away**2).sum(-1).argmin(1)]
    np.testing.assert_allclose(result.params["noise"], np.sqrt(left.mean(0)), rtol=0.02)


def test_float64_has_digits_enough(large):
    data, near = large
    params = {"weights": near["weights"], "noise": 1.0, "sparsity": 0.3}
    arguments = (binary_sparse_coding, params, (data,), {"num_causes": NUM_CAUSES})
    assert at_floor(*arguments) is None  # small it is, but there is a maximum
    said = lost_digits(*arguments, columns=list("abcdef"))
    worst = int(np.argmax((data.astype(float) ** 2).mean(0)))
    assert said.startswith(f"{'abcdef'[worst]} is ") and "numpyro.enable_x64()" in said
    with jax.enable_x64(True):
        assert lost_digits(*arguments) is None
    # The rule is ε y² / σ² > 1/1000 of the largest column.
    rms = np.sqrt((data.astype(float) ** 2).mean(0)[worst])
    edge = rms * np.sqrt(np.finfo(np.float32).eps / 1e-3)
    for factor, warns in ((0.98, True), (1.02, False)):
        at = {**params, "noise": factor * edge}
        assert (lost_digits(binary_sparse_coding, at, *arguments[2:]) is not None) is warns


def test_the_digits_of_a_program_without_a_scale_are_counted_too():
    def ones(data):
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(0.5))
            numpyro.sample("seen", dist.Normal(500.0 * on, 1.0), obs=data)

    assert lost_digits(ones, {}, (jnp.array([500.0, 0.0]),), {}).startswith("'seen' is 3.5e+02")
    assert lost_digits(ones, {}, (jnp.array([50.0, 0.0]),), {}) is None


@pytest.mark.parametrize("size", [1.0, 3000.0])
def test_a_likelihood_is_that_of_float64(large, size):
    """Six rows that six causes explain without noise; and large weights."""
    if size == 1.0:
        data = np.random.default_rng(5).normal(size=(6, 5)).astype(np.float32)
        params = {"weights": data, "noise": np.float32(1e-6), "sparsity": 0.3}
    else:
        data, near = large
        params = {**near, "noise": 1.0}
    count = len(params["weights"])
    found = log_likelihood(binary_sparse_coding, params, data, num_causes=count).value
    assert found.dtype == np.float64
    # A float64 has 16 digits, of which the square of 10⁶ deviations takes 12.
    np.testing.assert_allclose(found, evidence(params, data.astype(float)), atol=2e-3)


def test_commands_print_what_float64_gives(large, tmp_path, capsys):
    data, _ = large
    rows = ["a,b,c,d,e,f", *(",".join(map(repr, row.tolist())) for row in data)]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    table, fit = ["--data", str(tmp_path / "rows.csv")], str(tmp_path / "fit.nc")
    asked = ["--set", f"num_causes={NUM_CAUSES}", "--method", "EM", "--steps", "60"]
    assert main(["fit", "binary_sparse_coding", *table, *asked, "--out", fit]) == 0
    said = {x.split()[0]: x for x in capsys.readouterr().out.splitlines() if x}
    params = {x: v.values for x, v in load(fit)[0]["point_estimate"].items()}
    wanted = evidence(params, data.astype(float))
    assert float(said["log"].split()[2]) == pytest.approx(wanted.sum(), abs=2e-3)
    assert "times its noise of" in said["warning"] and "JAX_ENABLE_X64=1" in said["warning"]
    assert said["warning"].split()[1] in "abcdef"
    assert main(["score", fit, *table, "--out", str(tmp_path / "scores.csv")]) == 0
    each = np.loadtxt(tmp_path / "scores.csv", delimiter=",", skiprows=1)[:, 1]
    np.testing.assert_allclose(each, wanted, rtol=1e-5, atol=1e-4)  # six digits are written


# --- factors behind real columns


def gaussian(params, data):
    """The log likelihood of a table under factors: a Gaussian with their covariance."""
    weights, bias, noise = (np.asarray(params[x], float) for x in ("weights", "bias", "noise"))
    spread = np.sqrt((weights**2).sum(0) + noise**2)  # in deviations: units are far apart
    cover = (weights / spread).T @ (weights / spread) + np.diag((noise / spread) ** 2)
    each = multivariate_normal(np.zeros(len(bias)), cover).logpdf((data - bias) / spread)
    return (each - np.log(spread).sum()).sum()


@pytest.mark.parametrize("method", [QuadratureEM, BoundEM, MonteCarloEM])
def test_columns_far_from_zero_and_in_other_units_end_where_they_do_without(method):
    """Years, incomes, shares: a table and its columns about their means, in deviations."""
    rng = np.random.default_rng(0)
    weights = 2.0 * rng.normal(size=(2, 5))
    plain = rng.normal(size=(300, 2)) @ weights + 0.5 * rng.normal(size=(300, 5))
    offset = np.array([5e4, 40.0, 0.01, 1980.0, 0.0])
    unit = np.array([1e4, 7.0, 0.002, 5.0, 1e-7])
    data = (offset + unit * plain).astype(np.float32)
    plain = (data.astype(float) - offset) / unit
    settings = {"kinds": ("real",) * 5, "num_factors": 2, "tolerance": 1e-7}
    ends = []
    for table, zero, one in ((plain, np.zeros(5), np.ones(5)), (data, offset, unit)):
        # Draws that all rows share have several optima: of these, one.
        start = {"weights": weights * one, "bias": zero, "noise": 0.5 * one}
        settings["init_params"] = start if method is MonteCarloEM else None
        result = method(mixed_trait).run(random.key(0), 300, table.astype(np.float32), **settings)
        ends.append(gaussian(result.params, table.astype(float)))
        rows = np.asarray(log_likelihood(
            mixed_trait, result.params, table, kinds=settings["kinds"], num_factors=2
        ).value)  # fmt: skip
        assert rows.sum() == pytest.approx(ends[-1], abs=0.01)
    ends[1] += 300 * np.log(unit).sum()
    assert ends[1] == pytest.approx(ends[0], abs=0.1)

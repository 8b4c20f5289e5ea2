"""`marginal` against the oracle's sum over all states, and inside NumPyro's own machinery.

Monte Carlo moments are held within four standard errors, stated where they are taken.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from jax import random
from jax.scipy.special import logsumexp
from numpyro.infer import NUTS, SVI, Predictive, Trace_ELBO, init_to_value, log_likelihood
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.util import initialize_model, log_density
from numpyro.optim import Adam
from scipy.stats import norm, poisson
from small_programs import CASES, NUM_DATA, NUM_FEATURES, mixture_case
from tools import density, in_double, near, oracle_evidence, sample

from inference import EM, AtMost, Given, TruncatedEM, marginal
from inference.reading import state_sums
from inference.reading.state_sums import Part, log_sum
from ppl_models import binary_sparse_coding
from ppl_models.distributions import NoisyOr


@in_double
@pytest.mark.parametrize("way", ["marginal", EM, TruncatedEM])
def test_a_factor_inside_the_plate_counts(way):
    """One that all rows share and one of their own: value and gradient by the sum over states."""
    data = np.array([0.3, -1.2, 2.0, 0.7])

    def tilted(data):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(0.3 * jnp.ones(2)).to_event(1))
            numpyro.factor("shared", -mean * on[..., 0] * on[..., 1])
            numpyro.sample("observed", dist.Normal(mean * on.sum(-1), 1.0), obs=data)
            numpyro.factor("own", 0.4 * on[..., 1] * data)

    def evidence(params):
        total = np.zeros(4)
        for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
            prior = 0.3 ** (a + b) * 0.7 ** (2 - a - b)
            tilt = np.exp(-params["mean"] * a * b + 0.4 * b * data)
            total += prior * tilt * norm.pdf(data, params["mean"] * (a + b), 1.0)
        return np.log(total).sum()

    def found(params):
        if way == "marginal":
            total = log_density(marginal(tilted), (data,), {}, params)[0]
            return total - dist.Normal(0.0, 3.0).log_prob(params["mean"])
        return way(tilted).posterior(params, jnp.asarray(data)).evidence.sum()

    params = {"mean": np.array(0.8)}
    value, slope = jax.jit(jax.value_and_grad(found))({"mean": jnp.array(0.8)})
    near(value, evidence(params), 1e-9)
    near(slope["mean"], oracle.finite_difference(evidence, params)["mean"], 1e-8)


@in_double
@pytest.mark.parametrize("name", [*CASES, "mixture"])
def test_marginal_is_the_sum_over_states(name, monkeypatch):
    """Value per datum and gradient in every parameter, in chunks of two rows."""
    monkeypatch.setattr(state_sums, "product_floats", lambda: 2 * (3 if name == "mixture" else 16))
    case = mixture_case() if name == "mixture" else CASES[name]
    args, kwargs = case.arguments
    program = marginal(case.model)

    def evidence(params):
        if name == "mixture":
            values = {"component": np.arange(3)}
            table = oracle.log_joint_table(case.log_joint, params, values, case.data)
            return oracle.log_evidence(table)
        return oracle_evidence(case, params)

    def per_datum(params):
        (value,) = log_likelihood(program, params, *args, batch_ndims=0, **kwargs).values()
        return value, value

    slopes, value = jax.jit(jax.jacrev(per_datum, has_aux=True))(case.typed())
    near(value, evidence(case.params), 1e-9)
    for site, wanted in oracle.finite_difference(evidence, case.params).items():
        wanted = np.moveaxis(wanted, -1, 0)
        slope = np.asarray(slopes[site])
        if site == "mixing":  # only what lies along the simplex means something
            slope = slope - slope.mean(-1, keepdims=True)
            wanted = wanted - wanted.mean(-1, keepdims=True)
        near(slope, wanted, 1e-6)


def test_truncated_marginal_is_a_bound():
    case = CASES["sparse_coding"]
    table, bits = case.table()
    for limit in (1, 2):
        small = np.where(bits.sum(1)[:, None] <= limit, table, -np.inf)
        bound = density(marginal(case.model, AtMost(limit)), case, case.typed())
        near(bound, oracle.log_evidence(small).sum())
        assert bound < oracle.log_evidence(table).sum()
    chosen = np.stack([np.roll(np.arange(16), n)[:6] for n in range(NUM_DATA)], axis=1)
    wanted = oracle.log_evidence(np.take_along_axis(table, chosen, axis=0)).sum()
    near(density(marginal(case.model, Given(bits[chosen])), case, case.typed()), wanted)


def test_nuts_potential():
    """Value and gradient of what NUTS descends, constraints and their Jacobians included."""
    case = CASES["sparse_coding"]
    args, kwargs = case.arguments
    model = marginal(case.model)
    free = {
        "weights": case.params["weights"],
        "noise": np.log(case.params["noise"]),
        "sparsity": np.log(0.3 / 0.7),
    }

    def wanted(free):
        rate = 1.0 / (1.0 + np.exp(-free["sparsity"]))
        params = {"weights": free["weights"], "noise": np.exp(free["noise"]), "sparsity": rate}
        prior = -0.5 * np.sum((free["weights"] / 10.0) ** 2)
        prior -= free["weights"].size * (np.log(10.0) + 0.5 * np.log(2.0 * np.pi))
        prior += np.log(2.0) - np.log(10.0) - 0.5 * np.log(2.0 * np.pi)
        prior -= 0.5 * (params["noise"] / 10.0) ** 2
        jacobian = free["noise"] + np.log(rate) + np.log1p(-rate)
        return -(oracle_evidence(case, params).sum() + prior + jacobian)

    typed = {name: jnp.asarray(value, float) for name, value in free.items()}

    @jax.jit
    def potential(free):
        info = initialize_model(
            random.key(0), model, init_strategy=init_to_value(values=case.typed()),
            model_args=args, model_kwargs=kwargs, validate_grad=False,
        )  # fmt: skip
        return jax.value_and_grad(info.potential_fn)(free)

    value, slopes = potential(typed)
    near(value, wanted(free))
    for site, slope in oracle.finite_difference(wanted, free).items():
        near(slopes[site], slope, 1e-4)


def test_svi_loss():
    """A guide of points: the loss is the log density there, so the oracle's sum and the priors.

    Over a truncated set of states.
    """
    case = CASES["combination_machine"]
    args, kwargs = case.arguments
    model = marginal(case.model, AtMost(2))
    table, bits = case.table()
    evidence = oracle.log_evidence(np.where(bits.sum(1)[:, None] <= 2, table, -np.inf))
    guide = AutoDelta(model, init_loc_fn=init_to_value(values=case.typed()))
    svi = SVI(model, guide, Adam(0.01), Trace_ELBO())
    state = jax.jit(lambda key: svi.init(key, *args, **kwargs))(random.key(0))
    prior = norm(0.0, 3.0).logpdf(case.params["weights"]).sum()
    prior += norm(0.0, 100.0).logpdf(case.params["bias"]).sum()
    step = jax.jit(lambda state: svi.update(state, *args, **kwargs))
    state, first = step(state)
    near(first, -(evidence.sum() + prior))
    for _ in range(3):
        state, last = step(state)
    assert last < first


def test_predictive_simulates_the_program():
    """Without data the marginal program draws what the program draws: same first two moments."""
    params = {name: value[None] for name, value in CASES["sparse_coding"].typed().items()}
    draw = Predictive(marginal(binary_sparse_coding), params)
    size = {"num_data": 20_000, "num_features": NUM_FEATURES, "num_causes": 4}
    drawn = jax.jit(lambda key: draw(key, **size))(random.key(1))
    assert set(drawn) == {"observed"}
    data = np.asarray(drawn["observed"][0])
    weights = np.asarray(params["weights"][0])
    mean = 0.3 * weights.sum(0)
    covariance = 0.3 * 0.7 * weights.T @ weights + 0.81 * np.eye(NUM_FEATURES)
    deviation = np.sqrt(np.diag(covariance))
    # Four standard errors of 20 000 draws; those of a covariance are below 2 σ_i σ_j / sqrt(n).
    assert (np.abs(data.mean(0) - mean) < 4 * deviation / np.sqrt(20_000)).all()
    bound = 8 * np.outer(deviation, deviation) / np.sqrt(20_000)
    assert (np.abs(np.cov(data.T) - covariance) < bound).all()


def test_predictive_from_the_prior():
    draw = Predictive(marginal(binary_sparse_coding), num_samples=3)
    size = {"num_data": 4, "num_features": NUM_FEATURES, "num_causes": 2}
    drawn = jax.eval_shape(lambda key: draw(key, **size), random.key(2))
    assert drawn["weights"].shape == (3, 2, NUM_FEATURES)
    assert drawn["observed"].shape == (3, 4, NUM_FEATURES)


def test_log_likelihood_is_by_datum():
    case = CASES["noisy_or"]
    args, kwargs = case.arguments
    two = {name: jnp.stack([value, 0.7 * value]) for name, value in case.typed().items()}
    evidence = jax.jit(lambda two: log_likelihood(marginal(case.model), two, *args, **kwargs))(two)
    less = {name: 0.7 * value for name, value in case.params.items()}
    near(evidence["observed"], np.stack([oracle_evidence(case), oracle_evidence(case, less)]))


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_loo_of_a_marginal_program():
    """NUTS on a program with a vector of binary causes, states by row, then PSIS-LOO by datum."""
    import arviz as az

    case = CASES["sparse_coding"]
    (data,), kwargs = case.arguments
    _, bits = case.table()
    model = marginal(case.model, Given(np.stack([np.roll(bits, n, 0)[:12] for n in range(7)], 1)))
    start = init_to_value(values=case.typed())
    kernel = NUTS(model, init_strategy=start, max_tree_depth=4)
    draws, _ = sample(kernel, 60, 60, data, **kwargs)
    assert set(draws) == {"weights", "noise", "sparsity"}
    # As `arviz.from_numpyro` does, which takes seconds to do it operation by operation.
    compute = jax.jit(lambda draws: log_likelihood(model, draws, data, **kwargs)["observed"])
    by_datum = compute({name: value[0] for name, value in draws.items()})
    assert by_datum.shape == (60, NUM_DATA)
    groups = {"posterior": draws, "log_likelihood": {"observed": np.asarray(by_datum)[None]}}
    old = az.__version__.startswith("0.")
    result = az.loo(az.from_dict(**groups) if old else az.from_dict(groups))
    assert result.n_data_points == NUM_DATA


def test_states_that_rule_bits_out():
    """Equal to every row and state by itself where a state makes a bit impossible, slopes too."""
    inputs = jnp.array([[0.0, 0.3, 2.0], [0.0, 0.0, 0.5], [1.0, 4.0, 0.1]])[:, None]
    value = jnp.array([[0, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0]])
    weights = jnp.log(jnp.array([0.2, 0.5, 0.3]))[:, None]

    def by_product(inputs):
        fn = NoisyOr(inputs).to_event(1).expand((3, 4))
        return log_sum(weights, (Part(fn, value, 1.0, True),), 4).sum()

    def by_state(inputs):
        return logsumexp(weights + NoisyOr(inputs).log_prob(value).sum(-1), axis=0).sum()

    total, slope = jax.jit(jax.value_and_grad(by_product))(inputs)
    wanted, by_hand = jax.jit(jax.value_and_grad(by_state))(inputs)
    near(total, wanted)
    near(slope, by_hand)


def occupancy(data, gain=1.0, *, counts=False):
    """Is a place inhabited at all? Where it is not, nothing is ever seen there."""
    share = numpyro.sample("share", dist.Uniform(0.0, 1.0))
    rate = numpyro.sample("rate", dist.Uniform(0.0, 1.0).expand((data.shape[1],)).to_event(1))
    with numpyro.plate("places", len(data)):
        there = numpyro.sample("there", dist.Bernoulli(share))[..., None]
        level = there * rate * gain
        noise = dist.Poisson(level) if counts else dist.Bernoulli(level)
        numpyro.sample("seen", noise.to_event(1), obs=data)


@in_double
@pytest.mark.parametrize(("counts", "rows"), [(True, "shared"), (False, "covariates")])
def test_impossible_states_are_safe(counts, rows):
    """`Bernoulli(z * p)`, `Poisson(z * rate)`: many empty rows; p of the row's own as well."""
    data = np.zeros((40, 3))
    data[:6] = np.random.default_rng(0).integers(0, 4 if counts else 2, (6, 3))
    data[0] = 1.0
    gain = np.linspace(0.5, 1.0, 40)[:, None] if rows == "covariates" else np.ones(1)

    def wanted(params):
        level = params["rate"] * np.broadcast_to(gain, (40, 1))
        if counts:
            each = poisson(level).logpmf(data)
        else:
            each = data * np.log(level) + (1.0 - data) * np.log1p(-level)
        on = np.log(params["share"]) + each.sum(1)
        off = np.log1p(-params["share"]) + np.where(data.any(1), -np.inf, 0.0)
        return np.logaddexp(on, off)

    params = {"share": np.array(0.4), "rate": np.array([0.3, 0.6, 0.8])}

    def total(params):
        return log_density(marginal(occupancy), (data, gain), {"counts": counts}, params)[0]

    value, slopes = jax.jit(jax.value_and_grad(total))(params)
    near(value, wanted(params).sum(), 1e-10)
    for site, slope in oracle.finite_difference(wanted, params).items():
        near(slopes[site], slope.sum(-1), 1e-6)


def test_nuts_finds_a_start_where_states_are_impossible():
    data = np.zeros((60, 3), np.float32)
    data[:20] = np.random.default_rng(0).integers(0, 2, (20, 3))
    start = jax.jit(
        lambda key: (
            initialize_model(
                key, marginal(occupancy), model_args=(data,), validate_grad=True
            ).param_info
        )
    )
    found = start(random.key(0))
    assert np.isfinite(found.potential_energy)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found.z_grad))

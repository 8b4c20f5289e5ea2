"""The readings inside NumPyro's own machinery: potentials, SVI, Predictive, scale, mask, minibatch.

What `marginal` makes of a program is held to the oracle's sum over all states, value and gradient.
Tolerances: 1e-5 of the largest term for log densities in float32, 1e-9 in float64; Monte Carlo
moments within four standard errors, stated where they are taken.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, log_likelihood
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.util import initialize_model, log_density
from numpyro.optim import Adam
from small_programs import CASES, NUM_DATA, NUM_FEATURES, mixture_case

from inference import (
    AllStates,
    AtMost,
    Given,
    ProgramError,
    Structure,
    marginal,
    quadratic_bound,
    states,
)
from inference.reader import open_program
from ppl_models import bernoulli_mixture, binary_sparse_coding, latent_trait

ROUNDED = 1e-5
fast_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture
def double():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def close(found, wanted, tolerance=ROUNDED):
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale)


def oracle_evidence(case, params=None):
    return oracle.log_evidence(case.table(params)[0])


def density(program, case, params, **more):
    """What the data contribute to the log density, compiled: op by op it would take seconds."""
    return fast_jit(lambda params: contribution(program, case, params, **more))(params)


def contribution(program, case, params, **more):
    args, kwargs = case.arguments
    _, trace = log_density(program, args, {**kwargs, **more}, params)
    sites = [site for site in trace.values() if site["type"] == "sample" and site["is_observed"]]
    total = 0.0
    for site in sites:
        scale = 1.0 if site["scale"] is None else site["scale"]
        total = total + scale * site["fn"].log_prob(site["value"]).sum()
    return total


# The marginal program against the sum over all states.


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", [*CASES, "mixture"])
def test_marginal_is_the_sum_over_states(name):
    """Value per datum and gradient in every parameter, several latent sites and categories."""
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

    slopes, value = fast_jit(jax.jacrev(per_datum, has_aux=True))(case.typed())
    close(value, evidence(case.params), 1e-9)
    for site, wanted in oracle.finite_difference(evidence, case.params).items():
        wanted = np.moveaxis(wanted, -1, 0)
        found = np.asarray(slopes[site])
        if site == "mixing":  # only what lies along the simplex means something
            found = found - found.mean(-1, keepdims=True)
            wanted = wanted - wanted.mean(-1, keepdims=True)
        close(found, wanted, 1e-6)


def test_truncated_marginal_is_a_bound():
    case = CASES["sparse_coding"]
    table, bits = case.table()
    for limit in (1, 2):
        small = np.where(bits.sum(1)[:, None] <= limit, table, -np.inf)
        found = density(marginal(case.model, AtMost(limit)), case, case.typed())
        close(found, oracle.log_evidence(small).sum())
        assert found < oracle.log_evidence(table).sum()
    chosen = np.stack([np.roll(np.arange(16), n)[:6] for n in range(NUM_DATA)], axis=1)
    wanted = oracle.log_evidence(np.take_along_axis(table, chosen, axis=0)).sum()
    close(density(marginal(case.model, Given(bits[chosen])), case, case.typed()), wanted)


def test_nuts_potential():
    """Value and gradient of what NUTS descends, constraints and their Jacobians included."""
    case = CASES["sparse_coding"]
    args, kwargs = case.arguments
    model = marginal(case.model)
    info = initialize_model(random.key(0), model, model_args=args, model_kwargs=kwargs)
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
    value, slopes = fast_jit(jax.value_and_grad(info.potential_fn))(typed)
    close(value, wanted(free))
    for site, slope in oracle.finite_difference(wanted, free).items():
        close(slopes[site], slope, 1e-4)


def test_svi_loss():
    """A guide of points: the loss is the log density there, so the oracle's sum and the priors."""
    case = CASES["combination_machine"]
    args, kwargs = case.arguments
    model = marginal(case.model)
    guide = AutoDelta(model, init_loc_fn=numpyro.infer.init_to_value(values=case.typed()))
    svi = SVI(model, guide, Adam(0.01), Trace_ELBO())
    state = jax.jit(lambda key: svi.init(key, *args, **kwargs))(random.key(0))
    prior = dist.Normal(0.0, 3.0).log_prob(case.params["weights"]).sum()
    prior += dist.Normal(0.0, 100.0).log_prob(case.params["bias"]).sum()
    step = fast_jit(lambda state: svi.update(state, *args, **kwargs))
    state, first = step(state)
    close(first, -(oracle_evidence(case).sum() + prior))
    for _ in range(3):
        state, last = step(state)
    assert last < first


# Simulation.


def test_predictive_simulates_the_program():
    """Without data the marginal program draws what the program draws: same first two moments."""
    params = {name: value[None] for name, value in CASES["sparse_coding"].typed().items()}
    draw = Predictive(marginal(binary_sparse_coding), params)
    size = {"num_data": 20_000, "num_features": NUM_FEATURES, "num_causes": 4}
    found = draw(random.key(1), **size)
    assert set(found) == {"observed"}
    data = np.asarray(found["observed"][0])
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
    found = draw(random.key(2), num_data=4, num_features=NUM_FEATURES, num_causes=2)
    assert found["weights"].shape == (3, 2, NUM_FEATURES)
    assert found["observed"].shape == (3, 4, NUM_FEATURES)


def test_log_likelihood_is_by_datum():
    case = CASES["noisy_or"]
    args, kwargs = case.arguments
    two = {name: jnp.stack([value, 0.7 * value]) for name, value in case.typed().items()}
    found = log_likelihood(marginal(case.model), two, *args, **kwargs)["observed"]
    less = {name: 0.7 * value for name, value in case.params.items()}
    close(found, np.stack([oracle_evidence(case), oracle_evidence(case, less)]))


# Scale, mask, subsampling.


def test_scale_is_outside_the_sum():
    case = CASES["sparse_coding"]
    for place in ("outside", "inside"):
        if place == "outside":
            program = handlers.scale(marginal(case.model), scale=2.5)
        else:
            program = marginal(handlers.scale(case.model, scale=2.5))
        close(density(program, case, case.typed()), 2.5 * oracle_evidence(case).sum())


@pytest.mark.parametrize("latent", [None, 0.5])
def test_scale_of_the_observations_is_a_power(latent):
    """A site scaled differently from the latents is tempered; EM and `marginal` agree on it."""

    def tempered(data, *, num_causes):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((4, 5)).to_event(2))
        with numpyro.plate("data", len(data)):
            with handlers.scale(scale=1.0 if latent is None else latent):
                on = numpyro.sample("causes", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            with handlers.scale(scale=0.25) if latent is None else handlers.block(hide=[]):
                noise = dist.Normal(on @ weights, 0.9).to_event(1)
                numpyro.sample("observed", noise, obs=data)

    case = CASES["sparse_coding"]
    table, bits = case.table()
    prior = bits.sum(1) * np.log(0.3) + (4 - bits.sum(1)) * np.log(0.7)
    power = 0.25 if latent is None else 1.0 / latent
    wanted = oracle.log_evidence(prior[:, None] + power * (table - prior[:, None]))
    outside = 1.0 if latent is None else latent
    params = {"weights": case.typed()["weights"]}
    case = case._replace(model=tempered)
    close(density(marginal(tempered), case, params), outside * wanted.sum())
    reader, _ = open_program(tempered, *case.arguments, structure=Structure.GENERAL)
    joint = fast_jit(lambda params: reader.log_joint(params, bits[:, None], case.arguments))(params)
    close(oracle.log_evidence(np.asarray(joint, float)), wanted)


def test_a_masked_row_counts_for_nothing():
    def program(data, rows, *, num_causes):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((4, 5)).to_event(2))
        with numpyro.plate("data", len(data)), handlers.mask(mask=rows):
            on = numpyro.sample("causes", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            numpyro.sample("observed", dist.Normal(on @ weights, 0.9).to_event(1), obs=data)

    case = CASES["sparse_coding"]
    rows = np.array([True, False, True, True, False, False, True])
    params = {"weights": case.typed()["weights"]}
    found = log_likelihood(
        marginal(program), params, case.arguments[0][0], rows, batch_ndims=0, num_causes=4
    )
    close(found["observed"], np.where(rows, oracle_evidence(case), 0.0))


def test_a_minibatch_is_scaled():
    """Seven rows of seventy; and a program that draws its rows itself."""
    case = CASES["sparse_coding"]
    wanted = 10.0 * oracle_evidence(case).sum()
    close(density(marginal(case.model), case, case.typed(), num_data=70), wanted)

    def draws_rows(data, *, num_causes, num_rows):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((4, 5)).to_event(2))
        with numpyro.plate("data", len(data), subsample_size=num_rows) as chosen:
            on = numpyro.sample("causes", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            noise = dist.Normal(on @ weights, 0.9).to_event(1)
            numpyro.sample("observed", noise, obs=jnp.asarray(data)[chosen])

    program = handlers.seed(marginal(draws_rows), 3)
    fixed = handlers.substitute(program, data={"weights": case.typed()["weights"]})
    trace = handlers.trace(fixed).get_trace(case.data, num_causes=4, num_rows=3)
    chosen = np.asarray(trace["data"]["value"])
    site = trace["observed"]
    close(site["fn"].log_prob(site["value"]), oracle_evidence(case)[chosen])
    assert site["scale"] == pytest.approx(NUM_DATA / 3)


# Shapes.


def several_observed(data, *, num_causes, count=None):
    """A real row and a count hang on the same causes: two observed sites a datum."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((4, 5)).to_event(2))
    with numpyro.plate("data", NUM_DATA):
        on = numpyro.sample("causes", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
        numpyro.sample("observed", dist.Normal(on @ weights, 0.9).to_event(1), obs=data)
        numpyro.sample("count", dist.Poisson(1.0 + 2.0 * on.sum(-1)), obs=count)


def test_several_observed_sites_follow_the_chain_rule():
    """The second is a mixture under the posterior given the first: together they are the joint."""
    case = CASES["sparse_coding"]
    count = np.array([0, 3, 2, 5, 1, 7, 4])
    table, bits = case.table()
    rate = 1.0 + 2.0 * bits.sum(1)[:, None]
    log_factorial = np.array([np.log(np.arange(1, c + 1)).sum() for c in count])
    second = count * np.log(rate) - rate - log_factorial
    params = {"weights": case.typed()["weights"]}
    found = log_likelihood(
        marginal(several_observed), params, case.arguments[0][0], count=count, num_causes=4,
        batch_ndims=0,
    )  # fmt: skip
    close(found["observed"], oracle.log_evidence(table))
    both = oracle.log_evidence(table + second)
    close(found["count"], both - oracle.log_evidence(table))


def test_simulation_follows_the_chain_rule():
    """The count that is simulated after the row belongs to the same causes."""
    params = {"weights": 8.0 * jnp.eye(4, 5)}

    @fast_jit
    def simulate(key):
        program = handlers.substitute(handlers.seed(marginal(several_observed), key), data=params)
        trace = handlers.trace(program).get_trace(None, num_causes=4)
        row, count = trace["observed"]["value"], trace["count"]["value"]
        return row, count, trace["count"]["fn"].log_prob(count)

    row, count, found = simulate(random.key(0))
    # Causes eight deviations apart are read off the row; the count is then a known Poisson.
    rate = 1.0 + 2.0 * (np.asarray(row)[:, :4] > 4.0).sum(1)
    assert row.shape == (NUM_DATA, 5)
    assert count.shape == (NUM_DATA,)
    close(found, dist.Poisson(rate).log_prob(count), 1e-4)


def test_data_plate_further_out_with_plates_inside():
    """Columns in a plate of their own inside the data's, and latents in a plate too."""

    def nested(data):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((2, 5)).to_event(2))
        with numpyro.plate("data", len(data), dim=-2):
            with numpyro.plate("bits", 2, dim=-1):
                on = numpyro.sample("on", dist.Bernoulli(jnp.array([0.3, 0.6])))
            kind = numpyro.sample("kind", dist.Categorical(jnp.array([[0.2, 0.5, 0.3]])))
            with numpyro.plate("columns", 5, dim=-1):
                mean = on @ weights + kind
                numpyro.sample("observed", dist.Normal(mean, 0.9), obs=data)

    case = CASES["sparse_coding"]
    weights = case.params["weights"][:2]
    rows = []
    for first in (0, 1):
        for second in (0, 1):
            for kind in range(3):
                prior = np.log((0.7, 0.3)[first] * (0.4, 0.6)[second] * (0.2, 0.5, 0.3)[kind])
                mean = first * weights[0] + second * weights[1] + kind
                fit = -0.5 * ((case.data - mean) / 0.9) ** 2 - np.log(0.9 * np.sqrt(2 * np.pi))
                rows.append(prior + fit.sum(1))
    wanted = oracle.log_evidence(np.array(rows))
    program = marginal(nested, plate="data")
    params = {"weights": jnp.asarray(weights)}
    found = log_likelihood(program, params, case.arguments[0][0], batch_ndims=0)["observed"]
    close(found, wanted)
    draw = Predictive(marginal(nested, plate="data"), num_samples=2)
    assert draw(random.key(0), jnp.zeros((3, 5)))["weights"].shape == (2, 2, 5)


# jit, vmap, tracers.


def test_twice_under_jit_without_leaks():
    """A tracer kept on the handler would leak from the first call and break the second."""

    def one_bit(data):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(0.3))
            numpyro.sample("observed", dist.Normal(on * level, 1.0), obs=data)

    program = marginal(one_bit)

    @jax.jit
    def value(level, data):
        return log_density(program, (data,), {}, {"level": level})[0]

    data = jnp.array([0.2, -1.0, 3.0])
    with jax.checking_leaks():
        found = [value(1.5, data), value(1.5, data[:2])]  # compiled twice
    states_of_one = [np.log(0.7) - 0.5 * data**2, np.log(0.3) - 0.5 * (data - 1.5) ** 2]
    wanted = np.logaddexp(*states_of_one).sum() - 0.5 * 1.5**2 - 2.0 * np.log(2.0 * np.pi)
    close(found[0], wanted)
    assert found[1] > found[0]


def test_vmap_over_parameters_and_states():
    case = CASES["sparse_coding"]
    args, kwargs = case.arguments
    program = marginal(case.model)
    factors = jnp.array([1.0, 0.5, -1.0])

    @fast_jit
    @jax.vmap
    def scaled(factor):
        params = {**case.typed(), "weights": factor * case.typed()["weights"]}
        return contribution(program, case, params)

    found = scaled(factors)
    wanted = [
        oracle_evidence(case, {**case.params, "weights": float(k) * case.params["weights"]}).sum()
        for k in factors
    ]
    close(found, wanted)

    def one(state):
        values = {"causes": state[None, None, :]}
        fixed = handlers.substitute(states(case.model, values), data=case.typed())
        trace = handlers.trace(fixed).get_trace(*args, **kwargs)
        names = ("causes", "observed")
        return sum(trace[n]["fn"].log_prob(trace[n]["value"]) for n in names)[0]

    table, bits = case.table()
    close(fast_jit(jax.vmap(one))(jnp.asarray(bits)), table)


def test_states_of_several_sites_at_once():
    case = CASES["two_sites"]
    reader, _ = open_program(case.model, *case.arguments, structure=Structure.GENERAL)
    table, bits = case.table()
    values = reader.anatomy.unpack(jnp.asarray(bits)[:, None, :])
    assert {name: value.shape for name, value in values.items()} == {
        "left": (16, 1, 1),
        "right": (16, 1, 3),
    }
    found = fast_jit(lambda params: reader.log_joint(params, bits[:, None, :], case.arguments))
    close(found(case.typed()), table)


# The quadratic bound.


@pytest.mark.usefixtures("double")
def test_quadratic_bound_in_the_potential():
    """Below the program everywhere, equal where it touches, and the oracle's value between."""
    rng = np.random.default_rng(9)
    sites = {"weights": rng.normal(0.2, 1.0, (2, 5)), "bias": rng.normal(-0.3, 1.0, 5)}
    factors = rng.normal(size=(4, 2))
    data = (rng.random((4, 5)) < 0.4).astype(float)
    xi = rng.uniform(0.1, 3.0, (4, 5))
    latent = {**sites, "factors": factors}

    def value(program, latent):
        return log_density(program, (jnp.asarray(data),), {"num_factors": 2}, latent)[0]

    exact = value(latent_trait, latent)
    found = fast_jit(lambda latent: value(quadratic_bound(latent_trait, xi=xi), latent))(latent)
    assert found < exact
    logits = factors @ sites["weights"] + sites["bias"]
    plain = sum(oracle.log_joint_latent_trait({**sites, "factors": factors}, data))
    signed = (2 * data - 1) * logits
    slope = -np.tanh(xi / 2) / (4 * xi)
    terms = -np.log1p(np.exp(-xi)) + (signed - xi) / 2 + slope * (signed**2 - xi**2)
    gap = (-np.log1p(np.exp(-signed)) - terms).sum()
    close(exact - found, gap, 1e-9)
    assert np.isfinite(plain)
    close(value(quadratic_bound(latent_trait, xi=logits), latent), exact, 1e-9)


def test_bound_and_marginal_compose():
    """Bounded binary causes are quadratic, and summed out they stay below the true evidence."""

    def bits_behind_bits(data, *, num_causes):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((4, 5)).to_event(2))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("causes", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            numpyro.sample("observed", dist.Bernoulli(logits=on @ weights).to_event(1), obs=data)

    case = CASES["combination_machine"]
    args, kwargs = case.arguments
    bounded = quadratic_bound(bits_behind_bits, xi=1.3)
    assert open_program(bounded, args, kwargs)[0].structure is Structure.SHARED
    assert open_program(bits_behind_bits, args, kwargs)[0].structure is Structure.GENERAL
    params = {"weights": case.typed()["weights"]}
    case = case._replace(model=bits_behind_bits)
    below, exact = (
        density(marginal(program), case, params) for program in (bounded, bits_behind_bits)
    )
    assert below < exact


def test_bound_wants_bits():
    with pytest.raises(ProgramError, match="'observed' is Normal"):
        handlers.seed(quadratic_bound(binary_sparse_coding), 0)(jnp.ones((4, 3)), num_causes=2)


# Errors say what to change.


def late_latent(data):
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", dist.Bernoulli(0.3))
        numpyro.sample("first", dist.Normal(on, 1.0), obs=data[:, 0])
        late = numpyro.sample("late", dist.Bernoulli(0.3))
        numpyro.sample("second", dist.Normal(late, 1.0), obs=data[:, 1])


def hanging(data):
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", dist.Bernoulli(0.3))
        level = numpyro.sample("level", dist.Normal(on, 1.0))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=data[:, 0])


def nothing_discrete(data):
    with numpyro.plate("data", len(data)):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=data[:, 0])


def many_bits(data):
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", dist.Bernoulli(jnp.full(40, 0.3)).to_event(1))
        numpyro.sample("y", dist.Normal(on.sum(-1), 1.0), obs=data[:, 0])


def plate_around(data):
    with numpyro.plate("groups", 2, dim=-2), numpyro.plate("data", len(data), dim=-1):
        on = numpyro.sample("on", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(on, 1.0), obs=jnp.stack([data[:, 0], data[:, 1]]))


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        (late_latent, {}, "'first' comes before the latents|'late' is sampled after an observed"),
        (hanging, {}, "'level' hangs on sites that are summed out"),
        (nothing_discrete, {}, "no discrete latent site"),
        (nothing_discrete, {"sites": ["level"]}, "'level' is not discrete"),
        (many_bits, {}, "too many to hold"),
        (many_bits, {"sites": ["off"]}, "no site 'off' in the program"),
        (many_bits, {"sites": ["y"]}, "'y' is not an unobserved sample site"),
        (many_bits, {"plate": "rows"}, "no plate 'rows' in the program"),
        (many_bits, {"states": Given([[0, 1]])}, "the given states have 2 values each"),
        (plate_around, {}, "in a plate around the plate 'data'"),
    ],
)
def test_marginal_errors(program, options, message):
    with pytest.raises(ProgramError, match=message):
        log_density(marginal(program, **options), (jnp.ones((3, 2)),), {}, {})


def test_states_error():
    program = states(binary_sparse_coding, {"observed": jnp.zeros((2, 1, 3))})
    with pytest.raises(ProgramError, match="'observed' is observed"):
        handlers.seed(program, 0)(jnp.ones((4, 3)), num_causes=2)


def test_marginal_is_no_context():
    with (
        pytest.raises(ProgramError, match="not as a context manager"),
        marginal(binary_sparse_coding),
        handlers.seed(rng_seed=0),
    ):
        binary_sparse_coding(jnp.ones((4, 3)), num_causes=2)


# Beside funsor.


def separate(data, *, num_causes):
    """Binary sparse coding with a scalar site for each cause: what funsor can enumerate."""
    shape = (num_causes, data.shape[1])
    weights = numpyro.sample("weights", dist.Normal(0.0, 10.0).expand(shape).to_event(2))
    noise = numpyro.sample("noise", dist.HalfNormal(10.0))
    sparsity = numpyro.sample("sparsity", dist.Uniform(0.0, 1.0))
    with numpyro.plate("data", len(data)):
        mean = 0.0
        for h in range(num_causes):
            cause = numpyro.sample(
                f"cause_{h}", dist.Bernoulli(sparsity), infer={"enumerate": "parallel"}
            )
            mean = mean + cause[..., None] * weights[h]
        numpyro.sample("observed", dist.Normal(mean, noise).to_event(1), obs=data)


def test_funsor_agrees_on_scalar_sites():
    """Value and gradient to 1e-5 of their size in float32."""
    from numpyro.contrib.funsor import enum
    from numpyro.contrib.funsor import log_density as enumerated

    case = CASES["sparse_coding"]
    args, kwargs = case.arguments

    @fast_jit
    @jax.value_and_grad
    def by_funsor(params):
        program = enum(separate, first_available_dim=-2)
        return enumerated(program, args, kwargs, params)[0]

    @fast_jit
    @jax.value_and_grad
    def by_reading(params):
        return log_density(marginal(case.model), args, kwargs, params)[0]

    (wanted, wanted_slopes), (found, slopes) = by_funsor(case.typed()), by_reading(case.typed())
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for site, slope in wanted_slopes.items():
        close(slopes[site] / np.abs(slope).max(), slope / np.abs(slope).max())
    # The separate sites can be summed out here too.
    again = log_density(marginal(separate), args, kwargs, case.typed())[0]
    np.testing.assert_allclose(again, wanted, rtol=1e-5)


def test_funsor_refuses_a_vector_of_causes():
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor import log_density as enumerated

    case = CASES["sparse_coding"]
    args, kwargs = case.arguments
    program = enum(config_enumerate(case.model), first_available_dim=-2)
    with pytest.raises((NotImplementedError, ValueError, AssertionError)):
        enumerated(program, args, kwargs, case.typed())


# To ArviZ.


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_loo_of_a_marginal_program():
    """NUTS on a program with a vector of binary causes, then PSIS-LOO by datum."""
    import arviz as az

    case = CASES["sparse_coding"]
    (data,), kwargs = case.arguments
    model = marginal(case.model)
    start = numpyro.infer.init_to_value(values=case.typed())
    mcmc = MCMC(
        NUTS(model, init_strategy=start, max_tree_depth=4), num_warmup=60, num_samples=60,
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(random.key(0), data, **kwargs)
    assert set(mcmc.get_samples()) == {"weights", "noise", "sparsity"}
    by_datum = log_likelihood(model, mcmc.get_samples(), data, **kwargs)["observed"]
    assert by_datum.shape == (60, NUM_DATA)
    groups = {
        "posterior": mcmc.get_samples(group_by_chain=True),
        "log_likelihood": {"observed": np.asarray(by_datum)[None]},
    }
    if az.__version__.startswith("0."):
        converted = az.from_numpyro(mcmc)
        np.testing.assert_allclose(
            converted.log_likelihood["observed"].values[0], by_datum, rtol=1e-4, atol=1e-4
        )
        result = az.loo(az.from_dict(**groups))
    else:
        result = az.loo(az.from_dict(groups))
    assert result.n_data_points == NUM_DATA


def test_mixture_summed_out_has_no_discrete_site():
    case = mixture_case()
    args, kwargs = case.arguments
    trace = handlers.trace(handlers.seed(marginal(bernoulli_mixture, AllStates()), 0)).get_trace(
        *args, **kwargs
    )
    names = {name for name, site in trace.items() if site["type"] == "sample"}
    assert names == {"mixing", "probs", "observed"}

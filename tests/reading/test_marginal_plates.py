"""`marginal` under scale, mask, minibatches, nested plates, several observations, jit and vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import Predictive, log_likelihood
from numpyro.infer.util import log_density
from small_programs import CASES, NUM_DATA
from tools import contribution, density, near, oracle_evidence

from inference import AllStates, Structure, inspect, marginal, states
from inference.reading import strategy
from inference.reading.reader import open_program


def by_datum(program, params, *args, **kwargs):
    """Site -> the log likelihood of each datum, compiled."""
    compute = lambda p: log_likelihood(program, p, *args, batch_ndims=0, **kwargs)  # noqa: E731
    return jax.jit(compute)(params)


def test_scale_is_outside_the_sum():
    case = CASES["sparse_coding"]
    for place in ("outside", "inside"):
        if place == "outside":
            program = handlers.scale(marginal(case.model), scale=2.5)
        else:
            program = marginal(handlers.scale(case.model, scale=2.5))
        near(density(program, case, case.typed()), 2.5 * oracle_evidence(case).sum())


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
    near(density(marginal(tempered), case, params), outside * wanted.sum())
    reader, _ = open_program(tempered, *case.arguments, structure=Structure.GENERAL)
    joint = jax.jit(lambda params: reader.log_joint(params, bits[:, None], case.arguments))(params)
    near(oracle.log_evidence(np.asarray(joint, float)), wanted)


def test_a_masked_row_counts_for_nothing():
    def program(data, rows, *, num_causes):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((4, 5)).to_event(2))
        with numpyro.plate("data", len(data)), handlers.mask(mask=rows):
            on = numpyro.sample("causes", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            numpyro.sample("observed", dist.Normal(on @ weights, 0.9).to_event(1), obs=data)

    case = CASES["sparse_coding"]
    rows = np.array([True, False, True, True, False, False, True])
    params = {"weights": case.typed()["weights"]}
    evidence = by_datum(marginal(program), params, case.arguments[0][0], rows, num_causes=4)
    near(evidence["observed"], np.where(rows, oracle_evidence(case), 0.0))


def test_a_minibatch_is_scaled(monkeypatch):
    """Seven rows of seventy; and a program that draws its rows itself, by its form in the bits."""
    case = CASES["sparse_coding"]
    wanted = 10.0 * oracle_evidence(case).sum()
    near(density(marginal(case.model), case, case.typed(), num_data=70), wanted)

    def draws_rows(data, *, num_causes, num_rows):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((4, 5)).to_event(2))
        with numpyro.plate("data", len(data), subsample_size=num_rows) as chosen:
            on = numpyro.sample("causes", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            noise = dist.Normal(on @ weights, 0.9).to_event(1)
            numpyro.sample("observed", noise, obs=jnp.asarray(data)[chosen])

    sizes = {"num_causes": 4, "num_rows": 3}
    monkeypatch.setattr(strategy, "cost", lambda *_: 0.0)  # so few states are none to save
    anatomy, form = inspect(draws_rows, (case.data,), sizes), Structure.SHARED
    found = strategy.make_plan(draws_rows, anatomy, True, AllStates(), form, (case.data,), sizes)
    assert found.bits is not None and found.bits.shared
    program = handlers.seed(marginal(draws_rows, structure=form), 3)
    fixed = handlers.substitute(program, data={"weights": case.typed()["weights"]})

    @jax.jit
    def run(data):
        trace = handlers.trace(fixed).get_trace(data, **sizes)
        site = trace["observed"]
        return trace["data"]["value"], site["fn"].log_prob(site["value"]), site["scale"]

    chosen, found, scale = run(case.data)
    near(found, oracle_evidence(case)[np.asarray(chosen)])
    assert scale == pytest.approx(NUM_DATA / 3)


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
    log_probs = by_datum(
        marginal(several_observed), params, case.arguments[0][0], count=count, num_causes=4
    )
    near(log_probs["observed"], oracle.log_evidence(table))
    both = oracle.log_evidence(table + second)
    near(log_probs["count"], both - oracle.log_evidence(table))


def test_simulation_follows_the_chain_rule():
    """The count that is simulated after the row belongs to the same causes."""
    params = {"weights": 8.0 * jnp.eye(4, 5)}

    @jax.jit
    def simulate(key):
        program = handlers.substitute(handlers.seed(marginal(several_observed), key), data=params)
        trace = handlers.trace(program).get_trace(None, num_causes=4)
        row, count = trace["observed"]["value"], trace["count"]["value"]
        return row, count, trace["count"]["fn"].log_prob(count)

    row, count, log_prob = simulate(random.key(0))
    # Causes eight deviations apart are read off the row; the count is then a known Poisson.
    rate = 1.0 + 2.0 * (np.asarray(row)[:, :4] > 4.0).sum(1)
    assert row.shape == (NUM_DATA, 5)
    assert count.shape == (NUM_DATA,)
    near(log_prob, dist.Poisson(rate).log_prob(count), 1e-4)


def test_a_handler_outside_may_condition_on_the_data():
    """Called without data, by a handler that gives the observed sites their values."""
    case = CASES["sparse_coding"]
    count = jnp.array([0, 3, 2, 5, 1, 7, 4])
    params, data = {"weights": case.typed()["weights"]}, case.arguments[0][0]
    program = handlers.condition(marginal(several_observed), {"observed": data, "count": count})
    outside, wanted = jax.jit(
        lambda p: (
            log_density(program, (None,), {"num_causes": 4}, p)[0],
            log_density(marginal(several_observed), (data,), {"num_causes": 4, "count": count}, p)[
                0
            ],
        )
    )(params)
    near(outside, wanted)


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
    evidence = by_datum(program, params, case.arguments[0][0])["observed"]
    near(evidence, wanted)
    draw = Predictive(marginal(nested, plate="data"), num_samples=2)
    drawn = jax.eval_shape(draw, random.key(0), jnp.zeros((3, 5)))
    assert drawn["weights"].shape == (2, 2, 5)


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
        values = [value(1.5, data), value(1.5, data[:2])]  # compiled twice
    states_of_one = [np.log(0.7) - 0.5 * data**2, np.log(0.3) - 0.5 * (data - 1.5) ** 2]
    wanted = np.logaddexp(*states_of_one).sum() - 0.5 * 1.5**2 - 2.0 * np.log(2.0 * np.pi)
    near(values[0], wanted)
    assert values[1] > values[0]


def test_vmap_over_parameters_and_states():
    case = CASES["sparse_coding"]
    args, kwargs = case.arguments
    program = marginal(case.model)
    factors = jnp.array([1.0, 0.5, -1.0])

    @jax.jit
    @jax.vmap
    def scaled(factor):
        params = {**case.typed(), "weights": factor * case.typed()["weights"]}
        return contribution(program, case, params)

    densities = scaled(factors)
    wanted = [
        oracle_evidence(case, {**case.params, "weights": float(k) * case.params["weights"]}).sum()
        for k in factors
    ]
    near(densities, wanted)

    def one(state):
        values = {"causes": state[None, None, :]}
        fixed = handlers.substitute(states(case.model, values), data=case.typed())
        trace = handlers.trace(fixed).get_trace(*args, **kwargs)
        names = ("causes", "observed")
        return sum(trace[n]["fn"].log_prob(trace[n]["value"]) for n in names)[0]

    table, bits = case.table()
    near(jax.jit(jax.vmap(one))(jnp.asarray(bits)), table)

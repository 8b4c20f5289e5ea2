"""Exact and truncated EM against the oracle's full tables, on every program of `small_programs`.

Tolerances: in float64 both sides compute one number, 1e-9 after sums and solves; in float32 a log
joint keeps about 1e-6 of its largest term, so that a sum over data keeps 1e-5.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from jax import random
from jax.extend.core import jaxprs_in_params
from small_programs import CASES, NUM_CAUSES, NUM_DATA, NUM_FEATURES, mixture_case

import inference.methods.em as em_module
from inference import (
    EM,
    AllStates,
    AtMost,
    Cut,
    DivergedError,
    Given,
    Persistent,
    ProgramError,
    Structure,
    TruncatedEM,
)
from inference.expectation import Candidates, best_bits
from inference.gradient import gradient_step
from inference.local import log_prior
from inference.methods.truncated import cut_weights
from inference.reader import open_program
from inference.rows import map_over_chunks
from inference.tables import Table
from inference.updates import SparseCodingUpdate, closed_form, truncation
from ppl_models import bernoulli_mixture, binary_sparse_coding
from ppl_models.data import bars

EXACT, ROUNDED = 1e-9, 1e-5
# Compiling is nearly all that these tests do; what they compile runs once, on a few numbers.
fast_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture
def double():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def close(found, wanted, tolerance=EXACT):
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale)


def falls(losses, tolerance=1e-5):
    """Never rises by more than rounding: `tolerance` of the loss itself, in float32."""
    losses = np.asarray(losses)
    assert np.isfinite(losses).all()
    assert (np.diff(losses) <= tolerance * np.abs(losses).max()).all(), losses
    assert losses[-1] < losses[0]


def reader_of(case, structure=None):
    args, kwargs = case.arguments
    return open_program(case.model, args, kwargs, structure=structure or case.structure)


def structures(case):
    """The form that was found, and those above it that hold as well."""
    order = [Structure.LINEAR, Structure.SHARED, Structure.PER_DATUM, Structure.GENERAL]
    return order[order.index(case.structure) :]


READ = [
    pytest.param(name, structure, id=f"{name}-{structure.name}")
    for name, case in CASES.items()
    for structure in structures(case)
]


def update_once(method, case, params=None):
    """Parameters and loss after one step from the case's own parameters."""
    args, kwargs = case.arguments
    state = method.init(random.key(0), *args, init_params=params or case.typed(), **kwargs)
    state, loss = fast_jit(lambda state, args: method.update(state, *args, **kwargs))(state, args)
    return method.get_params(state), loss


def fit(method, num_steps, case, init_params=None, key=1):
    """Parameters and losses of a run; `run` itself compiles longer, and has tests of its own."""
    args, kwargs = case.arguments
    state = method.init(random.key(key), *args, init_params=init_params, **kwargs)
    step = fast_jit(lambda state, args: method.update(state, *args, **kwargs))
    losses = []
    for _ in range(num_steps):
        state, loss = step(state, args)
        losses.append(float(loss))
    return method.get_params(state), losses


# The E-step.


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", CASES)
def test_structure_is_found(name):
    case = CASES[name]
    reader, _ = open_program(case.model, *case.arguments)
    assert reader.structure is case.structure


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("name", "structure"), READ)
def test_expectation_is_the_posterior(name, structure):
    """Evidence, mean and second moments: all states, and the candidates of the default ranking."""
    case = CASES[name]
    reader, _ = reader_of(case, structure)
    table, states = case.table()
    alone = np.array([table[states @ (1 << np.arange(4)) == 1 << h][0] for h in range(4)]).T
    kept = [oracle.candidate_states(scores, 3, 2) for scores in alone]
    weights = np.linspace(0.5, 2.0, NUM_DATA)

    @fast_jit
    def compute(params):
        out = []
        for sets in (Candidates(4, 4), Candidates(3, 2)):
            found = sets.expect(reader, params, case.arguments, None)
            out.append(
                (found.evidence, found.mean, found.second(jnp.asarray(weights)), found.best())
            )
        return out

    full, truncated = compute(case.typed())
    for found, wanted in ((full, table), (truncated, oracle.truncate_table(table, states, kept))):
        posterior = oracle.posterior_table(wanted)
        second = oracle.posterior_second_moments(posterior, states)
        close(found[0], oracle.log_evidence(wanted))
        close(found[1], oracle.posterior_mean(posterior, states))
        close(found[2], np.einsum("n,nhk->hk", weights, second))
        np.testing.assert_array_equal(found[3], states[wanted.argmax(0)])


@pytest.mark.usefixtures("double")
def test_candidates_by_the_papers_selection():
    case = CASES["sparse_coding"]

    def select(params, data, **_):
        weights = params["weights"]
        return data @ weights.T / jnp.sqrt((weights**2).sum(1))

    reader, _ = reader_of(case)
    found = Candidates(3, 2, select).expect(reader, case.typed(), case.arguments, None)
    table, states = case.table()
    scores = [oracle.selection_scores(case.params["weights"], datum) for datum in case.data]
    kept = [oracle.candidate_states(score, 3, 2) for score in scores]
    close(found.evidence, oracle.log_evidence(oracle.truncate_table(table, states, kept)))


def test_impossible_bits_are_chosen_once():
    """A score of minus infinity still ranks above a bit that was taken: no state counts twice."""
    scores = jnp.array([[-jnp.inf, 0.0, -jnp.inf, -jnp.inf], [-jnp.inf] * 4])
    chosen = np.sort(np.asarray(best_bits(scores, 3)), axis=1)
    assert all(len(set(row)) == 3 for row in chosen)


def test_bits_impossible_alone():
    """Causes that cannot explain a datum alone, but can together."""

    def both_needed(data, *, num_causes):
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            pairs = on[..., :-1] * on[..., 1:]
            chance = jnp.where(pairs > 0, 0.9, 0.0)
            numpyro.sample("seen", dist.Bernoulli(chance).to_event(1), obs=data)

    data = jnp.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    method = TruncatedEM(both_needed, max_active=2, num_candidates=3, keep=False)
    found = method.posterior({}, data, num_causes=4)
    # Of three candidates the first is a tie of impossible bits; the evidence is over distinct ones.
    assert np.isfinite(found.evidence[0])
    close(found.evidence[0], math.log(0.3**2 * 0.7**2 * 0.9), ROUNDED)


@pytest.mark.parametrize("kind", ["int", "float", "bool"])
def test_a_mask_that_rarely_changes_is_no_shared_form(kind):
    """One cell of one row in forty is missing; also where the mask is not of bools."""

    def program(data, seen, *, num_causes):
        weights = numpyro.sample(
            "weights", dist.Normal(0.0, 1.0).expand((num_causes, 3)).to_event(2)
        )
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            noise = dist.Normal(on @ weights, 1.0).mask(jnp.asarray(seen) > 0)
            numpyro.sample("observed", noise.to_event(1), obs=data)

    data = np.random.default_rng(0).normal(size=(40, 3))
    seen = np.ones((40, 3), kind)
    seen[7, 1] = 0
    reader, _ = open_program(program, (data, seen), {"num_causes": 2})
    assert reader.structure is Structure.PER_DATUM


def test_a_narrow_prior_does_not_make_a_program_quadratic():
    """Where all weights are tiny, any smooth function looks quadratic; elsewhere it is not."""

    def logistic(data, *, num_causes):
        narrow = dist.Normal(0.0, 0.01).expand((num_causes, data.shape[1]))
        weights = numpyro.sample("weights", narrow.to_event(2))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            numpyro.sample("bit", dist.Bernoulli(logits=on @ weights).to_event(1), obs=data)

    reader, _ = open_program(logistic, (jnp.ones((6, 3)),), {"num_causes": 2})
    assert reader.structure is Structure.GENERAL


def test_a_program_that_indexes_is_general():
    def lookup(data, *, num_causes):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand((2,)).to_event(1))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            numpyro.sample("observed", dist.Normal(level[on], 1.0).to_event(1), obs=data)

    data = np.random.default_rng(1).normal(size=(6, 2))
    reader, _ = open_program(lookup, (data,), {"num_causes": 2})
    assert reader.structure is Structure.GENERAL


def test_a_form_is_not_remembered_for_other_options():
    """A flag that changes the program is no array, but it changes the form."""

    def program(data, *, heavy):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((2, 3)).to_event(2))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(2, 0.3)).to_event(1))
            noise = dist.Cauchy if heavy else dist.Normal
            numpyro.sample("observed", noise(on @ weights, 1.0).to_event(1), obs=data)

    method, data = EM(program), jnp.asarray(np.random.default_rng(2).normal(size=(6, 3)))
    assert method._open((data,), {"heavy": False})[0].structure is Structure.SHARED
    assert method._open((data,), {"heavy": True})[0].structure is Structure.GENERAL


@pytest.mark.usefixtures("double")
def test_a_table_per_datum_goes_with_its_chunk():
    case = CASES["sparse_coding"]
    table, states = case.table()
    rng = np.random.default_rng(3)
    chosen = np.stack([rng.choice(16, 6, replace=False) for _ in range(NUM_DATA)], axis=1)
    wanted = np.take_along_axis(table, chosen, axis=0)
    args, kwargs = case.arguments
    for size in (None, 3):
        method = EM(case.model, Given(states[chosen]), chunk_size=size)
        found = method.posterior(case.typed(), *args, **kwargs)
        close(found.evidence, oracle.log_evidence(wanted))
        assert np.isnan(found.missed).all()
        new, loss = update_once(method, case)
        close(loss, -oracle.log_evidence(wanted).sum())
        assert np.isfinite(new["weights"]).all()


@pytest.mark.usefixtures("double")
def test_an_argument_as_long_as_a_chunk_is_no_row():
    """Rows are told by the length of the data, not by that of a chunk."""

    def program(data, gain):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((3, 4)).to_event(2))
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(3, 0.3)).to_event(1))
            mean = (on * gain) @ weights
            numpyro.sample("observed", dist.Normal(mean, 1.0).to_event(1), obs=data)

    rng = np.random.default_rng(4)
    data, gain = jnp.asarray(rng.normal(size=(7, 4))), jnp.array([1.0, 2.0, 0.5])
    params = {"weights": jnp.asarray(rng.normal(size=(3, 4)))}
    whole, chunked = (
        EM(program, chunk_size=size).posterior(params, data, gain).evidence for size in (None, 3)
    )
    close(chunked, whole)


# The M-step.


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["sparse_coding", "sparse_coding_masked", "mixture"])
def test_closed_forms_are_stationary(name):
    """The gradient of the program's own expected log joint is zero at the new parameters."""
    case = mixture_case() if name == "mixture" else CASES[name]
    args, kwargs = case.arguments
    new, _ = update_once(EM(case.model), case)
    reader, _ = open_program(case.model, args, kwargs, structure=Structure.GENERAL)
    states, probability = Table(AllStates()).expect(reader, case.typed(), (args, kwargs)).weighted()

    @fast_jit
    @jax.grad
    def slope(params):
        if "mixing" in params:  # stay on the simplex
            params = {**params, "mixing": params["mixing"] / params["mixing"].sum()}
        return jnp.sum(probability * reader.log_joint(params, states, (args, kwargs)))

    assert closed_form(case.model, kwargs) is not None
    for site, value in slope(new).items():
        # The mixture adds a millionth of a count, so that no probability is zero.
        np.testing.assert_allclose(
            value, 0.0, atol=1e-4 if name == "mixture" else 1e-7, err_msg=site
        )


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["sparse_coding", "sparse_coding_masked"])
@pytest.mark.parametrize("noise_at", ["new", "old"])
def test_sparse_coding_update(name, noise_at):
    """Equations (6)-(8), with the A/B correction of a truncation."""
    case = CASES[name]
    table, states = case.table()
    alone = np.array([table[states @ (1 << np.arange(4)) == 1 << h][0] for h in range(4)]).T
    kept = [oracle.candidate_states(scores, 3, 2) for scores in alone]
    truncated = oracle.truncate_table(table, states, kept)
    posterior = oracle.posterior_table(truncated)
    wanted = oracle.sparse_coding_m_step(
        posterior, states, case.data, 0.3, 2, mask=case.mask,
        noise_weights=case.params["weights"] if noise_at == "old" else None,
    )  # fmt: skip
    method = TruncatedEM(
        case.model, max_active=2, num_candidates=3, keep=False,
        m_step=SparseCodingUpdate(2, noise_at),
    )  # fmt: skip
    new, loss = update_once(method, case)
    for site, value in wanted.items():
        close(new[site], value, 1e-8)
    mass = oracle.active_mass(0.3, 4, 2)
    close(loss, -(oracle.log_evidence(truncated).sum() - NUM_DATA * math.log(mass)))


@pytest.mark.usefixtures("double")
def test_mixture_update():
    case = mixture_case()
    table = oracle.log_joint_table(
        case.log_joint, case.params, {"component": np.arange(3)}, case.data
    )
    posterior = oracle.posterior_table(table)
    new, loss = update_once(EM(case.model), case)
    close(loss, -oracle.log_evidence(table).sum())
    close(new["mixing"], posterior.mean(1))
    close(new["probs"], posterior @ case.data / posterior.sum(1)[:, None], 1e-5)
    # The states may come in any order: a component is what its value says.
    other, _ = update_once(EM(case.model, Given([[2], [0], [1]])), case)
    close(other["probs"], new["probs"])


@pytest.mark.usefixtures("double")
def test_truncation_of_the_prior():
    for sparsity, bits, active in ((0.2, 10, 3), (0.37, 5, 2), (0.1, 6, 6)):
        mass, first = truncation(jnp.array(sparsity), bits, active)
        close(mass, oracle.active_mass(sparsity, bits, active))
        close(first, oracle.expected_active_mass(sparsity, bits, active))


@pytest.mark.usefixtures("double")
def test_cut_keeps_the_best_explained():
    rng = np.random.default_rng(5)
    evidence, sparsity = rng.normal(size=40), 0.25
    mass = oracle.active_mass(sparsity, 6, 2)
    for step, share in ((3, 0.0), (4, 0.0), (7, 0.5), (10, 1.0), (30, 1.0)):
        found = cut_weights(Cut(4, 10), jnp.array(step), jnp.asarray(evidence), jnp.array(mass))
        cut = oracle.num_data_cut(40, sparsity, 6, 2)
        number = math.ceil(40 - share * (40 - cut))
        np.testing.assert_array_equal(np.flatnonzero(found), oracle.data_to_keep(evidence, number))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("size", [None, 3])
def test_cut_in_the_m_step(size):
    """From its end on, the M-step sees the N·A(π) rows of highest truncated evidence, only."""
    case = CASES["sparse_coding"]
    table, states = case.table()
    kept = [[s for s in states if s.sum() <= 1] for _ in case.data]
    truncated = oracle.truncate_table(table, states, kept)
    evidence = oracle.log_evidence(truncated)
    number = math.ceil(oracle.num_data_cut(NUM_DATA, 0.3, 4, 1))
    assert number < NUM_DATA
    chosen = oracle.data_to_keep(evidence, number)
    wanted = oracle.sparse_coding_sparsity(
        oracle.posterior_table(truncated), states, 0.3, 1, chosen
    )
    noise_step = {"sparsity": 0.0}
    method = TruncatedEM(
        case.model, max_active=1, num_candidates=2, keep=False, cut=Cut(-2, -1), chunk_size=size,
        parameter_noise=noise_step,
    )  # fmt: skip
    new, _ = update_once(method, case)
    close(new["sparsity"], wanted)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["noisy_or", "counts", "sparse_coding"])
def test_gradient_step_nears_the_maximum(name):
    """Many L-BFGS steps leave no slope; the default five already do most of the work."""
    case = CASES[name]
    args, kwargs = case.arguments
    reader, rows = reader_of(case)
    states, probability = Table(AllStates()).expect(reader, case.typed(), (args, kwargs)).weighted()

    def objective(params):
        fit = jnp.sum(probability * reader.log_joint(params, states, (args, kwargs)))
        return fit + log_prior(reader.model, reader.anatomy, params, rows.slice(0, 1))

    @fast_jit
    def climb(params, num_steps):
        return gradient_step(
            reader, params, rows, 4, jnp.ones(NUM_DATA), None, Candidates(4, 4).expect,
            prior=True, num_steps=num_steps,
        )  # fmt: skip

    start, few, many = case.typed(), climb(case.typed(), 5), climb(case.typed(), 80)
    values = [float(objective(params)) for params in (start, few, many)]
    assert values[0] < values[1] <= values[2] + 1e-9
    assert values[2] - values[1] < 0.3 * (values[2] - values[0])
    slopes = jax.grad(objective)(many)
    inside = {k: (many[k] > 1e-3) if name == "noisy_or" else np.True_ for k in many}
    for site, slope in slopes.items():
        np.testing.assert_allclose(np.where(inside[site], slope, 0.0), 0.0, atol=1e-2, err_msg=site)


# Runs.


RUNS = {
    "exact": lambda model: EM(model),
    "gradient": lambda model: EM(model, prior=True, gradient_steps=3),
    "keep": lambda model: TruncatedEM(model, max_active=2, num_candidates=3),
    "persistent": lambda model: TruncatedEM(model, persistent=Persistent(5, 4)),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sparse_coding", "exact"),
        ("sparse_coding", "gradient"),
        ("sparse_coding", "keep"),
        ("sparse_coding", "persistent"),
        ("sparse_coding_masked", "keep"),
        ("max_of_causes", "keep"),
        ("two_sites", "persistent"),
    ],
)
def test_loss_never_rises(name, kind):
    falls(fit(RUNS[kind](CASES[name].model), 12, CASES[name])[1])


def test_truncated_is_below_exact_and_equal_with_all_states():
    case = CASES["max_of_causes"]
    args, kwargs = case.arguments
    exact = EM(case.model).posterior(case.typed(), *args, **kwargs).evidence
    some = TruncatedEM(case.model, max_active=2, num_candidates=3)
    every = TruncatedEM(case.model, max_active=4, num_candidates=4)
    params = case.typed()
    below = some.posterior(params, *args, **kwargs).evidence
    assert (below <= exact + 1e-6 * np.abs(exact)).all()
    assert (below < exact - 1e-4).any()
    found = every.posterior(params, *args, **kwargs)
    close(found.evidence, exact, ROUNDED)
    np.testing.assert_array_equal(found.missed, 0.0)
    table, _ = case.table()
    close(exact, oracle.log_evidence(table), ROUNDED)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sparse_coding", "exact"),
        ("sparse_coding", "keep"),
        ("sparse_coding_masked", "keep"),
        ("noisy_or", "exact"),
    ],
)
def test_chunk_size_does_not_matter(name, kind):
    found = []
    for size in (None, 1, 3) if name == "sparse_coding" else (None, 3):
        method = RUNS[kind](CASES[name].model)
        method.chunk_size = size
        found.append(update_once(method, CASES[name])[0])
    for other in found[1:]:
        for site, value in found[0].items():
            # The noisy-OR's M-step is a search: its steps amplify the last digits.
            close(other[site], value, 2e-3 if name == "noisy_or" else 5e-5)


def test_chunk_size_does_not_matter_to_persistent_sets():
    """A chunk draws its own proposals, so that the expectation is compared and not the search."""
    case = CASES["noisy_or"]
    reader, rows = reader_of(case)
    sets = Persistent(5, 4)
    memory = sets.start(NUM_DATA, 4, random.key(0))

    def means(size):
        def mean(arguments, memory, _):
            return sets.expect(reader.at(size), case.typed(), arguments, memory).mean

        return map_over_chunks(mean, rows, size, memory)

    close(fast_jit(lambda: means(3))(), fast_jit(lambda: means(NUM_DATA))(), ROUNDED)


def test_vmap_over_keys_and_over_data():
    case = CASES["sparse_coding"]
    (data,), kwargs = case.arguments
    keys = random.split(random.key(2), 3)

    def once(method, key, data):
        state = method.init(key, data, **kwargs)
        state, loss = method.update(state, data, **kwargs)
        return loss + state.params["noise"]

    # A method that knows nothing yet finds the form inside the trace.
    many = fast_jit(jax.vmap(functools.partial(once, EM(case.model)), (0, None)))(keys, data)
    assert len(set(np.asarray(many).tolist())) == 3
    one = fast_jit(functools.partial(once, EM(case.model)))
    close(many, [one(key, data) for key in keys], ROUNDED)
    tables = jnp.stack([data, 2.0 * data, data - 1.0])
    many = fast_jit(jax.vmap(functools.partial(once, EM(case.model)), (None, 0)))(keys[0], tables)
    close(many, [one(keys[0], table) for table in tables], ROUNDED)


def test_a_run_can_be_resumed():
    case = CASES["sparse_coding"]
    args, kwargs = case.arguments
    method = TruncatedEM(
        case.model, max_active=2, num_candidates=3, parameter_noise={"weights": 0.1}
    )
    whole = method.run(random.key(3), 6, *args, **kwargs)
    half = method.run(random.key(3), 3, *args, **kwargs)
    rest = method.run(random.key(9), 3, *args, init_state=half.state, **kwargs)
    assert whole.reason == "all steps done"
    np.testing.assert_array_equal(np.concatenate([half.losses, rest.losses]), whole.losses)
    np.testing.assert_array_equal(rest.params["weights"], whole.params["weights"])


def test_tolerance_stops_a_run():
    case = CASES["sparse_coding"]
    args, kwargs = case.arguments
    run = EM(case.model).run(random.key(0), 400, *args, tolerance=1e-4, **kwargs)
    assert "1e-04" in run.reason or "0.0001" in run.reason
    assert 2 <= len(run.losses) < 400
    assert abs(run.losses[-1] - run.losses[-2]) <= 1e-4 * abs(run.losses[-1])


def test_divergence_gives_the_last_good_state():
    """The second update makes NaN, seen in the third loss; what comes back is the state before."""

    class Breaks(SparseCodingUpdate):
        def maximise(self, params, statistics):
            new = super().maximise(params, statistics)
            return {**new, "noise": jnp.where(params["noise"] == 7.0, jnp.nan, 7.0)}

    case = CASES["sparse_coding"]
    args, kwargs = case.arguments
    method = EM(case.model, m_step=Breaks())
    with pytest.raises(DivergedError, match=r"noise.* is not finite") as error:
        method.run(random.key(0), 10, *args, init_params=case.typed(), **kwargs)
    state = error.value.state
    assert float(state.params["noise"]) == 7.0
    assert np.isfinite(method.update(state, *args, **kwargs)[1])


def test_map_is_pulled_towards_the_prior():
    """A strong prior moves the estimate, and the loss has the prior's density in it."""
    case = CASES["sparse_coding"]
    narrow = {**case.kwargs, "prior_weights": dist.Normal(0.0, 0.1)}
    held = case._replace(kwargs=narrow)
    params, losses = fit(EM(case.model, prior=True), 15, held, case.typed())
    assert np.abs(params["weights"]).max() < 0.5 < np.abs(case.params["weights"]).max()
    table, _ = case.table()
    prior = dist.Normal(0.0, 0.1).log_prob(case.params["weights"]).sum()
    prior += dist.HalfNormal(10.0).log_prob(0.9)
    close(losses[0], -(oracle.log_evidence(table).sum() + prior), ROUNDED)


@pytest.mark.parametrize("kind", ["exact", "gradient", "truncated", "persistent"])
def test_bars_are_recovered(kind):
    """Every true bar has one learned field close to it, up to the order of the fields."""
    # So few bars an image that hardly any has more than the truncation's three.
    truth = bars(random.key(4), 400, size=3, active=1.2, noise=1.0)
    method = {
        "exact": EM(binary_sparse_coding),
        "gradient": EM(binary_sparse_coding, prior=True),
        # The few images with more than three bars would count as noise: the cut leaves them out.
        "truncated": TruncatedEM(
            binary_sparse_coding, max_active=3, num_candidates=5, cut=Cut(5, 15)
        ),
        "persistent": TruncatedEM(binary_sparse_coding, persistent=Persistent(12, 12)),
    }[kind]
    # Started near the truth: this is a test of the fixed point, not of the search for it.
    near = truth.weights[::-1] + 3.0 * random.normal(random.key(5), truth.weights.shape)
    start = {"weights": near, "noise": jnp.array(4.0), "sparsity": jnp.array(0.3)}
    case = CASES["sparse_coding"]._replace(data=truth.data, kwargs={"num_causes": 6})
    params, _ = fit(method, 30, case, start)
    distance = np.abs(params["weights"][:, None] - truth.weights[None]).max(-1)
    assert sorted(distance.argmin(1)) == list(range(6))
    # A pixel of a field is the mean of about 80 images: a standard error of 0.11, and of 54 pixels
    # the worst is within five.
    assert distance.min(1).max() < 0.55
    assert abs(float(params["noise"]) - 1.0) < 0.1
    assert abs(float(params["sparsity"]) - 0.2) < 0.05


# What the posterior says of itself.


def test_missed_mass_is_estimated():
    """Against the true missed mass by enumeration: within a few of its own standard errors."""
    case = CASES["max_of_causes"]
    args, kwargs = case.arguments
    method = TruncatedEM(case.model, max_active=1, num_candidates=1)
    found = method.posterior(case.typed(), *args, num_draws=4000, **kwargs)
    table, states = case.table()
    small = np.where(states.sum(1)[:, None] <= 1, table, -np.inf)
    close(found.evidence, oracle.log_evidence(small), ROUNDED)
    true = 1.0 - np.exp(oracle.log_evidence(small) - oracle.log_evidence(table))
    assert true.max() > 0.4
    error = np.abs(np.asarray(found.missed) - true)
    assert (error <= 5.0 * np.asarray(found.missed_error) + 1e-3).all()
    assert (np.asarray(found.missed_error) < 0.1).all()


def overlapping():
    """Causes that share one strong direction: alone, each looks as good as any other."""
    rng = np.random.default_rng(8)
    num_causes, columns = 8, 6
    weights = 3.0 + rng.normal(0.0, 1.0, (num_causes, columns))
    causes = np.zeros((NUM_DATA, num_causes))
    for n in range(NUM_DATA):
        causes[n, rng.choice(num_causes, 4, replace=False)] = 1.0
    params = {"weights": weights, "noise": 0.5, "sparsity": 0.5}
    return params, causes @ weights + rng.normal(0.0, 0.5, (NUM_DATA, columns))


def test_persistent_sets_find_what_candidates_miss():
    params, data = overlapping()
    params = {name: jnp.asarray(value, float) for name, value in params.items()}
    data = jnp.asarray(data)
    exact = EM(binary_sparse_coding).posterior(params, data, num_causes=8)
    narrow = TruncatedEM(binary_sparse_coding, max_active=4, num_candidates=5)
    # As many states as the candidates have: 31 of five bits with at most four on, and 8 alone.
    lists = TruncatedEM(binary_sparse_coding, persistent=Persistent(narrow.sets.num_states(8), 32))
    chosen, found = (
        method.posterior(params, data, num_causes=8, num_draws=64) for method in (narrow, lists)
    )
    assert (np.asarray(exact.evidence - found.evidence) >= -1e-3).all()
    assert np.max(exact.evidence - found.evidence) < 0.05
    assert np.max(exact.evidence - chosen.evidence) > 1.0
    np.testing.assert_array_equal(found.best, exact.best)


# Errors, before any work.


def no_plate(data, *, num_causes):
    numpyro.sample("on", dist.Bernoulli(jnp.full((len(data), num_causes), 0.3)).to_event(2))
    numpyro.sample("y", dist.Normal(0.0, 1.0).expand(data.shape).to_event(2), obs=data)


def fixed_plate(data, *, num_causes):
    with numpyro.plate("data", NUM_DATA):
        on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
        numpyro.sample("y", dist.Normal(on.sum(-1), 1.0), obs=data[:NUM_DATA, 0])


def global_bit(data, *, num_causes):
    switch = numpyro.sample("switch", dist.Bernoulli(0.5))
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
        numpyro.sample("y", dist.Normal(on.sum(-1) + switch, 1.0), obs=data[:, 0])


def bernoulli_product_of_causes(data, *, num_causes):
    with numpyro.plate("data", len(data)):
        on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
        logits = jnp.broadcast_to(on.sum(-1, keepdims=True), (*on.shape[:-1], data.shape[1]))
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=data)


DATA = np.ones((NUM_DATA, NUM_FEATURES))
HOLE = np.where(np.arange(NUM_FEATURES) == 2, np.nan, DATA)
BAD = {
    "nan": (EM(binary_sparse_coding), HOLE, r"argument 1 holds nan at index \(0, 2\)"),
    "not_binary": (EM(bernoulli_product_of_causes), 2.0 * DATA, r"given 2.0.*support: 0 and 1"),
    "empty": (EM(binary_sparse_coding), DATA[:0], "argument 1 is empty"),
    "no_plate": (EM(no_plate), DATA, "no numpyro.plate"),
    "fixed_plate": (EM(fixed_plate), DATA, "take its size from the data"),
    "global_bit": (EM(global_bit), DATA, "'switch' is discrete and outside the plate"),
    "too_active": (
        TruncatedEM(binary_sparse_coding, max_active=3, num_candidates=2), DATA, "max_active is 3",
    ),
    "too_many_candidates": (
        TruncatedEM(binary_sparse_coding, num_candidates=9), DATA, "num_candidates is 9",
    ),
    "too_many_lists": (
        TruncatedEM(binary_sparse_coding, persistent=Persistent(17)), DATA, "17 states were asked",
    ),
    "noise_on_nothing": (
        TruncatedEM(binary_sparse_coding, max_active=2, num_candidates=2,
                    parameter_noise={"wieghts": 1.0}),
        DATA, "no parameter 'wieghts'",
    ),
    "chunk": (EM(binary_sparse_coding, chunk_size=0), DATA, "chunk_size must be at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors_come_first(name):
    method, data, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        method.run(random.key(0), 3, data, num_causes=NUM_CAUSES)


def test_categories_need_a_table():
    with pytest.raises(ProgramError, match="not binary: use EM"):
        TruncatedEM(bernoulli_mixture).init(random.key(0), DATA, num_components=3)


def test_too_many_states():
    with pytest.raises(ProgramError, match="too many to hold"):
        EM(binary_sparse_coding).init(random.key(0), DATA, num_causes=40)
    with pytest.raises(ProgramError, match="lower max_active"):
        EM(binary_sparse_coding, AtMost(20)).init(random.key(0), DATA, num_causes=40)


def test_starting_values_are_checked():
    method = EM(binary_sparse_coding)
    with pytest.raises(ValueError, match=r"no parameter \['wieghts'\]"):
        method.init(random.key(0), DATA, init_params={"wieghts": 1.0}, num_causes=2)
    wrong = {"weights": np.ones((NUM_FEATURES, 2))}
    with pytest.raises(ValueError, match=r"'weights' has shape \(5, 2\).* has \(2, 5\)"):
        method.init(random.key(0), DATA, init_params=wrong, num_causes=2)
    given = {"noise": 0.25}
    state = method.init(random.key(0), DATA, init_params=given, num_causes=2)
    assert float(state.params["noise"]) == 0.25
    assert state.params["weights"].shape == (2, NUM_FEATURES)


def test_steps_are_counted():
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        EM(binary_sparse_coding).run(random.key(0), 0, DATA, num_causes=2)


# Memory.


@pytest.mark.parametrize("name", ["sparse_coding", "sparse_coding_masked"])
@pytest.mark.parametrize("prior", [False, True], ids=["closed", "gradient"])
def test_quadratic_programs_hold_nothing_by_states_and_features(name, prior, monkeypatch):
    """No array of a step is as large as data × states × features.

    A Hessian per datum has no sums that an M-step by gradients could use: there the program runs on
    its states, in chunks that keep to the limit.
    """
    monkeypatch.setattr(em_module, "CHUNK_FLOATS", 40_000)
    num_data, num_causes, num_features = 50, 6, 40
    data = jnp.ones((num_data, num_features))
    kwargs = {"num_causes": num_causes}
    structure = CASES[name].structure
    if name == "sparse_coding_masked":
        kwargs["mask"] = jnp.ones((num_data, num_features), bool)
    method = EM(binary_sparse_coding, prior=prior, structure=structure)
    params = {"weights": jnp.ones((num_causes, num_features)), "noise": 1.0, "sparsity": 0.2}
    state = method.init(random.key(0), data, init_params=params, **kwargs)
    jaxpr = jax.make_jaxpr(lambda state: method.update(state, data, **kwargs))(state)
    largest = max(size for size in sizes(jaxpr.jaxpr))
    assert largest < num_data * 2**num_causes * num_features / 4


def sizes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (v.aval.size for v in equation.outvars if hasattr(v.aval, "size"))
        for inner in jaxprs_in_params(equation.params):
            yield from sizes(inner)


def test_chunks_count_the_runs_of_the_program():
    """A Hessian per datum takes a run per bit: the chunk must be smaller by as much."""
    case = CASES["sparse_coding_masked"]
    reader, rows = reader_of(case)
    width = 2 * NUM_FEATURES + NUM_CAUSES
    before = em_module.CHUNK_FLOATS
    em_module.CHUNK_FLOATS = 2 * (16 + width * (1 + NUM_CAUSES))
    try:
        assert em_module.chunk_rows(None, reader, 16, rows) == 2
        shared = reader._replace(structure=Structure.SHARED)
        assert em_module.chunk_rows(None, shared, 16, rows) == 5
        assert em_module.chunk_rows(None, shared, 16, rows, num_runs=100) == 1
    finally:
        em_module.CHUNK_FLOATS = before

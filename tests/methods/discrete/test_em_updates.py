"""The M-steps: closed forms against the oracle and as stationary points, and gradient steps."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from small_programs import CASES, NUM_DATA, mixture_case
from tools import close, in_double, reader_of, update_once

from inference import (
    EM,
    AllStates,
    Cut,
    Given,
    Structure,
    TruncatedEM,
)
from inference.evaluation.symmetry import Exchange, symmetries
from inference.methods.discrete.candidates import Candidates
from inference.methods.discrete.tables import Table
from inference.methods.discrete.truncated import kth_smallest
from inference.methods.discrete.updates import SparseCodingUpdate, closed_form, truncation
from inference.methods.m_step import gradient_step
from inference.methods.shared import Chunk
from inference.reading.log_joint import log_shared
from inference.reading.reader import open_program


@in_double
@pytest.mark.parametrize("name", ["own_priors", "sparse_coding_masked", "mixture"])
def test_closed_forms_are_stationary(name):
    """The gradient of the program's own expected log joint is zero at the new parameters."""
    own = CASES["sparse_coding"]
    own = own._replace(
        params=own.params | {"sparsity": np.array([0.3, 0.1, 0.6, 0.4])},
        kwargs=own.kwargs | {"shared_sparsity": False},
    )
    case = {**CASES, "mixture": mixture_case(), "own_priors": own}[name]
    args, kwargs = case.arguments
    new, _ = update_once(EM(case.model, chunk_size=3), case)
    reader, _ = open_program(case.model, args, kwargs, structure=Structure.GENERAL)

    @jax.jit
    def posterior(params):
        return Table(AllStates()).expect(Chunk(reader, params, (args, kwargs))).weighted()

    states, probability = posterior(case.typed())

    @jax.jit
    @jax.grad
    def slope(params):
        if "mixing" in params:  # stay on the simplex
            params = {**params, "mixing": params["mixing"] / params["mixing"].sum()}
        return jnp.sum(probability * reader.log_joint(params, states, (args, kwargs)))

    update = closed_form(*open_program(case.model, args, kwargs))
    if name == "own_priors":
        assert symmetries(update.known) == (Exchange((("weights", 0), ("sparsity", 0))),)
    for site, value in slope(new).items():
        # The mixture adds a millionth of a count, so that no probability is zero.
        np.testing.assert_allclose(
            value, 0.0, atol=1e-4 if name == "mixture" else 1e-7, err_msg=site
        )


@in_double
@pytest.mark.parametrize(
    ("name", "noise_at"), [("sparse_coding", "old"), ("sparse_coding_masked", "new")]
)
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
        case.model, max_active=2, num_candidates=3, keep=False, chunk_size=3,
        m_step=SparseCodingUpdate(2, noise_at),
    )  # fmt: skip
    new, loss = update_once(method, case)
    for site, value in wanted.items():
        close(new[site], value, 1e-8)
    mass = oracle.active_mass(0.3, 4, 2)
    close(loss, -(oracle.log_evidence(truncated).sum() - NUM_DATA * math.log(mass)))


@in_double
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


@in_double
def test_truncation_of_the_prior():
    for sparsity, bits, active in ((0.2, 10, 3), (0.37, 5, 2), (0.1, 6, 6)):
        mass, first = jax.jit(truncation, static_argnums=(1, 2))(sparsity, bits, active)
        close(mass, oracle.active_mass(sparsity, bits, active))
        close(first, oracle.expected_active_mass(sparsity, bits, active))


def test_cut_keeps_the_best_explained():
    rng = np.random.default_rng(5)
    evidence, sparsity = rng.normal(size=40).astype(np.float32), 0.25
    mass, fresh = oracle.active_mass(sparsity, 6, 2), jnp.ones(40)
    least = jax.jit(lambda e, rank: kth_smallest(lambda count: count(e, fresh), rank))
    for step, share in ((3, 0.0), (4, 0.0), (7, 0.5), (10, 1.0), (30, 1.0)):
        cut = oracle.num_data_cut(40, sparsity, 6, 2)
        number = math.ceil(40 - share * (40 - cut))
        assert Cut(4, 10).num_kept(jnp.array(step), 40, jnp.array(mass)) == number
        chosen = np.flatnonzero(evidence >= least(evidence, 40 - number))
        np.testing.assert_array_equal(chosen, oracle.data_to_keep(evidence, number))
    # Ties, an infinity, and values that agree in the upper half of their bits.
    evidence[7], evidence[8:11] = np.inf, evidence[3]
    evidence[20:] = evidence[20] * (1 + np.arange(20) * np.float32(1e-6))
    ranked = [least(evidence, rank) for rank in range(40)]
    np.testing.assert_array_equal(ranked, np.sort(evidence))


@in_double
def test_cut_in_the_m_step():
    """From its end on, the M-step sees the N·A(π) rows of highest truncated evidence, only; they
    are found over chunks."""
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
        case.model, max_active=1, num_candidates=2, keep=False, cut=Cut(-2, -1), chunk_size=3,
        parameter_noise=noise_step,
    )  # fmt: skip
    new, _ = update_once(method, case)
    close(new["sparsity"], wanted)


@in_double
def test_gradient_step_nears_the_maximum():
    """Many L-BFGS steps leave no slope, also where rows count for less than one; the default five
    already do most of the work."""
    case = CASES["noisy_or"]
    args, kwargs = case.arguments
    reader, rows = reader_of(case)
    states, probability = jax.jit(
        lambda params: Table(AllStates()).expect(Chunk(reader, params, (args, kwargs))).weighted()
    )(case.typed())
    weight = jnp.where(jnp.arange(NUM_DATA) == 1, 0.5, 1.0)

    @jax.jit
    @jax.value_and_grad
    def objective(params):
        fit = jnp.sum(weight * probability * reader.log_joint(params, states, (args, kwargs)))
        return fit + log_shared(reader.model, reader.anatomy, params, rows)

    @jax.jit
    def climb(params, num_steps):
        def expect(arguments, weight):
            here = Chunk(reader.at(4), params, arguments)
            return Candidates(4, 4).expect(here)._replace(weight=weight)

        return gradient_step(
            reader, params, rows, 4, weight, expect, prior=True, num_steps=num_steps
        )

    start, few, many = case.typed(), climb(case.typed(), 5), climb(case.typed(), 80)
    (*values,), (*_, slopes) = zip(*map(objective, (start, few, many)), strict=True)
    assert values[0] < values[1] <= values[2] + 1e-9
    assert values[2] - values[1] < 0.3 * (values[2] - values[0])
    for site, slope in slopes.items():
        inside = many[site] > 1e-3
        np.testing.assert_allclose(np.where(inside, slope, 0.0), 0.0, atol=1e-2, err_msg=site)

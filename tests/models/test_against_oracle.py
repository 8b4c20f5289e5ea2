"""Every program's log joint, value and gradient, against the oracle's loops.

One row of ``CASES`` is one program at one size: what its parameters, latents and data are drawn
from, and the oracle's function. A program's first row is read in float32 and float64, with and
without a mask, with and without a candidate axis; its other rows, which try the edges, with both.
The examples are random and asymmetric: a symmetric one cannot show a sign error.

Tolerances: in float64 both sides compute the same number, so 1e-12; in float32 a log density keeps
1e-5 of its largest term. Gradients are held to the oracle's central differences, whose own error is
step² |f'''| / 6 + 1e-16 |f| / step, at most about 1e-8 for these sizes with a step of 1e-5.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import oracle
import pytest
from numpyro import handlers

import ppl_models

NUM_DATA, NUM_FEATURES, NUM_CANDIDATES = 4, 5, 3


class Case(NamedTuple):
    """A program at one size. ``latents`` and ``data`` draw with any leading shape before (N, ...).

    ``simplex`` names parameters whose derivative only means something along the simplex,
    ``continuous`` latents that have one; ``relative_step`` is for parameters close to a pole.
    """

    program: str
    log_joint: Callable
    parameters: Callable[[np.random.Generator], dict]
    latents: Callable[[np.random.Generator, tuple], dict]
    data: Callable[[np.random.Generator, tuple], np.ndarray]
    arguments: dict[str, Any]
    options: dict[str, Any]
    simplex: tuple = ()
    continuous: tuple = ()
    observed: tuple = ("observed",)
    relative_step: bool = False


def bits(rng, shape, probability=0.5):
    return (rng.random(shape) < probability).astype(np.float64)


def binary_data(rng, shape):
    return bits(rng, (*shape, NUM_FEATURES), [0.2, 0.8, 0.5, 0.4, 0.7])


def real_data(rng, shape):
    return rng.normal(0.4, 2.0, (*shape, NUM_FEATURES))


def sparse_coding(num_causes, scale):
    return Case(
        "binary_sparse_coding",
        oracle.log_joint_binary_sparse_coding,
        lambda rng: {
            "weights": rng.normal(0.3, scale, (num_causes, NUM_FEATURES)),
            "noise": rng.uniform(0.5, 1.5),
            "sparsity": rng.uniform(0.1, 0.4),
        },
        lambda rng, shape: {"causes": bits(rng, (*shape, num_causes), 0.4)},
        real_data,
        {"num_causes": num_causes},
        {},
    )


def maximal_causes(num_causes, scale):
    option = {"superposition": "max"}
    case = sparse_coding(num_causes, scale)
    return case._replace(arguments={**case.arguments, **option}, options=option)


def strong_causes(num_causes, scale, laplace):
    case = sparse_coding(num_causes, scale)
    other = {"spike": False, "slab": dist.Laplace(0.0, 1.0)} if laplace else {}

    def parameters(rng):
        params = case.parameters(rng)
        return {x: v for x, v in params.items() if not (laplace and x == "sparsity")}

    def latents(rng, shape):
        strengths = {"strengths": rng.normal(0.2, 1.5, (*shape, num_causes))}
        return strengths | ({} if laplace else case.latents(rng, shape))

    return case._replace(
        program="sparse_coding", log_joint=oracle.log_joint_sparse_coding, parameters=parameters,
        latents=latents, arguments={**case.arguments, **other}, options={"laplace": laplace},
        continuous=("strengths",),
    )  # fmt: skip


def factor_program(program, log_joint, num_factors, scale, arguments, options):
    return Case(
        program,
        log_joint,
        lambda rng: {
            "weights": rng.normal(0.2, scale, (num_factors, NUM_FEATURES)),
            "bias": rng.normal(-0.4, scale, NUM_FEATURES),
        },
        lambda rng, shape: {"factors": rng.normal(0.0, 1.0, (*shape, num_factors))},
        binary_data,
        {"num_factors": num_factors, **arguments},
        options,
        continuous=("factors",),
    )


def latent_trait(num_factors, scale):
    log_joint = oracle.log_joint_latent_trait
    return factor_program("latent_trait", log_joint, num_factors, scale, {}, {})


def guessing(num_factors, scale):
    case = latent_trait(num_factors, scale)
    return case._replace(
        parameters=lambda rng: {
            **case.parameters(rng),
            "guessing": rng.uniform(0.1, 0.4, NUM_FEATURES),
        },
        arguments={**case.arguments, "guessing": True},
    )


def clipped_gaussian(num_factors, scale, **noise):
    log_joint = oracle.log_joint_clipped_gaussian
    return factor_program("clipped_gaussian", log_joint, num_factors, scale, noise, noise)


def combination_machine(program, log_joint, data, num_causes, scale):
    return Case(
        program,
        log_joint,
        lambda rng: {
            "weights": rng.normal(0.1, scale, (num_causes, NUM_FEATURES)),
            "bias": rng.normal(-0.5, scale, num_causes),
        },
        lambda rng, shape: {"causes": bits(rng, (*shape, num_causes), 0.6)},
        data,
        {"num_causes": num_causes},
        {},
    )


def binary_machine(num_causes, scale):
    log_joint = oracle.log_joint_combination_machine
    return combination_machine("combination_machine", log_joint, binary_data, num_causes, scale)


def real_machine(num_causes, scale):
    log_joint = oracle.log_joint_real_combination_machine
    return combination_machine("real_combination_machine", log_joint, real_data, num_causes, scale)


def bernoulli_mixture(num_components):
    return Case(
        "bernoulli_mixture",
        oracle.log_joint_bernoulli_mixture,
        lambda rng: {
            "mixing": rng.dirichlet(np.full(num_components, 2.0)),
            "probs": rng.uniform(0.05, 0.95, (num_components, NUM_FEATURES)),
        },
        lambda rng, shape: {"component": rng.integers(0, num_components, shape)},
        binary_data,
        {"num_components": num_components},
        {},
        simplex=("mixing",),
    )


def noisy_or_network(layers, leak):
    sizes = (NUM_FEATURES, *layers)

    def parameters(rng):
        sites = {f"leak_{level}": rng.uniform(*leak, size) for level, size in enumerate(sizes)}
        for level in range(1, len(sizes)):
            sites[f"weights_{level}"] = rng.gamma(1.0, 1.0, (sizes[level], sizes[level - 1]))
        return sites

    def latents(rng, shape):
        return {
            f"layer_{level}": bits(rng, (*shape, sizes[level]), 0.4)
            for level in range(1, len(sizes))
        }

    return Case(
        "noisy_or_network",
        oracle.log_joint_noisy_or_network,
        parameters,
        latents,
        binary_data,
        {"layers": layers},
        {},
    )


def mixed_trait(kinds, num_factors, observed):
    num_reals = kinds.count("real")
    num_predictors = sum(kind - 1 if isinstance(kind, int) else 1 for kind in kinds)

    def parameters(rng):
        sites = {
            "weights": rng.normal(0.2, 1.2, (num_factors, num_predictors)),
            "bias": rng.normal(-0.4, 1.0, num_predictors),
        }
        return {**sites, "noise": rng.uniform(0.5, 1.5, num_reals)} if num_reals else sites

    def data(rng, shape):
        draws = {"real": lambda: rng.normal(0.4, 2.0, shape), "binary": lambda: bits(rng, shape)}
        columns = [
            draws[kind]() if kind in draws else rng.integers(0, kind, shape).astype(float)
            for kind in kinds
        ]
        return np.stack(columns, axis=-1)

    return Case(
        "mixed_trait",
        oracle.log_joint_mixed_trait,
        parameters,
        lambda rng, shape: {"factors": rng.normal(0.0, 1.0, (*shape, num_factors))},
        data,
        {"kinds": kinds, "num_factors": num_factors},
        {"kinds": kinds},
        continuous=("factors",),
        observed=observed,
    )


def graded_trait(levels, num_factors):
    numbers = sorted(set(levels))
    return Case(
        "graded_trait",
        oracle.log_joint_graded_trait,
        lambda rng: {
            "weights": rng.normal(0.2, 1.2, (num_factors, len(levels))),
            **{
                f"cutpoints_{k}": np.sort(rng.normal(0.3, 1.5, (levels.count(k), k - 1)))
                for k in numbers
            },
        },
        lambda rng, shape: {"factors": rng.normal(0.0, 1.0, (*shape, num_factors))},
        lambda rng, shape: rng.integers(0, levels, (*shape, len(levels))).astype(float),
        {"levels": levels, "num_factors": num_factors},
        {"levels": levels},
        continuous=("factors",),
        observed=tuple(f"observed_{k}" for k in numbers),
    )


def categorical_mixture(levels, num_components):
    numbers = sorted(set(levels))
    probs = {f"probs_{k}": (num_components, levels.count(k)) for k in numbers}
    return Case(
        "categorical_mixture",
        oracle.log_joint_categorical_mixture,
        lambda rng: {
            "mixing": rng.dirichlet(np.full(num_components, 3.0)),
            **{name: rng.dirichlet(np.ones(int(name[6:])), shape) for name, shape in probs.items()},
        },
        lambda rng, shape: {"component": rng.integers(0, num_components, shape)},
        lambda rng, shape: rng.integers(0, levels, (*shape, len(levels))).astype(float),
        {"levels": levels, "num_components": num_components},
        {"levels": levels},
        simplex=("mixing", *probs),
        observed=tuple(f"observed_{k}" for k in numbers),
    )


def trait_mixture(num_components, num_factors):
    sizes = {"num_components": num_components, "num_factors": num_factors}
    return Case(
        "trait_mixture",
        oracle.log_joint_trait_mixture,
        lambda rng: {
            "mixing": rng.dirichlet(np.full(num_components, 3.0)),
            "weights": rng.normal(0.2, 1.2, (num_components, num_factors, NUM_FEATURES)),
            "bias": rng.normal(-0.4, 1.2, (num_components, NUM_FEATURES)),
        },
        lambda rng, shape: {
            "component": rng.integers(0, num_components, shape),
            "factors": rng.normal(0.0, 1.0, (*shape, num_factors)),
        },
        binary_data,
        sizes,
        {},
        simplex=("mixing",),
        continuous=("factors",),
    )


CASES = {
    "sparse_coding": sparse_coding(3, 2.0),
    "sparse_coding_one_cause": sparse_coding(1, 2.0),
    "maximal_causes": maximal_causes(3, 2.0),
    "spike_and_slab": strong_causes(3, 2.0, laplace=False),
    "laplace": strong_causes(2, 2.0, laplace=True),
    "latent_trait": latent_trait(2, 1.2),
    "latent_trait_guessing": guessing(1, 1.2),
    "latent_trait_saturated": latent_trait(3, 40.0),
    # Columns of one kind apart from each other, larger numbers of levels before smaller ones.
    "mixed_trait": mixed_trait(
        ("real", 4, "binary", 3, "binary", "real", 4),
        2,
        ("observed_real", "observed_binary", "observed_3", "observed_4"),
    ),
    "trait_mixture": trait_mixture(3, 2),
    "graded_trait": graded_trait((4, 2, 3, 4), 2),
    "categorical_mixture": categorical_mixture((4, 2, 3, 4), 3),
    "clipped_gaussian": clipped_gaussian(2, 1.2),
    # The small deviations reach far into the tails, where Φ itself is zero in float32.
    "clipped_gaussian_noise_by_column": clipped_gaussian(
        3, 1.5, noise=np.array([0.6, 0.08, 0.9, 2.0, 0.15])
    ),
    "combination_machine": binary_machine(3, 0.8),
    # log cosh of these inputs is fine, their cosh is over the largest float32.
    "combination_machine_strong": binary_machine(3, 60.0),
    "real_combination_machine": real_machine(3, 0.8),
    "bernoulli_mixture": bernoulli_mixture(3),
    "bernoulli_product": Case(
        "bernoulli_product",
        oracle.log_joint_bernoulli_product,
        lambda rng: {"probs": rng.uniform(0.05, 0.95, NUM_FEATURES)},
        lambda rng, shape: {},  # noqa: ARG005
        binary_data,
        {},
        {},
    ),
    "noisy_or": noisy_or_network((3, 2), (0.1, 0.8)),
    "noisy_or_one_layer": noisy_or_network((3,), (0.1, 0.8)),
    "noisy_or_three_layers": noisy_or_network((4, 3, 2), (0.1, 0.8)),
    # 1 − exp(−u) in float32 has no digits left at u = 1e-7, −expm1(−u) has all.
    "noisy_or_faint": noisy_or_network((3,), (1e-7, 1e-5))._replace(relative_step=True),
}

PRECISIONS = {"float32": 1e-5, "float64": 1e-12}
# In float64 what is left is the differences' error; in float32 the program's own rounding.
GRADIENT_TOLERANCE = {"float32": 1e-4, "float64": 1e-6}


def readings():
    """(row, masked, candidates, precision): plainest and fullest of a program's first row in
    double precision, of others the fullest; that one in single precision too."""
    chosen, programs = [], set()
    for name, case in CASES.items():
        chosen += [
            (name, *pair, "float64")
            for pair in ([(False, False)] if case.program not in programs else []) + [(True, True)]
        ]
        chosen.append((name, True, True, "float32"))
        programs.add(case.program)
    return [
        pytest.param(
            name,
            masked,
            candidates,
            precision,
            id=f"{name}-{'masked' if masked else 'complete'}-{'many' if candidates else 'one'}"
            f"-{precision}",
        )
        for name, masked, candidates, precision in chosen
    ]


@pytest.fixture(params=list(PRECISIONS))
def precision(request):
    """The name of the precision, set for JAX as a whole while the test runs."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param == "float64")
    yield request.param
    jax.config.update("jax_enable_x64", before)


def program_log_joint(case, sites, data, mask):
    """Sum of the log probabilities of the sites inside the plate "data": one number a datum."""
    model = functools.partial(getattr(ppl_models, case.program), mask=mask, **case.arguments)
    fixed = handlers.substitute(handlers.seed(model, 0), data=sites)
    trace = handlers.trace(fixed).get_trace(data)
    names = {name for name, site in trace.items() if site["type"] == "sample"}
    assert names == {*case.observed, *sites}
    total = 0.0
    for site in trace.values():
        if site["type"] == "sample" and any(f.name == "data" for f in site["cond_indep_stack"]):
            total = total + site["fn"].log_prob(site["value"])
    return total


def draw(case, masked, candidates, precision):
    """Parameters, latents, data and mask, in float64 but of numbers that the precision holds."""
    rng = np.random.default_rng([ord(letter) for letter in case.program])
    parameters = case.parameters(rng)
    shape = (NUM_CANDIDATES, NUM_DATA) if candidates else (NUM_DATA,)
    latents = case.latents(rng, shape)
    data = case.data(rng, (NUM_DATA,))
    mask = rng.random(data.shape) < 0.7 if masked else None
    if masked:
        mask[0] = False  # a row without any answer
        data = np.where(mask, data, 0.0)

    def rounded(value):
        value = np.asarray(value)
        return value if value.dtype.kind == "i" else value.astype(precision).astype(np.float64)

    parameters = {name: rounded(value) for name, value in parameters.items()}
    latents = {name: rounded(value) for name, value in latents.items()}
    return parameters, latents, rounded(data), mask


def oracle_log_joint(case, sites, latents, data, mask, candidates):
    if candidates and latents:
        return oracle.log_joint_candidates(
            case.log_joint, sites, latents, data, mask, **case.options
        )
    return case.log_joint(sites, data, mask, **case.options)


def along_simplex(slopes, axis):
    return slopes - slopes.mean(axis=axis, keepdims=True)


def typed(values, precision):
    """As JAX arrays of the precision; integers as they are."""
    return {
        name: jnp.asarray(value, dtype=None if value.dtype.kind == "i" else precision)
        for name, value in values.items()
    }


def value_and_jacobian(function, point):
    """The value and, for each of its entries in turn, the slopes in every site."""

    # Compiling is nearly all that this file does; nothing here is worth optimising.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def pull(at, row):
        value, pullback = jax.vjp(function, at)
        return value, pullback(row)[0]

    shape = jax.eval_shape(function, point)
    rows = np.eye(shape.size, dtype=shape.dtype).reshape(shape.size, *shape.shape)
    slopes = []
    for row in rows:
        value, slope = pull(point, row)
        slopes.append(slope)
    jacobian = {
        name: np.array([slope[name] for slope in slopes]).reshape(*value.shape, *at.shape)
        for name, at in point.items()
    }
    return value, jacobian


def test_components_of_a_trait_mixture_may_have_states_where_positions_have_none():
    """As where components are summed out and NUTS moves the positions."""
    case = CASES["trait_mixture"]
    parameters, latents, data, _ = draw(case, False, False, "float32")
    sites = typed({**parameters, **latents, "component": np.arange(3)[:, None]}, "float32")
    found = jax.jit(lambda sites: program_log_joint(case, sites, data, None))(sites)
    for k in range(3):
        one = {**parameters, **latents, "component": np.full(NUM_DATA, k)}
        np.testing.assert_allclose(found[k], case.log_joint(one, data), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "masked", "candidates", "precision"), readings(), indirect=["precision"]
)
def test_log_joint_and_gradient(name, masked, candidates, precision):
    case = CASES[name]
    parameters, latents, data, mask = draw(case, masked, candidates, precision)

    fixed = {key: value for key, value in latents.items() if key not in case.continuous}
    moving = {**parameters, **{key: latents[key] for key in case.continuous}}
    states, observed = typed(fixed, precision), jnp.asarray(data, dtype=precision)

    def program(moved):
        return program_log_joint(case, {**states, **moved}, observed, mask)

    def loops(moved):
        sites = {**fixed, **moved}
        return oracle_log_joint(case, sites, list(latents), data, mask, candidates)

    log_joint, jacobian = value_and_jacobian(program, typed(moving, precision))
    wanted = loops(moving)
    assert log_joint.shape == wanted.shape
    assert log_joint.dtype == precision
    tolerance = PRECISIONS[precision]
    np.testing.assert_allclose(log_joint, wanted, rtol=tolerance, atol=tolerance)

    tolerance = GRADIENT_TOLERANCE[precision]
    for site, slope in oracle.finite_difference(loops, moving, relative=case.relative_step).items():
        dimensions = moving[site].ndim
        slope = np.moveaxis(slope, range(dimensions), range(-dimensions, 0))
        program_slope = np.asarray(jacobian[site])
        if site in case.simplex:
            slope, program_slope = along_simplex(slope, -1), along_simplex(program_slope, -1)
        scale = max(1.0, np.abs(slope).max())
        np.testing.assert_allclose(
            program_slope, slope, rtol=tolerance, atol=tolerance * scale, err_msg=site
        )


@pytest.mark.parametrize("noise", [0.0, np.array([0.0, 0.7, 0.0, 0.0, 1.2])], ids=["all", "some"])
def test_hard_clip(noise, precision):
    """Without noise a bit is certain: zero or −inf, and where it is zero the slopes are finite."""
    case = clipped_gaussian(2, 1.2, noise=noise)
    parameters, latents, data, mask = draw(case, True, False, precision)
    clear = parameters["bias"] + latents["factors"] @ parameters["weights"]
    data = np.where(mask, clear > 0.0, 0.0)
    wrong = int(np.argmax(mask[-1] & (np.broadcast_to(noise, (NUM_FEATURES,)) == 0.0)))
    data[-1, wrong] = 1.0 - data[-1, wrong]

    def program(moved):
        return program_log_joint(case, moved, jnp.asarray(data, dtype=precision), mask)

    def loops(moved):
        return case.log_joint(moved, data, mask, **case.options)

    sites = {**parameters, **latents}
    log_joint, jacobian = value_and_jacobian(program, typed(sites, precision))
    wanted = loops(sites)
    assert np.isneginf(wanted).tolist() == [False, False, False, True]
    np.testing.assert_allclose(log_joint, wanted, rtol=PRECISIONS[precision])
    # Differences of the impossible row would be inf − inf, and say nothing.
    data, mask = data[:-1], mask[:-1]
    sites["factors"] = sites["factors"][:-1]
    tolerance = GRADIENT_TOLERANCE[precision]
    for site, slope in oracle.finite_difference(loops, sites).items():
        program_slope = jacobian[site][:-1]
        if site == "factors":
            program_slope = program_slope[:, :-1]
        slope = np.moveaxis(slope, -1, 0)
        np.testing.assert_allclose(
            program_slope, slope, rtol=tolerance, atol=tolerance, err_msg=site
        )

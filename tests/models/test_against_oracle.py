"""Every program's log joint, value and gradient, against the oracle's loops.

One row of ``CASES`` is one program at one size: what its parameters, latents and data are drawn
from, and the oracle's function. Each is read in float64 with a mask and a candidate axis, and in
float32; there a program's first row without both, its other rows, which try the edges, with both.
The examples are random and asymmetric: a symmetric one cannot show a sign error.

Tolerances: in float64 both sides compute the same number, so 1e-12; in float32 a log density keeps
1e-5 of its largest term. Gradients are held to the oracle's central differences, whose own error is
step² |f'''| / 6 + 1e-16 |f| / step, at most about 1e-8 for these sizes with a step of 1e-5.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from numpyro import handlers
from program_cases import CASES, NUM_CANDIDATES, NUM_DATA, NUM_FEATURES, clipped_gaussian

import ppl_models

PRECISIONS = {"float32": 1e-5, "float64": 1e-12}
# In float64 what is left is the differences' error; in float32 the program's own rounding.
GRADIENT_TOLERANCE = {"float32": 1e-4, "float64": 1e-6}


def readings():
    """(row, masked, candidates, precision): all rows with both in double precision; the first of a
    program plainly in single precision, its others, which try the edges, with both."""
    chosen, programs = [], set()
    for name, case in CASES.items():
        plain = case.program not in programs
        programs.add(case.program)
        chosen += [(name, True, True, "float64"), (name, not plain, not plain, "float32")]
    return [
        pytest.param(*one, id="-".join([one[0], "masked" if one[1] else "plain", one[3]]))
        for one in chosen
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

    @jax.jit
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

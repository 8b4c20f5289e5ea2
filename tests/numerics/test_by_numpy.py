"""What is computed by NumPy is what JAX computes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from scipy import special
from tools import close, fast_jit, in_double

from inference.numerics.by_numpy import by_numpy
from inference.numerics.starting import Starter

X = np.random.default_rng(0).normal(size=(3, 4))
WHOLE = np.array([-7, 2, 5])


def everything(x, whole):
    """Operations of programs and their derivatives, inner computations among them."""
    which = jnp.array([2, 0, 9])  # the last is outside
    yield x[:, which[:2]], x[which[:2], :2], jnp.take_along_axis(x, which[:2, None], 0)
    yield jnp.take(x, which, 0, mode="fill"), jnp.take(x, which, 0, mode="clip")
    yield jax.vmap(lambda row, i: row[i])(x, which), lax.dynamic_slice(x, (1, 2), (2, 1))
    yield jnp.einsum("nd,kd->nk", x, x), jnp.einsum("nd,nk->ndk", x, x), x @ x.T, whole @ x
    yield lax.div(whole, jnp.array([2, -2, 3])), whole % 3, whole**2, lax.rem(whole, 3)
    yield x[::-1], jnp.cumsum(x, 1), lax.cumsum(x, 0, reverse=True), jnp.pad(x, 1), x.T[1:, ::2]
    yield lax.scan(lambda s, row: (s + row.sum(), s * row), 1.0, x, reverse=True)
    yield lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, x))
    yield lax.cond(x[0, 0] > 9, jnp.sin, jnp.cos, x), jnp.clip(x, -0.5, 0.5), x > 0, ~(x > 0)
    yield jax.nn.logsumexp(x, 0), jax.scipy.special.ndtr(x), jax.nn.softplus(x), jnp.sort(x, 1)
    yield jax.hessian(lambda y: jax.nn.log_sigmoid(y).sum() + lax.lgamma(y**2).sum())(x[0])
    yield jax.hessian(lambda y: (y[:3] ** whole).sum())(x[0])  # the slope of a whole number is none
    yield jnp.where(whole > 0, jnp.inf, 0.0), jnp.log(x), jnp.argmax(x), jnp.split(x, 2, 1)
    yield jnp.stack([x, -x], 1), lax.pad(x, 0.0, ((-1, 2, 1), (1, -2, 0))), x.at[which].add(2.0)
    yield jax.grad(lambda y: jax.vmap(lambda row, i: row[i])(y, which % 4).sum())(x)
    yield lax.select_n(which % 3, whole, 2 * whole, 3 * whole), jnp.float32(x), jnp.sign(x)


@in_double
def test_numbers_are_those_of_jax():
    run = by_numpy(lambda *given: list(everything(*given)), X, WHOLE)
    # Nothing stood in its way.
    assert not any(isinstance(x, jax.Array) for x in jax.tree.leaves(run(X, WHOLE)))
    wanted = fast_jit(lambda *given: list(everything(*given)))(X, WHOLE)
    for given, value in zip(jax.tree.leaves(run(X, WHOLE)), jax.tree.leaves(wanted), strict=True):
        assert given.shape == value.shape and given.dtype == value.dtype
        value = np.asarray(value)
        np.testing.assert_array_equal(np.isfinite(given), np.isfinite(value))
        close(np.nan_to_num(given, posinf=1, neginf=2), np.nan_to_num(value, posinf=1, neginf=2))


def test_draws_are_uniform_differ_from_key_to_key_and_are_the_same_again():
    def draw(seed):
        keys = random.split(random.fold_in(random.key(seed), 3), 2)
        return jax.vmap(lambda key: random.uniform(key, (2000,)))(keys), random.normal(keys[0])

    run = by_numpy(draw, np.int32(0))
    (first, second), normal = run(np.int32(1))
    # A mean of 2000 has a standard error of 0.0065, a correlation of 0.022.
    assert abs(first.mean() - 0.5) < 0.03 and abs(np.corrcoef(first, second)[0, 1]) < 0.1
    np.testing.assert_array_equal(run(np.int32(1))[0], [first, second])
    assert normal != run(np.int32(2))[1] and np.isfinite(normal)


def test_gammas_are_drawn_from_keys_of_either_kind():
    """Of a shape so small that most draws are zero in float32, and of a larger one."""
    shapes = np.repeat([[0.01], [3.0]], 2000, 1)

    def draw(key, shapes):
        return random.loggamma(key, shapes), random.gamma(random.split(key)[1], shapes)

    for key in (random.key(1), random.PRNGKey(1)):
        run = by_numpy(draw, key, shapes)
        logs, plain = run(key, shapes)
        assert not isinstance(logs, jax.Array)
        # Mean and variance of a log are the first two derivatives of log Γ.
        error = np.sqrt(special.polygamma(1, shapes[:, 0]) / 2000)
        assert (np.abs(logs.mean(1) - special.digamma(shapes[:, 0])) < 4 * error).all()
        assert abs(plain[1].mean() - 3.0) < 4 * np.sqrt(3 / 2000)
        np.testing.assert_array_equal(run(key, shapes)[0], logs)


def test_what_numpy_does_not_do_is_compiled():
    split = jax.vmap(lambda key: random.uniform(random.split(key)[0]))
    keys = random.split(random.key(0), 3)
    np.testing.assert_allclose(by_numpy(split, keys)(keys), split(keys), rtol=1e-6)


def test_long_loops_are_compiled():
    def add(length):
        inner = lambda x: lax.scan(lambda s, _: (s + 1.0, None), x, None, length=length)[0]  # noqa: E731
        return lambda x: lax.scan(lambda s, _: (inner(s), None), x, None, length=100)[0]

    for length, compiled in ((1, False), (10_000, True)):
        run = by_numpy(add(length), np.float32(0))
        total = run(np.float32(0))
        assert isinstance(total, jax.Array) == compiled and total == 100 * length


def start(keys, x, which):
    """What starts do, as `vmap` leaves it: loops of several lengths, and derivatives."""

    def one(key, x, which):
        def longer(carry):
            return carry[0] + 1, random.split(carry[1])[0]

        key, other = random.split(random.fold_in(key, 5))
        count, key = lax.while_loop(lambda c: c[0] < which, longer, (0, key))
        slope = jax.grad(lambda x: jnp.sum(x[which] ** 2) + jnp.cumprod(x[0])[-1])(x)
        draws = random.uniform(other, (3,)), random.normal(key, (2, 2))
        return key, count, slope, draws, random.bernoulli(key, 0.3, (4,)), jnp.tile(x[0], 2)

    return jax.vmap(one, in_axes=(0, None, 0))(keys, x, which)


def test_a_start_by_numpy_is_the_one_that_is_compiled():
    x, which = X.astype(np.float32), np.array([2, 0, 1])
    starter = Starter(start, random.split(random.key(0), 3), x, which)
    assert starter.compiled is None
    for seed in range(6):
        keys = random.split(random.key(seed), 3)
        begin = starter.ready()
        if seed < 4:
            assert starter.compiled is None
        wanted = fast_jit(start)(keys, x, which)
        for given, value in zip(
            jax.tree.leaves(begin(keys, x, which)), jax.tree.leaves(wanted), strict=True
        ):
            assert given.shape == value.shape and given.dtype == value.dtype
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                given, value = random.key_data(given), random.key_data(value)
            np.testing.assert_allclose(given, value, rtol=1e-6, atol=1e-6)
    assert starter.compiled is not None  # by now that is sooner done

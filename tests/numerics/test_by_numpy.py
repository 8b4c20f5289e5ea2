"""What is computed by NumPy is what JAX computes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from tools import close, fast_jit, in_double

from inference.numerics.by_numpy import by_numpy

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
    yield lax.select_n(which % 3, whole, 2 * whole, 3 * whole), jnp.float32(x), jnp.sign(x)


@in_double
def test_numbers_are_those_of_jax():
    run = by_numpy(lambda *given: list(everything(*given)), X, WHOLE)
    assert not hasattr(run, "cost_analysis")  # nothing stood in its way
    wanted = fast_jit(lambda *given: list(everything(*given)))(X, WHOLE)
    for found, value in zip(jax.tree.leaves(run(X, WHOLE)), jax.tree.leaves(wanted), strict=True):
        assert found.shape == value.shape and found.dtype == value.dtype
        value = np.asarray(value)
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(value))
        close(np.nan_to_num(found, posinf=1, neginf=2), np.nan_to_num(value, posinf=1, neginf=2))


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


def test_a_generator_that_numpy_does_not_have_is_compiled():
    run = by_numpy(lambda seed: random.gamma(random.key(seed), 2.0, (3,)), np.int32(0))
    np.testing.assert_allclose(run(np.int32(4)), random.gamma(random.key(4), 2.0, (3,)), rtol=1e-5)

"""Flips of bits chosen by the gradient of the log joint, in place of one bit after the other.

What a flip of bit h gains is about g_h = (1 − 2 s_h) ∂ log p(y, s) / ∂ s_h: one gradient says it of
all bits of all rows. Proposals that follow its root are balanced (Zanella 2020): they are accepted
as often as the gains are exact. A row accepts or refuses on its own (Metropolis–Hastings), so that
the posterior is left as it is, whatever the gradient says.

A gradient knows no curvature, and a basis function of sparse coding has much: a flip in the wrong
direction gains −‖w_h‖²/2σ² less than its slope. Where the second derivative of a bit is a number
that hangs neither on the row nor on the state, as in every log joint that is quadratic with one
Hessian for all rows, half of it is added, and the gains are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.nn import log_sigmoid, log_softmax

from ...reading.anatomy import Anatomy, ProgramError
from ...reading.arguments import rows_of
from ...reading.handlers import tempered
from ...reading.log_joint import linear_part, row_function
from ...types import Arguments, Params
from .flips import BitProgram, Score, Sweep, open_bits
from .kernel import LatentGibbs
from .latents import open_latents


class GradientFlips(LatentGibbs):
    r"""Locally informed flips of the bits of each row; a block wherever `LatentGibbs` is one.

    Without `step_size`, Gibbs with gradients (Grathwohl, Swersky, Hashemi, Duvenaud & Maddison,
    ICML 2021): one bit is proposed at a time, as many times a sweep as a row has bits,

    .. math:: q(h \mid s) = \frac{\exp(g_h(s) / 2)}{\sum_k \exp(g_k(s) / 2)} .

    With it, the discrete Langevin proposal (Zhang, Liu & Liu, ICML 2022) with step size α: every
    bit is flipped or not on its own, once a sweep, which takes a single gradient,

    .. math:: q(\text{flip } h \mid s) = \sigma\Big(\frac{g_h(s)}{2} - \frac{1}{2 \alpha}\Big) .

    In the state ``largest_flip`` is the largest probability with which a row accepted.

    :param model: any program whose latents are bits of the rows of one plate, and whose log joint
        can be differentiated with respect to them. Parameters must be fixed
        (``numpyro.handlers.condition``) or left to another block.
    :param sweeps: between two draws.
    :param step_size: α; larger flips more bits at once, and is refused more often.
    :param annealing: as for `LatentGibbs`, and so is `restarts`.

    >>> from numpyro.handlers import condition
    >>> from numpyro.infer import MCMC
    >>> from latentbits.models import binary_sparse_coding
    >>> params = {"weights": jnp.eye(2, 3), "noise": 0.5, "sparsity": 0.3}
    >>> kernel = GradientFlips(condition(binary_sparse_coding, data=params))
    >>> mcmc = MCMC(kernel, num_warmup=10, num_samples=20, progress_bar=False)
    >>> mcmc.run(random.key(0), jnp.array([[1.1, 0.0, 0.2]]), num_causes=2)
    >>> mcmc.get_samples()["causes"].shape
    (20, 1, 2)
    """

    why_not_compared = (
        "LatentGibbs is there for both: `latentbits bench --only flips` tells them apart"
    )

    def __init__(
        self,
        model: Callable,
        *,
        sweeps: int = 1,
        step_size: float | None = None,
        annealing: int = 0,
        restarts: int = 1,
        plate: str | None = None,
    ):
        super().__init__(model, sweeps=sweeps, annealing=annealing, restarts=restarts, plate=plate)
        if step_size is not None and not step_size > 0:
            raise ValueError(f"step_size must be positive, found {step_size}")
        self.step_size = step_size

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        other = [x.name for x in anatomy.latents if not x.binary]
        return f"{other[0]} is not binary" if other else super().admits(anatomy)

    def _open(self, args: tuple, kwargs: dict[str, Any] | None) -> BitProgram:
        if open_latents(self._model, args, kwargs or {}, self.plate) is not None:
            raise ProgramError(
                "GradientFlips flips bits that belong to the rows of one plate, and the latents of "
                "this program are others: use LatentGibbs"
            )
        program = open_bits(self._model, args, kwargs or {}, plate=self.plate, by_network=False)
        return program._replace(by=partial(by_gradient, self.step_size))


class _At(NamedTuple):
    """Where a row stands."""

    bits: Array  # (n, bits), 0 and 1 as real numbers
    value: Array  # (n,) the log joint
    gains: Array  # (n, bits) about what each flip adds to it


def by_gradient(
    step_size: float | None, program: BitProgram, params: Params, arguments: Arguments
) -> tuple[Sweep, Score]:
    """How to sweep through the bits of these rows, and what states are worth."""
    anatomy = program.anatomy
    propose = _one_flip if step_size is None else partial(_any_flips, step_size)
    count = anatomy.num_bits if step_size is None else 1

    def function(power: Array | float) -> Callable[[Array], Array]:
        warm = tempered(program.model, anatomy.observed, power)
        return row_function(warm, anatomy, params, arguments)

    def draw(key: Array, bits: Array, power: Array | float) -> tuple[Array, Array]:
        rows, bend = function(power), curvature(program, params, arguments, power)

        def at(bits: Array) -> _At:
            value, slope = linear_part(rows, bits)
            gains = (1.0 - 2.0 * bits) * slope + 0.5 * bend
            # An impossible state has no slope: any bit may lead out of it.
            gains = jnp.clip(jnp.nan_to_num(gains, nan=0.0), -1e6, 1e6)
            return _At(bits, jnp.where(jnp.isnan(value), -jnp.inf, value), gains)

        def move(i: Array, carry: tuple[_At, Array]) -> tuple[_At, Array]:
            old, largest = carry
            key_flip, key_accept = random.split(random.fold_in(key, i))
            flips, forth = propose(key_flip, old.gains)
            new = at(jnp.where(flips, 1.0 - old.bits, old.bits))
            back = propose(key_flip, new.gains, flips)[1]
            odds = new.value - old.value + back - forth
            odds = jnp.where(jnp.isneginf(old.value) & jnp.isneginf(new.value), 0.0, odds)
            accept = jnp.log(random.uniform(key_accept, odds.shape)) < odds
            keep = lambda a, b: jnp.where(accept.reshape(-1, *[1] * (a.ndim - 1)), a, b)  # noqa: E731
            largest = jnp.maximum(largest, jnp.exp(jnp.minimum(odds, 0.0)))
            return jax.tree.map(keep, new, old), largest

        start = at(bits.astype(float)), jnp.zeros(anatomy.num_data)
        end, largest = lax.fori_loop(0, count, move, start)
        return end.bits.astype(bits.dtype), largest

    return draw, lambda bits, power: function(power)(bits.astype(float))


def _one_flip(key: Array, gains: Array, flips: Array | None = None) -> tuple[Array, Array]:
    """One bit of each row, (n, bits), and its log probability; `flips` if they are given."""
    log_probs = log_softmax(0.5 * gains)
    if flips is None:
        chosen = random.categorical(key, log_probs)
        flips = jnp.arange(gains.shape[1]) == chosen[:, None]
    return flips, jnp.where(flips, log_probs, 0.0).sum(1)


def _any_flips(
    step_size: float, key: Array, gains: Array, flips: Array | None = None
) -> tuple[Array, Array]:
    """Bits of each row, each for itself, and the log probability of them all."""
    logits = 0.5 * gains - 0.5 / step_size
    if flips is None:
        flips = random.uniform(key, logits.shape) < jax.nn.sigmoid(logits)
    return flips, jnp.where(flips, log_sigmoid(logits), log_sigmoid(-logits)).sum(1)


def curvature(
    program: BitProgram, params: Params, arguments: Arguments, power: Array | float
) -> Array:
    """The second derivative of each bit, (bits,), where it is one number; zero elsewhere.

    It is read off the first and the last row at two points. It does not hang on where a chain
    stands, so that a proposal that uses it is one like any other.
    """
    anatomy = program.anatomy
    rows, one = rows_of(anatomy, *arguments), anatomy.with_rows(1)
    model = tempered(program.model, anatomy.observed, power)

    def read(first: int, point: float) -> Array:
        function = row_function(model, one, params, rows.slice(first, 1))
        total = lambda x: function(x[None])[0]  # noqa: E731
        place = jnp.full(anatomy.num_bits, point)
        # Along each bit alone: the mixed derivatives are not wanted.
        along = lambda e: jax.jvp(jax.grad(total), (place,), (e,))[1] @ e  # noqa: E731
        return jax.vmap(along)(jnp.eye(anatomy.num_bits, dtype=place.dtype))

    second = jnp.stack([read(0, 0.3), read(rows.num_data - 1, 0.8)])
    gap = jnp.abs(second[0] - second[1]).max()
    return jnp.where(gap <= 1e-3 * jnp.abs(second).max(), second[0], 0.0)

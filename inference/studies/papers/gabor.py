"""Gabor functions fitted to basis functions, all at once.

    g(u, v) = exp(−u²/2a² − v²/2b²) · {c cos 2πfu + d sin 2πfu},    (u, v) turned by an angle

Amplitude and phase enter linearly (c, d) and are solved for; centre, angle, widths and frequency
are found by least squares from several starts. Ringach (2002) describes simple cells by the widths
in periods, n_u = a·f and n_v = b·f: Gabor-like fields have stripes, globular ones lie near zero.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

# Share of a function's variance that its fit must explain before it is called anything at all.
WELL_FITTED = 0.6
# Less than a quarter of a period under one standard deviation of the envelope: no second lobe.
QUARTER = 0.25


class GaborFit(NamedTuple):
    """The best fit of each function, (num_functions,) each."""

    explained: Array  # share of the squared values that the fit explains
    width: Array  # a, across the stripes, in pixels
    length: Array  # b, along the stripes
    frequency: Array  # f, in periods a pixel
    even: Array  # share of the fit that is its cosine part: 1 for a bar, 0 for an edge
    fitted: Array  # (num_functions, side, side)

    @property
    def well(self) -> Array:
        return self.explained >= WELL_FITTED

    @property
    def globular(self) -> Array:
        """Well fitted by one round lobe inside the patch.

        Under a quarter period across and even (the odd part has two lobes at any frequency),
        neither side twice the other, no wider than a third of the patch.
        """
        ratio = self.length / self.width
        is_round = (ratio > 0.5) & (ratio < 2.0)
        inside = jnp.maximum(self.width, self.length) < self.fitted.shape[-1] / 3
        single = (self.width * self.frequency < QUARTER) & (self.even > 0.8)
        return self.well & single & is_round & inside

    @property
    def gabor(self) -> Array:
        """Well fitted with stripes or an edge: a quarter period across at least, or odd."""
        return self.well & ((self.width * self.frequency >= QUARTER) | (self.even < 0.5))


def fit_gabors(functions: Array, num_steps: int = 50) -> GaborFit:
    """Fit a Gabor function to each of (num_functions, side, side).

    >>> y, x = np.mgrid[:9, :9] - 4.0
    >>> wave = np.exp(-(x**2 + y**2) / 8.0) * np.cos(2.0 * x)
    >>> blob = np.exp(-(x**2 + y**2) / 8.0)
    >>> fit = fit_gabors(jnp.asarray(np.stack([wave, blob])))
    >>> fit.gabor.tolist(), fit.globular.tolist()
    ([True, False], [False, True])
    """
    side = functions.shape[-1]
    rows, columns = np.mgrid[:side, :side].reshape(2, -1)
    unit = functions.reshape(len(functions), -1)
    unit = unit / jnp.maximum(jnp.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    angles = np.linspace(0.0, np.pi, 8, endpoint=False)
    grid = [(a, f, w) for a in angles for f in (0.04, 0.1, 0.2) for w in (side / 14, side / 7)]
    starts = jnp.asarray(grid)

    def basis(free: Array) -> Array:
        """Envelope times cosine and sine, orthonormal: (2, pixels)."""
        x, y, angle, width, length, frequency = free
        across = (columns - x) * jnp.cos(angle) + (rows - y) * jnp.sin(angle)
        along = -(columns - x) * jnp.sin(angle) + (rows - y) * jnp.cos(angle)
        envelope = jnp.exp(
            -0.5 * (across / jnp.exp(width)) ** 2 - 0.5 * (along / jnp.exp(length)) ** 2
        )
        phase = 2 * jnp.pi * jnp.exp(frequency) * across
        even = envelope * jnp.cos(phase)
        even = even / jnp.sqrt(even @ even + 1e-12)
        odd = envelope * jnp.sin(phase)
        odd = odd - (odd @ even) * even
        return jnp.stack([even, odd / jnp.sqrt(odd @ odd + 1e-12)])

    def residual(free: Array, target: Array) -> Array:
        """What the fit leaves over, and how far a width or the frequency is out of its range."""
        shape = basis(free)
        too_small = jax.nn.relu(jnp.log(0.5) - free[3:5])  # half a pixel at least
        too_large = jax.nn.relu(free[3:5] - jnp.log(side))
        too_fast = jax.nn.relu(free[5:] - jnp.log(0.5))  # a period has two pixels at least
        left = target - (shape @ target) @ shape
        return jnp.concatenate([left, too_small, too_large, too_fast])

    def cost(free: Array, target: Array) -> Array:
        return jnp.sum(residual(free, target) ** 2)

    def descend(free: Array, target: Array) -> tuple[Array, Array]:
        """Levenberg and Marquardt's compromise between Newton and gradient."""

        def step(carry: tuple, _: None) -> tuple[tuple, None]:
            free, damping = carry
            slope = jax.jacfwd(residual)(free, target)
            square = slope.T @ slope
            bent = square + damping * jnp.diag(jnp.diagonal(square) + 1e-6)
            new = free - jnp.linalg.solve(bent, slope.T @ residual(free, target))
            better = cost(new, target) < cost(free, target)
            damping = jnp.clip(jnp.where(better, 0.3, 4.0) * damping, 1e-6, 1e6)
            return (jnp.where(better, new, free), damping), None

        (free, _), _ = lax.scan(step, (free, jnp.asarray(0.1)), None, length=num_steps)
        return free, cost(free, target)

    def one(target: Array) -> tuple[Array, Array, Array, Array]:
        energy = target**2
        x, y = energy @ columns, energy @ rows

        def begin(start: Array) -> Array:
            angle, frequency, width = start
            return jnp.stack([x, y, angle, jnp.log(width), jnp.log(width), jnp.log(frequency)])

        candidates = jax.vmap(begin)(starts)
        first = jax.vmap(lambda free: cost(free, target))(candidates)
        # The four most promising starts are followed to their end.
        promising = candidates[jnp.argsort(first)[:4]]
        free, left = jax.vmap(lambda f: descend(f, target))(promising)
        best = jnp.argmin(jnp.where(jnp.isfinite(left), left, jnp.inf))
        shape = basis(free[best])
        amplitude = shape @ target
        explained = amplitude @ amplitude
        return free[best], explained, amplitude[0] ** 2 / (explained + 1e-12), amplitude @ shape

    free, explained, even, fitted = jax.jit(lambda u: lax.map(one, u, batch_size=64))(unit)
    width, length, frequency = (jnp.exp(free[:, i]) for i in (3, 4, 5))
    return GaborFit(explained, width, length, frequency, even, fitted.reshape(-1, side, side))

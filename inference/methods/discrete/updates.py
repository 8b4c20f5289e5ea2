"""M-steps: the papers' closed forms, one per program, each with its equation number.

A closed form is two pure functions: `statistics` of a chunk's posterior, which add up over chunks
and devices, and `maximise`, which turns their sums into parameters. Each is tested as a stationary
point of the program's own expected log joint, and serves every program of its form. A program
without one gets `methods.m_step`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from jax.scipy.special import gammaln, logsumexp

from ...reading.anatomy import ProgramError
from ...reading.reader import Reader
from ...reading.recognition.papers import Form, Known, Seen, recognise
from ...reading.tracing import innermost, run_abstractly
from ...rows.chunks import Rows, over_rows
from ...types import Arguments, Params
from ..shared import Expectation


class ClosedForm(Protocol):
    """An M-step that needs sums over the data only."""

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        """Sums over a chunk, row n counted `weights[n]` times."""

    def maximise(self, params: Params, statistics: Any) -> Params:
        """The new parameters, from the sums over all chunks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """A closed form by the names of our program, for any program of the same form.

    :param known: where the program at hand has what; `of` finds it.
    """

    form: ClassVar[Form]
    known: Known | None = None
    model: Callable | None = None

    def of(self, reader: Reader, rows: Rows) -> Self:
        """The same for the program at hand; refused if that is of another form."""
        known = recognise(reader.model, reader.anatomy, rows, [self.form])
        if known is None:
            raise ProgramError(
                f"{type(self).__name__} is for programs of the form of {self.form.value}, and this "
                "one is not: leave m_step= out, or pass one of your own"
            )
        return dataclasses.replace(self, known=known, model=reader.model)

    def seen(self, arguments: Arguments) -> Seen:
        """What was observed in a chunk."""
        assert self.known is not None and self.model is not None
        return self.known.seen(self.model, arguments)

    def read(self, params: Params) -> Params:
        """The parameters by the names of our program."""
        return params if self.known is None else self.known.read(params)

    def write(self, values: Params) -> Params:
        """The parameters of the program at hand."""
        return values if self.known is None else self.known.write(values)


SMALLEST = 1e-37
LEAST, MOST = 1e-9, 1.0 - 1e-6
"""Of a cause's strength f: neither end has a way back."""


@dataclasses.dataclass(frozen=True)
class NoisyOrUpdate(Update):
    r"""Noisy-OR networks, equation (9) of Lewicki & Sejnowski (1996), for any posterior of states.

    A unit that is on was turned on by at least one of its active causes. Which of them succeeded is
    a further hidden variable: an active cause i of unit j succeeds with probability
    :math:`f_{ij} = 1 - e^{-w_{ij}}`, and with :math:`f_{ij} / h(u_j)` given that the unit is on. So
    (9),

    .. math:: f_{ij} \leftarrow \frac{\langle \sum_n S_i S_j f_{ij} / h(u_j) \rangle
                                            + (\alpha - 1) f_{ij} / w_{ij}}
                                     {\langle \sum_n S_i \rangle + \beta} ,

    is EM in that larger space: exact there for a Gamma(1, β) prior of the weights, or without one
    (α = 1, β = 0), and nearly so for α > 1, since f/w hardly changes in a step. It raises the
    expected log joint of the program at every step, though it does not go to its maximum at once,
    and it rests where the slope of the expected log joint is zero.

    :param params: those of the posterior.
    :param priors: α and β of each weight and leak by the names of our program; None: no prior.
    """

    params: Params | None = None
    priors: tuple[Params, Params] | None = None
    form: ClassVar[Form] = Form.NOISY_OR

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        """How often each cause turned each unit on, as far as one can tell, and could have."""
        assert self.params is not None
        values = self.read(self.params)
        data, mask = self.seen(arguments)
        data = data.astype(weights.dtype)
        observed = None if mask is None else mask.astype(data.dtype)
        ones = data if observed is None else data * observed
        states, probability = posterior.weighted()
        heavy = probability * weights
        if states.shape[1] == 1:  # of all rows: their data add up first
            total = lambda x: jnp.matmul(heavy, x, precision="highest")  # noqa: E731
            met = heavy.sum(1)
            every = met[:, None] if observed is None else total(observed)
            return _shares(values, states[:, 0], met, total(ones), every)
        observed = jnp.ones_like(data) if observed is None else observed

        # One state of every row at a time: nothing of size states × rows × columns is held.
        def step(sums: Any, one: tuple[Array, Array]) -> tuple[Any, None]:
            bits, count = one
            each = count[:, None]
            more = _shares(values, bits, count, each * ones, each * observed)
            return jax.tree.map(jnp.add, sums, more), None

        shapes = jax.eval_shape(_shares, values, states[0], heavy[0], data, observed)
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return lax.scan(step, nothing, (states, heavy))[0]

    def maximise(self, params: Params, statistics: Any) -> Params:
        values, new = self.read(params), {}
        share, counts = statistics
        for role, old in values.items():
            strength, total, count = -jnp.expm1(-old), share[role], counts[role]
            if self.priors is not None:
                shape, rate = (prior[role] for prior in self.priors)
                total = total + (shape - 1.0) * strength / jnp.maximum(old, SMALLEST)
                count = count + rate
            strength = jnp.where(count > 0, total / jnp.where(count > 0, count, 1.0), strength)
            new[role] = -jnp.log1p(-jnp.clip(strength, LEAST, MOST))
        return self.write(new)


def _shares(
    values: Params, bits: Array, weight: Array, ones: Array, every: Array
) -> tuple[Params, Params]:
    """The sums of (9) over m states, each counted `weight` times.

    :param bits: (m, bits), the top layer first; weight: (m,).
    :param ones: (m, columns), how often an input was observed to be on; every: how often at all,
        or what broadcasts to it.
    """
    share, counts = {}, {}
    bits, end, level = bits.astype(weight.dtype), bits.shape[-1], 0
    while f"leak_{level}" in values:
        leak = values[f"leak_{level}"]
        above = values.get(f"weights_{level + 1}")
        inputs = leak
        if above is not None:
            cause = bits[:, end - len(above) : end]
            inputs = leak + jnp.matmul(cause, above, precision="highest")
        # Where the input is zero there is nothing to share.
        ratio = ones / -jnp.expm1(-jnp.maximum(inputs, SMALLEST))
        share[f"leak_{level}"] = -jnp.expm1(-leak) * ratio.sum(0)
        every = jnp.broadcast_to(every, ones.shape)
        counts[f"leak_{level}"] = every.sum(0)
        level += 1
        if above is None:
            break
        over = lambda x: jnp.matmul(cause.T, x, precision="highest")  # noqa: B023, E731
        share[f"weights_{level}"] = -jnp.expm1(-above) * over(ratio)
        counts[f"weights_{level}"] = over(every)
        end -= len(above)
        ones = weight[:, None] * cause
        every = jnp.broadcast_to(weight[:, None], cause.shape)
    return share, counts


def gamma_priors(model: Callable, rows: Rows, known: Known) -> tuple[Params, Params] | None:
    """α and β of each weight and leak, where all have priors Gamma(α, β), α ≥ 1; else None."""

    def read(trace: dict[str, dict]) -> tuple[dict, dict] | None:
        shapes: dict[str, np.ndarray] = {}
        rates: dict[str, np.ndarray] = {}
        for name, shape in known.shapes.items():
            fn = innermost(trace[name]["fn"]) if trace[name]["type"] == "sample" else None
            values = (getattr(fn, "rate", None), getattr(fn, "concentration", 1.0))
            if any(isinstance(x, jax.core.Tracer) for x in values):
                return None
            gamma = isinstance(fn, dist.Gamma | dist.Exponential)
            if not gamma or (np.asarray(values[1]) < 1.0).any():
                return None
            for table, value in zip((rates, shapes), values, strict=True):
                table[name] = np.broadcast_to(np.asarray(value, np.float32), shape)
        return shapes, rates

    priors = run_abstractly(model, *rows.slice(0, 1), read)
    return None if priors is None else (known.read(priors[0]), known.read(priors[1]))


@dataclasses.dataclass(frozen=True)
class SparseCodingUpdate(Update):
    r"""Binary sparse coding, Henniges et al. (2010), eqs. (6)–(8).

    .. math::

        W &= \Big(\sum_n y_n \langle s\rangle_n^T\Big)\Big(\sum_n \langle s s^T\rangle_n\Big)^{-1}
        \qquad \sigma^2 = \frac{1}{ND}\sum_n \big\langle \|y_n - W s\|^2 \big\rangle_n \\
        \pi &= \frac{A(\pi)\,\pi}{B(\pi)}\,\frac1N \sum_n \langle |s| \rangle_n

    With a mask, the sums for a column of W run over the data in which it was observed. Where each
    cause has a prior of its own, :math:`\pi_h` is the mean of :math:`\langle s_h \rangle_n`.

    The sums are those of residuals :math:`y_n - V s` about weights V, by default those of the
    posterior: :math:`W - V` solves the same equations. Squares of the data themselves would cost
    the digits of a noise that is small beside them.

    :param max_active: :math:`\gamma`, for the correction A/B of the truncation; None if exact, when
        :math:`A\pi/B = 1/H`. It is for a prior that all causes share.
    :param noise_at: whether :math:`\sigma` is taken at the new W, which maximises the expected log
        joint, or at the old one, as the authors' program does.
    :param about: the parameters whose weights are V, the same for all sums that are added up; None:
        zero.
    """

    max_active: int | None = None
    noise_at: Literal["new", "old"] = "new"
    about: Params | None = None
    form: ClassVar[Form] = Form.SPARSE_CODING

    def of(self, reader: Reader, rows: Rows) -> Self:
        update = super().of(reader, rows)
        assert update.known is not None
        if self.max_active is not None and update.known.places["sparsity"].positions.ndim:
            raise ProgramError(
                f"max_active={self.max_active} corrects a prior that all causes share (eq. 8), and "
                "here each has its own: leave it out of SparseCodingUpdate"
            )
        return update

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        data, mask = self.seen(arguments)
        mean, heavy = posterior.mean, posterior.mean * weights[:, None]
        about = self._about(data)
        away = data - jnp.matmul(mean, about, precision="highest")
        if mask is None:
            # With a column of ones: a sum of its own is another pass over rows × causes.
            seen = jnp.concatenate([away, mean, jnp.ones_like(away[:, :1])], axis=1)
            sums = over_rows(heavy, seen)
            width = data.shape[1]
            cross, square, active = sums[:, :width], sums[:, width:-1], sums[:, -1]
            second, cells = posterior.second(weights, active), weights.sum() * width
        else:
            # A column's sums run over the rows in which it was seen: (D, H, H).
            counted = mask * weights[:, None]
            second, cells = lax.map(posterior.second, counted.T), counted.sum()
            square = lax.map(lambda own: over_rows(mean * own[:, None], mean), counted.T)
            active = heavy.sum(0)
            away = away * mask
            cross = over_rows(heavy, away)
        # What the states of a row scatter about their mean: Σ ⟨s sᵀ⟩ − ⟨s⟩ ⟨s⟩ᵀ, times V.
        product = "hk,kd->hd" if mask is None else "dhk,kd->hd"
        apart = jnp.einsum(product, second - square, about, precision="highest")
        power = jnp.sum(weights * jnp.sum(away * away, axis=1)) + jnp.sum(about * apart)
        return {
            "count": weights.sum(),
            "cells": cells,
            "active": active,
            "cross": cross - apart,  # Σ ⟨s (y − V s)ᵀ⟩, (H, D)
            "second": second,
            "power": power,  # Σ ⟨|y − V s|²⟩
        }

    def remembering(self, rows: Rows) -> Self:
        """The same with statistics that can be added to those of other parameters."""
        del rows
        return dataclasses.replace(self, about=None)

    def _about(self, like: Array) -> Array:
        """V, (H, D)."""
        if self.about is not None:
            return self.read(self.about)["weights"]
        assert self.known is not None
        return jnp.zeros(self.known.places["weights"].positions.shape, like.dtype)

    def maximise(self, params: Params, statistics: Any) -> Params:
        params = self.read(params)
        cross, second = statistics["cross"], statistics["second"]
        num_causes = cross.shape[0]
        # A cause that no datum uses leaves a zero row; the ridge sends its weights to zero instead
        # of making them infinite. Of others it only keeps the matrix regular.
        trace = jnp.trace(second, axis1=-2, axis2=-1)[..., None, None]
        ridge = 10 * jnp.finfo(second.dtype).eps * trace / num_causes + 1e-30
        second_ridge = second + ridge * jnp.eye(num_causes)
        about = self._about(cross)
        used = jnp.diagonal(second, axis1=-2, axis2=-1) > ridge[..., 0]  # (H,) or (D, H)
        pull = jnp.where(used, 0.0, ridge[..., 0])
        right = cross - (pull[:, None] if second.ndim == 2 else pull.T) * about
        if second.ndim == 2:
            step = jnp.linalg.solve(second_ridge, right)
        else:
            step = jnp.linalg.solve(second_ridge, right.T[..., None])[..., 0].T
        weights = about + step
        at = step if self.noise_at == "new" else params["weights"] - about
        if second.ndim == 2:
            spread = jnp.sum(jnp.matmul(at, at.T, precision="highest") * second)
        else:
            spread = jnp.einsum("hd,dhk,kd->", at, second, at, precision="highest")
        residual = statistics["power"] - 2 * jnp.sum(at * cross) + spread
        floor = 1e-12 * jnp.sum(weights**2) / weights.shape[1] + 1e-30
        noise = jnp.sqrt(jnp.maximum(residual / statistics["cells"], floor))
        mean_active = statistics["active"] / statistics["count"]
        if params["sparsity"].ndim:
            sparsity = mean_active
        elif self.max_active is None or self.max_active >= num_causes:
            sparsity = mean_active.sum() / num_causes
        else:
            a, b = truncation(params["sparsity"], num_causes, self.max_active)
            sparsity = params["sparsity"] * a / b * mean_active.sum()
        # The ends of the interval have no way back.
        return self.write({
            "weights": weights,
            "noise": noise,
            "sparsity": jnp.clip(sparsity, 1e-6, 1.0 - 1e-6),
        })  # fmt: skip

    def mass(self, params: Params, num_causes: int) -> Array:
        """The mass of the prior on states with at most `max_active` causes, A(π)."""
        assert self.max_active is not None
        return truncation(self.read(params)["sparsity"], num_causes, self.max_active)[0]


def truncation(sparsity: Array, num_causes: int, max_active: int) -> tuple[Array, Array]:
    r"""A(π) and B(π) of eq. (8): the binomial's mass up to γ, and its first moment there."""
    k = np.arange(min(max_active, num_causes) + 1)
    log_choose = gammaln(num_causes + 1.0) - gammaln(k + 1.0) - gammaln(num_causes - k + 1.0)
    log_mass = log_choose + k * jnp.log(sparsity) + (num_causes - k) * jnp.log1p(-sparsity)
    return jnp.exp(logsumexp(log_mass)), jnp.sum(k * jnp.exp(log_mass))


@dataclasses.dataclass(frozen=True)
class MixtureUpdate(Update):
    """Mixture of Bernoulli products: responsibilities weigh the rows (Freund & Haussler, §2.3).

    A mask is respected: a cell that was not seen does not count for its column.

    :param pseudo_count: rows of each kind that every component is taken to have seen already: the
        mode under a Beta(1 + c, 1 + c) prior of its probabilities. The least that there is only
        keeps them from 0 and 1, where an unseen row would be impossible.
    """

    pseudo_count: float = 1e-6
    form: ClassVar[Form] = Form.MIXTURE

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        data, mask = self.seen(arguments)
        assert self.known is not None
        num_components = len(self.known.places["mixing"].positions)
        heavy = posterior.members(weights, num_components)
        # By default a GPU multiplies with ten bits: a probability could exceed 1.
        sums = partial(over_rows, heavy.T, precision="highest")
        count = heavy.sum(1)
        if mask is None:
            observed = jnp.broadcast_to(count[:, None], (num_components, data.shape[1]))
            return {"count": count, "ones": sums(data), "seen": observed}
        return {"count": count, "ones": sums(data * mask), "seen": sums(mask)}

    def maximise(self, params: Params, statistics: Any) -> Params:
        del params
        extra = self.pseudo_count
        probs = (statistics["ones"] + extra) / (statistics["seen"] + 2 * extra)
        probs = jnp.minimum(probs, 1.0)  # the sums are rounded, each its own way
        count = statistics["count"] + 1e-12
        return self.write({"mixing": count / count.sum(), "probs": probs})


@dataclasses.dataclass(frozen=True)
class ClassesUpdate(Update):
    """Latent classes of polytomous items: each class's shares of the levels, by its rows.

    :param pseudo_count: cells of each level that every class is taken to have seen already; see
        `MixtureUpdate`.
    """

    pseudo_count: float = 1e-6
    form: ClassVar[Form] = Form.CLASSES

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        data, mask = self.seen(arguments)
        assert self.known is not None
        heavy = posterior.members(weights, len(self.known.places["mixing"].positions))
        start, counts = 0, {"mixing": heavy.sum(1)}
        for role, place in self.known.places.items():
            if role == "mixing":
                continue
            _, columns, levels = place.positions.shape
            at = slice(start, start := start + columns)
            cells = jax.nn.one_hot(data[:, at].astype(jnp.int32), levels)
            cells = cells if mask is None else cells * mask[:, at, None]
            sums = over_rows(heavy.T, cells.reshape(len(data), -1), precision="highest")
            counts[role] = sums.reshape(-1, columns, levels)
        return counts

    def maximise(self, params: Params, statistics: Any) -> Params:
        del params
        # By the same rule for the classes and the levels: shares of what was counted.
        extra = {role: 1e-12 if role == "mixing" else self.pseudo_count for role in statistics}
        more = {role: value + extra[role] for role, value in statistics.items()}
        return self.write({role: x / x.sum(-1, keepdims=True) for role, x in more.items()})


@dataclasses.dataclass(frozen=True)
class OneUnitUpdate(Update):
    r"""The real combination machine of one hidden unit, Freund & Haussler (1994).

    .. math:: \omega = \frac{\hat E(h x)}{\hat E(h)} \quad (3.14), \qquad
              \theta = -\ln\frac{1 - \hat E(h)}{\hat E(h)} - \tfrac12 \|\omega\|^2 \quad (3.15)
    """

    form: ClassVar[Form] = Form.REAL_MACHINE

    def statistics(self, posterior: Expectation, weights: Array, arguments: Arguments) -> Any:
        data, _ = self.seen(arguments)
        heavy = posterior.mean[:, 0] * weights
        return {
            "count": weights.sum(),
            "active": heavy.sum(),
            "cross": over_rows(heavy[:, None], data)[0],
        }

    def maximise(self, params: Params, statistics: Any) -> Params:
        del params
        # A unit that is never or always on would have an infinite bias.
        share = jnp.clip(statistics["active"] / statistics["count"], 1e-6, 1.0 - 1e-6)
        weights = statistics["cross"] / (share * statistics["count"])
        bias = jnp.log(share) - jnp.log1p(-share) - 0.5 * weights @ weights
        return self.write({"weights": weights[None], "bias": bias[None]})


CLOSED = (Form.SPARSE_CODING, Form.MIXTURE, Form.CLASSES, Form.NOISY_OR)


def closed_form(
    reader: Reader,
    rows: Rows,
    given: ClosedForm | None = None,
    *,
    params: Params | None = None,
    prior: bool = False,
    max_active: int | None = None,
) -> ClosedForm | None:
    """The closed form for a program: the one given, else that of its form, or None.

    The forms are stationary for the rows: where more is observed than these, there is none.

    :param params: those of the posterior that the statistics are of.
    :param prior: whether the posterior of the parameters is to be maximised.
    """
    if isinstance(given, SparseCodingUpdate):
        return dataclasses.replace(given.of(reader, rows), about=params)
    if given is not None:
        return given.of(reader, rows) if isinstance(given, Update) else given
    anatomy = reader.anatomy
    if anatomy.outside:
        return None
    among = [Form.NOISY_OR] if prior else list(CLOSED)
    if anatomy.num_bits == 1 and not prior:
        among.append(Form.REAL_MACHINE)
    known = recognise(reader.model, anatomy, rows, among)
    if known is None:
        return None
    if known.form is Form.NOISY_OR:
        priors = gamma_priors(reader.model, rows, known) if prior else None
        if prior and priors is None:
            return None
        return NoisyOrUpdate(params, priors, known=known, model=reader.model)
    if known.form is Form.SPARSE_CODING:
        # With holes each column has second moments of its own: D matrices of H × H must fit.
        small = not known.masked or len(known.kinds) * anatomy.num_bits**2 <= 1 << 24
        most = None if known.places["sparsity"].positions.ndim else max_active
        update = SparseCodingUpdate(most, about=params, known=known, model=reader.model)
        return update if small else None
    if known.form is Form.REAL_MACHINE and known.masked:
        return None
    others: dict[Form, Any] = {x.form: x for x in (MixtureUpdate, ClassesUpdate, OneUnitUpdate)}
    return others[known.form](known=known, model=reader.model)

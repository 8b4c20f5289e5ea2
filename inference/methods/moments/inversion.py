"""Moment inversion: correlations of bits turned into those of the Gaussian behind them."""

from __future__ import annotations

import dataclasses
import inspect as signatures
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...reading.anatomy import Anatomy, ProgramError, inspect
from ...reading.arguments import check_data, rows_of
from ...reading.probe import probe
from ...reading.recognition.papers import Form, Known, recognise
from ...reading.recognition.sites import run_program, taken
from ...reading.tracing import innermost
from ...rows.chunks import Rows
from ...rows.disk import pieces
from ...running.algorithm import Algorithm
from ...running.contract import Starts
from ...running.settings import Range
from ...types import Params
from ..continuous.factors import FactorPosterior
from .cells import cell_posterior
from .pairs import (
    Repairs,
    count_pairs,
    independence_errors,
    invert_pairs,
    standard_errors,
)
from .probit import laplace
from .spectrum import (
    Factors,
    Spectrum,
    nearest_correlation,
    noise_edge,
    principal_axes,
    principal_components,
    spectrum,
)


class MomentState(NamedTuple):
    """The solution: there is no next step."""

    params: Params
    residual: Array  # Σ over pairs of (ρ − ŵ_i·ŵ_j)²


class MomentInfo(NamedTuple):
    """The solution with all that was found on the way, from `MomentInversion.invert`."""

    params: Params
    correlation: Array  # (num_features, num_features) C^xx as used for the factors
    threshold: Array  # (num_features,) ξ_i/√C_ii
    spectrum: Spectrum  # of the inverted matrix, before any repair
    repairs: Repairs
    factors: Factors
    standard_error: Array | None  # (num_features, num_features), on request
    edge: Array | None  # eigenvalues above it are factors, where the rank was chosen by that
    moved: Array | None  # Frobenius distance to the nearest correlation matrix, if that was taken
    residual: Array  # Σ over pairs of (ρ − ŵ_i·ŵ_j)²

    @property
    def rank(self) -> int:
        return self.factors.loadings.shape[0]

    def report(self) -> str:
        """What the data made necessary and what it means, in words.

        >>> from jax import random
        >>> from latentbits.models import clipped_gaussian
        >>> bits = jnp.array([[1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]])
        >>> moments = MomentInversion(clipped_gaussian, rank=1).invert(random.key(0), bits)
        >>> print(moments.report().splitlines()[0])
        1 constant columns (2): bias of half a count, correlations 0
        """
        lines = self.repairs.lines() + self.spectrum.lines()
        if self.edge is not None:
            lines.append(
                f"rank {self.rank}: as many eigenvalues exceed {float(self.edge):.3g}, the largest "
                "that independent columns show"
            )
        if self.moved is not None:
            lines.append(
                f"the nearest correlation matrix lies {float(self.moved):.3g} away (Frobenius)"
            )
        if self.factors.held.any():
            lines.append(
                f"{int(self.factors.held.sum())} columns are explained in full by the factors: "
                "their uniqueness is held at its least value"
            )
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, eq=False)
class MomentInversion(Algorithm):
    r"""Inverts the correlations of bits to those of the Gaussian behind them, and takes factors.

    Lee & Sompolinsky (1998). One pass over the data for means and second moments; biases by (9);
    the arcsine law (7) where means vanish, else the integral equation (10), for all pairs; then
    factors of the correlations. All the work is in `init`; `update` is idle. `invert` does the same
    and returns the correlations, their spectrum and what had to be repaired as well.

    A clip does not know the scale of its input, so the solution has unit variances, C ≈ ŴŴᵀ + Ψ.
    The parameters returned are those of the program with its own ``noise`` c: w_i = c ŵ_i/√ψ_i and
    ξ_i = c a_i/√ψ_i, where Ψ is what factors beside a uniqueness leave (principal axes). With noise
    0, the paper's hard clip, there is no Ψ: Ŵ are principal components, scaled to unit variance.

    :param model: `clipped_gaussian`, under whatever names.
    :param rank: number of factors P; None: as many as the program has; ``"spectrum"``: as many
        as there are eigenvalues above the largest that independent columns show (parallel analysis,
        see `inference.methods.moments.spectrum.noise_edge`).
    :param smoothing: rows of independence added to each pair's table; fills empty cells.
    :param nearest: replace the inverted matrix by the nearest correlation matrix (Higham 2002).
    :param errors: also compute standard errors of the correlations.
    :param chunk_size: rows read at a time; by default as many as fit into 64 MiB.

    >>> from jax import random
    >>> from numpyro.infer import Predictive
    >>> from latentbits.models import clipped_gaussian
    >>> from latentbits.models.data import ring
    >>> method = MomentInversion(clipped_gaussian, rank="spectrum")
    >>> result = method.run(random.key(0), 1, ring(random.key(1), 500, 8).data, noise=0.0)
    >>> result.params["weights"].shape  # a ring needs two factors
    (2, 8)
    >>> draw = Predictive(clipped_gaussian, posterior_samples=result.params, batch_ndims=0)
    >>> sizes = {"num_data": 3, "num_features": 8, "num_factors": 2, "noise": 0.0}
    >>> jax.jit(lambda key: draw(key, **sizes))(random.key(2))["observed"].shape
    (3, 8)
    """

    by_row = ()
    starts = Starts.ONE

    model: Callable
    _: dataclasses.KW_ONLY
    rank: int | Literal["spectrum"] | None = None
    smoothing: Annotated[float, Range(0)] = 0.0
    nearest: bool = False
    errors: bool = False
    chunk_size: int | None = None

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        if set(anatomy.likelihoods) != {"ClippedNormal"}:
            return "what is observed is no clipped Gaussian"
        return anatomy.why_not_once if anatomy.latents else "it has no latent factors"

    def default_steps(self, anatomy: Anatomy) -> int:
        """It does its work at the start."""
        del anatomy
        return 1

    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> MomentState:
        if init_params is not None:
            raise ValueError("moment inversion does not start from parameters: it has a solution")
        fitted = self.invert(rng_key, *args, **kwargs)
        return MomentState(fitted.params, fitted.residual)

    def invert(self, rng_key: Array, *args: Any, **kwargs: Any) -> MomentInfo:
        """The solution, and what the data show besides.

        :param rng_key: of the tables of independent columns that the spectrum is compared with.
        """
        if self.rank is None and self._wants_number(kwargs):
            raise ValueError("say how many factors: rank=..., or num_factors=... of the program")
        known, (data, mask), noise = self._open(args, kwargs)
        rank = known.places["weights"].positions.shape[0] if self.rank is None else self.rank
        pairs = count_pairs(data, mask, self.chunk_size)
        inverted = invert_pairs(pairs, self.smoothing)
        correlation, moved, edge = inverted.correlation, None, None
        spectral = spectrum(correlation)
        if self.nearest:
            correlation = nearest_correlation(correlation)
            moved = jnp.linalg.norm(correlation - inverted.correlation)
        if rank == "spectrum":
            edge = noise_edge(rng_key, independence_errors(pairs, inverted))
            # The number of factors is a shape: it must be known here and now.
            rank = max(1, int((spectral.eigenvalues > edge).sum()))
        if rank > data.shape[1]:
            raise ValueError(f"`rank` is {rank}, but there are only {data.shape[1]} columns")
        hard = not noise.any()
        factors = (principal_components if hard else principal_axes)(correlation, rank)
        return MomentInfo(
            write(known, _params(factors, inverted.threshold, noise, hard)),
            correlation,
            inverted.threshold,
            spectral,
            inverted.repairs,
            factors,
            standard_errors(pairs, inverted) if self.errors else None,
            edge,
            moved,
            _residual(correlation, factors),
        )

    def update(self, state: MomentState, *args: Any, **kwargs: Any) -> tuple[MomentState, Array]:
        """Nothing is left to do. The loss is what the factors leave of the correlations."""
        del args, kwargs
        return state, state.residual

    def num_rows(self, args: tuple, kwargs: dict[str, Any]) -> int:
        return super().num_rows(args, self._given(kwargs))

    def posterior(
        self, params: Params, *args: Any, num_draws: int = 200, **kwargs: Any
    ) -> FactorPosterior:
        """The hidden y of each row.

        With noise: the mode, with the curvature there (Laplace), held against `num_draws` draws
        from it. With a hard clip and up to two factors: exact, over the cells of the plane in which
        all bits are as observed.
        """
        known, (data, mask), noise = self._open(args, kwargs)
        values = read(known, params)
        num_factors = len(values["weights"])
        if noise.all():
            if self._wants_number(kwargs):
                kwargs = {"num_factors": num_factors, **kwargs}
            return laplace(self.model, params, args, kwargs, num_draws)
        if noise.any():
            raise ValueError("`noise` is 0 in some columns only: give all some noise, or none")
        if num_factors > 2:
            raise ValueError(
                "the exact posterior of a hard clip is for up to 2 factors, found "
                f"{num_factors}: `hidden_values` and `draw_hidden` take any number, "
                "or relax the clip (noise > 0, with the parameters of a run with that setting)"
            )
        return cell_posterior(values, data, mask)

    def _wants_number(self, kwargs: dict) -> bool:
        """Whether the program must be given a number of factors, as ours must, and is not."""
        wanted = signatures.signature(self.model).parameters.get("num_factors")
        return wanted is not None and wanted.default is wanted.empty and "num_factors" not in kwargs

    def _given(self, kwargs: dict) -> dict:
        rank = self.rank if isinstance(self.rank, int) else 1
        return {"num_factors": rank, **kwargs} if self._wants_number(kwargs) else kwargs

    def _open(self, args: tuple, kwargs: dict) -> tuple[Known, tuple[Any, Any], np.ndarray]:
        """The program by its form, its bits and mask, and its noise by column, after all checks."""
        check_data(args, kwargs)
        filled = self._given(kwargs)
        anatomy = inspect(self.model, args, filled)
        problem, rows = self.admits(anatomy), rows_of(anatomy, args, filled)
        known = None
        if problem is None:
            known = recognise(self.model, anatomy, rows, [Form.CLIPPED])
            problem = "its log joint is not that of clipped_gaussian"
        if known is None:
            raise ProgramError(f"moment inversion is for clipped Gaussians: {problem}")
        if isinstance(self.rank, int) and anatomy.num_bits != self.rank:
            raise ValueError(f"`rank` is {self.rank}, but the program has {anatomy.num_bits}")
        anatomy.check_rows_are_all()
        if known.columns is None:
            table: tuple[Any, Any] = known.seen(self.model, rows.whole())
        else:
            table = taken(known.columns, rows.leaves)
        check_bits(*table)
        return known, table, noise_of(known, self.model, rows)


@jax.jit
def _residual(correlation: Array, factors: Factors) -> Array:
    """Half the sum of squares that the factors leave of the correlations off the diagonal."""
    left = correlation - factors.loadings.T @ factors.loadings
    return 0.5 * jnp.sum(jnp.where(jnp.eye(len(left), dtype=bool), 0.0, left) ** 2)


@partial(jax.jit, static_argnums=3)
def _params(factors: Factors, threshold: Array, noise: Any, hard: bool) -> Params:
    if hard:
        explained = jnp.sum(factors.loadings**2, axis=0)
        # A column that no factor explains, a constant one, keeps its bias alone.
        scale = jnp.where(explained > 1e-12, 1 / jnp.sqrt(jnp.maximum(explained, 1e-12)), 0.0)
        return {"weights": factors.loadings * scale, "bias": threshold}
    scale = jnp.asarray(noise) / jnp.sqrt(factors.uniqueness)
    return {"weights": factors.loadings * scale, "bias": threshold * scale}


def noise_of(known: Known, model: Callable, rows: Rows) -> np.ndarray:
    """What the program adds before the clip, (num_features,): a setting, so a number here."""
    shapes, names = known.shapes, known.sites

    def scales(leaves: list[Array]) -> list[Array]:
        ones = {name: jnp.ones(shape) for name, shape in shapes.items()}
        trace = run_program(model, rows.join(leaves), ones)
        sites = [trace[name]["fn"] for name in names]
        return [jnp.broadcast_to(innermost(fn).scale, fn.shape()).ravel() for fn in sites]

    one = [np.zeros((1, *x.shape[1:]), x.dtype) for x in rows.leaves]
    return np.concatenate(probe(scales, [(one,)])[0])


def write(known: Known, values: Params) -> Params:
    """The program's parameters, of any number of factors."""
    if all(values[role].shape == x.positions.shape for role, x in known.places.items()):
        return known.write(values)
    return {site: values[x].T if turned else values[x] for x, site, turned in _sites(known)}


def read(known: Known, params: Params) -> Params:
    """The other way round."""
    if {site: np.shape(x) for site, x in params.items()} == known.shapes:
        return known.read(params)
    return {x: params[site].T if turned else params[site] for x, site, turned in _sites(known)}


def _sites(known: Known) -> Iterator[tuple[str, str, bool]]:
    """What the form calls it, the site that holds it, and whether transposed: the number of factors
    that the spectrum has need not be that of the program as it was opened."""
    for role, (positions, site, turned) in known.places.items():
        if site is None:
            raise ProgramError(
                f"the {role} are spread over several sites, so their number cannot change: give "
                "the program as many factors as it is to have"
            )
        shape, own = known.shapes[site], positions.shape
        yield role, site, turned or shape == own[::-1] != own


def check_bits(data: Any, mask: Any) -> None:
    """Refuse data other than 0/1 by row and column."""
    if isinstance(data, jax.core.Tracer):
        return
    known = None if mask is None or isinstance(mask, jax.core.Tracer) else np.asarray(mask)
    cells = np.asarray(data)  # of a file a view: nothing is read
    for piece in pieces(cells):
        values = np.asarray(cells[piece])
        bad = (values != 0) & (values != 1)
        if known is not None:
            bad &= known[piece]
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            raise ValueError(
                f"data holds {values[row, column]} in row {piece.start + row}, column {column}: "
                "wanted 0 or 1"
            )

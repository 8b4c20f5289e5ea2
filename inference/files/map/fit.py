"""`latentbits map FILE`: read a table, fit two factors, and draw where its rows lie."""

from __future__ import annotations

import io
import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from latentbits.models import mixed_trait
from latentbits.models.data import InputError
from latentbits.models.data.bounded import bounded
from latentbits.models.data.sealed import check_seal, sealed
from latentbits.models.mixed_trait import Layout

from ..figures import Figure

if TYPE_CHECKING:
    from latentbits.models.data import MixedTable

    from ...methods.continuous.factors import FactorPosterior

MOST_CELLS = 3_000_000  # quadrature up to here, the bound beyond: half a minute on two cores


class Map(NamedTuple):
    """A fitted map: enough to place new rows on it."""

    columns: tuple[str, ...]
    kinds: tuple[str | int, ...]
    levels: tuple[tuple[str, ...], ...]
    centre: np.ndarray  # (num_features,), taken off real columns
    scale: np.ndarray  # (num_features,), they are divided by it
    params: dict[str, np.ndarray]  # of `mixed_trait`
    method: str
    mean: np.ndarray  # (num_data, 2), where its own rows lie

    def transform(self, table: MixedTable) -> FactorPosterior:
        """Place rows of a table with the same columns, old or new, on the map."""
        from ...methods.continuous.quadrature import QuadratureEM
        from ...reading.arguments import check_params

        if table.columns != self.columns or table.kinds != self.kinds:
            raise InputError(
                f"{table.path}: its columns {_pairs(table.columns, table.kinds)} are not those of "
                f"the map, {_pairs(self.columns, self.kinds)}"
            )
        values = scaled(table, self.centre, self.scale)
        method = QuadratureEM(mixed_trait, num_nodes=11)
        params: Any = self.params
        check_params(mixed_trait, params, (values,), {"kinds": self.kinds})
        return method.posterior(params, values, mask=table.mask, kinds=self.kinds)

    def probabilities(self, places: Any) -> np.ndarray:
        """P(t = 1 | x) of the binary columns at places (S, 2): (S, binary columns)."""
        at = Layout.of(self.kinds).bits
        logits = np.asarray(places) @ self.params["weights"][:, at] + self.params["bias"][at]
        return 1.0 / (1.0 + np.exp(-logits))

    def save(self) -> bytes:
        """The map as the bytes of an .npz file."""
        about = {x: getattr(self, x) for x in ("columns", "kinds", "levels", "method")}
        stream = io.BytesIO()
        arrays: dict[str, Any] = {f"param_{x}": value for x, value in self.params.items()}
        np.savez_compressed(
            stream, about=json.dumps(about), centre=self.centre, scale=self.scale, mean=self.mean,
            **arrays,
        )  # fmt: skip
        return sealed(stream.getvalue())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Map:
        """A map that was saved before."""
        try:
            whole = Path(path).expanduser()
            if not whole.is_file():
                raise InputError(f"{path}: there is no such file")
            check_seal(whole)
            bounded(whole)
            # Opened here: NumPy leaves a damaged archive open.
            with whole.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                params = {x[6:]: file[x] for x in file.files if x.startswith("param_")}
                width = len(about["columns"])
                for name in ("centre", "scale"):
                    if file[name].shape != (width,) or not np.isfinite(file[name]).all():
                        raise ValueError(name)
                if file["mean"].shape[1:] != (2,) or not width == len(about["kinds"]):
                    raise ValueError("mean")
                return cls(
                    tuple(about["columns"]), tuple(about["kinds"]),
                    tuple(tuple(x) for x in about["levels"]), file["centre"], file["scale"],
                    params, about["method"], file["mean"],
                )  # fmt: skip
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{path}: is no saved map ({type(error).__name__})") from None


def scaled(table: MixedTable, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The values with real columns in units of their spread, still 0 where missing."""
    return np.where(table.mask, (table.values - centre) / scale, 0.0).astype(np.float32)


def fit_map(
    table: MixedTable, *, seed: int = 0, num_steps: int = 150, method: str | None = None
) -> tuple[Map, FactorPosterior, float]:
    """Fit two factors to a table: the map, the posterior of its rows, nats per row.

    Real columns are standardised first; their density is reported in those units. The parameters
    maximise their posterior under the weak priors of `mixed_trait`, so that a column which the
    others predict exactly stays finite.

    :param method: 'quadrature' (exact) or 'bound' (Tipping's); by default the first unless the
        table is large.
    """
    from ...methods.continuous.bound import BoundEM
    from ...methods.continuous.quadrature import QuadratureEM

    if len(table.columns) < 2:
        raise InputError(f"{table.path}: a map needs at least 2 columns, found 1")
    real = np.array([kind == "real" for kind in table.kinds])
    count = np.maximum(table.mask.sum(0), 1)
    mean = np.where(table.mask, table.values, 0.0).sum(0) / count
    away = np.where(table.mask, table.values - mean, 0.0)
    spread = np.sqrt((away**2).sum(0) / count)
    centre = np.where(real, mean, 0.0)
    scale = np.where(real & (spread > 0), spread, 1.0)
    method = method or ("quadrature" if table.values.size <= MOST_CELLS else "bound")
    em: Any = BoundEM(mixed_trait, prior=True)
    if method == "quadrature":
        em = QuadratureEM(mixed_trait, num_nodes=9, prior=True)
    values = scaled(table, centre, scale)
    result = em.run(
        jax.random.key(seed), num_steps, values, mask=table.mask, kinds=table.kinds, tolerance=1e-6
    )
    params = {name: np.asarray(value) for name, value in result.params.items()}
    fitted = Map(
        table.columns, table.kinds, table.levels, centre, scale, params, method, np.zeros((0, 2))
    )
    posterior = fitted.transform(table)
    nats = -float(np.mean(posterior.evidence))
    return fitted._replace(mean=np.asarray(posterior.mean)), posterior, nats


def draw(
    map_: Map,
    posterior: FactorPosterior,
    *,
    label: np.ndarray | None = None,
    lines: bool = False,
    behind: np.ndarray | None = None,
    image: tuple[int, int] | None = None,
    places: np.ndarray | None = None,
    title: str | None = None,
    table: MixedTable | None = None,
) -> Figure:
    """The map as a figure, with images of P(t | x) beside it if the bits are an image.

    :param table: the rows that are drawn, whose categories are named.
    """
    from matplotlib.figure import Figure

    from ..figures import image_grid
    from .figure import (
        MOST_LABELS,
        draw_lines,
        draw_map,
        label_categories,
        label_lines,
        mark_places,
        spread_places,
    )

    many = label is not None and 1 < len(np.unique(label)) <= 12
    figure = Figure(figsize=(9.5 if image else 7.6 if many or behind is not None else 6.4, 6))
    panes: Any = (figure, None)
    if image is not None:
        panes = figure.subfigures(1, 2, width_ratios=(2.4, 1))
    left, right = panes
    axes = left.subplots()
    draw_map(axes, posterior.mean, posterior.covariance, label=label, behind=behind, title=title)
    words = "mark: rows of one pattern, larger for more; ring: one standard deviation"
    words += "\narrow: side of a line where the column is more likely 1" if lines else ""
    members, placed = {} if table is None else categories(table), []
    if 0 < len(members) <= MOST_LABELS:
        words += "\nname: mean of the rows of that category"
    left.supxlabel(words, fontsize=8)
    if lines:
        layout = Layout.of(map_.kinds)
        columns, at = layout.binary, layout.bits
        if not len(columns):
            raise InputError("--lines: no column is binary, so there is no line to draw")
        weights, bias = map_.params["weights"][:, at], map_.params["bias"][at]
        draw_lines(axes, weights, bias)
        placed = label_lines(axes, weights, bias, [map_.columns[i] for i in columns])
    label_categories(axes, posterior.mean, members, placed)
    if right is not None and image is not None:
        places = spread_places(posterior.mean) if places is None else places
        pictures = map_.probabilities(places).reshape(-1, 1, *image)
        mark_places(axes, places)
        numbers = [str(i) for i in range(1, len(places) + 1)]
        image_grid(right, pictures, title="P(t | x)", row_labels=numbers)
    return figure


def categories(table: MixedTable) -> dict[str, np.ndarray]:
    """The rows of each category, (num_data,); with its column where two have one of that name."""
    several = [i for i, kind in enumerate(table.kinds) if not isinstance(kind, str)]
    words = [level for i in several for level in table.levels[i]]
    return {
        level if words.count(level) == 1 else f"{table.columns[i]} {level}":
            table.mask[:, i] & (table.values[:, i] == k)
        for i in several for k, level in enumerate(table.levels[i])
    }  # fmt: skip


def _pairs(columns: tuple[str, ...], kinds: tuple[str | int, ...]) -> str:
    pairs = [f"{c} ({k})" for c, k in zip(columns, kinds, strict=True)]
    return ", ".join(pairs[:6]) + (", ..." if len(pairs) > 6 else "")

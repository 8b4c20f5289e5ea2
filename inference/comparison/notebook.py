"""For notebooks: an experiment of a paper by its name, and a comparison that shows itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..papers.experiment import Outcome, experiments, picture

if TYPE_CHECKING:
    from .compare import Comparison


def reproduce(name: str, **options: Any) -> Outcome:
    """Run an experiment as `latentbits reproduce NAME` does, with the defaults of the command.

    A notebook shows the outcome as its figure; its numbers are in ``numbers``.

    :param options: of the command, by name: ``num_data=400`` is ``--num-data 400``.

    >>> from latentbits import reproduce
    >>> outcome = reproduce("clipped-constraint")
    >>> round(outcome.numbers["min_eigenvalue"], 6)
    -0.5
    """
    known = experiments()
    if name not in known:
        raise ValueError(f"there is no experiment {name!r}: choose from {', '.join(sorted(known))}")
    return known[name](**options)


class Paths(NamedTuple):
    """Held-out score against time, which a notebook shows as a figure."""

    comparison: Comparison

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        from .report.figures import draw_paths

        return picture(lambda: draw_paths(self.comparison))

    def __repr__(self) -> str:
        return "<held-out score against time>"


class Contest(NamedTuple):
    """A comparison, which a notebook shows as its table and its verdict."""

    comparison: Comparison
    draws: Callable[[str], Any]
    """From a method's name to what ArviZ reads, its draws aligned under the symmetries of the
    program; made when it is asked for, since predictions of all draws take their time."""

    @property
    def paths(self) -> Paths:
        """How far behind the best each method was, second by second."""
        return Paths(self.comparison)

    def _repr_markdown_(self) -> str:
        from .verdict import cells

        head, *rows = cells(self.comparison)
        lines = [head, ["---", *("--:" for _ in head[1:])], *rows]
        table = ["| " + " | ".join(line) + " |" for line in lines]
        each = [f"- {words}" for _, words in self.comparison.verdict]
        return "\n".join([*table, "", f"**{self.comparison.headline}**", "", *each])

    def __repr__(self) -> str:
        return self._repr_markdown_()


def contest(
    model: Callable,
    data: Any,
    methods: Sequence[str],
    *,
    mask: Any = None,
    num_draws: int = 1000,
    budget: float | None = None,
    truth: dict[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    **sizes: Any,
) -> Contest:
    """Methods on one program and one table, judged as `latentbits compare` judges them.

    A quarter of the rows is held out.

    :param data: (num_data, num_features).
    :param num_draws: of each of a sampler's four chains, after three tenths as many of warm-up.
    :param budget: seconds that each method may run, compiling apart (on a CPU those of the
        processor, which do not depend on the load of the machine); by default any number.
    :param truth: true parameters by site, where they are known.
    :param columns: names of the columns, for ArviZ.
    :param sizes: keyword arguments of the program.

    >>> import numpy as np
    >>> from latentbits import contest
    >>> from latentbits.models import bernoulli_product
    >>> table = np.random.default_rng(0).integers(0, 2, (40, 3))
    >>> result = contest(bernoulli_product, table, ["MAP"])
    >>> print(repr(result)[:25])
    | method | nats per row |
    """
    from ..files.arviz import container
    from .compare import compare
    from .files import method_groups

    values = np.asarray(data)
    kept: dict[str, Any] = {}
    comparison = compare(
        model, values, methods, mask=mask, truth=truth, limit=budget, num_draws=num_draws,
        keep=kept, **sizes,
    )  # fmt: skip
    names = [f"x{i + 1}" for i in range(values.shape[1])] if columns is None else [*columns]

    def draws(method: str) -> Any:
        return container(method_groups(model, kept[method], names, {"method": method}, sizes))

    return Contest(comparison, draws)

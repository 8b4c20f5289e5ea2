"""`Algorithm`: a method that meets the contract, and `run`, which repeats its step."""

from __future__ import annotations

import abc
import inspect as inspect_call
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
from jax import Array, random
from jax.sharding import Mesh

from ..reading.anatomy import Anatomy, GraphError, ProgramError, inspect
from ..reading.arguments import check_kinds, rows_of
from ..reading.log_joint import Structure, find_structure
from ..reading.reader import examined, inspect_all
from ..reading.recognition.papers import recognise
from ..reading.small_scales import FloorWarning, PrecisionWarning, at_floor, lost_digits
from ..rows.chunks import Rows, counted, counting
from ..rows.disk import stored
from ..rows.padding import Padded, by_row, padded
from ..types import Params
from .checkpoint import Checkpoint, origin
from .contract import DivergedError, RunResult, Starts, Stop
from .loop import Drive, Spent, drive
from .search import Lineages, Narrow, Search
from .settings import Range, Seconds, check_settings

MOST_STEPS = 10**8
"""Of a run: it keeps the loss of each."""


def pad(model: Callable, args: tuple, kwargs: dict[str, Any], plate: str | None) -> Padded | None:
    """The arguments of a program with their rows padded (`rows.padding`), where that is of use.

    None inside of what is compiled, for rows on disk or padded already, and for a program that is
    not known to read each row by itself: neither one of ours, nor of a form in its bits.
    """
    leaves = jax.tree.leaves((args, kwargs))
    if counted() is not None or any(isinstance(x, jax.core.Tracer) or stored(x) for x in leaves):
        return None
    check_kinds(args, kwargs)
    try:
        anatomy = inspect(model, args, kwargs, plate=plate)
        wide = padded(args, kwargs, anatomy.num_data)
        if wide is None or anatomy.drawn or anatomy.outside:
            return None
        longer = inspect(model, wide.args, wide.kwargs, plate=anatomy.plate)
        if longer != anatomy.with_rows(wide.size):
            return None
        rows = rows_of(anatomy, args, kwargs)
        if recognise(model, anatomy, rows) is not None:
            return wide
        form = examined(find_structure, model, anatomy, rows) if anatomy.binary else None
        return wide if form not in (None, Structure.GENERAL) else None
    except (ProgramError, ValueError):  # the method says it, in its own words
        return None


_signature = lru_cache(256)(inspect_call.signature)


class Algorithm(abc.ABC):
    """A method of inference on a program.

    A method of one's own is three functions:

    >>> import jax.numpy as jnp
    >>> class BaseRates(Algorithm):
    ...     def __init__(self, model):
    ...         self.model = model
    ...     def init(self, rng_key, data, init_params=None):
    ...         return data.mean(axis=0)
    ...     def update(self, state, data):
    ...         bits = -data * jnp.log2(state) - (1 - data) * jnp.log2(1 - state)
    ...         return state, bits.sum()
    ...     def get_params(self, state):
    ...         return {"probs": state}
    >>> from latentbits.models import bernoulli_product
    >>> data = jnp.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    >>> result = BaseRates(bernoulli_product).run(None, 2, data)
    >>> result.params["probs"].tolist(), result.losses.tolist()
    ([0.5, 0.5], [8.0, 8.0])
    """

    model: Callable

    def __new__(cls, *args: Any, **settings: Any) -> Algorithm:
        """Hold the settings against the constructor's signature, whatever the method."""
        try:
            bound = _signature(cls.__init__).bind_partial(None, *args, **settings)
        except TypeError:  # the constructor itself says which argument there is too many
            return super().__new__(cls)
        check_settings(cls, bound.arguments)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.start is not None:
            object.__setattr__(self, "search", None)

    by_row: ClassVar[tuple[str, ...] | None] = None
    """Fields of the state with an entry for each datum; None: all rows must be on one device."""
    why_no_mesh: str = "it does not say what its state holds of each row (`by_row`)"
    """Why all rows must be on one device, where they must."""
    starts: Starts = Starts.RANDOM
    """Where it starts."""
    window: int = 1
    """Steps whose gains are taken together where it is asked whether the loss stands still: with
    momentum that of a single step is small at times, long before the end."""
    staged: bool = False
    """Whether it goes by stages: within one the loss may stand still, and that is not the end."""
    draws: bool = False
    """Whether it draws states of latents that `EM` would sum over, where they are few."""
    search: Search | None = None
    """How it looks for the best optimum before it runs to the end; None: it has one start."""
    start: Any = None
    """Where it starts, if that was given: it then has one start."""
    plate: str | None = None
    """The data plate, where it cannot be found by itself."""
    monotone: bool = False
    """Whether no step raises the loss."""
    pads: bool = False
    """Whether it gives rows weights, so that a table can be padded: see `rows.padding`."""
    why_not_compared: str | None = None
    """Why it takes no part in a comparison of all methods, where it does not."""

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        """None if the method applies to a program of this anatomy, else the reason why not."""
        del anatomy
        return None

    @classmethod
    def of(cls, model: Callable, anatomy: Anatomy) -> Algorithm:
        """The method with the settings that suit a program of this anatomy."""
        del anatomy
        make: Any = cls
        return make(model)

    def default_steps(self, anatomy: Anatomy) -> int:
        """Steps in which most runs on a small table converge, or those of all its stages."""
        del anatomy
        return 300

    def num_rows(self, args: tuple, kwargs: dict[str, Any]) -> int:
        """How many data there are in these arguments of the program.

        -1 where latents of rows meet: NumPy's arrays may be indices then, and keep their values.
        """
        try:
            _, anatomy = inspect_all(self.model, args, kwargs, self.plate)
        except GraphError:
            return -1
        return -1 if anatomy.crossed or anatomy.meeting else anatomy.num_data

    def may_stop(self, state: Any) -> bool | Array:
        """Whether a loss that stands still is the end, and not that of a stage only."""
        del state
        return True

    def refuse(self, rng_key: Array, *args: Any, **kwargs: Any) -> None:
        """Refuse what `init` cannot do, in its own words; its state is not computed."""
        with counting(None):
            jax.eval_shape(lambda: self.init(rng_key, *args, **kwargs))

    def propose(self, rng_key: Array, *args: Any, **kwargs: Any) -> Params:
        """Parameters of a start, for a search over several."""
        return self.get_params(self.init(rng_key, *args, **kwargs))

    def vary(self, rng_key: Array, params: Params, *args: Any, **kwargs: Any) -> Params:
        """Other parameters, from which a step may lead to a better optimum: by default a start."""
        del params
        return self.propose(rng_key, *args, **kwargs)

    def narrowed(self, rows: Rows) -> Narrow:
        """The rows for a search, with fewer columns where that is as good: by default as they are.

        What the parameters found there are with all columns comes with them.
        """
        return Narrow(rows, lambda params: params)

    def finish(
        self, result: RunResult, rng_key: Array, budget: float | None, args: tuple, kwargs: dict
    ) -> RunResult:
        """What a run ends with, once the best of its lineages is known."""
        del rng_key, budget, args, kwargs
        return result

    @abc.abstractmethod
    def init(
        self, rng_key: Array, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> Any:
        """Check the program and its data, and give the state to start from."""

    @abc.abstractmethod
    def update(self, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Array]:
        """One step: the next state, and the loss of the state that was passed in."""

    def get_params(self, state: Any) -> Params:
        """The parameters of the program, by site."""
        return state.params

    def fill(self, args: tuple, kwargs: dict[str, Any]) -> Padded | None:
        """These arguments of the program with their rows padded, where that is of use."""
        return pad(self.model, args, kwargs, self.plate) if self.pads else None

    def run(
        self,
        rng_key: Array,
        num_steps: Annotated[int, Range(1, MOST_STEPS)],
        *args: Any,
        progress_bar: bool = True,
        tolerance: Annotated[float, Range(0)] | None = None,
        init_state: Any = None,
        init_params: Params | None = None,
        record: Callable[[Params], Any] | None = None,
        budget: Seconds | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: Seconds = 60.0,
        mesh: Mesh | None = None,
        **kwargs: Any,
    ) -> RunResult:
        """Repeat `update` up to `num_steps` times; Ctrl-C ends it with what there is.

        A method with a `search` looks for the best of several starts first, unless it is given a
        start or a mesh, rows that stay on disk, or less steps than `Search.least_steps`. Where no
        two of them end at the best optimum, a run with a `tolerance` searches once more, from
        other starts; one with a `budget`, a `record` or a `checkpoint` does not.

        A scale of the noise that ran to zero is a `FloorWarning`: that likelihood has no maximum.
        One too small for the digits of the data's squares is a `PrecisionWarning`.

        An argument that is a `numpy.memmap` stays on disk and is read a chunk at a time.

        :param progress_bar: show one; never without a terminal or under CI.
        :param tolerance: stop when less than this share of the loss is left to gain: in the last
            step, and by Aitken's estimate in all steps to come.
        :param init_state: go on from here; `rng_key` is then not used.
        :param init_params: start from these parameters.
        :param record: a function of the parameters to keep after each step, in ``history``.
        :param budget: seconds of computing (on a CPU processor seconds: `running.clock`);
            compilation is free. One step is always taken, and no further one that would end more
            than a twentieth later; where a step from each start does not fit, there is one start.
        :param checkpoint: a folder to save the state in. A run that finds one of its own there goes
            on from it, and ends as it would have without the break. What of settings, program,
            data, key or version differs is named: see `inference.running.fingerprint`. So is a
            search that more steps would have made longer.
        :param checkpoint_every: seconds between two savings.
        :param mesh: devices to deal the rows out to, a mesh of one axis; see
            `inference.rows.devices`.
        """
        said = {"num_steps": num_steps, "tolerance": tolerance, "budget": budget}
        check_settings(Algorithm.run, {**said, "checkpoint_every": checkpoint_every})

        check_kinds(args, kwargs)  # before anything becomes an array of JAX's

        method: Any = self
        given = init_state is not None or init_params is not None or mesh is not None
        held = not any(stored(x) for x in jax.tree.leaves((args, kwargs)))
        if self.search is not None and num_steps >= self.search.least_steps and held and not given:
            method = Lineages(self, self.search)
        how = Drive(num_steps, progress_bar, tolerance, record, budget, checkpoint_every, mesh)
        wide = self.fill(args, kwargs) if mesh is None and self.start is None else None
        every = (args, kwargs) if wide is None else (wide.args, wide.kwargs)

        # Not the state itself, which would be held here for as long as the loop runs.
        def start(key: Array = rng_key) -> tuple[Any, Spent]:
            if method is not self:
                return method.begin(key, how, *every)
            if init_state is None:
                return self.init(rng_key, *every[0], init_params=init_params, **every[1]), Spent()
            return by_row(init_state, self.by_row, wide.fill) if wide else init_state, Spent()

        with ExitStack() as opened:
            saved = None
            if checkpoint is not None:
                key, begun = (rng_key, init_params) if init_state is None else (None, init_state)
                searched = "one start" if method is self else method.search.words(num_steps)
                made_of = origin(self, args, kwargs, key, begun, searched)
                saved = opened.enter_context(Checkpoint(Path(checkpoint), made_of))
            if wide is not None:
                opened.enter_context(wide.counting())
            try:
                result = drive(method, start, *every, how, saved)
                once = tolerance is None or (budget, record, checkpoint) != (None, None, None)
                if method is not self and not once and method.disagree(result):
                    other = partial(start, random.fold_in(rng_key, 1))
                    try:
                        result = method.better(result, drive(method, other, *every, how))
                    except DivergedError:
                        pass
                    except KeyboardInterrupt:
                        result = result._replace(stop=Stop.INTERRUPTED)
            except DivergedError as error:
                if wide is not None and method is self:
                    error.state = by_row(error.state, self.by_row, wide.cut)
                raise
        checks = ((at_floor, FloorWarning), (lost_digits, PrecisionWarning))
        for find, kind in checks if mesh is None else ():
            problem = find(self.model, result.params, args, kwargs, self.plate)
            if problem is not None:
                warnings.warn(problem, kind, stacklevel=2)
                break
        if method is not self:
            state, optima = method.best(result.state), method.optima(result.state)
            result = result._replace(state=state, optima=optima)
        if wide is not None:
            result = result._replace(state=by_row(result.state, self.by_row, wide.cut))
        return self.finish(result, rng_key, budget, args, kwargs)

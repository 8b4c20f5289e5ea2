"""Settings are held against the signature that takes them, before any work.

What a setting may be stands in its annotation: ``int`` is a whole number of at least 1 (0 where its
default is 0), ``float`` any finite number (of a class, whose numbers are rates and sizes, none
below 0), and ``Annotated[float, Range(0, 1)]`` says more. A class or a protocol is one of its
objects. Annotations of other kinds than those below are not checked.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np
from jax import Array

LARGEST_WHOLE = 2**31 - 1
LARGEST_RATE = 1e9
"""Of a number that is a setting of a class."""


class Range(NamedTuple):
    """The least and the largest value of a number, both allowed."""

    low: float = -math.inf
    high: float = math.inf


Seconds = Annotated[float, Range(0.0)]


def check_settings(function: Callable, settings: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse a value that is not of the kind that a function's signature asks for.

    :param function: a class is its constructor.
    :param prefix: what the message begins with, such as the option of a command.

    >>> def method(model, *, num_nodes: int | None = None, prior: bool = False): ...
    >>> check_settings(method, {"num_nodes": 7, "prior": True})
    >>> check_settings(method, {"num_nodes": 2.5})
    Traceback (most recent call last):
    ValueError: num_nodes must be a whole number of at least 1 or None, found 2.5
    """
    known = _kinds(function)
    for name, value in settings.items():
        kinds = known.get(name, ())
        if kinds and not any(kind.holds(value) for kind in kinds):
            words = " or ".join(dict.fromkeys(kind.words for kind in kinds))
            shown = " ".join(repr(value).split())
            shown = shown if len(shown) < 80 else type(value).__name__
            raise ValueError(f"{prefix}{name} must be {words}, found {shown}")


class _Kind(NamedTuple):
    """What a value may be."""

    words: str
    holds: Callable[[Any], bool]


@lru_cache(maxsize=256)
def _kinds(function: Callable) -> dict[str, tuple[_Kind, ...]]:
    """Argument -> the kinds of its annotation; none where it says nothing that can be checked."""
    by_name: dict[str, tuple[_Kind, ...]] = {}
    space: dict[str, Any] = {}
    real = Range(0, LARGEST_RATE) if isinstance(function, type) else Range()
    if isinstance(function, type):  # the fields of a dataclass may come from several files
        for base in reversed(function.__mro__):
            space |= vars(sys.modules[base.__module__])
        function = inspect.getattr_static(function, "__init__")
    else:
        space = getattr(inspect.unwrap(function), "__globals__", {})
    for name, parameter in inspect.signature(function).parameters.items():
        hint = parameter.annotation
        if hint is parameter.empty:
            continue
        if isinstance(hint, str):
            try:
                hint = eval(hint, space)
            except Exception:  # a name that only a type checker imports
                continue
        low = 0 if type(parameter.default) is int and parameter.default == 0 else 1
        kinds = _of(hint, Range(low, LARGEST_WHOLE), real)
        by_name[name] = () if any(kind is None for kind in kinds) else tuple(kinds)
    return by_name


def _of(hint: Any, whole: Range, real: Range) -> list[Any]:
    """The kinds of one annotation; None among them where anything may be meant."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = next((x for x in arguments[1:] if isinstance(x, Range)), None)
        whole, real = (
            Range(limits.low, min(limits.high, x.high)) if limits else x for x in (whole, real)
        )
        return _of(arguments[0], whole, real)
    if origin in (Union, types.UnionType):
        return [kind for part in arguments for kind in _of(part, whole, real)]
    if origin is Literal:
        return [_Kind(repr(value), partial(_same, value)) for value in arguments]
    if hint is None or hint is type(None):
        return [_Kind("None", lambda x: x is None)]
    if hint is bool:
        return [_Kind("True or False", lambda x: isinstance(x, bool | np.bool_))]
    if hint is int:
        return [_Kind(_words("a whole number", whole), lambda x: _whole(x) and _in(x, whole))]
    if hint is float:
        return [_Kind(_words("a finite number", real), lambda x: _real(x) and _in(x, real))]
    if hint is str:
        return [_Kind("text", lambda x: isinstance(x, str))]
    if origin is Callable or hint is Callable:
        return [_Kind("a function", callable)]
    if origin is Sequence and arguments[0] is int:
        return [_Kind("whole numbers such as (10, 5)", partial(_all_whole, whole))]
    if isinstance(hint, type) and hint.__name__ == "Distribution":
        words = "a distribution such as Normal(0, 1)"
        return [_Kind(words, lambda x: isinstance(x, hint))]
    if real == Range():  # of a function: what is said of its arguments may be said loosely
        return [None]
    if getattr(hint, "_is_protocol", False):
        names = [x for x in vars(hint) if not x.startswith("_")]
        return [_Kind(_an(hint), lambda x: all(hasattr(x, name) for name in names))]
    if origin is dict:
        return [_Kind("a dictionary", lambda x: isinstance(x, dict))]
    if isinstance(hint, type) and hint not in (object, Any, Array):
        return [_Kind(_an(hint), lambda x: isinstance(x, hint))]
    return [None]


def _an(kind: type) -> str:
    name = kind.__name__
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}" + ("(...)" if callable(kind) else "")


def _whole(x: Any) -> bool:
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def _real(x: Any) -> bool:
    if hasattr(x, "dtype"):  # also one that is not known yet, inside of what is compiled
        return x.shape == () and x.dtype.kind in "iuf"
    return isinstance(x, int | float) and not isinstance(x, bool)


def _in(x: Any, limits: Range) -> bool:
    try:
        return math.isfinite(x) and limits.low <= x <= limits.high
    except Exception:  # not known yet
        return True


def _same(wanted: Any, x: Any) -> bool:
    # A text's own == has no answer for what is no text, and that counts as true.
    return type(x) is type(wanted) and x == wanted


def _all_whole(limits: Range, x: Any) -> bool:
    listed = isinstance(x, Sequence | np.ndarray) and not isinstance(x, str)
    return listed and all(_whole(one) and _in(one, limits) for one in x)


def _words(kind: str, limits: Range) -> str:
    low, high = (int(x) if math.isfinite(x) and x == int(x) else x for x in limits)
    if high not in (math.inf, LARGEST_WHOLE):
        return f"{kind} from {low} to {high}"
    return kind if low == -math.inf else f"{kind} of at least {low}"

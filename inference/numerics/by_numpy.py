"""A function of JAX's computed by NumPy: for what runs a few times on few numbers.

To trace a program takes a tenth of a second, to compile what was traced half a second and more. The
tests of a program's form (`reading`) run two or three times on five rows: they are traced, and each
operation is then done by NumPy. An operation that is not listed here is done by JAX.

Random numbers are NumPy's, the same again from the same key, not those that JAX would draw from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend.core import Literal
from scipy import special

from .compiling import executable, now, under_jit
from .generators import BY_NUMPY, NotHereError, Rules, is_key, number_of

MOST = 20_000
"""Operations, each of some microseconds: where loops make more, compiling is sooner done."""


def by_numpy(function: Callable, *inputs: Any) -> Callable:
    """The function, traced at inputs of these shapes.

    It is compiled after all where it has long loops, or something in it is neither NumPy's nor
    JAX's outside of a trace, a generator of one's own, say.

    >>> import jax.numpy as jnp
    >>> run = by_numpy(lambda x: {"twice": 2 * x, "sum": jnp.sum(x)}, np.zeros(3))
    >>> {name: np.asarray(x).tolist() for name, x in run(np.arange(3.0)).items()}
    {'sum': 3.0, 'twice': [0.0, 2.0, 4.0]}
    """
    traced = jax.jit(function).trace(*inputs)
    closed = _needed(traced.jaxpr)
    if operations(closed.jaxpr) > MOST:
        return now(function)
    tree = jax.tree.structure(traced.out_info)

    def run(*inputs: Any) -> Any:
        with jax.ensure_compile_time_eval(), np.errstate(all="ignore"):
            arrays = [number_of(x) if is_key(x) else x for x in jax.tree.leaves(inputs)]
            leaves = compute(closed, arrays, BY_NUMPY)
        return jax.tree.unflatten(tree, leaves)

    try:
        run(*inputs)
    except Exception:  # if it is the function's own, it comes again
        return now(function)
    return run


def computed(function: Callable, *inputs: Any) -> Any:
    """`function(*inputs)` by NumPy, traced once for arrays of these shapes. What else the inputs
    hold is part of what is traced, as is all that the function closes over: no rows.

    >>> computed(lambda x, names: {name: x + 1 for name in names}, np.zeros(2), ["one"])
    {'one': array([1., 1.], dtype=float32)}
    """
    leaves, tree = jax.tree.flatten(inputs)
    arrays = [x for x in leaves if isinstance(x, np.ndarray | Array)]
    rest = [None if isinstance(x, np.ndarray | Array) else x for x in leaves]

    def run(arrays: list) -> Any:
        some = iter(arrays)
        return function(*jax.tree.unflatten(tree, [next(some) if x is None else x for x in rest]))

    return executable(lambda: by_numpy(run, arrays), arrays, run)(arrays)


def at_hand(arrays: Any) -> bool:
    """Whether this process knows these numbers here and now: nothing is being compiled."""
    leaves = jax.tree.leaves(arrays)
    if under_jit() or any(isinstance(x, jax.core.Tracer) for x in leaves):
        return False
    held = (getattr(x, "is_fully_addressable", True) for x in leaves)
    return all(held) and jax.default_backend() == "cpu"


def _needed(closed: Any) -> Any:
    """Without the operations that no output depends on: a program draws more than is asked for."""
    wanted, needed = set(map(id, closed.jaxpr.outvars)), []
    for equation in reversed(closed.jaxpr.eqns):
        if equation.effects or any(id(x) in wanted for x in equation.outvars):
            needed.append(equation)
            wanted.update(map(id, equation.invars))
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=needed[::-1]))


def operations(jaxpr: Any) -> int:
    """How many there are, those of a loop as often as it runs; once, where that is not known."""
    count = len(jaxpr.eqns)
    for how in (equation.params for equation in jaxpr.eqns):
        leaves = jax.tree.leaves(list(how.values()))
        inner = (getattr(x, "jaxpr", x) for x in leaves)
        count += how.get("length", 1) * sum(operations(x) for x in inner if hasattr(x, "eqns"))
    return count


def compute(closed: Any, inputs: list, rules: Rules) -> list:
    """The outputs of what was traced.

    :param rules: for random numbers, and whatever else is not listed here.
    """
    if any(is_key(x.aval) for x in closed.jaxpr.constvars):
        raise NotHereError
    values = dict(zip(closed.jaxpr.constvars, map(np.asarray, closed.consts), strict=True))
    values |= zip(closed.jaxpr.invars, inputs, strict=True)

    def value(x: Any) -> Any:
        return x.val if isinstance(x, Literal) else values[x]

    for equation in closed.jaxpr.eqns:
        results = _apply(equation, [value(x) for x in equation.invars], rules)
        for variable, each in zip(equation.outvars, results, strict=True):
            dtype = np.uint64 if is_key(variable.aval) else variable.aval.dtype
            values[variable] = np.asarray(each, dtype)
    return [value(x) for x in closed.jaxpr.outvars]


def _apply(equation: Any, inputs: list, rules: Rules) -> Any:
    name, how = equation.primitive.name, equation.params
    if name in rules:
        return [rules[name](how, *inputs)]
    if name in _PLAIN:
        return [_PLAIN[name](*inputs)]
    if name in _SHAPED:
        return [_SHAPED[name](how, *inputs)]
    if name in _INNER:
        return _INNER[name](how, inputs, rules)
    inner = [how[x] for x in ("jaxpr", "call_jaxpr", "fun_jaxpr") if x in how]
    if len(inner) == 1 and hasattr(inner[0], "consts"):
        return compute(inner[0], inputs, rules)
    if any(is_key(x.aval) for x in (*equation.invars, *equation.outvars)) or inner:
        raise NotHereError
    result = equation.primitive.bind(*inputs, **how)
    return result if equation.primitive.multiple_results else [result]


_PLAIN: dict[str, Callable] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative,
    "max": np.maximum, "min": np.minimum, "abs": np.abs, "sign": np.sign, "square": np.square,
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "sqrt": np.sqrt,
    "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "floor": np.floor, "ceil": np.ceil,
    "nextafter": np.nextafter,
    "logistic": special.expit, "lgamma": special.gammaln, "digamma": special.digamma,
    "erf": special.erf, "erfc": special.erfc, "erf_inv": special.erfinv,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.bitwise_not, "is_finite": np.isfinite, "rem": np.fmod,
    "shift_left": np.left_shift, "shift_right_arithmetic": np.right_shift,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "shift_right_logical": lambda x, by: np.right_shift(_unsigned(x), _unsigned(by)),
    "copy": np.asarray, "copy_p": np.asarray, "stop_gradient": np.asarray,
    "div": lambda x, y: np.true_divide(x, y) if np.asarray(x).dtype.kind == "f" else _whole(x, y),
    "pow": lambda x, y: np.power(x, np.asarray(y, np.asarray(x).dtype)),
    "select_n": lambda which, *cases: np.choose(np.asarray(which, int), cases)
    if len(cases) > 2 else np.where(which, cases[-1], cases[0]),
}  # fmt: skip


def _unsigned(x: Any) -> Any:
    return np.asarray(x).view(np.dtype(f"u{np.asarray(x).dtype.itemsize}"))


def _whole(x: Any, y: Any) -> Any:
    """Integers divide towards zero."""
    return np.where(np.equal(y, 0), -1, np.trunc(np.true_divide(x, np.where(y == 0, 1, y))))


def _broadcast(how: dict, x: Any) -> Any:
    shape = [1] * len(how["shape"])
    for place, length in zip(how["broadcast_dimensions"], np.shape(x), strict=True):
        shape[place] = length
    return np.broadcast_to(np.reshape(x, shape), how["shape"])


def _product(how: dict, x: Any, y: Any) -> Any:
    (over_x, over_y), (with_x, with_y) = how["dimension_numbers"]
    letters_x, letters_y = list(range(np.ndim(x))), list(range(np.ndim(x), np.ndim(x) + np.ndim(y)))
    for i, j in zip((*over_x, *with_x), (*over_y, *with_y), strict=True):
        letters_y[j] = letters_x[i]
    free = [a for i, a in enumerate(letters_x) if i not in (*over_x, *with_x)]
    free += [a for j, a in enumerate(letters_y) if j not in (*over_y, *with_y)]
    kind = how["preferred_element_type"] or np.result_type(x, y)
    x, y = np.asarray(x, kind), np.asarray(y, kind)
    return np.einsum(x, letters_x, y, letters_y, [letters_x[i] for i in with_x] + free)


def _gather(how: dict, x: Any, indices: Any) -> Any:
    numbers = how["dimension_numbers"]
    places, inside = _places(
        np.shape(x), how["slice_sizes"], indices, numbers.offset_dims, numbers.start_index_map,
        numbers.collapsed_slice_dims, numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
    )  # fmt: skip
    cells = np.asarray(x)[places]
    if "FILL" not in str(how["mode"]) or inside.all():
        return cells
    if how["fill_value"] is None and cells.dtype.kind != "f":
        raise NotHereError
    return np.where(inside, cells, np.nan if how["fill_value"] is None else how["fill_value"])


def _scatter_add(how: dict, x: Any, indices: Any, updates: Any) -> Any:
    numbers = how["dimension_numbers"]
    single = *numbers.inserted_window_dims, *numbers.operand_batching_dims
    sizes, windows = [1] * np.ndim(x), iter(numbers.update_window_dims)
    for d in (d for d in range(np.ndim(x)) if d not in single):
        sizes[d] = np.shape(updates)[next(windows)]
    places, inside = _places(
        np.shape(x), sizes, indices, numbers.update_window_dims,
        numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims,
        numbers.operand_batching_dims, numbers.scatter_indices_batching_dims,
    )  # fmt: skip
    if "CLIP" not in str(how["mode"]):
        updates = np.where(inside, updates, 0)
    total = np.array(x)
    np.add.at(total, places, updates)
    return total


def _places(
    shape: Any, sizes: Any, indices: Any, offset: Any, starts: Any, collapsed: Any, batch: Any,
    batching: Any,
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:  # fmt: skip
    """Each axis of the table has a start, from the indices or a batch, and its offsets."""
    kept = [d for d in range(len(shape)) if d not in (*collapsed, *batch)]
    rank = np.ndim(indices) - 1 + len(kept)
    own = [i for i in range(rank) if i not in offset]
    lengths = np.ones(rank, int)
    lengths[own] = np.shape(indices)[:-1]
    places, inside = [], np.ones(lengths, bool)
    for d, length in enumerate(shape):
        start: Any = np.zeros(lengths, int)
        if d in starts:
            start = np.asarray(indices, int)[..., starts.index(d)].reshape(lengths)
            last = length - sizes[d]
            inside = inside & (start >= 0) & (start <= last)
            start = np.clip(start, 0, last)
        elif d in batch:
            axis = own[batching[batch.index(d)]]
            start = np.arange(length).reshape([-1 if i == axis else 1 for i in range(rank)])
        if d in kept:
            along = offset[kept.index(d)]
            start = start + np.arange(sizes[d]).reshape(
                [-1 if i == along else 1 for i in range(rank)]
            )
        places.append(start)
    return tuple(np.broadcast_arrays(*places)), inside


def _along(reduce: Callable) -> Callable:
    return lambda how, x: reduce(x, axis=tuple(how["axes"]))


def _running(accumulate: Callable) -> Callable:
    def run(how: dict, x: Any) -> Any:
        turn = (lambda x: np.flip(x, how["axis"])) if how["reverse"] else np.asarray
        return turn(accumulate(turn(x), axis=how["axis"]))

    return run


def _pad(how: dict, x: Any, value: Any) -> Any:
    low, high, inside = np.array(how["padding_config"], int).reshape(-1, 3).T
    length = np.maximum(np.shape(x) + (np.array(np.shape(x), int) - 1) * inside, 0)
    before, after = np.maximum(low, 0), np.maximum(high, 0)
    padded = np.full(before + length + after, value, np.asarray(x).dtype)
    padded[tuple(map(slice, before, before + length, inside + 1))] = x
    return padded[tuple(map(slice, before - low, padded.shape + high - after))]


_SHAPED: dict[str, Callable] = {
    "broadcast_in_dim": _broadcast, "dot_general": _product, "gather": _gather, "pad": _pad,
    "scatter-add": _scatter_add,
    "iota": lambda how: _broadcast(
        {**how, "broadcast_dimensions": [how["dimension"]]},
        np.arange(how["shape"][how["dimension"]])),
    "convert_element_type": lambda how, x: (
        np.zeros(np.shape(x)) if np.asarray(x).dtype == jax.dtypes.float0 else np.asarray(x)
    ).astype(how["new_dtype"]),
    "bitcast_convert_type": lambda how, x: np.ascontiguousarray(x).view(how["new_dtype"]).reshape(
        np.shape(x)),
    "reshape": lambda how, x: np.reshape(x, how["new_sizes"]),
    "squeeze": lambda how, x: np.squeeze(x, tuple(how["dimensions"])),
    "transpose": lambda how, x: np.transpose(x, how["permutation"]),
    "rev": lambda how, x: np.flip(x, how["dimensions"]),
    "concatenate": lambda how, *x: np.concatenate(x, how["dimension"]),
    "stack": lambda how, *x: np.stack(x, how["axis"]),
    "slice": lambda how, x: x[tuple(map(
        slice, how["start_indices"], how["limit_indices"], how["strides"] or (1,) * np.ndim(x)))],
    "integer_pow": lambda how, x: np.power(x, how["y"]),
    "reduce_sum": _along(np.sum), "reduce_max": _along(np.max), "reduce_min": _along(np.min),
    "reduce_prod": _along(np.prod), "reduce_and": _along(np.all), "reduce_or": _along(np.any),
    "cumsum": _running(np.cumsum), "cumprod": _running(np.cumprod),
    "argmin": lambda how, x: np.argmin(x, how["axes"][0]),
    "argmax": lambda how, x: np.argmax(x, how["axes"][0]),
    "name": lambda how, x: x,  # noqa: ARG005
    "tile": lambda how, x: np.tile(x, how["reps"]),
}  # fmt: skip


def _scan(how: dict, inputs: list, rules: Rules) -> list:
    parts = how["ft_in"].unpack() if "ft_in" in how else None  # from JAX 0.11 on
    consts, num_carry = map(len, parts[:2]) if parts else (how["num_consts"], how["num_carry"])
    carry = consts + num_carry
    given, state, rows = inputs[:consts], inputs[consts:carry], inputs[carry:]
    kept: list[list] = []
    for i in range(how["length"])[:: -1 if how["reverse"] else 1]:
        row = [np.asarray(x)[i] for x in rows]
        results = compute(how["jaxpr"], [*given, *state, *row], rules)
        state, each = results[:num_carry], results[num_carry:]
        kept.append(each)
    kept = kept[::-1] if how["reverse"] else kept
    if not kept:
        raise NotHereError
    return [*state, *(np.stack(x) for x in zip(*kept, strict=True))]


def _while(how: dict, inputs: list, rules: Rules) -> list:
    first, second = how["cond_nconsts"], how["cond_nconsts"] + how["body_nconsts"]
    state = inputs[second:]
    while np.any(going := compute(how["cond_jaxpr"], [*inputs[:first], *state], rules)[0]):
        old, state = state, compute(how["body_jaxpr"], [*inputs[first:second], *state], rules)
        if np.ndim(going):  # of several loops at once, those that have ended stay as they are
            on = lambda x: np.reshape(going, np.shape(going) + (1,) * (np.ndim(x) - going.ndim))  # noqa: E731
            state = [np.where(on(x), x, y) for x, y in zip(state, old, strict=True)]
    return state


_INNER: dict[str, Callable] = {
    "scan": _scan, "while": _while,
    "cond": lambda how, x, rules: compute(
        how["branches"][int(np.clip(x[0], 0, len(how["branches"]) - 1))], x[1:], rules),
    "split": lambda how, x, _: np.split(x[0], np.cumsum(how["sizes"])[:-1], how["axis"]),
    "unstack": lambda how, x, _: list(np.moveaxis(x[0], how["axis"], 0)),
}  # fmt: skip

LISTED = {*_PLAIN, *_SHAPED, *_INNER}
"""Operations that NumPy does."""

"""What a likelihood cannot tell apart: hidden units in another order, factors turned.

Before parameters of two runs, chains or draws are compared, one is brought to the other: units are
matched one to one (Kuhn's assignment on their parameters), factors are rotated (Procrustes). Which
symmetries a likelihood has follows from the form of its program, under whatever names
(`inference.reading.recognition.papers`). A prior may break them: which ones a posterior has is
established by its density (`group_of`), and with it the number or the volume of its equal modes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.flatten_util import ravel_pytree
from scipy.linalg import orthogonal_procrustes
from scipy.optimize import linear_sum_assignment

from ..reading.anatomy import ProgramError, inspect
from ..reading.arguments import rows_of
from ..reading.recognition.papers import Form, Known, recall, recognise
from ..types import Arguments

Values = dict[str, np.ndarray]
LABELLED = (Form.MIXTURE, Form.CLASSES)
"""Forms whose latent is the number of a component."""


class Exchange(NamedTuple):
    """Units that may change places: in each of these parameters of the form, along its axis."""

    sites: tuple[tuple[str, int], ...]
    units: str = "causes"


class Rotation(NamedTuple):
    """A parameter (num_factors, num_features) of the form whose first axis may be turned."""

    site: str
    units: str = "factors"


def form_of(model: Callable, arguments: Arguments) -> Known | None:
    """Which of our programs a program is; of the data only kinds and shapes matter."""
    anatomy = inspect(model, *arguments)
    return recognise(model, anatomy, rows_of(anatomy, *arguments)) if anatomy.latents else None


def symmetries(known: Known | None) -> tuple[Exchange | Rotation, ...]:
    """What leaves the likelihood of a program as it is, by the names of its form.

    >>> from latentbits.models import latent_trait
    >>> [type(x).__name__ for x in symmetries(form_of(latent_trait, ((np.eye(4),), {})))]
    ['Rotation']
    """
    if known is None:
        return ()
    if known.form is Form.NOISY_OR:
        layers = sum(role.startswith("weights_") for role in known.places)
        below = [((f"weights_{k}", 0), (f"leak_{k}", 0)) for k in range(1, layers + 1)]
        above = [*(((f"weights_{k}", 1),) for k in range(2, layers + 1)), ()]
        names = [f"causes of layer {k}" if layers > 1 else "causes" for k in range(1, layers + 1)]
        parts = zip(below, above, names, strict=True)
        return tuple(Exchange((*x, *y), name) for x, y, name in parts)
    if known.form is Form.SPARSE_CODING:
        own = known.places["sparsity"].positions.ndim  # a prior of each cause goes with it
        return (Exchange((("weights", 0), ("sparsity", 0))[: 1 + own]),)
    if known.form in (*LABELLED, Form.MACHINE, Form.REAL_MACHINE):
        units = "components" if known.form in LABELLED else "causes"
        return (Exchange(tuple((role, 0) for role in known.places), units),)
    rotated = known.form in (Form.TRAIT, Form.GUESSING, Form.GRADED, Form.CLIPPED)
    return (Rotation("weights"),) if rotated else ()


# --- draws brought together


def align(
    draws: Mapping[str, Any],
    model: Callable,
    *args: Any,
    reference: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Values:
    """Draws relabelled, reflected and rotated, so that they can be averaged and compared.

    What is done to a draw leaves its likelihood as it is: hidden units change places, factors are
    rotated. The prior is not asked: one that differs between units or directions may change.

    Latent sites of the rows change with the parameters: factors are rotated, causes and the labels
    of components change places. Every other site is returned as it is; a deterministic site that
    depends on the order of units or on the axes of factors still describes the draw before.

    :param draws: by site, (num_draws, ...) or (num_chains, num_draws, ...), as
        `mcmc.get_samples(group_by_chain=True)` gives them; all parameters must be there.
    :param model: the program itself, also where `marginal(model)` was sampled, and its arguments.
    :param reference: parameters by site that each draw is brought to; without it all draws are
        brought to the last one, then to the mean of the result.

    >>> from latentbits.models import latent_trait
    >>> weights = np.array([[1.0, 2.0, 3.0], [1.0, 0.0, -1.0]])
    >>> draws = {"weights": np.stack([-weights, weights[::-1], weights]), "bias": np.zeros((3, 3))}
    >>> aligned = align(draws, latent_trait, np.eye(3))
    >>> bool(np.allclose(aligned["weights"], weights))
    True
    """
    known = form_of(model, (args, kwargs))
    if known is None:
        raise ProgramError(
            f"no symmetry of the program {getattr(model, '__name__', model)!r} is known: it has "
            f"the form of none of {', '.join(sorted(form.value for form in Form))}, so that its "
            "draws cannot be aligned; for draws of marginal(model) pass the model itself"
        )
    values = {name: np.asarray(value) for name, value in draws.items()}
    batch_ndims = _batch_ndims(known, values, "draws", (1, 2))
    latents = inspect(model, args, kwargs).names[::-1]  # of layers the lowest first
    if len(latents) != len(symmetries(known)) and set(latents) & set(values):
        raise ProgramError(
            f"the latents of a row are in the sites {', '.join(sorted(latents))}, which one "
            "rotation or exchange would mix: align the draws without them"
        )
    how: dict[str, Any] = {"arguments": (args, kwargs), "latents": latents}
    if reference is None:
        return together(model, values, batch_ndims=batch_ndims, **how)
    goal = {name: np.asarray(value) for name, value in reference.items()}
    _batch_ndims(known, goal, "reference", (0,))
    return align_to(model, values, goal, **how)


def _batch_ndims(known: Known, values: Values, what: str, allowed: tuple[int, ...]) -> int:
    """How many axes stand before those of the parameters: the same ones before all of them."""
    shapes = {name: values[name].shape if name in values else () for name in known.shapes}
    first, own = next(iter(known.shapes.items()))
    leading = shapes[first][: max(0, len(shapes[first]) - len(own))]
    axes = {0: "nothing", 1: "(num_draws,)", 2: "(num_chains, num_draws)"}
    for name, shape in known.shapes.items():
        if len(leading) not in allowed or shapes[name] != (*leading, *shape):
            found = f"has shape {shapes[name]}" if name in values else "is missing"
            raise ProgramError(
                f"site {name!r} of `{what}` {found}: wanted, as the program has it with these "
                f"arguments, {shape} after {' or '.join(axes[x] for x in allowed)}, in all sites"
            )
    return len(leading)


def together(
    model: Callable,
    params: Values,
    score: Any = None,
    arguments: Arguments | None = None,
    batch_ndims: int = 2,
    latents: tuple[str, ...] = (),
) -> Values:
    """Draws brought to one another: first to the best of them, then to the mean of the result.

    :param score: (num_chains, num_draws) log joint of each; without it the last draw is the first
        that the others are brought to.
    :param arguments: as `align_to` takes them, and `latents`.
    :param batch_ndims: 2 for chains of draws, 1 for draws.
    """
    best = (-1,) * batch_ndims
    if score is not None:
        best = tuple(map(int, np.unravel_index(np.argmax(score), np.shape(score))))
    first = {x: v[best] for x, v in params.items()}
    near = align_to(model, params, first, arguments, latents=latents)
    mean = {x: v.mean(tuple(range(batch_ndims))) for x, v in near.items()}
    return align_to(model, near, mean, arguments, latents=latents)


def align_to(
    model: Callable,
    params: Values,
    reference: Values,
    arguments: Arguments | None = None,
    latents: tuple[str, ...] = (),
) -> Values:
    """Parameters brought as near to the reference as the symmetries of the likelihood allow.

    :param params: by site, with or without leading axes of draws.
    :param arguments: (args, kwargs) of the program; of the data only kinds and shapes matter. They
        may be left out where some method has read the program before.
    :param latents: the site in `params` that changes with each of the `symmetries`.
    """
    params = {name: np.asarray(value) for name, value in params.items()}
    reference = {name: np.asarray(value) for name, value in reference.items()}
    known = recall(model, reference) if arguments is None else form_of(model, arguments)
    if known is None or not symmetries(known):
        return params
    if any(np.shape(reference[name]) != shape for name, shape in known.shapes.items()):
        return params  # of a network of another size
    goal = known.read(reference)
    first, shape = next(iter(known.shapes.items()))
    batch_ndims = params[first].ndim - len(shape)
    moving = [*known.shapes, *(name for name in latents if name in params)]
    flat = {x: params[x].reshape((-1, *params[x].shape[batch_ndims:])) for x in moving}
    each = ({x: v[i] for x, v in flat.items()} for i in range(len(flat[first])))
    draws = [_align_one(known, one, goal, latents) for one in each]
    moved = {x: np.stack([d[x] for d in draws]).astype(params[x].dtype) for x in moving}
    return {**params, **{x: v.reshape(params[x].shape) for x, v in moved.items()}}


def _align_one(known: Known, draw: Values, reference: Values, latents: tuple[str, ...]) -> Values:
    params, rows = known.read(draw), {}
    for place, symmetry in enumerate(symmetries(known)):
        units, wanted = (_units(symmetry, values) for values in (params, reference))
        if isinstance(symmetry, Rotation):
            move = orthogonal_procrustes(units.T, wanted.T)[0].T
        else:
            move = linear_sum_assignment(wanted @ units.T, maximize=True)[1]
        params = _moved(symmetry, params, move)
        for name in {*latents[place : place + 1]} & set(draw):
            states = draw[name].reshape(len(draw[name]), -1)
            if isinstance(symmetry, Rotation):
                states = states @ move.T
            else:  # bits in another order, or labels by other numbers
                label = known.form in LABELLED
                states = np.argsort(move)[states] if label else states[:, move]
            rows[name] = states.reshape(draw[name].shape)
    return {**draw, **known.write(params), **rows}


def _units(symmetry: Exchange | Rotation, params: Values) -> np.ndarray:
    """The parameters of each unit, (num_units, ...), by which it is told from others.

    Weights from a layer above are left out: they are put in order with that layer.
    """
    if isinstance(symmetry, Rotation):
        return np.asarray(params[symmetry.site], float)
    own = [np.asarray(params[site], float) for site, axis in symmetry.sites if axis == 0]
    return np.concatenate([x.reshape(len(x), -1) for x in own], -1)


def _moved(symmetry: Exchange | Rotation, params: Values, move: np.ndarray) -> Values:
    """Factors times an orthogonal matrix, or units in another order."""
    if isinstance(symmetry, Rotation):
        return {**params, symmetry.site: move @ params[symmetry.site]}
    return {**params, **{s: np.take(params[s], move, a) for s, a in symmetry.sites}}


# --- the symmetries of a posterior


class Block(NamedTuple):
    """Units or factors of a posterior of which each can stand for any other."""

    symmetry: Exchange | Rotation
    members: tuple[int, ...]
    total: int  # units or factors of the program
    turns: bool = False  # all rotations of these factors, not only another order
    signs: bool = False  # of each factor

    @property
    def num_images(self) -> int:
        """The number of images of a point; of rotations the number of their connected parts."""
        if self.turns:
            return 1 + self.signs
        return math.factorial(len(self.members)) * 2 ** (self.signs * len(self.members))

    @property
    def log_size(self) -> float:
        """log count, and the log volume of the rotations, SO(m): that of the spheres S¹ … Sᵐ⁻¹."""
        halves = [(k + 1) / 2 for k in range(1, len(self.members) if self.turns else 1)]
        spheres = (math.log(2) + h * math.log(math.pi) - math.lgamma(h) for h in halves)
        return math.log(self.num_images) + sum(spheres)

    def is_inside(self, params: Values, reference: Values) -> bool:
        """Whether no element of this block's group brings these parameters nearer."""
        units, wanted = (_units(self.symmetry, x)[[*self.members]] for x in (params, reference))
        likeness = wanted @ units.T
        if self.turns:
            values = np.linalg.eigvalsh(likeness + likeness.T)
            return bool(values[0] > 0 if self.signs else values[0] + values[1] > 0)
        benefit = np.abs(likeness) if self.signs else likeness
        best = benefit[linear_sum_assignment(benefit, maximize=True)].sum()
        return bool(np.trace(likeness) >= best - 1e-12 * np.abs(likeness).sum())


@dataclasses.dataclass(frozen=True)
class Group:
    r"""The symmetries of a posterior, as `group_of` finds them: a product of those of its blocks.

    **Finite ones** (labels, signs): the images of the set of parameters that no element brings
    nearer to the reference (`inside`) cover the whole space, and overlap in a set of measure zero.
    So :math:`\int p = \mathrm{size} \int_\text{inside} p`.

    **Rotations** of weights W, K factors by D ≥ K columns, about a reference :math:`W_0` of rank K.
    The slice S has the w with :math:`\langle w, A W_0 \rangle = 0` for all antisymmetric A. Since
    :math:`\langle w, A W_0 \rangle = \mathrm{tr}(A W_0 w^T)`, w is in S if and only if
    :math:`w W_0^T` is symmetric; :math:`W_0` itself is in S. Let :math:`W W_0^T` have rank K and
    the polar decomposition :math:`U P`, U orthogonal and P symmetric positive definite. It is
    unique, so that :math:`Q W W_0^T` is symmetric positive definite for :math:`Q = U^T` alone.
    Hence almost every orbit meets the part of S where :math:`w W_0^T` is positive definite
    (`inside`) in one point, the one nearest to :math:`W_0` (Procrustes), and
    :math:`(Q, w) \mapsto Q w` maps O(K) times this part one to one onto almost all W. With
    :math:`dQ = Q \sum_i A_i d\theta_i`, where the :math:`A_i` are the generators
    :math:`E_{ab} - E_{ba}, a < b`, its differential is :math:`Q (\sum_i A_i w\, d\theta_i + dw)`.
    Q keeps volumes, and dw is orthogonal to the orthonormal basis :math:`t_j` of
    :math:`\{A W_0\}`, so that the determinant is block triangular:

    .. math::

        dW = |\det M(w)|\, dw\, d\mu(Q), \quad M_{ij}(w) = \langle A_i w, t_j \rangle, \qquad
        \int p(W)\, dW = \mathrm{vol}\, O(K) \int_\text{inside} p(w)\, |\det M(w)|\, dw

    for a density that rotations leave as it is. In the measure :math:`\mu`, in which each generator
    has unit length, :math:`\mathrm{vol}\, O(K) = 2 \prod_{k=1}^{K-1} \mathrm{vol}(S^k)`, since
    O(K) / O(K − 1) is the sphere of the images of one axis. Where reflections are broken and
    rotations are not, O(K) becomes SO(K): half the volume, and inside is where the two smallest
    eigenvalues of :math:`w W_0^T` have a positive sum.
    """

    known: Known | None
    blocks: tuple[Block, ...] = ()

    @property
    def log_size(self) -> float:
        """log of the number of images of a point, or of their volume where factors rotate."""
        return sum(block.log_size for block in self.blocks)

    def inside(self, draws: Mapping[str, Any], reference: Mapping[str, Any]) -> np.ndarray:
        """Whether each draw is nearest to the reference among its images: (num_draws,).

        Draws of factors that rotate must lie on the slice; of others the symmetric part of
        w W₀ᵀ is looked at.

        :param draws: parameters by the program's sites, (num_draws, ...).
        :param reference: one set of them.
        """
        values = {name: np.asarray(value) for name, value in draws.items()}
        num_draws = len(next(iter(values.values())))
        if self.known is None or not self.blocks:
            return np.ones(num_draws, bool)
        goal = self.known.read({name: np.asarray(value) for name, value in reference.items()})
        each = (self.known.read({x: v[i] for x, v in values.items()}) for i in range(num_draws))
        return np.array([all(x.is_inside(one, goal) for x in self.blocks) for one in each], bool)

    def generators(self, params: Mapping[str, Any]) -> Array:
        """Tangents of the rotations at these parameters: (num_generators, num_params).

        Coordinates are those of `ravel_pytree`: site after site in alphabetical order. Linear in
        the parameters, and to be used under `jit`, `vmap` and `grad`.
        """
        values = {name: jnp.asarray(value) for name, value in params.items()}
        tangents = []
        for block in self.blocks:
            if block.turns and self.known and isinstance(block.symmetry, Rotation):
                own, site = self.known.read(values), block.symmetry.site
                still = jax.tree.map(jnp.zeros_like, own)
                for a, b in combinations(block.members, 2):
                    turned = still[site].at[a].set(own[site][b]).at[b].set(-own[site][a])
                    tangents.append(ravel_pytree(self.known.write({**still, site: turned}))[0])
        return jnp.stack(tangents) if tangents else jnp.zeros((0, ravel_pytree(values)[0].size))

    @property
    def words(self) -> str:
        """What may change, in one sentence."""
        parts = []
        for block in self.blocks:
            some = f" of {block.total}" * (len(block.members) < block.total)
            order = "change places" + " and signs" * block.signs
            what = "be rotated" + ", not reflected" * (not block.signs) if block.turns else order
            if len(block.members) > 1:
                parts.append(f"{len(block.members)}{some} {block.symmetry.units} may {what}")
        if single := sum(len(block.members) == 1 for block in self.blocks):
            many = "s" * (single > 1)
            parts.append(f"the sign{many} of {single} factor{many} may change")
        count = math.prod(block.num_images for block in self.blocks)
        if parts and not any(block.turns for block in self.blocks):
            number = count if count < 10**12 else f"about 10^{len(str(count)) - 1}"
            parts[-1] += f" ({number} equal modes)"
        return "; ".join(parts) or "no symmetry is known"


TOLERANCE = 1e-9
"""How far a symmetry may change a log density in float64, relative to its size."""


def group_of(
    known: Known | None,
    log_density: Callable[[dict[str, Any]], Any],
    params: Mapping[str, Any],
    rng_key: Array | None = None,
) -> Group:
    """Which symmetries of a likelihood a posterior has, by its density near `params`.

    Asked is each step that generates a group: the exchange of two units or factors, a rotation of
    two factors by one radian (whose powers are dense in all rotations of the two), another sign of
    one factor. Each of these three relations is an equivalence, so that the units fall into blocks.
    It is asked near `params`, not there: at equal units any density would look symmetric.

    A likelihood that is integrated by quadrature has rotations only as far as its nodes are enough;
    since the form says that the likelihood has them, the log prior can be asked instead.

    :param known: what `form_of` says; None has no known symmetry.
    :param log_density: of a dict of parameters in their own support, by the program's sites: log
        prior, with or without the log likelihood, and without the log |Jacobian| of a transform. It
        is called in float64.
    :param params: one set of parameters, inside the support.
    :param rng_key: for the point near them.

    >>> from latentbits.models import latent_trait
    >>> known = form_of(latent_trait, ((np.eye(4),), {}))
    >>> params = {"weights": np.arange(8.0).reshape(2, 4), "bias": np.zeros(4)}
    >>> group_of(known, lambda x: -(x["weights"] ** 2).sum(), params).words
    '2 factors may be rotated'
    >>> group_of(known, lambda x: -abs(x["weights"] - 1).sum(), params).words
    '2 factors may change places (2 equal modes)'
    """
    if known is None:
        return Group(None)
    values = known.read({name: np.asarray(value, float) for name, value in params.items()})
    keys = random.split(random.key(0) if rng_key is None else rng_key, len(values))
    noise = {x: random.normal(key, values[x].shape) for x, key in zip(values, keys, strict=True)}
    point = _near(known, values, jax.tree.map(lambda x: 0.1 * np.asarray(x, float), noise))

    def log_at(values: Values) -> float:
        with jax.enable_x64(True):
            return float(log_density(known.write(values)))

    base = log_at(point)
    if not math.isfinite(base):
        raise ValueError(f"log_density is {base} near `params`: they must lie inside the support")

    def holds(symmetry: Exchange | Rotation, move: np.ndarray) -> bool:
        return abs(log_at(_moved(symmetry, point, move)) - base) <= TOLERANCE * (1.0 + abs(base))

    blocks = []
    for symmetry in symmetries(known):
        units = _units(symmetry, values)
        blocks += _blocks(symmetry, len(units), partial(holds, symmetry))
        if any(block.turns and len(block.members) > units.shape[1] for block in blocks):
            raise ProgramError(
                f"{len(units)} factors of {units.shape[1]} columns may be rotated and are not "
                "determined: take no more factors than columns"
            )
    return Group(known, tuple(blocks))


def _near(known: Known, values: Values, noise: Values) -> Values:
    """A point of the same support at which no two units are equal."""
    point = dict(values)
    for symmetry in symmetries(known):
        if isinstance(symmetry, Rotation):
            point[symmetry.site] = values[symmetry.site] + noise[symmetry.site]
            continue
        for role in (site for site, axis in symmetry.sites if axis == 0):
            value, factor = values[role], np.exp(noise[role])
            shares = role == "mixing" or known.form is Form.CLASSES
            probability = shares or role in ("probs", "sparsity")
            value = value**factor if probability else value * factor
            point[role] = value / value.sum(-1, keepdims=True) if shares else value
    return point


def _blocks(
    symmetry: Exchange | Rotation, total: int, holds: Callable[[np.ndarray], bool]
) -> list[Block]:
    def changed(part: Any, *index: int) -> bool:
        move = np.eye(total)
        move[np.ix_(index, index)] = part
        return holds(move if isinstance(symmetry, Rotation) else move.argmax(1))

    exchanged = partial(changed, [[0, 1], [1, 0]])
    if isinstance(symmetry, Exchange):
        alike = _classes(range(total), exchanged)
        return [Block(symmetry, x, total) for x in alike if len(x) > 1]
    turn = [[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]]
    parts = _classes(range(total), partial(changed, turn))
    alike = _classes([x[0] for x in parts if len(x) == 1], exchanged)
    turning = [x for x in parts if len(x) > 1]
    found = [(x, x in turning, changed([[-1]], x[0])) for x in (*turning, *alike)]
    return [Block(symmetry, x, total, *how) for x, *how in found if len(x) > 1 or how[1]]


def _classes(units: Iterable[int], same: Callable[[int, int], bool]) -> list[tuple[int, ...]]:
    """The classes of an equivalence relation."""
    classes: list[tuple[int, ...]] = []
    for unit in units:
        place = next((i for i, x in enumerate(classes) if same(x[0], unit)), len(classes))
        classes[place : place + 1] = [(*sum(classes[place : place + 1], ()), unit)]
    return classes

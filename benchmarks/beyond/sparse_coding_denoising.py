"""Binary sparse coding that takes the noise out of a picture, from the noisy picture alone.

All overlapping patches are the data. Each cause has a prior of its own, each patch remembers its
best states so far (`Persistent`), and a pixel is the mean of what the patches that hold it have
there, the surer of it the more. The same model and picture are in Drefs, Guiraud & Lücke, JMLR 23
(2022), whose search for states flips bits blindly, over about a thousand epochs, and whose patches
all count alike.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from latentbits.models import binary_sparse_coding
from latentbits.models.data import InputError
from latentbits.models.data.images import open_grey

from inference.files.figures import image_grid
from inference.methods.discrete.persistent import Persistent
from inference.methods.discrete.step import EMState
from inference.methods.discrete.truncated import TruncatedEM
from inference.methods.shared import Chunk, chunk_rows
from inference.papers.experiment import Option, Outcome, Page, experiment
from inference.reading.log_joint import Structure
from inference.rows.chunks import map_over_chunks
from inference.types import Params

ROUNDS = 8
"""In which the patches find their states, before anything is learned."""
FIRST_STEPS, LONGER = 3, 1.8
"""EM is slow where causes overlap: below 2 a longer step still comes to rest where EM does
(Salakhutdinov & Roweis 2003). 1.8 was chosen by the PSNR of House (docs/results.md)."""
PEAK = 255.0
"""The largest grey value: what the noise is compared with."""


class Size(NamedTuple):
    """How large the experiment is."""

    side: int  # pixels of a patch, each way
    stride: int  # pixels from one patch to the next
    causes: int
    kept: int  # states of a patch
    steps: int


SMALL = Size(8, 2, 64, 8, 40)
PAPER = Size(12, 1, 256, 16, 2400)
GPU_ROWS = 32_000
"""Patches read at a time on a GPU, at most, by default."""


@experiment(
    "bsc-denoise",
    "a picture without its noise, from sparse coding of its own patches",
    image=Option(Path, "a picture, .png, .jpg or .tiff (shapes)"),
    pixels=Option(64, "pixels of shapes, each way", 16, 1),
    sigma=Option(50.0, "sigma of the noise added"),
    side=Option(SMALL.side, "pixels of a patch, each way", 4, 1, PAPER.side),
    stride=Option(SMALL.stride, "pixels between patches", 2, 1, PAPER.stride),
    causes=Option(SMALL.causes, "basis functions", 8, 1, PAPER.causes),
    kept=Option(SMALL.kept, "states of a patch", 4, 1, PAPER.kept),
    steps=Option(SMALL.steps, "iterations", 4, 1, PAPER.steps),
    every=Option(1, "iterations between pictures", least=1, full=20),
    seconds=Option(float, "stop after so many, compiling included"),
    chunk_size=Option(int, "patches read at a time"),
)
def run_denoise(options: argparse.Namespace) -> Outcome:
    """`bsc-denoise`: the picture before and after, and the PSNR by iteration."""
    size, every = Size(*(getattr(options, name) for name in Size._fields)), options.every
    if size.causes > 16 * size.side**2:
        raise InputError(f"--causes must be at most 16 per pixel of a patch, found {size.causes}")
    if not options.sigma > 0:
        raise InputError(f"--sigma must be positive, found {options.sigma}")
    picture = shapes(options.pixels) if options.image is None else open_grey(options.image)
    if min(picture.shape) < size.side:
        raise InputError(
            f"the picture is {picture.shape[0]}×{picture.shape[1]} pixels: "
            f"too small for patches of --side {size.side}"
        )
    noise = np.random.default_rng(options.seed).standard_normal(picture.shape)
    noisy = picture + options.sigma * noise
    cut = patch_places(picture.shape, size.side, size.stride)
    data, places = jnp.asarray(noisy.ravel()[cut], jnp.float32), jnp.asarray(cut)

    chunk_size = options.chunk_size
    if chunk_size is None and jax.default_backend() != "cpu":
        # All chunks of one size, so that no patch is read twice.
        chunk_size = -(-len(data) // -(-len(data) // GPU_ROWS))
    # Three children of each kept state: the best flip, one that is drawn, and two at once.
    sets = Persistent(size.kept, 3 * size.kept)
    method = TruncatedEM(
        binary_sparse_coding,
        persistent=sets,
        chunk_size=chunk_size,
        start=start,
        structure=Structure.SHARED,
    )
    sizes: dict[str, Any] = {"num_causes": size.causes, "shared_sparsity": False}
    begin = time.perf_counter()
    state = method.init(random.key(options.seed), data, **sizes)

    def longer(state: EMState, data: Array) -> EMState:
        """A step of EM, whose change of the basis functions is lengthened after the first few.

        Patches begin with one cause on at most: learned from these, all causes would become alike.
        """
        new, _ = method.update(state, data, **sizes)
        searching, old = state.step < ROUNDS, state.params
        by = jnp.where(state.step < ROUNDS + FIRST_STEPS, 1.0, LONGER)
        weights = old["weights"] + by * (new.params["weights"] - old["weights"])
        learned = {**new.params, "weights": weights}
        params = {name: jnp.where(searching, old[name], x) for name, x in learned.items()}
        return new._replace(params=params)

    def pictures(state: EMState, data: Array, places: Array) -> tuple[Array, Array]:
        mean, variance = patches_of(method, state, data, sizes)
        # No pixel is better known than the mean of a patch.
        sure = 1.0 / (variance + state.params["noise"] ** 2 / data.shape[1])
        merge = partial(mean_of_patches, mean, places=places, num_pixels=picture.size)
        return merge(sure), merge(jnp.ones_like(sure))

    # Programs are read one after the other, and compiled at the same time.
    lowered = (
        jax.jit(longer, donate_argnums=0).lower(state, data),
        jax.jit(pictures).lower(state, data, places),
    )
    with ThreadPoolExecutor() as threads:
        update, pictures_of = threads.map(lambda one: one.compile(), lowered)
    for _ in range(ROUNDS):
        state = update(state, data)

    course: dict[int, float] = {}
    first, clean, alike, step, over = 0.0, noisy, noisy, 0, False
    while not over:
        step += 1
        state = update(state, data)
        over = step == size.steps
        if step % every == 0 or step == 1 or over:
            both = pictures_of(state, data, places)
            clean, alike = (np.asarray(x).reshape(picture.shape) for x in both)
            course[step] = psnr(clean, picture)
            seconds = time.perf_counter() - begin
            over = over or (options.seconds is not None and seconds > options.seconds)
            first = first or seconds
    params = state.params
    numbers = {
        **size._replace(steps=step)._asdict(),
        "num_data": len(data),
        "sigma": options.sigma,
        "psnr_noisy": psnr(noisy, picture),
        "psnr": course[step],
        "psnr_equal_weights": psnr(alike, picture),
        "psnr_by_iteration": {str(step): value for step, value in course.items()},
        "noise": float(params["noise"]),
        "active_causes": float(params["sparsity"].sum()),
        "seconds": seconds,
        "seconds_to_first_iteration": first,
    }
    drawn = (picture, noisy, clean, course, params, size)
    return Outcome(numbers, (12, 7.5), denoise_figure, drawn)


def start(key: Array, data: Array, num_causes: int, **sizes: Any) -> Params:
    """The mean patch, always on, and principal components in steps: what has to be coded in bits.

    Of a component along which patches vary by t, causes of length t, t/2, t/4, ... each way are the
    digits of a coordinate; the `num_causes` - 1 longest of all components are taken.
    """
    del key, sizes
    table = np.asarray(data, float)
    variance, directions = np.linalg.eigh(np.cov(table.T))
    noise = np.median(variance)  # patches have few large components: the others are noise
    length = np.sqrt(np.maximum(variance - noise, 0.0))
    steps = (length[:, None] / 2.0 ** np.arange(8)).ravel()
    longest = np.argsort(-steps, kind="stable")[: num_causes // 2]
    digits = steps[longest, None] * directions.T[longest // 8]
    both = np.stack([digits, -digits], axis=1).reshape(-1, table.shape[1])
    weights = np.concatenate([table.mean(0)[None], both])[:num_causes]
    return {
        "weights": jnp.asarray(weights, jnp.float32),
        "noise": jnp.asarray(np.sqrt(noise), jnp.float32),
        "sparsity": jnp.full(num_causes, 0.1).at[0].set(0.99),
    }


def patches_of(
    method: TruncatedEM, state: EMState, data: Array, sizes: dict
) -> tuple[Array, Array]:
    """Each patch without noise over the states it remembers, (num_data, D): mean and variance."""
    reader, rows = method.open((data,), sizes)
    sets, params = method.sets(reader, rows), state.params
    size = chunk_rows(method.chunk_size, reader, sets.num_states(reader.anatomy), rows)

    def part(arguments: tuple, memory: Array) -> tuple[Array, Array]:
        here = Chunk(reader.at(size), params, arguments)
        states, share = sets.expect(here, memory).weighted()

        def add(sums: tuple[Array, Array], each: tuple[Array, Array]) -> tuple[tuple, None]:
            shown, weight = each[0] @ params["weights"], each[1][:, None]
            return (sums[0] + weight * shown, sums[1] + weight * shown**2), None

        none = jnp.zeros((size, data.shape[1]))
        mean, square = lax.scan(add, (none, none), (states.astype(none.dtype), share))[0]
        return mean, jnp.maximum(square - mean**2, 0.0)

    # By default a GPU multiplies single precision with ten bits.
    with jax.default_matmul_precision("highest"):
        return map_over_chunks(part, rows, size, state.memory)


def patch_places(shape: tuple[int, ...], side: int, stride: int) -> np.ndarray:
    """The pixels of each patch, (num_data, side²), as places in the picture laid end to end.

    The last patches end with the picture, whatever the stride.

    >>> patch_places((3, 4), 2, 2).tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7], [4, 5, 8, 9], [6, 7, 10, 11]]
    """
    corners = [np.unique(np.minimum(np.arange(0, n, stride), n - side)) for n in shape]
    place = np.arange(np.prod(shape)).reshape(shape)
    first = place[np.ix_(*corners)].ravel()
    return first[:, None] + place[:side, :side].ravel()


def mean_of_patches(values: Array, weights: Array, places: Array, num_pixels: int) -> Array:
    """The picture of which patches (num_data, side²) are cut, by their weights where they overlap.

    >>> places = patch_places((2, 3), 2, 1)
    >>> values, weights = jnp.array([[1.0] * 4, [3.0] * 4]), jnp.array([[1.0] * 4, [3.0] * 4])
    >>> mean_of_patches(values, weights, places, 6).tolist()
    [1.0, 2.5, 3.0, 1.0, 2.5, 3.0]
    """
    none = jnp.zeros(num_pixels)
    return none.at[places].add(weights * values) / none.at[places].add(weights)


def psnr(estimate: np.ndarray, picture: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB, of grey values up to 255.

    >>> round(psnr(np.full((2, 2), 50.0), np.zeros((2, 2))), 2)
    14.15
    """
    return float(10.0 * np.log10(PEAK**2 / np.mean((estimate - picture) ** 2)))


def shapes(pixels: int) -> np.ndarray:
    """A picture of edges and shades, where none is given: (pixels, pixels)."""
    y, x = np.mgrid[0:pixels, 0:pixels] / pixels
    sky = 120.0 + 80.0 * y
    roof = (y > 0.2 + np.abs(x - 0.5)) & (y < 0.5)
    wall = (y >= 0.5) & (np.abs(x - 0.5) < 0.3)
    window = wall & (np.abs(x - 0.5) % 0.2 > 0.1) & (y % 0.2 > 0.1)
    return np.select([window, wall, roof], [40.0, 220.0, 90.0], sky)


def denoise_figure(
    page: Page,
    picture: np.ndarray,
    noisy: np.ndarray,
    clean: np.ndarray,
    course: dict[int, float],
    params: Params,
    size: Size,
) -> None:
    """Before and after, the basis functions that are used most, and the PSNR by iteration."""
    shown = {
        f"A  noisy, {psnr(noisy, picture):.2f} dB": noisy,
        f"B  denoised, {psnr(clean, picture):.2f} dB": clean,
        "C  original": picture,
    }
    across = min(16, size.causes)
    used = np.argsort(-np.asarray(params["sparsity"]))[: across * min(4, size.causes // across)]
    functions = np.asarray(params["weights"])[used].reshape(-1, across, size.side, size.side)
    top, bottom = page.subfigures(2, 1, height_ratios=(1.2, 1), squeeze=False)[:, 0]
    for axes, (title, image) in zip(top.subplots(1, 3), shown.items(), strict=True):
        axes.imshow(image, cmap="gray", vmin=0.0, vmax=PEAK)
        axes.set(title=title, xticks=[], yticks=[])
    left, right = bottom.subfigures(1, 2, squeeze=False)[0]
    image_grid(left, functions, title="D  basis functions in use, most first", scale="image")
    axes = right.subplots()
    axes.plot([*course], [*course.values()])
    axes.set(xlabel="iteration", ylabel="PSNR (dB)", title="E  PSNR by iteration")

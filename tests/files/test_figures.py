"""The shared drawings show what they are given: the right way up, in place, in one scale."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from inference.files.figures import PALETTE, hinton, house_style, image_grid, spectrum, time_course


@pytest.fixture
def axes():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def picture(axes):
    return np.ma.filled(axes.images[0].get_array(), np.nan)


def test_images_stand_in_rows_and_keep_their_orientation(axes):
    images = np.zeros((2, 3, 2, 4))
    images[1, 2, 0, 3] = 5.0  # the top right pixel of the last image of the second row
    image_grid(axes, images, row_labels=["first", "second"])
    shown = picture(axes)
    bright = np.argwhere(shown == 1.0)
    assert (bright.mean(axis=0) > np.array(shown.shape) / 2).all()
    image_of_it = np.argwhere(
        np.isfinite(shown) & (np.arange(shown.shape[0])[:, None] > shown.shape[0] / 2)
    )
    assert bright[:, 0].min() == image_of_it[:, 0].min()
    assert bright[:, 1].max() == image_of_it[:, 1].max()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second"]
    assert axes.get_yticks()[0] < axes.get_yticks()[1]  # rows are counted downwards, as images are


@pytest.mark.parametrize("scale, largest", [("grid", [0.5, 1.0]), ("row", [1.0, 1.0])])
def test_images_share_a_scale_where_it_is_said(axes, scale, largest):
    images = np.array([[[[1.0, -0.5]]], [[[2.0, -2.0]]]])
    image_grid(axes, images, scale=scale)
    halves = np.array_split(picture(axes), 2)
    assert [np.nanmax(half) for half in halves] == largest
    assert axes.images[0].get_clim() == (-1, 1)  # signed: zero is white


def test_grey_images_and_those_of_nothing(axes):
    image_grid(axes, np.zeros((1, 1, 3, 3)))
    assert axes.images[0].get_clim() == (0, 1)
    assert np.nanmax(picture(axes)) == 0.0
    with pytest.raises(ValueError, match=r"\(rows, columns, height, width\)"):
        image_grid(axes, np.zeros((3, 3)))


def test_hinton_squares_have_the_area_of_the_weight(axes):
    hinton(axes, [[4.0, -1.0, 0.0]])
    positive, negative = axes.collections
    sides = [np.ptp(c.get_paths()[0].vertices[:, 0]) for c in (positive, negative)]
    assert [len(c.get_paths()) for c in (positive, negative)] == [1, 1]
    assert sides[0] ** 2 == pytest.approx(4 * sides[1] ** 2)
    assert negative.get_facecolor()[0].tolist() == [1.0, 1.0, 1.0, 1.0]


def test_spectrum_is_ordered(axes):
    spectrum(axes, {"a": [1.0, 3.0, 0.0], "b": [2.0]})
    assert [line.get_ydata().tolist() for line in axes.lines[:2]] == [[3.0, 1.0, 0.0], [2.0]]


def test_time_course_shows_every_run_its_median_and_the_truth(axes):
    time_course(axes, {"σ": [[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]}, 2.0)
    lines = [line.get_ydata() for line in axes.lines]
    assert len(lines) == 5
    assert list(lines[3]) == [3.0, 4.0]
    assert list(lines[4]) == [2.0, 2.0]


def test_the_style_ends_with_its_block():
    before = plt.rcParams["axes.prop_cycle"]
    with house_style():
        assert plt.rcParams["axes.prop_cycle"].by_key()["color"] == list(PALETTE)
    assert plt.rcParams["axes.prop_cycle"] == before

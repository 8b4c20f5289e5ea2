"""Pictures of fits: curves against loops, and one of each kind that can be drawn."""

import numpy as np
import pytest

from inference.files.output import draw_picture
from inference.items.pictures import curves_of, drawings, sheet


def test_curves_are_expected_answers():
    """The sum over levels of c P(answer = c), over the highest level, from the definition."""
    rng = np.random.default_rng(0)
    slopes, bias = rng.uniform(0.5, 2.0, 4), np.sort(rng.normal(size=(4, 3)))[:, ::-1].copy()
    bias[1, 2] = np.nan
    items = {"discrimination": slopes, **{f"intercept_{c + 1}": bias[:, c] for c in range(3)}}
    points = np.array([-1.0, 0.5])
    found = curves_of({**items, "intercept_1_se": np.ones(4)}, points)
    for s, x in enumerate(points):
        for i in range(4):
            own = bias[i][~np.isnan(bias[i])]
            above = [1.0, *(1 / (1 + np.exp(-slopes[i] * x - b)) for b in own), 0.0]
            mean = sum(c * (above[c] - above[c + 1]) for c in range(len(own) + 1))
            assert found[s, i] == pytest.approx(mean / len(own), abs=1e-12)


def test_guessing_is_the_lowest_probability():
    items = {"discrimination": [2.0], "intercept": [0.0], "guessing": [0.2]}
    np.testing.assert_allclose(curves_of(items, np.array([-50.0, 0.0])), [[0.2], [0.6]])


SCORES = {"factor_1": np.linspace(-2, 2, 9)}
ITEMS = {"item": ["a", "b"], "discrimination": [1.0, 2.0], "intercept": [0.0, 1.0],
         "difficulty": [0.0, -0.5], "difficulty_se": [0.1, np.nan]}  # fmt: skip
PROFILE = {"item": ["a", "a", "b", "b", "b"], "category": ["0", "1", "u", "v", "w"],
           "class_1": [0.0, 1.0, 0.2, 0.3, 0.5], "class_1_se": [np.nan, np.nan, 0.1, 0.1, 0.1],
           "class_2": [0.6, 0.4, 0.4, 0.3, 0.3], "class_2_se": [0.1] * 5}  # fmt: skip


@pytest.mark.parametrize(
    ("tables", "point", "image", "titles"),
    [
        ({"items": ITEMS, "scores": SCORES}, {}, None, ["Item curves", "Items and persons"]),
        ({"items": {**ITEMS, "slope_2": [1, 1], "loading_1": [0.5, 0.1], "loading_2": [0, 0.9]}},
         {}, None, ["Loadings"]),
        ({"profile": PROFILE}, {}, None, ["Class profiles"]),
        ({}, {"weights": np.eye(2), "noise": 1.0}, None, ["Parameters weights"]),
        ({}, {"weights": np.ones((3, 2))}, (2, 1), ["Images of weights"]),
        ({}, {"probs": np.ones(2)}, None, []),
    ],
)  # fmt: skip
def test_each_kind_of_fit_has_its_pictures(tables, point, image, titles):
    made = drawings(tables, point, ["a", "b"], image)
    assert [one.title for one in made] == titles
    if made:
        assert draw_picture(sheet, ".png", made)[:8] == b"\x89PNG\r\n\x1a\n"


def test_profiles_show_one_category_of_two_and_all_of_more():
    (drawing,) = drawings({"profile": PROFILE}, {}, ["a", "b"])
    probs, errors, names, _ = drawing.draw.args
    assert names == ["a = 1", "b = u", "b = v", "b = w"]
    np.testing.assert_allclose(probs[0], [1.0, 0.4])
    np.testing.assert_allclose(errors[0], [0.0, 0.196])

"""Differences between groups: the likelihood of both by sums over a line, and what is found."""

import numpy as np
import pytest
from scipy import stats

from inference.items import dif

BITS = (2,) * 6

SLOPES, INTERCEPTS = np.array([1.0, 1.5, 0.8, 1.2, 1.3, 0.9]), np.array([0.2, -0.4, 0.1, 0.5, 0, 1])
SIZE = len(SLOPES)


def drawn(count, shift, seed=0):
    """Two groups that differ in ability, and in the last items by `shift`."""
    rng = np.random.default_rng(seed)
    group = np.arange(count) % 2
    ability = rng.normal(size=count) * (1.0 + 0.3 * group) + 0.6 * group
    predictor = ability[:, None] * SLOPES + INTERCEPTS
    predictor[:, -np.size(shift) :] += np.multiply.outer(group, shift).reshape(count, -1)
    return (rng.random((count, SIZE)) < 1.0 / (1.0 + np.exp(-predictor))) + 0.0, group


def loss(vector, levels, data, seen, group):
    """Minus the log likelihood by a sum over a line, row by row: slopes, intercepts from the lowest
    level up, the other group's intercepts of item 3, its mean and log deviation."""
    line = np.linspace(-8.0, 8.0, 401)
    weight = np.exp(-0.5 * line**2) / np.exp(-0.5 * line**2).sum()
    ends = np.cumsum(np.array(levels) - 1)
    intercepts = np.split(vector[SIZE : SIZE + ends[-1]], ends[:-1])
    total = 0.0
    for row, there, g in zip(data, seen, group, strict=True):
        theta = vector[-2] + np.exp(vector[-1]) * line if g else line
        each = np.ones(len(line))
        for i in np.flatnonzero(there):
            own = vector[SIZE + ends[-1] : -2] if g and i == 2 else intercepts[i]
            above = 1.0 / (1.0 + np.exp(-vector[i] * theta[:, None] - own))
            above = np.hstack([np.ones((len(line), 1)), above, np.zeros((len(line), 1))])
            each = each * (above[:, int(row[i])] - above[:, int(row[i]) + 1])
        total -= np.log(weight @ each)
    return total


# As many rows as below, whose fits of bits are then compiled.
@pytest.mark.parametrize(("levels", "count"), [(BITS, 300), ((3, 2, 4, 2, 3, 2), 120)])
def test_a_fit_is_a_maximum_of_the_likelihood_of_both_groups(levels, count):
    data, group = drawn(count, 0.0)
    rng = np.random.default_rng(1)
    data = data + rng.integers(0, np.array(levels) - 1, data.shape)  # up to the highest level
    seen = rng.random(data.shape) < 0.9
    tables = [dif.Answers.of(data[group == g], seen[group == g], levels) for g in range(2)]
    free = np.zeros((2, SIZE), bool)
    free[1, 2] = True
    columns = tables[0].columns
    start = dif.Groups(
        np.ones((2, SIZE)), np.tile(1.0 - columns.level, (2, 1)), np.zeros(2), np.zeros(2)
    )
    fitted = dif.fit_groups(tables, start, free)
    (slopes, others), (intercepts, theirs) = fitted.groups[:2]
    np.testing.assert_array_equal(slopes, others)
    own = columns.column_of == 2
    assert ((intercepts != theirs) == own).all()
    ends = [fitted.groups.mean[1], fitted.groups.log_deviation[1]]
    vector = np.concatenate([slopes, intercepts, theirs[own], ends])
    assert fitted.loss == pytest.approx(loss(vector, levels, data, seen, group), rel=1e-6)
    for k in (0, SIZE + 1, *range(len(vector) - 2 - own.sum(), len(vector))):
        step = np.zeros(len(vector))
        step[k] = 1e-4
        up, down = (loss(vector + s * step, levels, data, seen, group) for s in (1, -1))
        assert abs(up - down) / 2e-4 < 0.02


def test_the_item_that_differs_is_found_and_is_no_anchor():
    data, group = drawn(900, -1.2, seed=3)
    start = {"weights": SLOPES[None], "bias": INTERCEPTS}
    labels = np.where(group, "city", "village")
    study = dif.study_groups(dif.Answers.of(data, None, BITS), labels, start)
    assert study.anchors.tolist() == [True] * (SIZE - 1) + [False]
    assert study.items["p_adjusted"][-1] < 1e-4 and study.items["p_uniform"][-1] < 1e-4
    assert (study.items["p_adjusted"][:-1] > 0.05).all()
    reference = 0 if study.names[0] == "village" else 1
    # Of equal ability, the group with the harder item is expected to solve it less often.
    assert np.sign(study.items["difference"][-1]) == (-1 if reference == 0 else 1)
    assert study.mean[1] * (1 if reference == 0 else -1) == pytest.approx(0.6, abs=0.25)
    assert study.counts.sum() == len(data)
    assert study.settled
    lines = dif.group_lines(study, "place", list("abcdef"))
    assert len(lines) == 3
    assert lines[1] == "anchors   a, b, c, d, e (5 of 6 items)" and lines[2].startswith(
        "differ    f "
    )


def differ(tables, anchors):
    """The statistic of each item, and whether it is found to differ, by fits from the truth."""
    begin = dif.Groups(np.tile(SLOPES, (2, 1)), np.tile(INTERCEPTS, (2, 1)), *np.zeros((2, 2)))
    statistic = np.zeros(SIZE)
    for i in range(SIZE):
        free = np.tile(~anchors, (2, 1))
        losses = []
        for own in (False, True):
            free[:, i] = own
            losses.append(dif.fit_groups(tables, begin, free).loss)
        statistic[i] = 2 * (losses[0] - losses[1])
    return statistic, dif.adjusted(stats.chi2.sf(statistic, 2)) < dif.LEVEL


def test_tests_are_those_of_the_anchors_shown_where_the_choice_of_anchors_cycles():
    """With all items as anchors two differ, and without these two as anchors none does."""
    data, group = drawn(300, (-0.5, 0.7), seed=36)
    labels = np.where(group, "city", "village")
    start = {"weights": SLOPES[None], "bias": INTERCEPTS}
    study = dif.study_groups(dif.Answers.of(data, None, BITS), labels, start)
    tables = [dif.Answers.of(data[labels == name], None, BITS) for name in study.names]
    with_all, found = differ(tables, np.ones(SIZE, bool))
    assert "".join(np.array(list("abcdef"))[found]) == "ef"
    without, none = differ(tables, ~found)
    assert not none.any()

    assert (
        study.anchors.tolist() == (~found).tolist() == study.items["anchor"].astype(bool).tolist()
    )
    np.testing.assert_allclose(study.items["chi2"], without, atol=0.01)
    assert not np.allclose(with_all, without, atol=0.1)
    assert not study.settled
    lines = dif.group_lines(study, "place", list("abcdef"))
    assert lines[1] == "anchors   a, b, c, d (4 of 6 items)" and "differ    no item" in lines[2]
    assert "did not settle" in lines[3]

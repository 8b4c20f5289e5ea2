"""Whether a winner came again is decided by an interval that a worse one does not pass."""

import numpy as np
import pytest
from beyond.winner import Sets, come_again


def made(rng, count, slower=1.0, worse=0.0):
    """As `latent_trait` has them: 0.02 nats per row and a fifth of the time from set to set."""
    return Sets(rng.normal(0.46 + worse, 0.02, count), rng.normal(np.log(0.1 * slower), 0.2, count))


@pytest.mark.parametrize("count", [2, 5])
def test_a_winner_twice_as_slow_or_a_twentieth_of_a_nat_worse_is_caught(count):
    """Of a comparison with two data sets too; the same winner passes nineteen times of twenty."""
    rng = np.random.default_rng(0)
    trials = 400
    found = {"same": [], "slower": [], "worse": []}
    for _ in range(trials):
        old = made(rng, count)
        for what, new in (
            ("same", made(rng, 20)),
            ("slower", made(rng, 20, slower=2.0)),
            ("worse", made(rng, 20, worse=0.05)),
        ):
            found[what].append(come_again(old, new, 0.05))
    excess, seconds = ({w: np.mean([x[key]["within"] for x in all_]) for w, all_ in found.items()}
                       for key in ("excess", "seconds"))  # fmt: skip
    assert 0.92 < excess["same"] < 0.98 and seconds["same"] > 0.92
    assert seconds["slower"] < 0.05 and excess["slower"] > 0.92
    assert excess["worse"] < (0.2 if count == 2 else 0.01) and seconds["worse"] > 0.92


def test_an_interval_that_cannot_tell_says_so():
    """Four data sets whose times differ by a factor of five: nothing is decided."""
    rng = np.random.default_rng(1)
    wild = Sets(rng.normal(0.46, 0.01, 4), rng.normal(-2.0, 1.6, 4))
    assert not come_again(wild, wild._replace(), 0.05)["decides"]
    steady = Sets(wild.excess, rng.normal(-2.0, 0.1, 4))
    assert come_again(steady, steady, 0.05)["decides"]
    assert not come_again(steady, steady, 0.6)["decides"]  # the machine itself is that noisy


def test_the_interval_of_the_excess_is_no_narrower_than_the_rows_that_judge_leave_it():
    """Two data sets that agree by chance: their rows could have said 0.03 nats more or less."""
    old, new = Sets(np.array([0.470, 0.471]), np.zeros(2)), Sets(np.array([0.45] * 5), np.zeros(5))
    assert not come_again(old, new, 0.05)["excess"]["within"]
    assert come_again(old._replace(rows_error=0.03), new, 0.05)["excess"]["within"]

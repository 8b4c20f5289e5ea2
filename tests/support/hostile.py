"""What the tests of hostile input share: examples that are the same each time, and the one error.

The property is always the same: a result that the oracle agrees with, or one error of ours, in one
line that names what was wrong; never an error from deep inside, never NaN, nothing half-written.
"""

import traceback
from pathlib import Path

import hypothesis
import numpy as np
import pandas as pd
import pytest

import inference
import ppl_models
from inference.cli import main

BITS = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 0]])
FRAME = pd.DataFrame(BITS, columns=["a", "b", "c"])
OURS = tuple(Path(package.__file__).parent for package in (inference, ppl_models))


def examples(count):
    """So many examples, the same on every machine and in every run."""
    return hypothesis.settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def assert_ours(error, *words):
    """One line, raised by this package as a ValueError, that holds the words."""
    assert isinstance(error, ValueError), repr(error)
    last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    assert any(folder in last.parents for folder in OURS), f"{error!r} comes from {last}"
    message = str(error)
    assert message and "\n" not in message and len(message) < 600
    for word in words:
        assert word in message, message


def refused(*words):
    """A context in which one error of ours is raised."""
    return _Refused(words)


class _Refused:
    def __init__(self, words):
        self.words = words

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is None:
            pytest.fail(f"nothing was raised that says {self.words}")
        assert_ours(error, *self.words)
        return True


def assert_exit(capfd, arguments, *words, folder):
    """Exit code 2, one line on stderr, nothing on stdout, and no file more than before."""
    before = sorted(folder.rglob("*"))
    assert main([str(x) for x in arguments]) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.count("\n") == 1 and error.startswith("latentbits: "), error
    for word in words:
        assert word in error, error
    assert sorted(folder.rglob("*")) == before

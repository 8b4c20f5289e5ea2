"""Every public name explains itself by an example; pytest runs those as doctests."""

import doctest
import importlib
import inspect
import sys
from functools import cache

import pytest

import inference
from inference.running.algorithm import Algorithm

PACKAGES = ("latentbits.models", "latentbits.models.data", "latentbits")


def public():
    return [
        pytest.param(package, name, id=f"{package}.{name}")
        for package in PACKAGES
        for name in importlib.import_module(package).__all__
    ]


@cache
def examples(module):
    """Names of a module whose docstrings hold examples that doctest would run."""
    doctests = doctest.DocTestFinder(exclude_empty=True).find(sys.modules[module])
    return {test.name.removeprefix(f"{module}."): test for test in doctests if test.examples}


@pytest.mark.parametrize(("package", "name"), public())
def test_public_name_has_an_example_that_runs(package, name):
    value = getattr(importlib.import_module(package), name)
    if callable(value):
        own = getattr(value, "__name__", name)  # of an alias that of the class
        assert own in examples(value.__module__)
    else:  # a constant has no docstring: an example in its package uses it
        inside = [module for module in sys.modules if module.startswith(f"{package}.")]
        tests = [test for module in inside for test in examples(module).values()]
        assert any(name in example.source for test in tests for example in test.examples)


def test_every_finished_method_is_public():
    def below(kind):
        return {kind}.union(*map(below, kind.__subclasses__()))

    methods = {kind for kind in below(Algorithm) if not inspect.isabstract(kind)}
    names = {
        kind.__name__
        for kind in methods
        if kind.__module__.startswith("latentbits.inference.methods")
    }
    assert len(names) >= 10
    assert names <= set(inference.__all__)

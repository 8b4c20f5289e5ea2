"""Settings of every test run: an environment that must be in place before JAX is imported."""

import os
from pathlib import Path

import pytest

# Compiling takes most of the time of a run; the next one reuses it, whatever its order of tests.
_caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_caches / "latentbits"))
# Also what compiles quickly: what NumPyro does outside of jit is hundreds of little programs.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Figures are drawn on machines without a screen too.
os.environ.setdefault("MPLBACKEND", "Agg")

# Half a minute and more each: were they last, one worker would wait for the other.
LONGEST = "papers", "compare", "table", "endurance", "devices", "documentation"


def pytest_collection_modifyitems(items):
    """The longest files first; the others in their order."""
    first = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path.stem, len(first)))


@pytest.fixture(autouse=True, scope="module")
def compiled():
    """Free what a module compiled: thousands of programs exceed the memory maps of a process."""
    yield
    import jax

    jax.clear_caches()


@pytest.fixture
def double():
    """Everything in float64 while the test runs."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def compilations():
    """The compilations since it was cleared, as a list of seconds."""
    import jax

    durations = []

    def hear(name, seconds, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            durations.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(hear)
    yield durations
    jax.monitoring.unregister_event_duration_listener(hear)

"""Settings of every test run: an environment that must be in place before JAX is imported."""

import gc
import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

# Compiling takes most of the time of a run; the next one reuses it, whatever its order of tests.
_caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_caches / "latentbits"))
# Also what compiles quickly: what NumPyro does outside of jit is hundreds of little programs.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Tests compile much and run little: unoptimised code is ready in half the time.
_flags = [os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=0"]
# The older of the two emitters of jaxlib 0.10 compiles in a third of the time. Later releases have
# one only, and end the process at a flag that they do not know.
if version("jaxlib").startswith("0.10."):
    _flags.append("--xla_cpu_use_fusion_emitters=false")
# Programs as small as these are not worth being taken apart for several compilers at once.
if version("jaxlib").startswith(("0.10.", "0.11.", "0.12.")):
    _flags.append("--xla_cpu_parallel_codegen_split_count=1")
os.environ["XLA_FLAGS"] = " ".join(_flags)
# Figures are drawn on machines without a screen too.
os.environ.setdefault("MPLBACKEND", "Agg")
# Tracing makes objects by the million and hardly a cycle: looking for those less often saves 3 %.
gc.set_threshold(100_000, 20, 100)

# Half a minute and more each: were they last, one worker would wait for the other.
LONGEST = "papers", "compare", "methods", "admits", "endurance", "devices", "documentation"


def pytest_collection_modifyitems(items):
    """The longest files first; the others in their order."""
    first = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path.stem, len(first)))


class Forgetting:
    """Forgets how programs were lowered when a test is over; what was compiled of them is kept.

    JAX keeps the MLIR context of every program, and to make one takes the longer the more there
    are: after a thousand programs it compiles a small one in 32 ms instead of 20.
    """

    def pytest_runtest_logfinish(self):
        if "jax" in sys.modules:
            from jax._src import pjit
            from jax._src.interpreters import pxla

            for module, name in ((pxla, "_cached_lowering_to_hlo"), (pjit, "_pjit_lower")):
                if hasattr(module, name):  # neither is promised
                    getattr(module, name).cache_clear()


def pytest_configure(config):
    config.pluginmanager.register(Forgetting())  # for doctests too, which are not below this folder


def pytest_collection_finish():
    """What was imported stays: no collection of garbage has to go through it again."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    """Nor is what tests leave behind of use to anyone: pytest would go through it five times."""
    gc.freeze()


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

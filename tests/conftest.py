"""Settings of every test run. Environment only: it must be in place before JAX is imported."""

import os
from pathlib import Path

# Compiling takes most of the time of a run; the next one reuses it, whatever its order of tests.
_caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_caches / "latentbits"))
# Also what compiles quickly: what NumPyro does outside of jit is hundreds of little programs.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
# Tests compile much and run little: unoptimised code is ready in half the time.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
# Figures are drawn on machines without a screen too.
os.environ.setdefault("MPLBACKEND", "Agg")

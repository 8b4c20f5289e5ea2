"""The two aliases that every wing uses."""

from __future__ import annotations

from typing import Any

from jax import Array

Arguments = tuple[tuple, dict[str, Any]]


Params = dict[str, Array]

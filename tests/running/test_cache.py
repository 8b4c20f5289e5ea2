"""What was compiled, kept on disk: a folder that cannot be used, entries in pieces, too many."""

import os
import signal
import subprocess
import sys
import time
import warnings

import jax
import pytest

from inference.compiling import STAMP, cache_compilations, tidy

SCRIPT = """
import sys
from latentbits import cache_compilations
cache_compilations(sys.argv[1])
import jax
import jax.numpy as jnp
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
for n in range(1, int(sys.argv[2])):
    total = jax.jit(lambda x: jnp.tanh(x + n).sum())(jnp.ones(n))
print(float(total))
"""


@pytest.fixture
def settings(monkeypatch):
    """Everything as before when the test is over."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setattr(warnings, "filters", list(warnings.filters))
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("settings")
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache_compilations()
    assert jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    cache_compilations()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "new" / "latentbits")


def test_a_process_killed_while_it_writes_spoils_nothing(tmp_path):
    """Killed as soon as something is there, and what it wrote last cut short: the worst moment."""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}

    def start(count):
        command = [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path), str(count)]
        return subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )

    killed = start(10_000)
    deadline = time.monotonic() + 120
    while len(entries(tmp_path)) < 4:
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    whole = max(entries(tmp_path), key=lambda path: path.stat().st_size)
    content = whole.read_bytes()
    whole.write_bytes(content[: len(content) // 2])

    after = start(4)
    out, error = after.communicate(timeout=120)
    assert (after.returncode, error) == (0, "")
    assert float(out) == pytest.approx(3 * 0.999329)  # 3 tanh(4)
    assert whole.read_bytes() == content or not whole.exists()


def test_the_folder_is_bounded_and_what_was_used_last_stays(tmp_path):
    import zlib

    for age in range(5):
        path = tmp_path / f"{age}-cache"
        path.write_bytes(zlib.compress(os.urandom(1000)))
        os.utime(path, (1000.0 - age, 1000.0 - age))
    (tmp_path / "of the user").write_bytes(bytes(10_000))
    tidy(tmp_path, 2500)
    assert {x.name for x in tmp_path.iterdir()} == {"0-cache", "1-cache", "of the user", STAMP}


def entries(folder):
    return list(folder.glob("*-cache"))

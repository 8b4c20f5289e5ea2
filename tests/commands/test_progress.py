"""On a terminal: what is compiled, a bar with the time left; Ctrl-C keeps what there is."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


def test_ctrl_c_in_fit_keeps_what_there_is(tmp_path):
    """A real process on a terminal of its own, stopped while its bar moves."""
    table = np.random.default_rng(0).normal(size=(40, 3))
    file, out = tmp_path / "table.csv", tmp_path / "fit.nc"
    np.savetxt(file, table, "%.3f", ",", header="a,b,c", comments="")
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    environment = {x: v for x, v in os.environ.items() if x != "CI"}
    # With noise in each step the loss never settles: only Ctrl-C or the last step ends it.
    command = [
        "fit", "binary_sparse_coding", "--data", file, "--set", "num_causes=2", "--out", out,
        "--method", "TruncatedEM", "--option", "parameter_noise={'weights': 0.3}",
        "--option", "search=None", "--steps", "3000000",
    ]  # fmt: skip
    # What a shell runs in the background ignores Ctrl-C, and so would what it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    fitting = subprocess.Popen(
        [sys.executable, "-m", "inference", *map(str, command)],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=inner, text=True,
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    os.close(inner)
    giving_up = threading.Timer(240.0, fitting.kill)
    giving_up.start()
    printed = b""
    try:
        while not re.search(rb"TruncatedEM: +\d+%.*\[\d\d:\d\d<\d", printed):
            printed += os.read(outer, 4096)
        fitting.send_signal(signal.SIGINT)
        # Read to the end, or the process waits for room on its terminal.
        threading.Thread(target=_drain, args=(outer,), daemon=True).start()
        said = fitting.communicate()[0]
    finally:
        giving_up.cancel()
    assert b"compiling TruncatedEM" in printed
    assert fitting.returncode == 130
    assert re.search(r"stopped +interrupted after \d+ of 3000000 steps", said)
    assert "the parameters of the last step, which are no maximum" in said
    assert out.is_file()


def _drain(terminal):
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:  # the other side is closed
        os.close(terminal)

"""Where output goes: streams that nobody reads, encodings without our characters, full disks.

Each command is a process of its own, since streams, limits and exit codes are those of a process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

COMMAND = f"{sys.executable} -m latentbits"
FIT = f"{COMMAND} fit latent_trait --set num_factors=1 --data bits.csv --out fit.nc"
COMPARE = f"{COMMAND} compare bernoulli_product --data bits.csv --methods MAP --replicates 1"
FITTED = ["fit.nc", *(f"fit_{x}.csv" for x in ("information", "items", "measures", "scores"))]


def shell(folder, command, **env):
    """What a line of bash ends with, in a folder that has a table."""
    rng = np.random.default_rng(0)
    bits = rng.normal(size=(120, 1)) + rng.normal(size=(120, 5)) > [-1.0, -0.5, 0.0, 0.5, 1.0]
    np.savetxt(folder / "bits.csv", bits, "%d", ",", header="a,b,c,d,e", comments="")
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=folder, env={**os.environ, **env},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def written(folder):
    return sorted(x.name for x in folder.iterdir() if x.name != "bits.csv")


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_closed_stream_ends_no_command(tmp_path, closed):
    done = shell(tmp_path, f"{FIT} {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert written(tmp_path) == FITTED
    assert not any(b"log likelihood" in (tmp_path / x).read_bytes() for x in FITTED)


def test_a_closed_stream_hides_no_error(tmp_path):
    done = shell(tmp_path, f"{FIT.replace('bits.csv', 'none.csv')} >&-")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "none.csv: there is no such file" in done.stderr
    assert written(tmp_path) == []


@pytest.mark.parametrize("both", ["", "2>&1"])
def test_all_files_are_written_after_the_reader_has_gone(tmp_path, both):
    done = shell(tmp_path, f"{FIT} {both} | true", PYTHONUNBUFFERED="1")
    assert (done.returncode, done.stderr) == (141, "")
    assert written(tmp_path) == FITTED


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_a_full_disk_loses_no_result_and_leaves_nothing_in_pieces(tmp_path):
    """Standard output on a full disk: all files are written. Then files of 8 kB at most."""
    done = shell(tmp_path, f"{FIT} > /dev/full", PYTHONUNBUFFERED="1")
    words = "latentbits: standard output cannot be written (No space left on device)\n"
    assert (done.returncode, done.stderr) == (2, words)
    assert written(tmp_path) == FITTED
    before = {x: (tmp_path / x).read_bytes() for x in FITTED}
    done = shell(tmp_path, f"ulimit -f 8; {FIT} --seed 1")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    size = len(before["fit.nc"])
    for words in (f"{tmp_path / 'fit.nc'}: cannot be written (File too large)", "it takes ",
                  " bytes", "say --out ELSEWHERE"):  # fmt: skip
        assert words in done.stderr
    wanted = int(done.stderr.partition("it takes ")[2].partition(" bytes")[0])
    assert abs(wanted - size) < 200  # seconds and seeds as text
    assert "log likelihood" in done.stdout and "difficulty" in done.stdout
    assert {x: (tmp_path / x).read_bytes() for x in FITTED} == before
    assert written(tmp_path) == FITTED


def test_characters_that_an_encoding_lacks_are_escaped(tmp_path):
    command = (
        f"cp bits.csv réponses.csv; {COMPARE.replace('bits.csv', 'réponses.csv')} --out b --json"
    )
    done = shell(tmp_path, command, PYTHONIOENCODING="ascii")
    assert done.stdout.isascii() and "r\\u00e9ponses.csv" in done.stdout
    assert {"manifest.json", "report.html", "result.nc"} <= set(written(tmp_path / "b"))
    assert json.loads(done.stdout) == json.loads((tmp_path / "b" / "manifest.json").read_text())


def test_a_comparison_is_shown_though_its_files_cannot_be_written(tmp_path):
    """Also to a stream that lacks our characters."""
    limit = "ulimit -f 8; JAX_ENABLE_COMPILATION_CACHE=false"
    done = shell(tmp_path, f"{limit} {COMPARE} --out a", PYTHONIOENCODING="ascii")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and "say --out ELSEWHERE" in last and "MAP.nc" in last, done.stderr
    assert "nats per row" in done.stdout and "MAP: " in done.stdout and "\\u00b1" in done.stdout
    assert written(tmp_path / "a") == []

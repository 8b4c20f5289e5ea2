"""Commands killed at a random time: what they leave is whole, and the same command ends as ever.

    python benchmarks/kills.py [--kills 50] [--seed 0] [COMMAND …]

`fit --checkpoint`, `choose`, `compare` and `compare --continue` run once to their end, and then as
often as asked until SIGKILL arrives, each in a folder of its own. Afterwards no process of theirs
runs (3 s later), each file is absent or can be read whole, and the same command, typed again,
prints the numbers of the run that nobody killed. (`compare --continue` ends, or had ended: its NUTS
stops by the clock.) A line for each command counts what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import xarray as xr

SMALL = ["latent_trait", "--example", "small", "--replicates", "1"]
COMMANDS = {
    "fit": ["fit", "bernoulli_mixture", "--data", "table.csv", "--set", "num_components=6",
            "--out", "fit.nc", "--checkpoint", "state"],
    "choose": ["choose", "LCA", "--data", "table.csv", "--over", "num_classes=1..3",
               "--bootstrap", "0", "--figure", "curve.svg"],
    "compare": ["compare", *SMALL, "--methods", "QuadratureEM,MAP", "--out", "out"],
    "continue": ["compare", "--continue", "out", "--limit", "3"],
}  # fmt: skip
FIRST = ["compare", *SMALL, "--methods", "QuadratureEM,NUTS", "--limit", "0.5", "--out", "out"]
"""What `continue` goes on with."""
NUMBERS = re.compile(r"-?\d+\.\d+ ± \d+\.\d+|^(?:log likelihood|AIC|BIC|\w+=\d).*", re.MULTILINE)
"""What is the same from run to run: scores of methods, and of fits."""


def start(line: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "latentbits", *line], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def end(line: list[str], folder: Path) -> str:
    """What it prints."""
    run = start(line, folder)
    out, err = run.communicate(timeout=600)
    if run.returncode:
        raise RuntimeError(f"code {run.returncode}: {err[-300:]}")
    return out


def broken(file: Path) -> str:
    """Why this file is no whole one."""
    try:
        if file.suffix == ".nc":
            xr.open_datatree(file).load().close()
        elif file.suffix == ".npz":
            with np.load(file) as arrays:
                [arrays[x] for x in arrays]
        elif file.suffix == ".json":
            json.loads(file.read_text())
        elif file.suffix in (".html", ".svg"):
            last = f"</{file.suffix[1:]}>"
            return "" if file.read_text().rstrip().endswith(last) else f"{file.name}: no {last}"
    except Exception as error:
        return f"{file.name}: {error!r}"
    return ""


def orphans(folder: Path) -> list[str]:
    """Processes whose folder this is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " ")[:80])
        except OSError:
            continue
    return found


def kill(name: str, folder: Path, after: float, wanted: str) -> str:
    """One run that is killed, and the one that follows it: what was wrong."""
    run = start(COMMANDS[name], folder)
    time.sleep(after)
    run.kill()
    run.communicate()
    time.sleep(3.0)
    left = orphans(folder.resolve())
    if left:
        return f"orphans {left}"
    # Files being written have names that begin with a dot.
    files = [x for x in folder.rglob("*") if x.is_file() and not x.name.startswith(".")]
    words = [why for why in map(broken, files) if why]
    if words:
        return "; ".join(words)
    try:
        said = end(COMMANDS[name], folder)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        done = name == "continue" and json.loads((folder / "out/manifest.json").read_text())
        return "" if done and done["about"]["limit"] == 3 else f"cannot go on: {error}"
    same = name == "continue" or NUMBERS.findall(said) == NUMBERS.findall(wanted)
    return "" if same else f"ends elsewhere:\n{said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", default=list(COMMANDS), metavar="COMMAND")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    rows = rng.random((2000, 3)) @ rng.random((3, 12)) / 2 > rng.random((2000, 12))
    table = "\n".join(",".join(map(str, row)) for row in rows.astype(int))
    with tempfile.TemporaryDirectory() as place:
        for name in asked.commands:
            begin = Path(place) / name
            begin.mkdir()
            (begin / "table.csv").write_text(table + "\n")
            if name == "continue":
                end(FIRST, begin)
            whole = shutil.copytree(begin, begin.with_suffix(".whole"))
            began = time.perf_counter()
            wanted = end(COMMANDS[name], whole)
            lasts = time.perf_counter() - began
            found: Counter[str] = Counter()
            for i in range(asked.kills):
                folder = shutil.copytree(begin, begin.with_suffix(f".{i}"))
                after = float(rng.uniform(0.0, lasts))
                why = kill(name, folder, after, wanted)
                found["failed" if why else "whole"] += 1
                if why:
                    print(f"{name}, killed after {after:.2f} s of {lasts:.2f}: {why}", flush=True)
                shutil.rmtree(folder)
            print(f"{name}: {asked.kills} kills, {found['failed']} failed", flush=True)


if __name__ == "__main__":
    sys.exit(main() if os.name == "posix" else "kills are sent on POSIX alone")

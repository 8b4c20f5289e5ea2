"""An example of every command, with what it prints: `docs/examples.json`, shown in the reference.

    python docs/examples.py [COMMAND …]

runs them in a folder of its own, in this order: name with a command those whose files it takes. The
last ones take minutes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
from latentbits.inference.cli import main

FILE = Path(__file__).with_name("examples.json")
EXAMPLES = {
    "list": ["latentbits list"],
    "check": ["latentbits check 2PL --data answers.csv"],
    "fit": ["latentbits fit 2PL --data answers.csv --out fit.nc --figure items.svg"],
    "choose": ["latentbits choose LCA --data answers.csv --over num_classes=1..3 --bootstrap 0"],
    "transform": [
        "latentbits transform fit.nc --data answers.csv --out scores.csv", "head -4 scores.csv",
    ],
    "complete": [
        "latentbits complete fit.nc --data holes.csv --out full.csv", "head -5 full.csv",
    ],
    "score": ["latentbits score fit.nc --data answers.csv --out each.csv", "head -4 each.csv"],
    "shorten": ["latentbits shorten fit.nc --items 3"],
    "map": ["latentbits map answers.csv --lines --out map.svg"],
    "bench": ["latentbits bench --list"],
    "compare": ["latentbits compare 2PL --data answers.csv --limit 60 --out results"],
    "report": ["latentbits report results/result.nc --out again.html"],
    "rank": ["latentbits rank results/NUTS.nc results/SVI_low_rank.nc"],
    "calibrate": ["latentbits calibrate latent_trait --methods NUTS --trials 60"],
    "reproduce": ["latentbits reproduce clipped-constraint"],
}  # fmt: skip
SLOW = ("compare", "report", "rank", "calibrate", "reproduce")
"""Those that run for minutes, or need what such a one wrote."""


def prepare() -> None:
    """`answers.csv` in this folder: six items; and `holes.csv`, a row of it with a cell missing."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 1)) * [1.0, 2.0, 1.5, 1.0, 0.8, 1.2] + [0, 1, 0.5, -0.5, 1, -1]
    cells = (rng.random((300, 6)) < 1.0 / (1.0 + np.exp(-logits))).astype(int).astype(str)
    lines = ["q1,q2,q3,q4,q5,q6", *(",".join(row) for row in cells)]
    Path("answers.csv").write_text("\n".join(lines) + "\n")
    Path("holes.csv").write_text("\n".join([lines[0], *lines[1:4], "1,0,,1,1,0"]) + "\n")


def run(lines: list[str]) -> str:
    """These lines as typed, each with what it prints."""
    shown = io.StringIO()
    for line in lines:
        program, *words = shlex.split(line)
        shown.write(f"$ {line}\n")
        if program == "head":
            with Path(words[1]).open() as file:
                shown.write("".join(islice(file, -int(words[0]))))
            continue
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            status = main(words)
        if status:
            raise SystemExit(f"{line}: {shown.getvalue()}")
    return shown.getvalue()


if __name__ == "__main__":
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        for name in sys.argv[1:] or EXAMPLES:
            found[name] = run(EXAMPLES[name])
            print(found[name], flush=True)
            FILE.write_text(json.dumps({x: found[x] for x in EXAMPLES if x in found}, indent=1))

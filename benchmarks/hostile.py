"""Damaged and hostile inputs, thrown at the readers, the methods and the commands by seed.

    python benchmarks/hostile.py [--inputs 10000] [--processes 300] [--seed 0]

Inputs are files cut short or altered byte by byte, tables of numbers written in odd ways whose
truth is known, settings of methods, programs, and command lines. Each is done rightly or refused in
one line. Counted are wrong answers (a number read as another one, an error of several lines or with
nothing in it), tracebacks (an error that is not ours to raise) and hangs (more than 30 seconds;
of a command 60). A failure is printed with the seed that makes it again:
`--seed N --inputs 1`, or `--seed N --inputs 0 --processes 1`.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import inspect
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd

import inference
import ppl_models
from inference import public
from inference.cli import main as command
from inference.reading.anatomy import inspect as anatomy_of
from inference.running.algorithm import Algorithm
from inference.running.search import Search
from ppl_models.data import load_levels, load_mixed, load_table

ODD: list[Any] = [
    0, 1, -1, 3, 10**20, -(10**20), 0.5, -0.5, float("nan"), float("inf"), -float("inf"), 1e308,
    True, False, None, "", "x", "1", "nan", "é\u202e", "a" * 10_000, [], [1], (1, 2), {}, {"a": 1},
    b"x", object(), np.zeros(0), np.zeros((2, 2)), np.array(np.nan), np.int64(5), lambda *_: None,
    Search, 1 + 2j, range(3), "../..", "\x00", "=1+1", 2**31, 2**63, np.float32(1e-45),
]  # fmt: skip
CLASSES = [
    x for name in public.__all__
    if isinstance(x := getattr(inference, name), type) and issubclass(x, (Algorithm, Search))
    and x is not Algorithm
]  # fmt: skip
PROGRAMS = [x for name in ppl_models.__all__ if callable(x := getattr(ppl_models, name))]


class WrongError(Exception):
    """An answer that is neither right nor refused."""


def said(error: BaseException | str) -> None:
    """Refused in one line."""
    words = str(error)
    if not words.strip() or "\n" in words.strip() or len(words) > 2000:
        raise WrongError(f"not one line: {words[:200]!r}")


def sound_files(rng: np.random.Generator) -> dict[str, bytes]:
    frame = pd.DataFrame(rng.integers(0, 2, (6, 3)), columns=["a", "b", "c"])
    stream, packed, columnar = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(stream, frame.to_numpy())
    np.savez(packed, bits=frame.to_numpy())
    frame.to_parquet(columnar)
    text = frame.to_csv(index=False).encode()
    files = {".csv": text, ".tsv": text.replace(b",", b"\t"), ".csv.gz": gzip.compress(text)}
    return {
        **files, ".npy": stream.getvalue(), ".npz": packed.getvalue(),
        ".parquet": columnar.getvalue(),
    }  # fmt: skip


def damaged(rng: np.random.Generator, folder: Path) -> Path:
    """A file of any kind, altered, cut short, or under the name of another kind."""
    files = sound_files(rng)
    content = bytearray(files[str(rng.choice([*files]))])
    for place in rng.integers(0, len(content), rng.integers(0, 4)):
        content[place] = int(rng.choice([0, 0x0D, 0x22, 0x2C, 0x30, 0x32, 0x3D, 0xFF]))
    end = len(content) if rng.random() < 0.5 else int(rng.integers(0, len(content)))
    path = folder / f"damaged{rng.choice([*files])}"
    path.write_bytes(bytes(content[:end]) * int(rng.choice([1, 1, 2])))
    return path


def a_file(rng: np.random.Generator, folder: Path) -> None:
    path = damaged(rng, folder)
    readers = (
        (load_table, {}),
        (load_table, {"kind": "real"}),
        (load_levels, {}),
        (load_mixed, {}),
    )
    for reader, options in readers:
        try:
            table = reader(path, **options)
        except ValueError as error:
            said(error)
            if str(path) not in str(error):
                raise WrongError(f"the file is not named: {error}") from None
            continue
        if not np.isfinite(table.values).all():
            raise WrongError(f"{reader.__name__} let through what is no number")


def a_table(rng: np.random.Generator, folder: Path) -> None:
    """Numbers in odd clothes: read as they are, or refused."""
    truth = rng.choice([0.0, 1.0, -2.5, 3e-7, 1234.5, -1e12, 0.1], (5, 3)) + 0.0
    clothes = [
        "{:.17g}", " {:.17g}", "{:.17g} ", '"{:.17g}"', "{:+.17g}", "{:.17e}", "{:,.6f}",
        "'{:.17g}", "{:.17g}%", "${:.17g}", "{:.17g}\x00", "\ufeff{:.17g}", "{:.17g}f", "0x{:.17g}",
        "({:.17g})",
    ]  # fmt: skip
    worn = rng.choice(clothes[:7] if rng.random() < 0.5 else clothes, truth.shape)
    mark, end = str(rng.choice([",", ";", "\t", "|"])), str(rng.choice(["\n", "\r\n", "\r"]))
    rows = [
        mark.join(f.format(x) for f, x in zip(*row, strict=True))
        for row in zip(worn, truth, strict=True)
    ]
    path = folder / "table.csv"
    path.write_text(end.join([mark.join("abc"), *rows]) + end * int(rng.integers(0, 3)), newline="")
    try:
        table = load_table(path, kind="real")
    except ValueError as error:
        return said(error)
    seen = np.where(table.mask, table.values, truth)
    if table.values.shape != truth.shape or not np.allclose(seen, truth, rtol=1e-5, atol=1e-6):
        raise WrongError(f"read as other numbers:\n{path.read_text()!r}\n{table.values}")
    return None


def a_setting(rng: np.random.Generator, folder: Path) -> None:
    del folder
    cls = CLASSES[rng.integers(len(CLASSES))]
    names = [*inspect.signature(cls).parameters][0 if cls is Search else 1 :]
    some = rng.choice(names, min(len(names), int(rng.integers(1, 4))), replace=False)
    settings = {str(x): ODD[rng.integers(len(ODD))] for x in some}
    try:
        cls(**settings) if cls is Search else cls(PROGRAMS[0], **settings)
    except ValueError as error:
        said(error)


def a_program(rng: np.random.Generator, folder: Path) -> None:
    """One of ours with odd arguments, or one that is none."""
    del folder
    odd = lambda: ODD[rng.integers(len(ODD))]  # noqa: E731
    data = [np.eye(3), np.zeros((0, 2)), np.full((2, 2), np.nan), np.zeros(3), odd()]

    def strange(data: Any = None, **_: Any) -> Any:
        kind = rng.integers(5)
        rate = numpyro.sample("rate", dist.Beta(2.0, 2.0)) if kind else 0.5
        if kind == 1:
            numpyro.sample("rate", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", 3 if kind != 2 else 4):
            s = numpyro.sample("s", dist.Bernoulli(rate)) if kind != 3 else jnp.zeros(3)
            numpyro.sample("y", dist.Normal(s, -1.0 if kind == 4 else 1.0), obs=data)

    program = strange if rng.random() < 0.5 else PROGRAMS[rng.integers(len(PROGRAMS))]
    names = [*inspect.signature(program).parameters][1:]
    kwargs = {} if program is strange else {str(x): odd() for x in rng.choice(names, 2)}
    with contextlib.suppress(TypeError if program is strange else ()):
        try:
            anatomy_of(program, (data[rng.integers(len(data))],), kwargs)
        except ValueError as error:
            said(str(error).splitlines()[0] if str(error) else "")


def words(rng: np.random.Generator, folder: Path) -> list[str]:
    """A command line that is wrong somewhere, or soon done."""
    texts = ["x", "", "-1", "nan", "1e99", "10" * 12, "a=b", "num_components=1e20", "é", "=1", "/",
             "/dev/null", "/dev/full", str(folder / "none.csv"), "search='x'", "m_step=3",
             "prior=2", "learning_rate=-1", "structure='x'", "num_components=nan"]  # fmt: skip
    name = str(rng.choice(["bernoulli_mixture", "latent_trait", "noisy_or", "nothing", "é", "-"]))
    line = [
        str(rng.choice(["fit", "choose", "compare", "check", "score", "complete", "rank"])),
        name,
    ]
    line += ["--data", str(damaged(rng, folder))] * int(rng.integers(0, 2))
    options = ["--steps", "--starts", "--seed", "--set", "--option", "--method", "--checkpoint",
               "--out", "--budget", "--hold-out", "--valid", "--fix", "--rotation"]  # fmt: skip
    for option in rng.choice(options, int(rng.integers(1, 5)), replace=False):
        line += [str(option), str(rng.choice(texts))]
    return line


def a_line(rng: np.random.Generator, folder: Path) -> None:
    """In this process; with a method that there is not, so that nothing is computed at length."""
    line = [*words(rng, folder), "--method", "none"]
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = command(line)
        except SystemExit as error:
            code = error.code
    if code not in (0, 2) or (code and not err.getvalue().strip()):
        raise WrongError(f"{line}: code {code}, {err.getvalue()!r}")


KINDS = (a_file, a_table, a_setting, a_program, a_line)


def hung(*_: Any) -> None:
    raise TimeoutError


def throw(seed: int, folder: Path) -> str:
    """One input in this process: '', 'wrong', 'traceback' or 'hang'."""
    kind = KINDS[seed % len(KINDS)]
    signal.signal(signal.SIGALRM, hung)
    signal.alarm(30)
    try:
        kind(np.random.default_rng(seed), folder)
    except TimeoutError:
        return report(seed, kind.__name__, "hang", "")
    except WrongError as error:
        return report(seed, kind.__name__, "wrong", str(error))
    except Exception as error:
        return report(seed, kind.__name__, "traceback", repr(error))
    finally:
        signal.alarm(0)
    return ""


def throw_command(seed: int, folder: Path) -> str:
    """One input in a process of its own: also pipes, devices, a million columns, and kills."""
    rng = np.random.default_rng(seed)
    line, after = words(rng, folder), None
    which, table = rng.integers(4), folder / "sound.csv"
    table.write_bytes(sound_files(rng)[".csv"])
    if which == 0:
        pipe = folder / "pipe"
        if not pipe.exists():
            os.mkfifo(pipe)
        there = folder / "state"
        there.mkdir(exist_ok=True)
        (there / "checkpoint.npz").unlink(missing_ok=True)
        (there / "checkpoint.npz").symlink_to(rng.choice([str(pipe), "/dev/zero", "/dev/full"]))
        line = ["fit", "bernoulli_mixture", "--data", str(rng.choice([str(table), str(pipe)])),
                "--set", "num_components=2", "--out", str(folder / "fit.nc"),
                "--checkpoint", str(there)]  # fmt: skip
    elif which == 1:
        table.write_text("\n".join([",".join(rng.choice(["0", "1"], 1_000_000))] * 2))
        line = ["fit", "latent_trait", "--data", str(table), "--out", str(folder / "fit.nc")]
    elif which == 2:
        line = ["fit", "bernoulli_mixture", "--data", str(table), "--set", "num_components=2",
                "--out", str(folder / "killed.nc")]  # fmt: skip
        after = float(rng.uniform(0.0, 8.0))
    began = time.perf_counter()
    run = subprocess.Popen(
        [sys.executable, "-m", "inference", *line], stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, cwd=folder,
    )  # fmt: skip
    try:
        _, err = run.communicate(timeout=after or 60)
    except subprocess.TimeoutExpired:
        run.kill()
        err = run.communicate()[1]
        if after is None:
            return report(seed, "command", "hang", " ".join(line))
    if "Traceback" in err:
        return report(seed, "command", "traceback", f"{line}: {err[-400:]}")
    left = [x.name for x in folder.iterdir() if x.name.startswith(".killed")]
    if run.returncode not in (0, 2, -signal.SIGKILL) or (run.returncode == 0 and left):
        return report(
            seed, "command", "wrong", f"{line}: code {run.returncode}, {left} {err[-200:]}"
        )
    print(f"  {seed}: {time.perf_counter() - began:.0f} s, code {run.returncode}", file=sys.stderr)
    return ""


def report(seed: int, kind: str, what: str, words: str) -> str:
    print(f"{what:9} seed {seed} {kind}: {words[:600]}", flush=True)
    return what


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for one, count in ((throw, asked.inputs), (throw_command, asked.processes)):
        with tempfile.TemporaryDirectory() as folder:
            found = Counter(one(asked.seed + k, Path(folder)) for k in range(count))
        listed = ", ".join(f"{found[x]} {x}" for x in ("wrong", "traceback", "hang"))
        print(f"{count} inputs by {one.__name__}: {listed}")


if __name__ == "__main__":
    main()

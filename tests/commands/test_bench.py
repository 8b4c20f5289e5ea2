"""`latentbits bench`: what it chooses, prints and writes. They themselves are run by hand."""

import importlib
import json
import sys

import pytest

from inference.cli import main
from inference.commands import bench as benching

SOURCE = '''
from measuring import exponent, rival

def sums(full):
    """Sums of numbers, beside others."""
    return {
        "title": f"sums, full: {full}",
        "rows": [
            {"method": "ours", "cpu": 0.25, "compile": 1.5, "error": float("nan")},
            rival("no-such-package", "sum", lambda: 1 / 0),
            rival("numpy", "sum", lambda: 1 / 0),
            rival("numpy", "mean", lambda: {"cpu": 0.5, "error": 0.125}),
        ],
    }

def sizes(full):
    """Growth."""
    cpu = [3e-3 * n**1.5 for n in (1, 2, 4)]
    return {
        "title": "growth",
        "rows": [
            {"method": "ours", "in": "rows", "sizes": [1, 2, 4], "cpu": cpu,
             "exponent": exponent([1, 2, 4], cpu)}
        ],
    }

BENCHMARKS = {"sums": sums, "sizes": sizes}
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkout's folder of benchmarks, with one that takes no time."""
    clock = benching.FOLDER / "measuring.py"
    (tmp_path / "measuring.py").write_text(clock.read_text())
    (tmp_path / "bench_made_up.py").write_text(SOURCE)
    (tmp_path / "bench_not_for_the_command.py").write_text("")
    monkeypatch.setattr(benching, "FOLDER", tmp_path)
    yield tmp_path
    for name in ("measuring", "bench_made_up", "bench_not_for_the_command"):
        sys.modules.pop(name, None)


def test_contenders_that_are_missing_or_fail_are_rows(folder, capsys):
    assert main(["bench", "--json", str(folder / "bench.json")]) == 0
    printed = capsys.readouterr().out
    assert "no-such-package, sum   not installed: pip install 'latentbits[bench]'" in printed
    assert "fails: division by zero" in printed
    report = json.loads((folder / "bench.json").read_text())
    assert list(report) == ["sums", "sizes", "made_by", "sha256"]
    ours, missing, failing, theirs = report["sums"]["rows"]
    assert ours["error"] is None and ours["cpu"] == 0.25
    assert missing.keys() == failing.keys() == {"method", "note"}
    assert theirs["error"] == 0.125 and theirs["method"].startswith("numpy ")
    assert report["made_by"]["versions"]["latentbits"]


@pytest.mark.usefixtures("folder")
def test_exponent_of_made_up_times(capsys):
    assert main(["bench", "--only", "sizes", "--full"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "growth"
    assert lines[2].split() == ["ours", "rows", "1", "2", "4", "3", "8.5", "24", "1.5"]


@pytest.mark.usefixtures("folder")
def test_some_of_them(capsys):
    assert main(["bench", "--only", "sums", "--full"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("sums, full: True\n") and "growth" not in printed
    assert main(["bench", "--list"]) == 0
    assert capsys.readouterr().out == "sums    Sums of numbers, beside others\nsizes   Growth\n"
    assert main(["bench", "--only", "sums,nonsense"]) == 2
    assert capsys.readouterr().err == "latentbits: --only nonsense: there are sums, sizes\n"


def test_without_a_checkout_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benching, "FOLDER", tmp_path / "benchmarks")
    assert main(["bench"]) == 2
    assert "run this in a checkout" in capsys.readouterr().err


def test_every_benchmark_is_listed(capsys):
    """Those of this checkout can be imported, and say in a line what they are."""
    before = set(sys.modules)
    assert main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert {"correlations", "two-traits", "combination", "sparse-coding", "gibbs"} <= set(names)
    assert {"growth", "rate"} <= set(names) and all(len(line.split()) > 2 for line in lines)
    measuring = importlib.import_module("measuring")
    assert measuring.exponent([10, 100], [2.0, 200.0]) == pytest.approx(2.0)
    for name in set(sys.modules) - before:
        if name.startswith("bench_") or name == "measuring":
            del sys.modules[name]

"""The command line: what people type, what they read, and that nothing goes wrong silently."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typing_commands import refused, run

import ppl_models
from inference.commands import reproduce
from inference.files.cards import CARDS
from inference.files.option import Option
from inference.papers.experiment import Experiment, Outcome
from ppl_models.data import DATASETS

# list


def test_list_names_everything_within_100_columns(capsys):
    result = run(capsys, "list")
    assert result.status == 0
    lines = result.out.splitlines()
    assert [x for x in lines if not x.startswith(" ")] == [
        "models", "other names", "methods", "data sets", "experiments",
    ]  # fmt: skip
    assert max(map(len, lines)) <= 100
    names = {line.split()[0] for line in lines if line.startswith("  ")}
    assert {*ppl_models.__all__, *DATASETS, "EM", "TruncatedEM", "NUTS", "SVI", "MAP"} <= names
    assert all(len(line.split()) > 2 for line in lines if line.startswith("  "))


def test_version_and_a_command_that_does_not_exist(capsys):
    assert run(capsys, "--version").out.startswith("latentbits ")
    assert refused(run(capsys, "lst"), "invalid choice")
    assert refused(run(capsys), "COMMAND")


# reproduce


@pytest.fixture
def experiment(monkeypatch):
    """An experiment that is done at once; what it does can be replaced."""

    def figure(page):
        axes = page.subplots()
        axes.plot([0, 1], [0, 1], label="line")
        axes.legend()

    does = SimpleNamespace(ran=0, figure=figure, error=None)

    def work(namespace):
        does.ran += 1
        if does.error is not None:
            raise does.error
        numbers = {
            "seed": namespace.seed,
            "size": namespace.size,
            "share": np.float32(0.25),
            "worst": float("nan"),
            "by method": {"a": {"loss": 1.5, "steps": 2}, "b": {"loss": 2.5, "steps": 30}},
        }
        return Outcome(numbers, (2, 1), lambda page: does.figure(page))

    entry = Experiment("quick", "done at once", work, {"size": Option(3, "")})
    monkeypatch.setattr(reproduce, "experiments", lambda: {"quick": entry})
    return does


@pytest.mark.usefixtures("experiment")
def test_reproduce_prints_and_writes(tmp_path, capsys):
    wanted = ["--json", str(tmp_path / "n.json"), "--figure", str(tmp_path / "f.svg")]
    result = run(capsys, "reproduce", "quick", "--seed", "7", "--size", "4", *wanted)
    assert (result.status, result.err) == (0, "")
    assert "by method   loss   steps" in result.out
    content = json.loads((tmp_path / "n.json").read_text())
    assert content["made_by"]["settings"] == {"seed": 7, "full": False, "size": 4}
    assert content["share"] == 0.25
    assert content["worst"] is None
    assert content["made_by"]["versions"]["latentbits"]
    assert sorted(x.name for x in tmp_path.iterdir()) == ["f.svg", "n.json"]


def test_reproduce_without_a_name_runs_all(experiment, capsys):
    result = run(capsys, "reproduce")
    assert (result.status, experiment.ran) == (0, 1)
    assert "\nquick\n" in result.out and "by method   loss   steps" in result.out


@pytest.mark.usefixtures("experiment")
def test_a_figure_is_the_same_bytes_each_time(tmp_path, capsys):
    for suffix, sign in ((".svg", b"<?xml"), (".PNG", b"\x89PNG")):
        files = [tmp_path / f"{i}{suffix}" for i in range(2)]
        for file in files:
            assert run(capsys, "reproduce", "quick", "--figure", str(file)).status == 0
        first, second = (file.read_bytes() for file in files)
        assert first.startswith(sign)
        assert first == second


@pytest.mark.parametrize(
    "option, name, word",
    [
        ("--figure", "f.bmp", ".png or .svg or .pdf"),
        ("--figure", "no/f.png", "no folder"),
        ("--json", "there", "is a folder"),
        ("--json", "/dev/null", "no regular file"),
    ],
)
def test_reproduce_looks_before_it_runs(
    experiment, tmp_path, monkeypatch, capsys, option, name, word
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert refused(run(capsys, "reproduce", "quick", option, name), name, word)
    assert experiment.ran == 0
    assert [x.name for x in tmp_path.iterdir()] == ["there"]


def test_reproduce_wants_two_files_and_a_seed(experiment, tmp_path, capsys):
    file = str(tmp_path / "x.png")
    assert refused(run(capsys, "reproduce", "quick", "--json", file, "--figure", file), "both")
    assert refused(run(capsys, "reproduce", "quick", "--seed", "-1"), "--seed")
    assert refused(run(capsys, "reproduce", "other"), "quick")
    assert experiment.ran == 0


@pytest.mark.parametrize(
    "error, status, word",
    [
        (ValueError("two\nlines"), 2, "two lines"),
        (FloatingPointError("the loss is nan"), 2, "the loss is nan"),
        (OSError(28, "No space left on device"), 2, "No space left"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_an_error_is_one_line_and_leaves_nothing(experiment, tmp_path, capsys, error, status, word):
    experiment.error = error
    (tmp_path / "n.json").write_text("what was there before")
    result = run(capsys, "reproduce", "quick", "--json", str(tmp_path / "n.json"))
    assert result.status == status
    assert result.err.count("\n") == 1
    assert word in result.err
    assert [x.read_text() for x in tmp_path.iterdir()] == ["what was there before"]


def test_a_figure_that_fails_leaves_no_numbers_either(experiment, tmp_path, capsys):
    experiment.figure = lambda _: 1 / 0
    wanted = ["--json", str(tmp_path / "n.json"), "--figure", str(tmp_path / "f.png")]
    with pytest.raises(ZeroDivisionError):  # a mistake of ours keeps its traceback
        run(capsys, "reproduce", "quick", *wanted)
    assert list(tmp_path.iterdir()) == []


# which method is the default


@pytest.mark.parametrize("command", ["fit", "choose"])
def test_help_names_the_recommended_method_and_that_of_the_paper(command, capsys):
    names = ("latent_trait", "mixed_trait", "trait_mixture")
    assert {CARDS[name].method for name in names} == {"QuadratureEM"}
    words = " ".join(run(capsys, command, "--help").out.split())
    assert "the recommended one: for {}, {} and {} QuadratureEM".format(*names) in words
    assert "their paper has BoundEM" in words and "own paper" not in words

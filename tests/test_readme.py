"""What the README says is so: its Python runs, its commands exist."""

import re
import shlex
from pathlib import Path

import pytest

import ppl_models
from inference.cli import make_parser

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands():
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    parts = [part for line in lines for part in line.split(" && ")]
    return [part for part in parts if "latentbits " in part]


def test_python_blocks_run_one_after_the_other():
    found = blocks("python")
    assert len(found) >= 4
    namespace = {}
    for block in found:
        exec(compile(block, "README.md", "exec"), namespace)


@pytest.mark.parametrize("command", commands())
def test_command_is_one_that_exists(command):
    program, *arguments = shlex.split(command)
    assert program == ".venv/bin/latentbits"
    make_parser().parse_args(arguments)


def test_first_screen_holds_the_two_commands_that_set_everything_up():
    screen = "\n".join(README.splitlines()[:25])
    first, second, *_ = re.findall(r"^python3 -m venv .*$", screen, re.MULTILINE)
    assert ".venv/bin/latentbits " in first
    assert second.endswith(".venv/bin/pytest")


def test_every_program_is_named():
    table = re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)
    assert sorted(table) == sorted(ppl_models.__all__)


def test_ci_takes_the_test_command_from_here():
    pattern = re.search(r"grep -m 1 -E '(.*)' README.md", (ROOT / ".ci/run").read_text())[1]
    assert len(re.findall(pattern, README, re.MULTILINE)) == 1

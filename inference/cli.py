"""The command line: one table of commands, one place where errors become one line.

A command is a module with two functions, and a DESCRIPTION where a line of help is not enough:

    add_arguments(parser)      is called whenever the command is, so it imports little
    main(namespace) -> int     does the work and gives the exit status

Exit status: 0 all is well, 2 something given is wrong, or a file cannot be written (one line on
stderr says what), 130 Ctrl-C, 141 nobody reads standard output any more.
"""

from __future__ import annotations

import argparse
import codecs
import importlib
import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

COMMANDS = {
    "list": ("list", "what there is: models, methods, data sets, experiments"),
    "check": ("check", "say what is wrong with a table or a program before any long run"),
    "fit": ("fit", "fit a program to a table and keep the fit"),
    "choose": ("choose", "choose the number of factors, classes or causes"),
    "transform": ("use", "where rows lie: the posterior mean of their latents"),
    "complete": ("use", "fill in missing cells with the probability that they are 1"),
    "score": ("use", "the log likelihood of each row"),
    "shorten": ("shorten", "choose the items of a test that keep its information"),
    "compare": ("compare", "bespoke and generic inference on one program and one table"),
    "report": ("report", "the report of a comparison, written again from result.nc"),
    "calibrate": ("calibrate", "test posteriors by simulation-based calibration"),
    "rank": ("rank", "different models on the same rows, by leave-one-out"),
    "reproduce": ("reproduce", "run an experiment of a paper"),
    "map": ("map", "draw a table of any columns as a map"),
    "bench": ("bench", "time the methods beside other packages, and as data grow"),
}
"""Command -> its module in `commands`, and what the help says of it, in this order."""


def make_parser(commands: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of these commands: of all, or of the one that is called, since each imports."""
    parser = argparse.ArgumentParser(
        prog="latentbits",
        description="Latent-variable models of binary and categorical data, and their inference.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('latentbits')}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in commands:
        file, words = COMMANDS[name]
        module = importlib.import_module(f".commands.{file}", __package__)
        longer = getattr(module, "DESCRIPTION", f"{words.capitalize()}.")
        one = subparsers.add_parser(name, help=words, description=longer, allow_abbrev=False)
        module.add_arguments(one)
        one.set_defaults(command=module.main, called=name)
    return parser


class Outlet(io.FileIO):
    """The bytes of standard output or error. A command goes on where they cannot be written (the
    reader of a pipe has gone, a disk is full): its files are wanted all the same."""

    failure: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError as error:
            self.failure = error
            return len(content)


CONTROLS = {i: f"\\u{i:04x}" for i in (*range(32), *range(127, 160)) if chr(i) not in "\t\n\r"}
"""Characters that a terminal obeys, and how they are printed."""


class Printed(io.TextIOWrapper):
    """Standard output or error: codes for terminals in names and texts of a file are written out.

    The progress bars move the cursor up by texts of their own.
    """

    def write(self, text: str) -> int:
        moves = not text.replace("\x1b[A", "").strip()
        super().write(text if moves else text.translate(CONTROLS))
        return len(text)


def open_streams() -> dict[str, Outlet]:
    """Make standard output and error such that printing never ends a command.

    A stream that the shell has closed (``>&-``) leads nowhere: else the next file to be opened
    would get its number, and with it what is printed by libraries. Characters that an encoding
    lacks are written as in JSON, so that ``--json`` stays whole.
    """
    codecs.register_error("json", _escape)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    outlets = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        raw: Any = stream.buffer
        if not stream.isatty():
            outlets[name] = Outlet(stream.fileno(), "w", closefd=False)
            raw = io.BufferedWriter(outlets[name])
        at_once = stream.line_buffering or stream.write_through
        setattr(sys, name, Printed(raw, stream.encoding, "json", line_buffering=at_once))
    return outlets


def _escape(error: Any) -> tuple[str, int]:
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _in_one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    """A warning of a command, as its errors are."""
    return f"latentbits: {' '.join(str(message).split())}\n"


def start() -> int:
    """`main` as a process of its own: a reader that has gone, or a full disk, is in the status."""
    outlets = open_streams()
    warnings.formatwarning = _in_one_line
    status = main()
    sys.stdout.flush()
    failure = outlets["stdout"].failure if "stdout" in outlets else None
    if isinstance(failure, BrokenPipeError):  # `latentbits list | head -1`: nothing to be said
        return status or 141
    if failure is not None:
        print(
            f"latentbits: standard output cannot be written ({failure.strerror})", file=sys.stderr
        )
        return status or 2
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    called = argv[0] if argv else ""
    wanted = [called] if called in COMMANDS else [] if called == "--version" else COMMANDS
    try:
        namespace = make_parser(wanted).parse_args(argv)
        namespace.argv = [*argv]
        from .files.option import check_numbers  # here: --version has to load nothing

        check_numbers(namespace)
        from .compiling import cache_compilations  # and with it JAX: not for --version

        cache_compilations()
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # since the package was found
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = namespace.command(namespace) or 0
    except KeyboardInterrupt:
        print("latentbits: stopped", file=sys.stderr)
        return 130
    except (ValueError, FloatingPointError, OSError) as error:
        if sys.flags.dev_mode:  # python -X dev -m inference ...: where did that come from?
            raise
        line = " ".join(str(error).split()) or type(error).__name__
        print(f"latentbits: {line}", file=sys.stderr)
        return 2
    return status

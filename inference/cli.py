"""The command line: one table of commands, one place where errors become one line.

A command is a module with two functions:

    add_parser(subparsers)     adds one parser; it is read on every call, so it imports little
    main(namespace) -> int     does the work and gives the exit status

Exit status: 0 all is well, 2 something given is wrong (one line on stderr says what), 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version

COMMANDS = {
    "list": "list",
    "check": "check",
    "fit": "fit",
    "choose": "choose",
    "transform": "use",
    "complete": "use",
    "score": "use",
    "compare": "compare",
    "report": "report",
    "survey": "survey",
    "calibrate": "calibrate",
    "rank": "rank",
    "reproduce": "reproduce",
    "map": "map",
    "bench": "bench",
}
"""Command -> its module in `commands`, in the order of the help."""
EXTRA = "xla_backend_extra_options"
"""XLA's switches of LLVM: those that it does not know it ignores."""


def make_parser(commands: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of these commands: of all, or of the one that is called, since each imports."""
    parser = argparse.ArgumentParser(
        prog="latentbits",
        description="Latent-variable models of binary and categorical data, and their inference.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('latentbits')}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in dict.fromkeys(COMMANDS[command] for command in commands):
        module = importlib.import_module(f".commands.{name}", __package__)
        known = set(subparsers.choices)
        module.add_parser(subparsers)
        for command in set(subparsers.choices) - known:
            subparsers.choices[command].set_defaults(command=module.main)
    return parser


def start() -> int:
    """`main` as a process of its own.

    Modules and what JAX traces are long-lived: to look through them for garbage every 700 objects,
    and once more when all of it ends, takes a third of a second of every command. Loops that LLVM
    unrolls take a fifth of the time to compile, and no step of a method is the faster for it.
    """
    gc.set_threshold(100_000, 20, 100)
    flags = os.environ.get("XLA_FLAGS", "")
    if EXTRA not in flags:  # read by XLA when it is first used
        os.environ["XLA_FLAGS"] = f"{flags} --{EXTRA}=xla_cpu_disable_loop_unrolling".strip()
    atexit.register(gc.freeze)
    return main()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    called = argv[0] if argv else ""
    wanted = [called] if called in COMMANDS else [] if called == "--version" else COMMANDS
    try:
        namespace = make_parser(wanted).parse_args(argv)
        from .studies.option import check_numbers  # here: --version has to load nothing

        check_numbers(namespace)
        from .numerics.cache import cache_compilations  # and with it JAX: not for --version

        cache_compilations()
        status = namespace.command(namespace) or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("latentbits: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`latentbits list | head -1`). Nothing more can be said,
        # neither now nor by the interpreter when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, FloatingPointError, OSError) as error:
        if sys.flags.dev_mode:  # python -X dev -m inference ...: where did that come from?
            raise
        print(f"latentbits: {one_line(error)}", file=sys.stderr)
        return 2
    return status


def one_line(error: BaseException) -> str:
    """An error's message, however many lines it was written in."""
    return " ".join(str(error).split()) or type(error).__name__

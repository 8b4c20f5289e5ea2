"""The command line: one table of commands, one place where errors become one line.

A command is a module with two functions, and a DESCRIPTION where a line of help is not enough:

    add_arguments(parser)      is called whenever the command is, so it imports little
    main(namespace) -> int     does the work and gives the exit status

Exit status: 0 all is well, 2 something given is wrong (one line on stderr says what), 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version

COMMANDS = {
    "list": ("list", "what there is: models, methods, data sets, experiments"),
    "check": ("check", "say what is wrong with a table or a program before any long run"),
    "fit": ("fit", "fit a program to a table and keep the fit"),
    "choose": ("choose", "choose the number of factors, classes or causes"),
    "transform": ("use", "where rows lie: the posterior mean of their latents"),
    "complete": ("use", "fill in missing cells with the probability that they are 1"),
    "score": ("use", "the log likelihood of each row"),
    "compare": ("compare", "bespoke and generic inference on one program and one table"),
    "report": ("report", "the report of a comparison, written again from result.nc"),
    "survey": ("survey", "which method is first at which size"),
    "calibrate": ("calibrate", "test posteriors by simulation-based calibration"),
    "rank": ("rank", "different models on the same rows, by leave-one-out"),
    "reproduce": ("reproduce", "run an experiment of a paper"),
    "map": ("map", "draw a table of any columns as a map"),
    "bench": ("bench", "time the methods beside other packages, and as data grow"),
}
"""Command -> its module in `commands`, and what the help says of it, in this order."""
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
    for name in commands:
        file, words = COMMANDS[name]
        module = importlib.import_module(f".commands.{file}", __package__)
        longer = getattr(module, "DESCRIPTION", f"{words.capitalize()}.")
        one = subparsers.add_parser(name, help=words, description=longer, allow_abbrev=False)
        module.add_arguments(one)
        one.set_defaults(command=module.main, called=name)
    return parser


def start() -> int:
    """`main` as a process of its own.

    Modules and what JAX traces are long-lived: to look through them for garbage every 700 objects,
    and to take them apart when all of it ends, takes a third of a second of every command. Loops
    that LLVM unrolls take a fifth of the time to compile, and no step of a method is the faster for
    it.
    """
    status: list[int] = []
    atexit.register(_leave, status)  # the first to be registered is the last to be called
    gc.set_threshold(100_000, 20, 100)
    flags = os.environ.get("XLA_FLAGS", "")
    if EXTRA not in flags:  # read by XLA when it is first used
        os.environ["XLA_FLAGS"] = f"{flags} --{EXTRA}=xla_cpu_disable_loop_unrolling".strip()
    status.append(main())
    return status[0]


def _leave(status: list[int]) -> None:
    """End the process at once if its command has ended: its files are written and closed."""
    gc.freeze()
    if status:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status[0])


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
        line = " ".join(str(error).split()) or type(error).__name__
        print(f"latentbits: {line}", file=sys.stderr)
        return 2
    return status

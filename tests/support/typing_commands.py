"""A command as people type it, and how one is refused."""

from types import SimpleNamespace

from inference.cli import main


def run(capsys, *arguments):
    """Exit status, stdout, stderr of a command; argparse's own exits among them."""
    try:
        status = main(list(arguments))
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    return SimpleNamespace(status=status, out=out, err=err)


def refused(result, *words):
    """Exit status 2, nothing but one line, and the words in it."""
    assert result.status == 2
    lines = result.err.strip().splitlines()
    if not lines[-1].startswith("usage"):
        assert len(lines) == 1 or lines[0].startswith("usage"), result.err
    assert "Traceback" not in result.err
    for word in words:
        assert word in lines[-1], result.err
    return True

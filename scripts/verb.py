"""How a Makefile target ends: with its exit code, or with one sentence and the next step if it fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from sandboxd.progress import SetupError


def stop(error: SetupError) -> NoReturn:
    """Print the sentence and the next step, and exit with code 1."""
    mark = "\x1b[31merror:\x1b[0m" if sys.stderr.isatty() else "error:"
    print(f"{mark} {error}", file=sys.stderr)
    if error.advice:
        print(f"  next: {error.advice}", file=sys.stderr)
    raise SystemExit(1)


def main(verb: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a target with the command line's arguments; print a SetupError, and exit with 130 on Ctrl-C."""
    try:
        raise SystemExit(verb(sys.argv[1:]))
    except SetupError as error:
        stop(error)
    except KeyboardInterrupt:
        raise SystemExit(130) from None

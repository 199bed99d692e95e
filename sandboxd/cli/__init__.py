"""The command line: one file per noun, put together in `app.py`. A client, except for `serve`, `doctor` and `image`.

Nothing is imported here before it is needed: a command line that runs one command must start fast.
"""

from __future__ import annotations

import sys


def main() -> None:
    from sandboxd.cli.app import run

    raise SystemExit(run(sys.argv[1:]))

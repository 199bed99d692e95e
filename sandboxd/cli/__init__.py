"""The command line: one file per noun, put together in `app.py`. It is a client; only `serve` and `doctor` are not.

Nothing is imported here before it is needed: a command line that runs one command must start fast.
"""

from __future__ import annotations

import sys


def main() -> None:
    from sandboxd.cli.app import build

    build(sys.argv[1:])()

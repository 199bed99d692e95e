"""The command line: one file per noun, assembled in `app.py`. A client, except for `serve`, `doctor` and `image`.

Modules are imported only when needed, so that a single command starts fast.
"""

from __future__ import annotations

import sys


def main() -> None:
    from sandboxd.cli.app import run

    raise SystemExit(run(sys.argv[1:]))

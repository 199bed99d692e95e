"""How large a test is: small in `make test`, large in `make test-all`, which sets SANDBOXD_TEST_LONG=1."""

from __future__ import annotations

import os


def scaled(short: int, long: int) -> int:
    """Return `long` in a long run and `short` otherwise."""
    return long if os.environ.get("SANDBOXD_TEST_LONG", "") not in ("", "0") else short

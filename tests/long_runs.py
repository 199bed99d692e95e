"""How large a test is: small in `make test`, large in `make test-all`, which sets SANDBOXD_TEST_LONG=1."""

from __future__ import annotations

import os
from collections.abc import Sequence


def scaled(short: int, long: int) -> int:
    """Return `long` in a long run and `short` otherwise."""
    return long if os.environ.get("SANDBOXD_TEST_LONG", "") not in ("", "0") else short


def kill_pairs(stores: Sequence[str], points: Sequence[str]) -> list[tuple[str, str]]:
    """Pair the first store with every point and each other store with its share of them; with all in a long run.

    The shares of the two other stores are disjoint and together contain every point, so each point runs on two stores.
    """
    first, *others = stores
    share = scaled(2, 1)
    pairs = [(first, point) for point in points]
    for number, store in enumerate(others):
        pairs += [(store, point) for index, point in enumerate(points) if index % share == number % share]
    return pairs

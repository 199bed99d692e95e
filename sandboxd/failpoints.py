"""Failpoints: named steps at which a test may kill the daemon, fail a step, slow it down or block the event loop.

Off unless `SANDBOXD_FAILPOINT` is set, for example `create.intent=kill;destroy.removed=error(ENOSPC)` or
`create.launched=delay(500)`; `block(500)` holds the event loop, and `bug` raises an error that no caller expects. Every
point
is named once, in `POINTS`, so a misspelt name is refused at start.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Final

import anyio

from sandboxd.errors import InvalidRequest

POINTS: Final = frozenset(
    {
        "adopt.mirror",
        "claim.configured",
        "claim.intent",
        "claim.mirror",
        "create.intent",
        "create.workspace",
        "create.mirror",
        "create.snapshot",
        "create.listener",
        "create.launched",
        "create.recorded",
        "create.hello",
        "create.ready",
        "create.answer",
        "destroy.intent",
        "destroy.drained",
        "destroy.removed",
        "destroy.run_dir",
        "destroy.workspace",
        "destroy.forgotten",
        "fork.committed",
        "fork.copied",
        "fork.intent",
        "fork.memory",
        "fork.mirrored",
        "hibernate.drained",
        "hibernate.intent",
        "hibernate.removed",
        "hibernate.rested",
        "outbox.committed",
        "outbox.kept",
        "pause.frozen",
        "pause.intent",
        "reconcile.planned",
        "reconcile.acted",
        "refresh.heard",
        "refresh.manifest",
        "refresh.read",
        "refresh.renamed",
        "refresh.staged",
        "resume.thawed",
        "snapshot.copied",
        "snapshot.frozen",
        "snapshot.intent",
        "snapshot.ready",
        "snapshot.removed",
        "snapshot.removing",
        "snapshot.thawed",
        "writeback.answer",
        "writeback.checked",
        "writeback.committed",
        "writeback.manifest",
        "writeback.mirrored",
        "writeback.queued",
        "writeback.received",
        "writeback.recorded",
    }
)

_SYNTAX = re.compile(
    r"(?P<point>[a-z_.]+)=(?:(?P<plain>kill|bug)|error\((?P<errno>E[A-Z0-9]+)\)|(?P<wait>delay|block)\((?P<ms>\d{1,6})\))"
)
_EXPECTED = "POINT=kill|bug|error(ERRNO)|delay(MS)|block(MS)"

_actions: dict[str, Callable[[], float]] = {}


def arm(text: str) -> None:
    """Arm the failpoints that `text` names, and disarm all others."""
    actions: dict[str, Callable[[], float]] = {}
    for item in filter(None, text.split(";")):
        match = _SYNTAX.fullmatch(item.strip())
        if match is None or match["point"] not in POINTS or (match["errno"] and not hasattr(errno, match["errno"])):
            raise InvalidRequest(f"cannot arm failpoint {item.strip()!r}: expected {_EXPECTED}")
        actions[match["point"]] = _action(match)
    _actions.clear()
    _actions.update(actions)


def is_armed() -> bool:
    """Return whether any failpoint is armed, for code that splits a step only for the sake of a failpoint."""
    return bool(_actions)


async def reach(point: str) -> None:
    """Run the action that is armed for this point, if any."""
    if _actions and (action := _actions.get(point)) is not None:
        await anyio.sleep(action())


def _action(match: re.Match[str]) -> Callable[[], float]:
    if match["errno"]:
        return _raise(getattr(errno, match["errno"]))
    if match["wait"]:
        seconds = int(match["ms"]) / 1000
        return _delay(seconds) if match["wait"] == "delay" else _block(seconds)
    return _kill if match["plain"] == "kill" else _bug


def _kill() -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def _raise(number: int) -> Callable[[], float]:
    def act() -> float:
        raise OSError(number, os.strerror(number))

    return act


def _delay(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def _block(seconds: float) -> Callable[[], float]:
    def act() -> float:
        time.sleep(seconds)
        return 0.0

    return act


def _bug() -> float:
    raise RuntimeError("a failpoint stands for a bug here")

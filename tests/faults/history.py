"""The history of requests and answers, kept outside the daemon: the truth that a restart is checked against.

An entry is in doubt from its request until its acknowledgement. After a restart the check resolves every doubt by what
it finds, so that a write that was found absent may not appear later.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from memo.errors import MemoError
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.errors import SandboxdError
from sandboxd.idempotency import OutcomeUnknown


class DaemonDied(Exception):
    """A client's call ended because the daemon was killed."""


@dataclass
class Value:
    """A text that one client overwrites: a document or a file. None until it is first written."""

    acknowledged: str | None = None
    doubtful: str | None = None

    def settle(self, found: str | None) -> str | None:
        """Compare with what a restart shows; return what is wrong."""
        expected, doubtful = self.acknowledged, self.doubtful
        self.acknowledged, self.doubtful = found, None
        if found == expected or (found is not None and found == doubtful):
            return None
        return f"expected {_short(expected)} or {_short(doubtful)}, found {_short(found)}"


@dataclass
class Lines:
    """Lines that several clients append, each unique."""

    acknowledged: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)

    def settle(self, found: Iterable[str]) -> str | None:
        counts = Counter(found)
        lost = self.acknowledged - counts.keys()
        repeated = {line for line, count in counts.items() if count > 1}
        foreign = counts.keys() - self.acknowledged - self.doubtful
        self.acknowledged, self.doubtful = set(counts), set()
        if lost or repeated or foreign:
            return f"lost {sorted(lost)[:3]}, repeated {sorted(repeated)[:3]}, never written {sorted(foreign)[:3]}"
        return None


@dataclass
class Commands:
    """Commands with an idempotency key, each of which adds its key to a log when it runs."""

    acknowledged: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)

    def check(self, found: Iterable[str]) -> str | None:
        """Keep the doubt: a command may still be running, and the same key may be sent again."""
        counts = Counter(found)
        lost = self.acknowledged - counts.keys()
        repeated = {key for key, count in counts.items() if count > 1}
        foreign = counts.keys() - self.acknowledged - self.doubtful
        if lost or repeated or foreign:
            return f"not run {sorted(lost)[:3]}, run twice {sorted(repeated)[:3]}, never asked {sorted(foreign)[:3]}"
        return None


@dataclass
class Presence:
    """Whether a session has a sandbox, which one client creates and destroys. `container` is None when it has none."""

    container: str | None = None
    is_doubtful: bool = False

    def settle(self, found: str | None) -> str | None:
        expected, was_doubtful = self.container, self.is_doubtful
        self.container, self.is_doubtful = found, False
        if was_doubtful or found == expected:
            return None
        return f"expected {_short(expected)}, found {_short(found)}"


class History:
    """What every client did. Each entry has one writer at a time, except lines, which are locked."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, str], Value] = {}
        self.lines: dict[tuple[str, str], Lines] = {}
        self.commands: dict[str, Commands] = {}
        self.presences: dict[str, Presence] = {}
        self.surprises: list[str] = []
        """Answers that a client must never get, whatever happens to the daemon."""
        self.acknowledged = 0
        self.kills = 0
        self._lock = threading.Lock()

    @contextmanager
    def overwriting(self, place: tuple[str, str, str], text: str) -> Iterator[None]:
        with self._lock:
            value = self.values.setdefault(place, Value())
            value.doubtful = text

        def acknowledge() -> None:
            value.acknowledged, value.doubtful = text, None

        with self._asked(acknowledge):
            yield

    @contextmanager
    def appending(self, place: tuple[str, str], line: str) -> Iterator[None]:
        with self._lock:
            lines = self.lines.setdefault(place, Lines())
            lines.doubtful.add(line)

        def acknowledge() -> None:
            lines.doubtful.discard(line)
            lines.acknowledged.add(line)

        with self._asked(acknowledge):
            yield

    @contextmanager
    def running(self, session: str, key: str) -> Iterator[None]:
        with self._lock:
            commands = self.commands.setdefault(session, Commands())
            commands.doubtful.add(key)

        def acknowledge() -> None:
            commands.doubtful.discard(key)
            commands.acknowledged.add(key)

        with self._asked(acknowledge):
            yield

    @contextmanager
    def moving(self, session: str) -> Iterator[Callable[[str | None], None]]:
        """Create or destroy; the caller passes the container that the session has afterwards."""
        with self._lock:
            presence = self.presences.setdefault(session, Presence())
            presence.is_doubtful = True

        def now_has(container: str | None) -> None:
            presence.container, presence.is_doubtful = container, False

        with self._asked(lambda: None):
            yield now_has

    @contextmanager
    def _asked(self, acknowledge: Callable[[], None]) -> Iterator[None]:
        try:
            yield
        except DaemonUnreachable as error:
            raise DaemonDied from error
        except (SandboxdError, MemoError) as error:
            self.refused(error)
        else:
            with self._lock:
                acknowledge()
                self.acknowledged += 1

    def refused(self, error: SandboxdError | MemoError) -> None:
        """Check an answer other than the daemon's death: a client must be able to act on it."""
        if not error.code.startswith("internal.") and (error.retryable or error.code == OutcomeUnknown.code):
            return
        with self._lock:
            self.surprises.append(f"{error.code}: {error}")


def _short(text: str | None) -> str:
    return "nothing" if text is None else repr(text if len(text) < 60 else f"{text[:40]}… ({len(text)} characters)")

"""The logs and slots of one session on disk: trace/events.jsonl and the files of orchestration/.

Other programs of this layout keep what belongs to an agent in orchestration/subagents/A, and a checkpoint as it is.
Both are read; our own files, in orchestration/agents/A and with the number of events before a checkpoint, take
precedence.
Each log has its own lock file, so that a trace never waits for a document. The store passes in the function that
runs blocking work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from memo.errors import Corrupt
from memo.ids import SessionRef
from memo.stores.filesystem.directory import (
    Directory,
    append_lines,
    closing,
    disk_errors,
    end_of_lines,
    locked,
    read_all,
)
from memo.stores.filesystem.layout import Owner
from memo.stores.journal import LogName, Slot, SlotName

R = TypeVar("R", covariant=True)

_LOGS: dict[LogName, tuple[str, str]] = {
    "trace": ("trace", "events.jsonl"),
    "event": ("orchestration", "events.jsonl"),
    "mailbox": ("orchestration", "mailbox.jsonl"),
}
_SLOTS: dict[SlotName, str] = {"checkpoint": "checkpoint.json", "mailbox": "mailbox.json", "history": "history.json"}
_FOREIGN_SLOTS: dict[SlotName, str] = {"mailbox": "mailbox-state.json", "history": "history.json"}
_STAGED = ".staged"


class RunOnRoot(Protocol):
    async def __call__(self, work: Callable[[Directory], R]) -> R: ...


class FilesystemJournal:
    def __init__(self, run: RunOnRoot, ref: SessionRef) -> None:
        self._run = run
        self._path = Owner.of_session(ref).path

    async def append(self, log: LogName, agent: str, body: str) -> None:
        await self._run(lambda root: self._append(root, log, agent, body))

    async def append_all(self, log: LogName, agent: str, bodies: Sequence[str]) -> None:
        if bodies:
            await self.append(log, agent, "\n".join(bodies))

    async def load(self, log: LogName, agent: str) -> list[str]:
        return await self._run(lambda root: self._load(root, log, agent))

    async def put(self, slot: SlotName, agent: str, body: str) -> None:
        await self._run(lambda root: self._put(root, slot, agent, body))

    async def get(self, slot: SlotName, agent: str) -> Slot | None:
        return await self._run(lambda root: self._get(root, slot, agent))

    async def agents(self) -> list[str]:
        return await self._run(self._agents)

    def place(self, log: LogName, agent: str, number: int) -> str:
        folder, name = _LOGS[log]
        return f"{'/'.join((*self._folder(folder, agent), name))} line {number}"

    def _folder(self, folder: str, agent: str, kind: str = "agents") -> tuple[str, ...]:
        return (*self._path, folder, kind, agent) if agent else (*self._path, folder)

    def _append(self, root: Directory, log: LogName, agent: str, body: str) -> None:
        folder, name = _LOGS[log]
        with root.make_path(*self._folder(folder, agent)) as directory, disk_errors(f"write {directory.where(name)}"):
            is_new = directory.stat(name) is None
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing(os.open(name, flags, 0o600, dir_fd=directory.fd)) as fd:
                if is_new:
                    os.fsync(directory.fd)
                with locked(fd, directory.where(name), exclusive=True):
                    append_lines(fd, body.encode() + b"\n", end_of_lines(fd))

    def _load(self, root: Directory, log: LogName, agent: str) -> list[str]:
        folder, name = _LOGS[log]
        lines: list[str] = []
        for kind in ("subagents", "agents") if agent else ("",):
            lines += _text_lines(root.descend(*self._folder(folder, agent, kind)), name)
        return lines

    def _agents(self, root: Directory) -> list[str]:
        found: set[str] = set()
        for kind in ("agents", "subagents"):
            directory = root.descend(*self._path, "orchestration", kind)
            if directory is not None:
                with directory:
                    found.update(name for name in directory.names() if directory.is_directory(name))
        return list(found)

    def _put(self, root: Directory, slot: SlotName, agent: str, body: str) -> None:
        with (
            root.make_path(*self._folder("orchestration", agent)) as directory,
            locked(directory.fd, directory.path, exclusive=True),
        ):
            events = self._count_events(root)
            directory.stage(_STAGED, f'{{"events_before":{events},"body":'.encode(), body.encode(), b"}\n")
            directory.move(_STAGED, directory, _SLOTS[slot])

    def _count_events(self, root: Directory) -> int:
        folder, name = _LOGS["event"]
        directory = root.descend(*self._folder(folder, ""))
        if directory is None:
            return 0
        with directory:
            return len(_lines(directory, name))

    def _get(self, root: Directory, slot: SlotName, agent: str) -> Slot | None:
        content, place = _read_slot(root.descend(*self._folder("orchestration", agent)), _SLOTS[slot])
        if content is not None:
            return _parse_slot(content, place, is_foreign=slot == "checkpoint" and not _is_ours(content))
        if slot not in _FOREIGN_SLOTS:
            return None
        folder = root.descend(*self._folder("orchestration", agent, "subagents"))
        content, place = _read_slot(folder, _FOREIGN_SLOTS[slot])
        return None if content is None else _parse_slot(content, place, is_foreign=True)


def _read_slot(directory: Directory | None, name: str) -> tuple[bytes | None, str]:
    if directory is None:
        return None, name
    with directory:
        return directory.read(name), directory.where(name)


def _is_ours(content: bytes) -> bool:
    return content.startswith(b'{"events_before":')


def _parse_slot(content: bytes, place: str, *, is_foreign: bool) -> Slot:
    """Parse a slot. What another program wrote is the body itself; all events count as after it."""
    try:
        record = json.loads(content)
        if is_foreign:
            return Slot(json.dumps(record, ensure_ascii=False), 0)
        return Slot(json.dumps(record["body"], ensure_ascii=False), int(record["events_before"]))
    except (ValueError, KeyError, TypeError):
        raise Corrupt(f"cannot read {place}: it is damaged") from None


def _text_lines(directory: Directory | None, name: str) -> list[str]:
    if directory is None:
        return []
    with directory:
        lines = _lines(directory, name)
        try:
            return [line.decode() for line in lines]
        except UnicodeDecodeError:
            raise Corrupt(f"cannot read {directory.where(name)}: it is not UTF-8") from None


def _lines(directory: Directory, name: str) -> list[bytes]:
    with _reading(directory, name) as fd:
        if fd is None:
            return []
        return read_all(fd).split(b"\n")[:-1]  # bytes after the last newline were never acknowledged


@contextmanager
def _reading(directory: Directory, name: str) -> Iterator[int | None]:
    fd = directory.open_file(name)
    if fd is None:
        yield None
        return
    with closing(fd), disk_errors(f"read {directory.where(name)}"), locked(fd, directory.where(name), exclusive=False):
        yield fd

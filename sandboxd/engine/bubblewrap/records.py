"""Durable records of bubblewrap containers: one directory each, written before the container exists.

bubblewrap keeps no list of containers, so this directory is the list. A record holds the intent and the resulting
processes; the kernel tells whether they are alive. Nothing here starts or ends a process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sandboxd.engine.bubblewrap.processes import ProcessRef
from sandboxd.permissions import PRIVATE_DIRECTORY, PRIVATE_FILE, make_private, tighten

_LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_DRAFT = ".new-"


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    id: str
    name: str
    image: str
    labels: Mapping[str, str]
    boot_id: str
    has_cgroup: bool
    monitor: ProcessRef | None = None
    """The bwrap process outside, which lives as long as the container and writes its exit code."""
    init: ProcessRef | None = None
    """The host's pid of the container's PID 1. None until the container is complete."""

    @property
    def life(self) -> ProcessRef | None:
        """The process that lives as long as the container: PID 1, or the one that will become it."""
        return self.init or self.monitor


@dataclass(frozen=True, slots=True)
class InitStatus:
    """What bwrap itself has written: the pid of PID 1, and later its exit code."""

    init_pid: int | None = None
    exit_code: int | None = None


def mint_id(name: str) -> str:
    return f"{name}-{secrets.token_hex(6)}"


def name_of(container_id: str) -> str | None:
    """Return the name in an id, or None if the id cannot be from this engine."""
    name, _, token = container_id.rpartition("-")
    return name if token and is_legal_name(name) else None


def is_legal_name(name: str) -> bool:
    return _LEGAL_NAME.fullmatch(name) is not None


def parse_record(text: str) -> ContainerRecord:
    """Parse what `create` wrote. Ignore fields that a newer version added; raise ValueError for anything else."""
    try:
        written = json.loads(text)
        fields = {field.name: written[field.name] for field in dataclasses.fields(ContainerRecord)}
        for process in ("monitor", "init"):
            if fields[process] is not None:
                fields[process] = ProcessRef(**fields[process])
        return ContainerRecord(**fields)
    except (TypeError, KeyError) as error:
        raise ValueError(f"cannot parse this record: {error}") from error


def parse_status(text: str) -> InitStatus:
    """Parse the documents that bwrap has written so far; the last may be incomplete."""
    fields: dict[str, int] = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            fields.update(json.loads(line))
    return InitStatus(fields.get("child-pid"), fields.get("exit-code"))


class Records:
    """Owns the state directory. Every method blocks on files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self) -> None:
        """Create the directory, and remove the drafts of a dead daemon and records left incomplete by a host crash."""
        make_private(self._root)
        for entry in self._root.iterdir():
            if entry.name.startswith(_DRAFT):
                shutil.rmtree(entry)
                continue
            tighten(entry)
            try:
                self.read(entry.name)
            except ValueError:
                # Records are renamed into place, so only a crash of the host can leave one incomplete, and such a crash
                # ends every container.
                self.delete(entry.name)

    def stage_path(self, name: str) -> Path:
        return self._root / name / "stage"

    def status_path(self, name: str) -> Path:
        return self._root / name / "status"

    def create(self, record: ContainerRecord) -> None:
        """Write the intent. Raise FileExistsError if a container of this name is recorded."""
        draft = self._root / f"{_DRAFT}{secrets.token_hex(6)}"
        draft.mkdir(mode=PRIVATE_DIRECTORY)
        try:
            (draft / "stage").mkdir(mode=PRIVATE_DIRECTORY)
            (draft / "status").touch(mode=PRIVATE_FILE)
            _write(draft / "record", record)
            # rename, not mkdir: the name appears together with its record or not at all
            draft.rename(self._root / record.name)
        except OSError as error:
            shutil.rmtree(draft)
            if (self._root / record.name).exists():
                raise FileExistsError(record.name) from error
            raise

    def update(self, record: ContainerRecord) -> None:
        draft = self._root / record.name / "record.new"
        _write(draft, record)
        draft.rename(self._root / record.name / "record")

    def read(self, name: str) -> ContainerRecord | None:
        try:
            return parse_record((self._root / name / "record").read_text())
        except FileNotFoundError:
            return None

    def read_all(self) -> list[ContainerRecord]:
        names = [name for name in os.listdir(self._root) if is_legal_name(name)]
        return [record for record in map(self.read, sorted(names)) if record is not None]

    def read_status(self, name: str) -> InitStatus:
        try:
            return parse_status(self.status_path(name).read_text())
        except FileNotFoundError:
            return InitStatus()

    def delete(self, name: str) -> None:
        draft = self._root / f"{_DRAFT}{secrets.token_hex(6)}"
        with contextlib.suppress(FileNotFoundError):
            (self._root / name).rename(draft)  # first, so that a crash does not leave a name without a record
            shutil.rmtree(draft)


def _write(path: Path, record: ContainerRecord) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE), "w") as file:
        file.write(json.dumps(asdict(record), sort_keys=True))

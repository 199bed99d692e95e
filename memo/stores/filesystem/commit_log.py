"""The commit log of one owner: append-only lines, one per commit, and the state that results from them.

The line is the commit: once it is durable the change has happened, and any process can do the rest (put files in place,
publish the change). This module touches no file except the log.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field, replace
from typing import Any

from memo.documents import DocumentName, Revision
from memo.errors import Corrupt, InvalidKey
from memo.ids import SessionId
from memo.stores.filesystem.directory import Directory, append_lines, closing, disk_errors, end_of_lines, read_all
from memo.stores.filesystem.layout import COMMITS
from memo.stores.timestamps import from_micros, to_micros


@dataclass(frozen=True, slots=True)
class Version:
    """One revision of one document, without its text: a redacted text must not remain anywhere."""

    name: str
    revision: Revision
    tokens: int
    tokens_exact: bool
    request: str | None = None
    outside: bool = False
    """Whether the text was found in the visible file, so there is nothing to write there."""


@dataclass(frozen=True, slots=True)
class ArtifactVersion:
    tool_call: str
    revision: int
    sha256: str
    size_bytes: int
    at_micros: int
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Redaction:
    name: str
    revisions: tuple[int, ...]
    sha256: str
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One atomic change. `log_end` is the end of the change log before it."""

    number: int
    log_end: int
    documents: tuple[Version, ...] = ()
    artifacts: tuple[ArtifactVersion, ...] = ()
    redaction: Redaction | None = None
    session: dict[str, Any] | None = None
    """The line of session.jsonl that goes with a compaction."""


@dataclass(slots=True)
class OwnerState:
    """The state after all commits. Refreshed under the owner's lock; `is_finished` refers to the last commit."""

    documents: dict[str, list[Version]] = field(default_factory=dict)
    artifacts: dict[str, ArtifactVersion] = field(default_factory=dict)
    tool_call_with: dict[str, str] = field(default_factory=dict)
    """Maps the hash of a text to the artifact last written with it."""
    last: Commit | None = None
    is_finished: bool = True
    inode: int = 0
    end: int = 0
    refreshing: threading.Lock = field(default_factory=threading.Lock)

    def newest(self, name: str) -> Version | None:
        versions = self.documents.get(name)
        return versions[-1] if versions else None

    def live_names(self) -> set[str]:
        """Return the names of the documents that are not deleted."""
        return {name for name, versions in self.documents.items() if not versions[-1].revision.deleted}

    @property
    def next_number(self) -> int:
        return self.last.number + 1 if self.last else 1

    def fold(self, commit: Commit) -> None:
        for version in commit.documents:
            self.documents.setdefault(version.name, []).append(version)
        for artifact in commit.artifacts:
            self.artifacts[artifact.tool_call] = artifact
            self.tool_call_with[artifact.sha256] = artifact.tool_call
        if commit.redaction is not None:
            versions = self.documents[commit.redaction.name]
            for number in commit.redaction.revisions:
                old = versions[number - 1]
                versions[number - 1] = replace(old, revision=replace(old.revision, redacted=True))
        self.last = commit

    def forget(self) -> None:
        self.documents, self.artifacts, self.tool_call_with, self.last = {}, {}, {}, None
        self.is_finished, self.inode, self.end = True, 0, 0


def refresh(state: OwnerState, hidden: Directory) -> bool:
    """Read the commits that the state lacks. Return whether there were any."""
    fd = hidden.open_file(COMMITS)
    if fd is None:
        was_known = state.end > 0
        state.forget()
        return was_known
    with closing(fd), disk_errors(f"read {hidden.where(COMMITS)}"):
        found = os.fstat(fd)
        if found.st_ino == state.inode and found.st_size == state.end:
            return False
        if found.st_ino != state.inode or found.st_size < state.end:
            state.forget()  # another directory is now at this path
            state.inode = found.st_ino
        end = end_of_lines(fd)
        os.lseek(fd, state.end, os.SEEK_SET)
        lines = read_all(fd, end - state.end - 1) if end > state.end else b""
    for line in lines.splitlines(keepends=True):
        state.fold(_decode(line, hidden.where(COMMITS), state.next_number))
        state.end += len(line)
    return bool(lines)


def append(state: OwnerState, hidden: Directory, commit: Commit) -> None:
    """Append the commit. If this raises Unavailable, nothing has changed."""
    line = _encode(commit)
    with disk_errors(f"write {hidden.where(COMMITS)}"):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(COMMITS, flags, 0o600, dir_fd=hidden.fd)
        with closing(fd):
            if state.inode == 0:
                os.fsync(hidden.fd)
                state.inode = os.fstat(fd).st_ino
            state.end = append_lines(fd, line, state.end)
    state.is_finished = False
    state.fold(commit)


def _encode(commit: Commit) -> bytes:
    record: dict[str, Any] = {"commit": commit.number, "log": commit.log_end}
    if commit.documents:
        record["documents"] = [_encode_version(version) for version in commit.documents]
    if commit.artifacts:
        record["artifacts"] = [
            {"id": a.tool_call, "revision": a.revision, "sha256": a.sha256, "size": a.size_bytes, "at": a.at_micros}
            | ({"outside": True} if a.outside else {})
            for a in commit.artifacts
        ]
    if commit.redaction is not None:
        r = commit.redaction
        record["redaction"] = {
            "name": r.name, "revisions": r.revisions, "sha256": r.sha256, "actor": r.actor, "reason": r.reason,
        }  # fmt: skip
    if commit.session is not None:
        record["session"] = commit.session
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _encode_version(version: Version) -> dict[str, Any]:
    r = version.revision
    record: dict[str, Any] = {
        "name": version.name,
        "revision": r.revision,
        "sha256": r.sha256,
        "size": r.size_bytes,
        "at": to_micros(r.at),
        "actor": r.actor,
        "session": r.session,
        "reason": r.reason,
        "tokens": version.tokens,
        "exact": version.tokens_exact,
    }
    if version.request is not None:
        record["request"] = version.request
    if version.outside:
        record["outside"] = True
    if r.deleted:
        record["deleted"] = True
    if r.moved is not None:
        record["moved"] = r.moved
    return record


def _decode(line: bytes, place: str, number: int) -> Commit:
    try:
        record = json.loads(line)
        commit = Commit(
            number=record["commit"],
            log_end=record["log"],
            documents=tuple(_decode_version(r) for r in record.get("documents", ())),
            artifacts=tuple(
                ArtifactVersion(r["id"], r["revision"], r["sha256"], r["size"], r["at"], r.get("outside", False))
                for r in record.get("artifacts", ())
            ),
            redaction=_decode_redaction(record.get("redaction")),
            session=record.get("session"),
        )
    except (ValueError, KeyError, TypeError, AttributeError, InvalidKey):
        raise Corrupt(f"cannot read {place}: the line of commit {number} is damaged") from None
    if commit.number != number:
        raise Corrupt(f"cannot read {place}: commit {number} is missing")
    return commit


def _decode_version(r: dict[str, Any]) -> Version:
    session = None if r["session"] is None else SessionId(r["session"])
    moved = r.get("moved")
    revision = Revision(
        revision=r["revision"],
        actor=r["actor"],
        session=session,
        reason=r["reason"],
        at=from_micros(r["at"]),
        sha256=r["sha256"],
        size_bytes=r["size"],
        deleted=r.get("deleted", False),
        moved=None if moved is None else DocumentName(moved),
    )
    return Version(r["name"], revision, r["tokens"], r["exact"], r.get("request"), r.get("outside", False))


def _decode_redaction(r: dict[str, Any] | None) -> Redaction | None:
    if r is None:
        return None
    return Redaction(r["name"], tuple(r["revisions"]), r["sha256"], r["actor"], r["reason"])

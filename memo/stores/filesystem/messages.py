"""Messages on disk: messages.jsonl is the visible log as given, one message a line; archives hold what was cut.

A turn is durable in messages.jsonl before the line of session.jsonl that makes it count. Every function works on a
locked place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, replace

from memo.errors import Corrupt
from memo.ids import SessionRef
from memo.messages import EncodedMessage, Message, StoredMessage, decode_object, newest_within
from memo.sessions import Usage
from memo.stores.filesystem import session_log
from memo.stores.filesystem.disk import Directory, append_lines, closing, disk_errors, lines_backwards
from memo.stores.filesystem.layout import ARCHIVES, MESSAGES, archive_name
from memo.stores.filesystem.owners import Place
from memo.stores.filesystem.session_log import SessionRecord, SessionState
from memo.stores.options import StoreOptions, unknown_session


def record_of(place: Place | None, ref: SessionRef) -> SessionRecord:
    record = None if place is None else session_log.load(place.directory, ref)
    if record is None:
        raise unknown_session(ref)
    return record


def tail(place: Place | None, ref: SessionRef, limit: int | None) -> list[StoredMessage]:
    record = None if place is None else session_log.load(place.directory, ref)
    if place is None or record is None or limit == 0:
        return []
    state = record.state
    newest_first: list[StoredMessage] = []
    for stored in _newest_first(place.directory, ref, state):
        newest_first.append(stored)
        if len(newest_first) == limit:
            break
    if limit is None and len(newest_first) != state.count:
        raise Corrupt(
            f"cannot read the messages of session {ref}: {len(newest_first)} are there, and {state.count} were written"
        )
    return newest_first[::-1]


def within(place: Place | None, ref: SessionRef, token_budget: int) -> list[StoredMessage]:
    record = None if place is None else session_log.load(place.directory, ref)
    if place is None or record is None:
        return []
    return newest_within(_counted(_newest_first(place.directory, ref, record.state), place.options), token_budget)


def _counted(messages: Iterator[StoredMessage], options: StoreOptions) -> Iterator[StoredMessage]:
    for stored in messages:
        yield replace(stored, tokens=options.counter.count_message(stored.message).tokens)


def _newest_first(directory: Directory, ref: SessionRef, state: SessionState) -> Iterator[StoredMessage]:
    """Yield visible messages, read only as far back as somebody asks. Their tokens are not counted."""
    if state.bytes == 0:
        return
    fd = open_messages(directory, ref, state)
    with closing(fd):
        position = state.first + state.count
        for line in lines_backwards(fd, state.bytes):
            position -= 1
            expands = state.archive if position == state.first and state.archive else None
            message = decode_object(line, f"message {position} of session {ref}")
            yield StoredMessage(position, message, 0, expands)


def open_messages(directory: Directory, ref: SessionRef, state: SessionState) -> int:
    fd = directory.open_file(MESSAGES)
    if fd is None:
        raise Corrupt(f"cannot read the messages of session {ref}: {MESSAGES} is gone")
    if os.fstat(fd).st_size < state.bytes or os.pread(fd, 1, state.bytes - 1) != b"\n":
        os.close(fd)
        raise Corrupt(f"cannot read the messages of session {ref}: {MESSAGES} is not as it was written")
    return fd


def commit_turn(
    place: Place,
    record: SessionRecord,
    messages: list[EncodedMessage],
    usage: Usage | None,
    request: str | None,
    now: int,
) -> None:
    state = record.state
    lines = b"".join(m.body.encode() + b"\n" for m in messages)
    if lines:
        if state.bytes:
            os.close(open_messages(place.directory, record.ref, state))
        _append_messages(place.directory, lines, state.bytes)
    after = replace(
        state,
        updated_at=max(state.updated_at, now),
        turns=state.turns + (usage is not None),
        tokens=state.tokens + (usage.total if usage else 0),
        count=state.count + len(messages),
        message_tokens=state.message_tokens + sum(m.tokens for m in messages),
        bytes=state.bytes + len(lines),
    )
    line: dict[str, object] = {"type": "messages" if usage is None else "turn", "at": now}
    if usage is not None:
        line["usage"] = asdict(usage)
    if request is not None:
        line["request"] = request
    session_log.append(place.directory, line, after)


def _append_messages(directory: Directory, lines: bytes, end: int) -> None:
    with disk_errors(f"write {directory.where(MESSAGES)}"):
        is_new = directory.stat(MESSAGES) is None
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing(os.open(MESSAGES, flags, 0o600, dir_fd=directory.fd)) as fd:
            append_lines(fd, lines, end)
        if is_new:
            os.fsync(directory.fd)


def history(place: Place | None, ref: SessionRef) -> list[Message]:
    """Return every message there ever was. Archive n begins with the summary that stands for archive n - 1."""
    record = None if place is None else session_log.load(place.directory, ref)
    if place is None or record is None:
        return []
    visible = [stored.message for stored in tail(place, ref, None)]
    if record.state.archive == 0:
        return visible
    archived: list[Message] = []
    directory = place.directory.child(ARCHIVES)
    if directory is None:
        raise Corrupt(f"cannot read the archives of session {ref}: {ARCHIVES} is gone")
    with directory:
        for number in range(1, record.state.archive + 1):
            messages = _archive(directory, number, ref)
            archived += messages[1:] if number > 1 else messages
    return archived + visible[1:]


def _archive(directory: Directory, number: int, ref: SessionRef) -> list[Message]:
    content = directory.read(archive_name(number))
    if content is None:
        raise Corrupt(f"cannot read archive {number} of session {ref}: it is gone")
    return [
        decode_object(line, f"message {row} of archive {number} of session {ref}")
        for row, line in enumerate(content.split(b"\n")[:-1], start=1)
    ]

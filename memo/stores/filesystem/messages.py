"""Messages on disk: messages.jsonl is the visible log, one message per line; archives hold what compaction cut.

A turn is durable in messages.jsonl before the line of session.jsonl that makes it count. A compaction is one commit:
the archive and the shortened log are durable before its line, and finishing the commit puts them in place. Every
function works on a locked home.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, replace

from memo.compaction import Compaction
from memo.documents import NOTES, Author
from memo.errors import Corrupt, TooLarge
from memo.ids import SessionRef
from memo.messages import EncodedMessage, Message, StoredMessage, decode_object, newest_within
from memo.sessions import Usage
from memo.stores.filesystem import documents, session_log
from memo.stores.filesystem.directory import Directory, append_lines, closing, disk_errors, lines_backwards, read_all
from memo.stores.filesystem.documents import Draft
from memo.stores.filesystem.home import Home
from memo.stores.filesystem.layout import ARCHIVES, MESSAGES, STAGED, STAGED_MESSAGES, archive_name
from memo.stores.filesystem.session_log import with_state
from memo.stores.filesystem.session_state import SessionRecord, SessionState
from memo.stores.options import StoreOptions, notes_do_not_fit, unknown_session
from memo.stores.prepared_text import prepare_document


def record_of(home: Home | None, ref: SessionRef) -> SessionRecord:
    record = None if home is None else session_log.load(home.directory, ref)
    if record is None:
        raise unknown_session(ref)
    return record


def tail(home: Home | None, ref: SessionRef, limit: int | None) -> list[StoredMessage]:
    record = None if home is None else session_log.load(home.directory, ref)
    if home is None or record is None or limit == 0:
        return []
    state = record.state
    newest_first: list[StoredMessage] = []
    for stored in _newest_first(home.directory, ref, state):
        newest_first.append(stored)
        if len(newest_first) == limit:
            break
    if limit is None and len(newest_first) != state.count:
        raise Corrupt(f"cannot read the messages of session {ref}: found {len(newest_first)}, expected {state.count}")
    return newest_first[::-1]


def within(home: Home | None, ref: SessionRef, token_budget: int) -> list[StoredMessage]:
    record = None if home is None else session_log.load(home.directory, ref)
    if home is None or record is None:
        return []
    return newest_within(_counted(_newest_first(home.directory, ref, record.state), home.options), token_budget)


def _counted(messages: Iterator[StoredMessage], options: StoreOptions) -> Iterator[StoredMessage]:
    for stored in messages:
        yield replace(stored, tokens=options.counter.count_message(stored.message).tokens)


def _newest_first(directory: Directory, ref: SessionRef, state: SessionState) -> Iterator[StoredMessage]:
    """Yield visible messages, reading back only as far as the caller iterates. Tokens are not counted."""
    if state.bytes == 0:
        return
    fd = open_messages(directory, ref, state)
    with closing(fd):
        position = state.first + state.count
        for line in lines_backwards(fd, state.bytes):
            position -= 1
            expands = state.archive if position == state.first and state.archive else None
            place = f"{directory.where(MESSAGES)} line {position - state.first + 1}"
            message = decode_object(line, f"message {position} of session {ref} ({place})")
            yield StoredMessage(position, message, 0, expands)


def open_messages(directory: Directory, ref: SessionRef, state: SessionState) -> int:
    fd = directory.open_file(MESSAGES)
    if fd is None:
        raise Corrupt(f"cannot read the messages of session {ref}: {directory.where(MESSAGES)} is missing")
    if os.fstat(fd).st_size < state.bytes or os.pread(fd, 1, state.bytes - 1) != b"\n":
        os.close(fd)
        raise Corrupt(f"cannot read the messages of session {ref}: {MESSAGES} was changed by another program")
    return fd


def commit_turn(
    home: Home,
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
            os.close(open_messages(home.directory, record.ref, state))
        _append_messages(home.directory, lines, state.bytes)
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
    session_log.append(home.directory, line, after)


def _append_messages(directory: Directory, lines: bytes, end: int) -> None:
    with disk_errors(f"write {directory.where(MESSAGES)}"):
        is_new = directory.stat(MESSAGES) is None
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing(os.open(MESSAGES, flags, 0o600, dir_fd=directory.fd)) as fd:
            append_lines(fd, lines, end)
        if is_new:
            os.fsync(directory.fd)


def history(home: Home | None, ref: SessionRef) -> list[Message]:
    """Return every message ever appended. Archive n begins with the summary of archive n - 1."""
    record = None if home is None else session_log.load(home.directory, ref)
    if home is None or record is None:
        return []
    visible = [stored.message for stored in tail(home, ref, None)]
    if record.state.archive == 0:
        return visible
    archived: list[Message] = []
    directory = home.directory.child(ARCHIVES)
    if directory is None:
        raise Corrupt(f"cannot read the archives of session {ref}: {ARCHIVES} is missing")
    with directory:
        for number in range(1, record.state.archive + 1):
            messages = _archive(directory, number, ref)
            archived += messages[1:] if number > 1 else messages
    return archived + visible[1:]


def _archive(directory: Directory, number: int, ref: SessionRef) -> list[Message]:
    content = directory.read(archive_name(number))
    if content is None:
        raise Corrupt(f"cannot read archive {number} of session {ref}: its file is missing")
    return [
        decode_object(
            line,
            f"message {row} of archive {number} of session {ref} ({directory.where(archive_name(number))} line {row})",
        )
        for row, line in enumerate(content.split(b"\n")[:-1], start=1)
    ]


def compact(home: Home, ref: SessionRef, compaction: Compaction, summary: EncodedMessage, now: int) -> bool:
    state = record_of(home, ref).state
    last = compaction.first + compaction.count - 1
    if (state.first, last) != (compaction.first, compaction.last) or state.count < compaction.count:
        return False  # compacted by another call in the meantime
    notes = _extended_notes(home, ref, compaction.notes_section)
    cut, rest = _split(home, ref, state, compaction.count)
    archive = state.archive + 1
    _keep_archive(home, archive, cut)
    head = summary.body.encode() + b"\n"
    home.hidden.stage(STAGED_MESSAGES, head, rest)
    home.hidden.sync()
    after = replace(
        state,
        updated_at=max(state.updated_at, now),
        count=state.count - compaction.count + 1,
        message_tokens=summary.tokens + _tokens(rest, ref, home.options),
        bytes=len(head) + len(rest),
        first=compaction.last,
        archive=archive,
    )
    for draft in notes:
        documents.stage(home, draft)
    line = {"type": "compaction", "at": now, "archive": archive, "commit": home.state.next_number}
    home.commit(documents=tuple(draft.version for draft in notes), session=with_state(line, after))
    return True


def _extended_notes(home: Home, ref: SessionRef, section: str) -> list[Draft]:
    before = documents.reconcile(home, NOTES)
    old = before.document.content if before else ""
    try:
        text = prepare_document(old + section, home.options)
    except TooLarge:
        notes_do_not_fit(ref)
        return []
    author = Author("compaction", ref.session, "conversation summary")
    return [documents.draft_of(home, NOTES, text, author)]


def _split(home: Home, ref: SessionRef, state: SessionState, count: int) -> tuple[bytes, bytes]:
    with closing(open_messages(home.directory, ref, state)) as fd, disk_errors(f"read the messages of session {ref}"):
        os.lseek(fd, 0, os.SEEK_SET)
        *lines, _ = read_all(fd, state.bytes - 1).split(b"\n")
    if len(lines) != state.count:
        raise Corrupt(f"cannot compact session {ref}: found {len(lines)} messages, expected {state.count}")
    return _joined(lines[:count]), _joined(lines[count:])


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _keep_archive(home: Home, number: int, lines: bytes) -> None:
    with home.directory.make_child(ARCHIVES) as archives:
        home.hidden.stage(STAGED, lines)
        home.hidden.move(STAGED, archives, archive_name(number))


def _tokens(lines: bytes, ref: SessionRef, options: StoreOptions) -> int:
    messages = (decode_object(line, f"a message of session {ref}") for line in lines.split(b"\n")[:-1])
    return sum(options.counter.count_message(message).tokens for message in messages)

"""Compaction on disk: the oldest lines move to an archive, a summary takes their place, the notes grow. One commit.

The archive and the shortened log are durable before the commit's line; finishing puts them in place. If the writer
dies before that line, nothing has happened.
"""

from __future__ import annotations

import os
from dataclasses import replace

from memo.compaction import Compaction
from memo.documents import NOTES, Author
from memo.errors import Corrupt, TooLarge
from memo.ids import SessionRef
from memo.messages import EncodedMessage, decode_object
from memo.stores.filesystem import documents, outside
from memo.stores.filesystem.commits import Commit
from memo.stores.filesystem.disk import closing, disk_errors, read_all
from memo.stores.filesystem.documents import Draft
from memo.stores.filesystem.finishing import commit
from memo.stores.filesystem.layout import ARCHIVES, STAGED, STAGED_MESSAGES, archive_name
from memo.stores.filesystem.messages import open_messages, record_of
from memo.stores.filesystem.owners import Place
from memo.stores.filesystem.session_log import SessionState, with_state
from memo.stores.options import StoreOptions, notes_do_not_fit
from memo.stores.prepared import prepare_document


def compact(place: Place, ref: SessionRef, compaction: Compaction, summary: EncodedMessage, now: int) -> bool:
    state = record_of(place, ref).state
    last = compaction.first + compaction.count - 1
    if (state.first, last) != (compaction.first, compaction.last) or state.count < compaction.count:
        return False  # somebody compacted it meanwhile
    notes = _extended_notes(place, ref, compaction.notes_section)
    cut, rest = _split(place, ref, state, compaction.count)
    archive = state.archive + 1
    _keep_archive(place, archive, cut)
    head = summary.body.encode() + b"\n"
    place.hidden.stage(STAGED_MESSAGES, head, rest)
    place.hidden.sync()
    after = replace(
        state,
        updated_at=max(state.updated_at, now),
        count=state.count - compaction.count + 1,
        message_tokens=summary.tokens + _tokens(rest, ref, place.options),
        bytes=len(head) + len(rest),
        first=compaction.last,
        archive=archive,
    )
    for draft in notes:
        documents.stage(place, draft)
    number, end = place.state.next_number, place.log.end()
    line = with_state({"type": "compaction", "at": now, "archive": archive, "commit": number}, after)
    commit(place, Commit(number, end, documents=tuple(draft.version for draft in notes), session=line))
    return True


def _extended_notes(place: Place, ref: SessionRef, section: str) -> list[Draft]:
    before = outside.reconcile(place, NOTES)
    old = before.document.content if before else ""
    try:
        text = prepare_document(old + section, place.options)
    except TooLarge:
        notes_do_not_fit(ref)
        return []
    author = Author("compaction", ref.session, "conversation summary")
    return [documents.draft_of(place, NOTES, text, author)]


def _split(place: Place, ref: SessionRef, state: SessionState, count: int) -> tuple[bytes, bytes]:
    with closing(open_messages(place.directory, ref, state)) as fd, disk_errors(f"read the messages of session {ref}"):
        os.lseek(fd, 0, os.SEEK_SET)
        *lines, _ = read_all(fd, state.bytes - 1).split(b"\n")
    if len(lines) != state.count:
        raise Corrupt(f"cannot compact session {ref}: {len(lines)} messages are there, and {state.count} were written")
    return _joined(lines[:count]), _joined(lines[count:])


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _keep_archive(place: Place, number: int, lines: bytes) -> None:
    with place.directory.make_child(ARCHIVES) as archives:
        place.hidden.stage(STAGED, lines)
        place.hidden.move(STAGED, archives, archive_name(number))


def _tokens(lines: bytes, ref: SessionRef, options: StoreOptions) -> int:
    messages = (decode_object(line, f"a message of session {ref}") for line in lines.split(b"\n")[:-1])
    return sum(options.counter.count_message(message).tokens for message in messages)

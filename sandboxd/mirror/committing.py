"""One write to a store, rich or plain, as one question with one answer. Knows nothing of mirrors.

A store with revisions compares and swaps by itself. For a plain provider the caller holds the key's turn, and the
number that stands for the content is compared here.
"""

from __future__ import annotations

from memo.documents import ANY, ArtifactEntry, ArtifactKey, Author, DocumentKey, Expected, conflict, is_expected
from memo.errors import Unsupported
from sandboxd.errors import StoreUnavailable
from sandboxd.mirror.answers import Key, WriteConflict
from sandboxd.mirror.asking import Source, name_of
from sandboxd.mirror.texts import Text


def check_writable(source: Source, key: Key, *, appends: bool = False) -> None:
    """Raise Unsupported if the store can never take this write."""
    can = source.capabilities
    if isinstance(key, ArtifactKey):
        is_writable = can.write_artifacts
    else:
        is_writable = can.revisions or can.write or (appends and can.append)
    if not is_writable:
        raise Unsupported(f"cannot write {name_of(key)}: this store is read-only")


async def commit(source: Source, key: DocumentKey, content: str, expected: Expected, author: Author) -> Text:
    """Write a document if it is still what was expected, or raise RevisionConflict with what it is."""
    what = f"write {key.name}"
    if source.capabilities.revisions:
        written = await source.ask(what, "write_document", key, content, expected=expected, author=author, writes=True)
        return source.text_of(what, written)
    if expected is not ANY:
        current = await source.read(key)
        if not is_expected(None if current is None else current.revision, expected):
            raise conflict(key, expected, None if current is None else current.document())
    await source.ask(what, "write_memory_document", *_plain(key), content, writes=True)
    return await _as_kept(source, key, Text.of(content.encode()))


async def append(source: Source, key: DocumentKey, content: str, author: Author) -> Text:
    what = f"append to {key.name}"
    if source.capabilities.revisions:
        return source.text_of(what, await source.ask(what, "append_document", key, content, author=author, writes=True))
    before = await source.read(key)
    text = Text.of((b"" if before is None else before.encoded) + content.encode())
    if source.capabilities.append:
        await source.ask(what, "append_memory_document", *_plain(key), content, writes=True)
    else:
        await source.ask(what, "write_memory_document", *_plain(key), text.encoded.decode(), writes=True)
    return await _as_kept(source, key, text)


async def commit_artifact(source: Source, key: ArtifactKey, content: str, based_on: str | None = None) -> Text:
    """Write an artifact; if it is based on another text, only if the store still has that one, or this one already.

    No store compares artifacts by itself, so the caller lets nobody else do this meanwhile.
    """
    what = f"write artifact {key.tool_call}"
    text = Text.of(content.encode())
    if based_on is not None and source.capabilities.read_artifacts:
        current = await source.read_artifact(key)
        now = "" if current is None else current.sha256
        if now not in (based_on, text.sha256):
            raise WriteConflict(
                f"cannot {what}: the store has another text than the mirror showed",
                None if current is None else current.document(),
            )
    if not source.capabilities.rich_artifacts:
        await source.ask(what, "write_tool_result_artifact", str(key.session), str(key.tool_call), content, writes=True)
        return text
    entry = await source.ask(what, "write_artifact", key, content, writes=True)
    if not isinstance(entry, ArtifactEntry) or entry.sha256 != text.sha256:
        raise StoreUnavailable(f"cannot {what}: the store's answer cannot be used: it is not about this text")
    return Text(text.encoded, text.sha256, entry.revision)


async def _as_kept(source: Source, key: DocumentKey, written: Text) -> Text:
    """Return the text as the provider keeps it: it may have been made neater, and its hash is what counts later."""
    try:
        return await source.read(key) or written
    except StoreUnavailable:
        return written  # it was accepted, and that is what the caller hears


def _plain(key: DocumentKey) -> tuple[str, str, str, str]:
    return (str(key.tenant), str(key.owner), str(key.scope), str(key.name))

"""What artifacts and snapshots promise: exact texts, complete lists, separate sessions.

Optional capabilities are checked only on stores that have them.
"""

from __future__ import annotations

from typing import Any

from memo.documents import ArtifactKey, DocumentKey, sha256_of
from memo.ids import SessionRef, UserId
from memo.testing.promises import Promise, expect, expect_equal, fresh, together


def _ref() -> SessionRef:
    return SessionRef.of(fresh("t"), fresh("s"))


# Specification: 001.25
async def an_artifact_never_written_is_none(provider: Any) -> None:
    seen = await provider.read_tool_result_artifact(_ref(), "call-1")
    expect(seen is None, f"it is {seen!r}")
    expect_equal(list(await provider.list_tool_result_artifact_ids(_ref())), [], "the list of a new session")


# Specification: 001.25, 001.26
async def an_artifact_reads_back_exactly(provider: Any) -> None:
    ref = _ref()
    for text in ("", "out\r\nput 日本 🜚\n", "x" * 200_000):
        await provider.write_tool_result_artifact(ref, "call-1", text)
        expect_equal(await provider.read_tool_result_artifact(ref, "call-1"), text, "the artifact read")


async def every_artifact_is_listed_once(provider: Any) -> None:
    ref, other = _ref(), _ref()
    ids = [f"call-{number}" for number in range(30)]
    await together(30, lambda number: provider.write_tool_result_artifact(ref, ids[number], f"text {number}"))
    await provider.write_tool_result_artifact(ref, ids[0], "text 0")
    await provider.write_tool_result_artifact(other, "call-of-another-session", "text")
    expect_equal(sorted(await provider.list_tool_result_artifact_ids(ref)), sorted(ids), "the list of artifacts")


async def artifacts_of_other_sessions_and_tenants_are_invisible(provider: Any) -> None:
    ref = _ref()
    await provider.write_tool_result_artifact(ref, "call-1", "mine")
    for stranger in (SessionRef.of(ref.tenant, fresh("s")), SessionRef.of(fresh("t"), ref.session)):
        expect(await provider.read_tool_result_artifact(stranger, "call-1") is None, f"{stranger} reads it too")


async def writing_the_same_artifact_again_changes_nothing(provider: Any) -> None:
    key = ArtifactKey(_ref(), ArtifactKey.of("t:s", "call-1").tool_call)
    first = await provider.write_artifact(key, "text")
    expect_equal(await provider.write_artifact(key, "text"), first, "the entry after repeating the write")
    second = await provider.write_artifact(key, "other text")
    expect(second.revision > first.revision, f"another text has revision {second.revision} after {first.revision}")
    expect_equal(second.sha256, sha256_of(b"other text"), "its sha256")


async def a_range_of_an_artifact_is_that_slice_of_its_bytes(provider: Any) -> None:
    key = ArtifactKey(_ref(), ArtifactKey.of("t:s", "call-1").tool_call)
    expect(await provider.read_artifact_range(key, 0, 10) is None, "a range of a missing artifact is not None")
    text = "αβγ plain 🜚" * 1000
    await provider.write_artifact(key, text)
    encoded = text.encode()
    for start, length in ((0, 5), (3, 0), (1, 100), (len(encoded) - 2, 50), (len(encoded) + 5, 5)):
        seen = await provider.read_artifact_range(key, start, length)
        expect_equal(seen, encoded[start : start + length], f"range {start}+{length}")


async def reading_many_artifacts_returns_those_that_exist(provider: Any) -> None:
    ref = _ref()
    for number in range(5):
        await provider.write_tool_result_artifact(ref, f"call-{number}", f"text {number}")
    seen = await provider.read_artifacts(ref, ["call-1", "call-9", "call-3"])
    expect_equal(seen, {"call-1": "text 1", "call-3": "text 3"}, "what was read")
    entries = await provider.list_artifacts(ref)
    expect_equal([e.key.tool_call for e in entries], [f"call-{n}" for n in range(5)], "the list")
    expect_equal([e.sha256 for e in entries], [sha256_of(f"text {n}".encode()) for n in range(5)], "the hashes")


async def a_snapshot_holds_exactly_the_memory_of_its_session_and_user(provider: Any) -> None:
    ref, user = _ref(), UserId(fresh("u"))
    notes, profile = DocumentKey.of_session(ref, "NOTES.md"), DocumentKey.of_user(ref.tenant, user, "USER.md")
    await provider.write_document(notes, "old")
    await provider.write_document(notes, "notes \U0001f71a")
    await provider.write_document(profile, "profile")
    second = await provider.write_artifact(ArtifactKey.of(ref, "call-2"), "result")
    first = await provider.write_artifact(ArtifactKey.of(ref, "call-1"), "")
    for stranger in (SessionRef.of(ref.tenant, fresh("s")), SessionRef.of(fresh("t"), ref.session)):
        await provider.write_artifact(ArtifactKey.of(stranger, "call-9"), "hidden")
        await provider.write_document(DocumentKey.of_session(stranger, "HIDDEN.md"), "hidden")
    await provider.write_document(DocumentKey.of_user(ref.tenant, UserId(fresh("u")), "HIDDEN.md"), "hidden")
    listed = await provider.list_memory(ref, user)
    documents = [(entry.key, entry.revision, entry.sha256, entry.size_bytes) for entry in listed.documents]
    texts = {notes: "notes \U0001f71a".encode(), profile: b"profile"}
    wanted = [
        (key, (await provider.read_document(key)).revision, sha256_of(text), len(text)) for key, text in texts.items()
    ]
    expect_equal(documents, wanted, "the documents listed")
    lines = [(e.key.tool_call, e.revision, e.sha256, e.size_bytes) for e in (first, second)]
    expect_equal(listed.artifacts, lines, "the artifacts listed")
    keys = [ArtifactKey.of(ref, "call-2"), notes, ArtifactKey.of(ref, "call-9"), profile, ArtifactKey.of(ref, "call-1")]
    read = await provider.read_memory(keys)
    expect_equal(read, [b"result", texts[notes], None, b"profile", b""], "the texts read")


ARTIFACT_PROMISES: tuple[Promise, ...] = (
    an_artifact_never_written_is_none,
    an_artifact_reads_back_exactly,
    every_artifact_is_listed_once,
    artifacts_of_other_sessions_and_tenants_are_invisible,
)
RICH_ARTIFACT_PROMISES: tuple[Promise, ...] = (
    writing_the_same_artifact_again_changes_nothing,
    a_range_of_an_artifact_is_that_slice_of_its_bytes,
    reading_many_artifacts_returns_those_that_exist,
)
SNAPSHOT_PROMISES: tuple[Promise, ...] = (a_snapshot_holds_exactly_the_memory_of_its_session_and_user,)

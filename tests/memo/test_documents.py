"""Invalid input and limits on every store: each is a clear error and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from memo.documents import ANY, Author, DocumentKey, sha256_of, summary_of
from memo.errors import InvalidContent, InvalidKey, RevisionConflict, TooLarge
from memo.ids import SessionRef
from memo.limits import StoreLimits
from memo.stores import BaseStore, StoreOptions
from tests.memo.conftest import MakeStore

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of("acme", "s1", "session", "NOTES.md")
SMALL = StoreOptions(limits=StoreLimits(document_bytes=10, artifact_bytes=20, message_bytes=60))


@pytest.mark.parametrize(
    "bad",
    [
        "",
        ".",
        "..",
        "../x",
        "a//b",
        "a\0b",
        "-rf",
        " a",
        "a b",
        "é",
        "e\u0301",
        "\ud800",
        "x" * 129,
        "x" * 2**20,
        "a\n",
    ],
)
async def test_a_hostile_id_or_name_is_refused_everywhere(store: BaseStore, bad: str) -> None:
    calls: list[Any] = [
        lambda: store.read_memory_document(bad, "s1", "session", "NOTES.md"),
        lambda: store.write_memory_document("acme", bad, "session", "NOTES.md", "x"),
        lambda: store.append_memory_document("acme", "s1", bad, "NOTES.md", "x"),
        lambda: store.write_memory_document("acme", "s1", "session", bad, "x"),
        lambda: store.write_tool_result_artifact("acme:s1", bad, "x"),
        lambda: store.read_tool_result_artifact(f"acme:{bad}", "call"),
        lambda: store.list_tool_result_artifact_ids(f"{bad}:s1"),
        lambda: store.get_or_create("acme", bad, "a"),
        lambda: store.append_messages("acme", bad, []),
        lambda: store.list_sessions_by_user("acme", bad),
        lambda: store.orchestration_persistence("acme:s1").append_mailbox_event(bad, {}),
    ]
    for call in calls:
        with pytest.raises(InvalidKey) as caught:
            await call()
        assert str(caught.value).startswith("cannot")
        assert len(str(caught.value)) < 300
    assert await store.last_change() == 0
    assert await store.list_sessions() == []


@pytest.mark.parametrize(
    "reference", ["", "acme", "a:b:c", "[1,2]", '["a"]', "[", "[" * 100_000, '["a","b","c"]', 7, None]
)
async def test_a_bad_session_reference_is_refused(store: BaseStore, reference: Any) -> None:
    with pytest.raises(InvalidKey):
        await store.list_tool_result_artifact_ids(reference)


async def test_a_session_reference_may_be_text_or_a_json_array(store: BaseStore) -> None:
    await store.write_tool_result_artifact('["acme","s1"]', "call", "x")
    assert await store.read_tool_result_artifact("acme:s1", "call") == "x"
    assert await store.read_tool_result_artifact(SessionRef.of("acme", "s1"), "call") == "x"


@pytest.mark.parametrize("text", ["a\0b", "\r\n", "\u2028", "🜚" * 1000, "e\u0301 \u00e9"])
async def test_odd_text_is_kept_exactly(store: BaseStore, text: str) -> None:
    document = await store.write_document(KEY, text)
    assert document.sha256 == sha256_of(text.encode())
    await store.write_tool_result_artifact("acme:s1", "call", text)
    assert (await store.read_document(KEY)) == document
    assert await store.read_tool_result_artifact("acme:s1", "call") == text


@pytest.mark.parametrize("text", ["\ud800", "x\udfffy", 7, None, b"bytes", ["list"]])
async def test_content_that_is_not_text_is_refused(store: BaseStore, text: Any) -> None:
    before = await store.write_document(KEY, "before")
    for call in (store.write_document, store.append_document):
        with pytest.raises(InvalidContent, match="cannot store this document"):
            await call(KEY, text)
    with pytest.raises(InvalidContent, match="cannot store this artifact"):
        await store.write_tool_result_artifact("acme:s1", "call", text)
    assert await store.read_document(KEY) == before
    assert await store.last_change() == 1


async def test_limits_are_in_bytes_and_checked_before_anything_is_written(make_store: MakeStore) -> None:
    async with make_store(SMALL) as store:
        await store.write_document(KEY, "é" * 5)
        for call, text in (
            (store.write_document, "x" * 11),
            (store.write_document, "é" * 6),
            (store.append_document, "x"),
        ):
            with pytest.raises(TooLarge, match=r"11 bytes|12 bytes"):
                await call(KEY, text)
        await store.write_tool_result_artifact("acme:s1", "call", "x" * 20)
        with pytest.raises(TooLarge, match="21 bytes, and the limit is 20"):
            await store.write_tool_result_artifact("acme:s1", "call", "x" * 21)
        await store.get_or_create("acme", "ann", "a", "s1")
        with pytest.raises(TooLarge, match="cannot store this message"):
            await store.append_messages(
                "acme", "s1", [{"role": "user", "content": "x"}, {"role": "user", "content": "x" * 60}]
            )
        assert await store.load_all_messages("acme", "s1") == []
        assert (await store.read_document(KEY)).content == "é" * 5  # type: ignore[union-attr]
        assert await store.last_change() == 2


@pytest.mark.parametrize("author", [Author("a" * 1001), Author(reason="\0"), Author(request="\ud800"), Author(7)])  # type: ignore[arg-type]
async def test_a_hostile_author_is_refused(store: BaseStore, author: Author) -> None:
    with pytest.raises(InvalidContent, match=r"author's|request id"):
        await store.write_document(KEY, "x", author=author)
    assert await store.read_document(KEY) is None


@pytest.mark.parametrize("revision", [0, -1, 2**53, 2**70])
async def test_an_impossible_revision_is_absent(store: BaseStore, revision: int) -> None:
    await store.write_document(KEY, "x")
    assert await store.read_document(KEY, revision) is None
    with pytest.raises(RevisionConflict):
        await store.write_document(KEY, "y", expected=revision)


async def test_a_retry_with_the_same_request_returns_what_was_committed(store: BaseStore) -> None:
    author = Author("agent", request="r1")
    first = await store.write_document(KEY, "one", expected=ANY, author=author)
    second = await store.write_document(KEY, "two", expected=first.revision)
    assert await store.write_document(KEY, "one", expected=99, author=author) == first
    assert await store.read_document(KEY) == second


async def test_the_memory_index_lists_what_can_be_read(store: BaseStore) -> None:
    await store.write_memory_document("acme", "ann", "user", "USER.md", "# Ann\n\nlikes tea")
    await store.write_memory_document("acme", "s1", "session", "NOTES.md", "\n- **first** thing\n")
    index = await store.build_memory_index("acme", "ann", "s1")
    assert [entry.path for entry in index] == ["/workspace/memo/user/USER.md", "/workspace/memo/session/NOTES.md"]
    assert [entry.summary for entry in index] == ["Ann", "first** thing"]
    assert [entry.tokens for entry in index] == [4, 5]
    assert all(entry.age_s >= 0 and not entry.tokens_exact for entry in index)


async def test_an_author_with_an_impossible_session_is_refused(store: BaseStore) -> None:
    with pytest.raises(InvalidKey):
        await store.write_document(KEY, "x", author=Author(session="../x"))  # type: ignore[arg-type]
    assert await store.document_history(KEY) == []


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


HOSTILE_JSON: dict[str, Any] = {
    "deep": nested(250),
    "very deep": nested(100_000),
    "set": {1, 2},
    "nan": float("nan"),
    "surrogate": "\ud800",
    "object": object(),
    "giant number": 10**5000,
    "tuple key": {("a",): 1},
}


@pytest.mark.parametrize("content", HOSTILE_JSON.values(), ids=HOSTILE_JSON)
async def test_a_message_that_is_not_plain_json_is_refused(store: BaseStore, content: Any) -> None:
    await store.get_or_create("acme", "ann", "a", "s1")
    with pytest.raises(InvalidContent, match="cannot store this message"):
        await store.append_messages("acme", "s1", [{"role": "user", "content": content}])
    with pytest.raises(InvalidContent, match="cannot store this event"):
        await store.orchestration_persistence("acme:s1").append_event({"content": content})
    assert await store.load_all_messages("acme", "s1") == []


async def test_a_deeply_nested_message_within_bounds_comes_back(store: BaseStore) -> None:
    await store.get_or_create("acme", "ann", "a", "s1")
    message = {"role": "user", "content": nested(150)}
    await store.append_messages("acme", "s1", [message])
    assert await store.load_all_messages("acme", "s1") == [message]


@pytest.mark.parametrize("request_id", ["\ud800", "x" * 1001, "\0", 7])
async def test_a_hostile_request_id_is_refused(store: BaseStore, request_id: Any) -> None:
    await store.get_or_create("acme", "ann", "a", "s1")
    with pytest.raises(InvalidContent, match="request id"):
        await store.append_messages("acme", "s1", [], request=request_id)


@pytest.mark.parametrize(
    ("content", "summary"),
    [
        ("\n\n# Ann\ntext", "Ann"),
        ("<!-- summary: Likes tea -->\n# Ann\n", "Likes tea"),
        ("<!-- a comment -->\n", "<!-- a comment -->"),
        ("", ""),
        ("x" * 500, "x" * 119 + "…"),
    ],
)
def test_a_summary_is_the_first_line_with_text_or_the_one_that_the_document_states(content: str, summary: str) -> None:
    assert summary_of(content) == summary

"""Long tool results become artifacts, and stubs name their paths."""

from __future__ import annotations

from typing import Any

import pytest

from memo import compact_tool_results
from memo.ids import SessionRef
from memo.stores import BaseStore

pytestmark = pytest.mark.anyio


def result(call: str, content: Any) -> dict[str, Any]:
    return {"role": "toolResult", "toolCallId": call, "content": content}


# Specification: 001.70
async def test_a_long_result_is_stored_and_its_stub_names_the_path(store: BaseStore) -> None:
    ref = SessionRef.of("acme", "s1")
    long = "line of output\n" * 1000
    messages = [
        {"role": "user", "content": "x" * 100_000},
        result("call-1", long),
        result("call-2", "short"),
        result("call-3", [{"type": "text", "text": long}, {"type": "image", "data": "…"}]),
        result("call-4", "y" * 20_000),
        result("call-5", "z" * 30_000),
    ]
    given = [dict(message) for message in messages]

    async def write(call: str, content: str) -> None:
        await store.write_tool_result_artifact(ref, call, content)

    compacted = await compact_tool_results(messages, write)
    again = await compact_tool_results(messages, write)

    assert messages == given
    assert compacted == again
    assert [compacted[i] for i in (0, 2, 4)] == [given[i] for i in (0, 2, 4)], "short, or recent, or not a result"
    stub = compacted[1]["content"]
    assert stub.startswith("[Tool result of about 3750 tokens")
    assert "/workspace/memo/session/tool-results/call-1.txt" in stub
    assert long[:200] in stub
    assert long[:201] not in stub
    assert [block["type"] for block in compacted[3]["content"]] == ["text", "image"]
    assert len(compacted[5]["content"]) < 400, "a recent result has a limit too"
    assert await store.list_tool_result_artifact_ids(ref) == ["call-1", "call-3", "call-5"]
    assert await store.read_tool_result_artifact(ref, "call-1") == long
    assert await store.last_change() == 3, "an artifact that is already stored is not written again"


# Specification: 001.24
async def test_without_a_writer_the_stub_names_no_path() -> None:
    (message,) = await compact_tool_results([result("call-1", "x" * 10_000)], keep_recent=0)
    assert "/workspace" not in message["content"]
    assert len(message["content"]) < 400


async def test_a_call_id_that_is_not_a_legal_id_still_gets_an_artifact() -> None:
    written: dict[str, str] = {}

    async def write(call: str, content: str) -> None:
        written[call] = content

    call = "call_abc|fc_" + "0" * 300
    (message,) = await compact_tool_results([result(call, "x" * 10_000)], write, keep_recent=0)
    (minted,) = written
    assert f"tool-results/{minted}.txt" in message["content"]


async def test_a_result_that_cannot_be_stored_is_not_replaced() -> None:
    async def write(call: str, content: str) -> None:
        raise ConnectionError("the store is down")

    with pytest.raises(ConnectionError):
        await compact_tool_results([result("call-1", "x" * 10_000)], write, keep_recent=0)

"""Sessions and messages over the wire: kept as given, loaded in bounds, compacted into memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import memo
from memo.messages import MESSAGE_OVERHEAD_TOKENS
from memo.outline import LINE_CHARS, MAX_LINES, outline
from sandboxd.settings import read_settings
from tests.guide_store import GuideStore
from tests.unit.test_api_memo import SESSION, TENANT, Wire, wired
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

OTHER = f"{TENANT}/sessions/other"


@pytest.fixture(params=["memory", "sqlite"])
async def wire(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/memo.db"
    async with memo.open_store(url) as store, serving(tmp_path, store=store) as world:
        async for wire in wired(world):
            yield wire


def said(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


async def test_a_session_is_created_without_a_sandbox_and_belongs_to_its_user(wire: Wire) -> None:
    status, _, body = await wire.ask("PUT", OTHER, json={"user": "u2", "agent": "a"})
    assert status == 201
    made = json.loads(body)
    assert (made["session"], made["user"], made["agent"], made["message_count"]) == ("other", "u2", "a", 0)
    assert (await wire.ask("PUT", OTHER, json={"user": "u2", "agent": "a"}))[0] == 200
    problem = await wire.problem("PUT", OTHER, json={"user": "u3"})
    assert (problem["status"], problem["code"]) == (409, "memo.session_taken")
    assert (await wire.problem("PUT", SESSION, json={"user": "u3"}))["status"] == 409  # its sandbox is u1's
    assert (await wire.json("GET", OTHER))["user"] == "u2"
    assert (await wire.problem("GET", f"{TENANT}/sessions/none"))["status"] == 404
    await wire.ask("PUT", SESSION, json={"user": "u1"})
    assert {one["session"] for one in (await wire.json("GET", f"{TENANT}/sessions"))["items"]} == {"other", "s1"}
    assert [one["session"] for one in (await wire.json("GET", f"{TENANT}/sessions?user=u1"))["items"]] == ["s1"]
    for bad in ({}, {"user": "../x"}, {"user": "u", "agent": "a b"}, {"user": "u", "more": 1}):
        assert (await wire.problem("PUT", OTHER, json=bad))["status"] == 400


async def test_a_session_keeps_its_user_after_its_sandbox_is_gone(wire: Wire) -> None:
    await wire.ask("DELETE", f"{SESSION}/sandbox")
    problem = await wire.problem("PUT", f"{SESSION}/sandbox", json={"user": "u2"})
    assert (problem["status"], problem["code"]) == (409, "request.conflict")
    assert (await wire.ask("PUT", f"{SESSION}/sandbox", json={"user": "u1"}))[0] == 201


# Specification: 001.12
async def test_messages_are_kept_as_given_and_loaded_in_bounds(wire: Wire) -> None:
    assert (await wire.json("GET", f"{SESSION}/messages"))["items"] == []
    odd = {"role": "assistant", "content": [{"type": "text", "text": "ä"}], "x": [1, 1.5, None, {"deep": True}]}
    assert await wire.json("POST", f"{SESSION}/messages", json={"messages": [*said("one"), odd]}) == {
        "appended": 2,
        "compacted": False,
    }
    turn = {"messages": said("two"), "usage": {"input": 10, "output": 2, "cacheRead": 1}}
    assert await wire.json("POST", f"{SESSION}/turns", json=turn) == {"appended": 1, "compacted": False}
    everything = [*said("one"), odd, *said("two")]
    assert (await wire.json("GET", f"{SESSION}/messages"))["items"] == everything
    assert (await wire.json("GET", f"{SESSION}/messages?limit=2"))["items"] == everything[1:]
    assert (await wire.json("GET", f"{SESSION}/messages?limit=0"))["items"] == []
    assert (await wire.json("GET", f"{SESSION}/messages?budget=1"))["items"] == everything[2:]
    assert (await wire.json("GET", f"{SESSION}/messages?budget=100000&limit=1"))["items"] == everything[2:]
    session = await wire.json("GET", SESSION)  # made with the sandbox
    assert (session["user"], session["agent"], session["turns"], session["tokens"]) == ("u1", "a1", 1, 13)


async def test_a_batch_with_an_invalid_message_is_refused(wire: Wire) -> None:
    await wire.ask("PUT", OTHER, json={"user": "u2"})
    for messages in (
        [*said("fine"), {"role": "system", "content": "x"}],
        [*said("fine"), {"content": "x"}],
        ["text"],
        "text",
        None,
    ):
        assert (await wire.problem("POST", f"{OTHER}/messages", json={"messages": messages}))["status"] == 400
    raw = b'{"messages": [{"role": "user", "content": NaN}]}'
    assert (await wire.problem("POST", f"{OTHER}/messages", data=raw))["status"] in (400, 415)
    for usage in ({"input": -1}, {"input": "1"}, {"input": True}, [1]):
        problem = await wire.problem("POST", f"{OTHER}/turns", json={"messages": said("x"), "usage": usage})
        assert problem["status"] == 400
    assert (await wire.json("GET", f"{OTHER}/messages"))["items"] == []
    problem = await wire.problem("POST", f"{TENANT}/sessions/none/messages", json={"messages": said("x")})
    assert (problem["status"], problem["code"]) == (404, "memo.absent")


async def test_a_retried_turn_is_one_turn(wire: Wire) -> None:
    for _ in range(2):
        await wire.json(
            "POST",
            f"{SESSION}/turns",
            json={"messages": said("one"), "usage": {"input": 1}},
            headers={"idempotency-key": "k"},
        )
    session = await wire.json("GET", SESSION)
    assert (session["turns"], session["message_count"]) == (1, 1)


# Specification: 001.17
async def test_compaction_archives_summarises_and_adds_to_the_notes(wire: Wire) -> None:
    await wire.ask("PUT", f"{SESSION}/memo/NOTES.md", data=b"before\n")
    texts = [f"question {number}\nmore" for number in range(10)]
    await wire.ask("POST", f"{SESSION}/messages", json={"messages": said(*texts)})
    assert await wire.json("POST", f"{SESSION}/compaction") == {
        "compacted": False,
        "archived": 0,
        "tokens_exact": False,
    }
    forced = await wire.json("POST", f"{SESSION}/compaction", json={"force": True})
    assert forced == {"compacted": True, "archived": 5, "tokens_exact": False}
    visible = (await wire.json("GET", f"{SESSION}/messages"))["items"]
    assert len(visible) == 6
    assert visible[0]["content"] == "[Conversation summary]: " + "\n".join(f"- question {n}" for n in range(5))
    _, _, body = await wire.ask("GET", f"{SESSION}/memo/NOTES.md")
    assert body.decode().startswith("before\n")
    assert "- question 4" in body.decode()
    assert (wire.world.mirror("s1") / "session/NOTES.md").read_bytes() == body
    assert (await wire.json("GET", f"{SESSION}/messages?full=true"))["items"] == said(*texts)
    again = {"force": True, "compact_fraction": 0.4, "summary": "short"}
    assert (await wire.json("POST", f"{SESSION}/compaction", json=again))["archived"] == 2
    assert (await wire.json("GET", f"{SESSION}/messages"))["items"][0]["content"].endswith(": short")
    assert (await wire.json("GET", f"{SESSION}/messages?full=true"))["items"] == said(*texts)
    for bad in ({"compact_fraction": 0}, {"compact_fraction": 2}, {"trigger_tokens": -1}, {"nope": 1}):
        assert (await wire.problem("POST", f"{SESSION}/compaction", json=bad))["status"] == 400


# Specification: 002.31
@pytest.mark.parametrize("tokens", [None, "claude", "gpt-4o"])
async def test_tokens_are_counted_as_the_setting_says(tokens: str | None, tmp_path: Path) -> None:
    counter = read_settings(data=tmp_path, tokens=tokens, token_download=False).make_counter()
    is_exact = await counter.load()
    if tokens == "gpt-4o" and not is_exact:
        pytest.skip("no table of o200k_base on this machine")
    options = memo.StoreOptions(counter=counter)
    text = "word " * 1000
    expected = {None: 1250, "claude": 1429, "gpt-4o": 1001}[tokens]
    async with (
        memo.open_store("memory://", options) as store,
        serving(tmp_path, store=store, counter=counter) as world,
    ):
        async for wire in wired(world):
            await wire.ask("PUT", f"{SESSION}/memo/NOTES.md", data=text.encode())
            (document,) = (await wire.json("GET", f"{SESSION}/memo"))["items"]
            assert (document["tokens"], document["tokens_exact"]) == (expected, is_exact)
            await wire.ask("POST", f"{SESSION}/messages", json={"messages": said(text, text)})
            cost = expected + MESSAGE_OVERHEAD_TOKENS
            for budget, count in ((cost - 1, 1), (2 * cost - 1, 1), (2 * cost, 2)):
                answer = await wire.json("GET", f"{SESSION}/messages?budget={budget}")
                assert (len(answer["items"]), answer["tokens"]) == (count, count * cost)
                assert answer["tokens_exact"] is is_exact
            assert (await wire.json("GET", f"{SESSION}/messages"))["tokens"] is None
            due = {"min_messages": 2, "trigger_tokens": 2 * cost + 1}
            not_yet = await wire.json("POST", f"{SESSION}/compaction", json=due)
            assert not_yet == {"compacted": False, "archived": 0, "tokens_exact": is_exact}
            compacted = await wire.json("POST", f"{SESSION}/compaction", json={**due, "trigger_tokens": 2 * cost})
            assert compacted == {"compacted": True, "archived": 1, "tokens_exact": is_exact}
            result = {"role": "toolResult", "toolCallId": "c", "content": text}
            short = {"messages": [result], "keep_recent": 0, "max_tokens": expected - 1}
            (stub,) = (await wire.json("POST", f"{SESSION}/tool-results", json=short))["items"]
            assert f"{'' if is_exact else 'about '}{expected} tokens" in stub["content"]


async def test_an_empty_summary_changes_nothing(wire: Wire) -> None:
    await wire.ask("POST", f"{SESSION}/messages", json={"messages": said("a", "b", "c")})
    answer = await wire.json("POST", f"{SESSION}/compaction", json={"force": True, "summary": " "})
    assert answer == {"compacted": False, "archived": 0, "tokens_exact": False}
    assert (await wire.json("GET", f"{SESSION}/messages"))["items"] == said("a", "b", "c")


async def test_long_tool_results_become_artifacts(wire: Wire) -> None:
    long = "line\n" * 5000
    messages = [
        {"role": "assistant", "content": [{"type": "toolCall", "id": "c1"}]},
        {"role": "toolResult", "toolCallId": "c1", "content": long},
        *said("thanks"),
    ]
    body = {"messages": messages, "keep_recent": 0, "max_tokens": 100}
    answer = await wire.json("POST", f"{SESSION}/tool-results", json=body)
    assert answer["artifacts"] == ["c1"]
    assert "/workspace/memo/session/tool-results/c1.txt" in answer["items"][1]["content"]
    assert (answer["items"][0], answer["items"][2]) == (messages[0], messages[2])
    _, _, kept = await wire.ask("GET", f"{SESSION}/artifacts/c1")
    assert kept.decode() == long


def test_an_outline_is_bounded_and_keeps_an_earlier_one() -> None:
    first = outline(said(*(f"q{number} " + "x" * 500 for number in range(100))))
    assert len(first.splitlines()) == MAX_LINES + 1
    assert all(len(line) <= LINE_CHARS + 2 for line in first.splitlines())
    assert "[40 earlier lines left out]" in first
    again = outline([{"role": "user", "content": f"[Conversation summary]: {first}"}, *said("newest\nrest")])
    assert again.splitlines()[-1] == "- newest"
    assert again.splitlines()[1:-1] == first.splitlines()[2:]
    assert "user said nothing" in outline([{"role": "toolResult", "content": "x"}])


class Odd:
    """A store with invalid answers."""

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return None

    async def list_tool_result_artifact_ids(self, session_ref: object) -> Any:
        return ["../../x"]

    async def read_tool_result_artifact(self, session_ref: object, tool_call_id: str) -> Any:
        return "\ud800" if tool_call_id == "half" else 7

    async def load_all_messages(self, tenant: str, session: str) -> Any:
        return [{"role": "user", "content": object()}]

    async def load_messages(self, tenant: str, session: str, limit: int) -> Any:
        return "messages"

    def load_messages_with_budget(self, tenant: str, session: str, token_budget: int) -> Any:
        return []

    async def get_or_create(self, tenant: str, user: str, agent: str, session: str) -> Any:
        return {"id": session}

    async def list_sessions(self, tenant: str) -> Any:
        return 7


async def test_an_invalid_answer_from_a_store_is_reported(tmp_path: Path) -> None:
    async with serving(tmp_path, store=Odd()) as world:
        async for wire in wired(world, sandbox=False):
            for method, target, options in (
                ("GET", f"{SESSION}/artifacts", {}),
                ("GET", f"{SESSION}/artifacts/half", {}),
                ("GET", f"{SESSION}/artifacts/number", {}),
                ("GET", f"{SESSION}/messages", {}),
                ("GET", f"{SESSION}/messages?limit=1", {}),
                ("GET", f"{SESSION}/messages?budget=1", {}),
                ("GET", f"{TENANT}/sessions", {}),
                ("PUT", OTHER, {"json": {"user": "u"}}),
            ):
                problem = await wire.problem(method, target, **options)
                assert (problem["status"], problem["code"]) == (503, "store.unavailable"), target


async def test_a_store_of_another_program_answers_with_plain_objects(tmp_path: Path) -> None:
    store = GuideStore(tmp_path / "store.json")
    async with serving(tmp_path, store=store) as world:
        async for wire in wired(world):
            made = await wire.json("PUT", OTHER, json={"user": "u2", "agent": "a"})
            assert (made["session"], made["user"], made["agent"], made["turns"]) == ("other", "u2", "a", 0)
            turn = {"messages": said("one"), "usage": {"input": 1}}
            assert (await wire.json("POST", f"{OTHER}/turns", json=turn))["appended"] == 1
            assert (await wire.json("GET", f"{OTHER}/messages"))["items"] == said("one")
            texts = said(*(f"question {number}" for number in range(9)))
            await wire.json("POST", f"{OTHER}/messages", json={"messages": texts})
            small = {"trigger_tokens": 1, "compact_fraction": 0.2}
            compaction = await wire.json("POST", f"{OTHER}/compaction", json=small)
            assert (compaction["compacted"], compaction["archived"]) == (True, 2)

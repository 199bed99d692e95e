"""Compaction after a turn, over the wire: off by default, and never at the cost of the turn."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import memo
from sandboxd.compaction_settings import AutoCompactionOptions
from sandboxd.consolidation_settings import ConsolidationOptions
from tests.guide_store import GuideStore
from tests.memo.consolidation.model_server import serving as serve_model
from tests.unit.test_api_memo import SESSION, Wire, wired
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

PATHS = {"openai": "/v1", "anthropic": ""}
SMALL = {"enabled": True, "trigger_tokens": 10, "min_messages": 4}


@asynccontextmanager
async def wiring(
    directory: Path, store: Any, compaction: dict[str, Any], model: ConsolidationOptions | None = None
) -> AsyncIterator[Wire]:
    options = AutoCompactionOptions(**compaction)
    async with serving(directory, store=store, compaction=options, model=model) as world:
        async for wire in wired(world):
            yield wire


async def take_turns(wire: Wire, count: int, **more: Any) -> list[dict[str, Any]]:
    answers = []
    for number in range(count):
        messages = [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": "answer"}]
        turn = {"messages": messages, "usage": {"input": 3}}
        answers.append(await wire.json("POST", f"{SESSION}/turns", json=turn, **more))
    return answers


async def messages_of(wire: Wire, query: str = "") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await wire.json("GET", f"{SESSION}/messages{query}"))["items"]
    return items


async def test_by_default_a_turn_is_never_compacted(tmp_path: Path) -> None:
    async with memo.open_store("memory://") as store, wiring(tmp_path, store, {"trigger_tokens": 1}) as wire:
        assert [answer["compacted"] for answer in await take_turns(wire, 12)] == [False] * 12


# Specification: 001.81
@pytest.mark.parametrize("kind", ["memory", "sqlite", "directory"])
async def test_the_turn_that_makes_it_long_enough_compacts_it_with_an_outline(tmp_path: Path, kind: str) -> None:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/memo.db", "directory": f"file://{tmp_path}/memo"}
    async with memo.open_store(urls[kind]) as store, wiring(tmp_path, store, SMALL) as wire:
        answers = await take_turns(wire, 2)
        assert answers == [{"appended": 2, "compacted": False}, {"appended": 2, "compacted": True}]
        visible = await messages_of(wire)
        assert visible[0]["content"] == "[Conversation summary]: - question 0"
        assert len(await messages_of(wire, "?full=true")) == 4
        mirrored = (wire.world.mirror("s1") / "session/NOTES.md").read_text()
        assert "- question 0" in mirrored


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_the_model_of_consolidation_writes_the_summary(tmp_path: Path, kind: str) -> None:
    async with serve_model({"text": json.dumps({"summary": "They asked two questions."})}) as server:
        model = ConsolidationOptions(enabled=False, summariser=kind, model="m", base_url=f"{server.url}{PATHS[kind]}")
        chosen = {**SMALL, "summariser": "consolidation"}
        async with (
            memo.open_store("memory://") as store,
            wiring(tmp_path, store, chosen, model=model) as wire,
        ):
            assert (await take_turns(wire, 2))[1]["compacted"]
            assert (await messages_of(wire))[0]["content"] == "[Conversation summary]: They asked two questions."
    asked = json.dumps(server.requests[0])
    assert "question 0" in asked
    assert "shorten the beginning of a conversation" in asked
    assert "profile of a user" not in asked


@pytest.mark.parametrize("fault", [401, "garbage", "slow", {"text": '{"summary": ""}'}])
async def test_a_summariser_that_fails_costs_no_turn_and_is_tried_again(tmp_path: Path, fault: Any) -> None:
    async with serve_model(*[fault] * 6) as server:
        model = ConsolidationOptions(enabled=False, summariser="openai", model="m", base_url=f"{server.url}/v1")
        chosen = {**SMALL, "summariser": "consolidation", "timeout_s": 0.5}
        async with (
            memo.open_store("memory://") as store,
            wiring(tmp_path, store, chosen, model=model) as wire,
        ):
            assert [answer["compacted"] for answer in await take_turns(wire, 2)] == [False, False]
            assert len(await messages_of(wire)) == 4
            assert (await wire.json("GET", SESSION))["turns"] == 2
            server.faults = [{"text": json.dumps({"summary": "At last."})}]
            assert (await take_turns(wire, 1))[0]["compacted"]


async def test_a_retried_turn_is_one_turn_and_one_compaction(tmp_path: Path) -> None:
    async with memo.open_store("memory://") as store, wiring(tmp_path, store, SMALL) as wire:
        await take_turns(wire, 1)
        turn = {"messages": [{"role": "user", "content": text} for text in ("more", "and more")]}
        headers = {"idempotency-key": "k"}
        answers = [await wire.json("POST", f"{SESSION}/turns", json=turn, headers=headers) for _ in range(2)]
        assert [answer["compacted"] for answer in answers] == [True, True]
        assert len(await messages_of(wire, "?full=true")) == 4


async def test_a_store_of_another_program_gets_the_options_as_one_object(tmp_path: Path) -> None:
    store = GuideStore(tmp_path / "store.json")
    async with wiring(tmp_path, store, SMALL) as wire:
        assert (await take_turns(wire, 1))[0]["compacted"]
        assert store.options[0]["triggerTokens"] == store.options[0]["trigger_tokens"] == 10
        assert (await messages_of(wire))[0]["content"].startswith("[Conversation summary]: ")

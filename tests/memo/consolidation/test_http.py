"""Summarisers over HTTP, against a real server with injected faults."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from memo.consolidation import Budget, BudgetSpent, Outcome, Part, SummariserSettings, make_summariser
from memo.consolidation.summarisers import (
    BadAnswer,
    Fact,
    ProfileRequest,
    SessionSummary,
    SummariserError,
    SummariserUnavailable,
)
from memo.consolidation.summarisers.endpoint import ApiKey, EndpointOptions
from memo.consolidation.summarisers.model_summariser import AnthropicSummariser, ModelSummariser, OpenAISummariser
from memo.consolidation.transcript import make_transcripts
from memo.errors import InvalidContent
from memo.ids import SessionId
from memo.stores import BaseStore
from memo.stores.options import utc_now
from tests.memo.consolidation.model_server import ModelServer, serving
from tests.memo.consolidation.scenes import LONG_AGO, Clock, page, say, service_of

pytestmark = pytest.mark.anyio

KEY = "sk-canary-7d1f"
QUICK = EndpointOptions(timeout_s=0.5, tries=3, first_pause_s=0.01, patience_s=2)
(TRANSCRIPT,) = make_transcripts(SessionId("s1"), 1, [{"role": "user", "content": "I prefer short answers."}])
REQUEST = ProfileRequest(
    (SessionSummary(SessionId("s1"), 1, LONG_AGO, (Fact(Part.PREFERENCES, "Prefers short answers", (1,)),)),)
)
Ask = Callable[..., Any]


def make(kind: str, url: str) -> ModelSummariser:
    if kind == "openai":
        return OpenAISummariser("m", base_url=f"{url}/v1", key=ApiKey(KEY), options=QUICK)
    return AnthropicSummariser("m", base_url=url, key=ApiKey(KEY), options=QUICK)


@pytest.fixture(params=["openai", "anthropic"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def asked(kind: str, *faults: Any) -> AsyncIterator[tuple[ModelServer, ModelSummariser]]:
    async with serving(*faults) as server:
        summariser = make(kind, server.url)
        try:
            yield server, summariser
        finally:
            await summariser.aclose()


async def test_calls_for_a_session_and_a_profile_are_counted(kind: str) -> None:
    async with asked(kind) as (server, summariser):
        budget = Budget()
        draft = await summariser.summarise(TRANSCRIPT, budget)
        assert draft.facts == (Fact(Part.PREFERENCES, "Prefers short answers", (1,)),)
        profile = await summariser.draft_profile(REQUEST, budget)
        assert [(b.part, b.text, [str(s) for s in b.sources]) for b in profile.bullets] == [
            (Part.PREFERENCES, "Prefers short answers", ["s1#1"])
        ]
        assert (budget.spent_calls, budget.spent_tokens) == (2, 246)
        sent = server.headers[0]
        assert sent.get("Authorization") == f"Bearer {KEY}" or sent.get("x-api-key") == KEY
        assert KEY not in str(server.requests)


@pytest.mark.parametrize("fault", ["slow", 500, 502, 503, 529, "garbage", "half", "list", (429, {"Retry-After": "0"})])
async def test_a_transient_failure_is_retried(kind: str, fault: Any) -> None:
    async with asked(kind, fault) as (server, summariser):
        draft = await summariser.summarise(TRANSCRIPT, Budget())
        assert len(draft.facts) == 1
        assert len(server.requests) == 2


@pytest.mark.parametrize("fault", ["slow", 500, "garbage", "half", "list", (429, {"Retry-After": "0"})])
async def test_a_failure_that_persists_is_unavailable(kind: str, fault: Any) -> None:
    async with asked(kind, *[fault] * 9) as (server, summariser):
        with pytest.raises(SummariserUnavailable, match="cannot") as caught:
            await summariser.summarise(TRANSCRIPT, Budget())
        assert len(server.requests) == 3
        assert KEY not in str(caught.value)
        assert "secret" not in str(caught.value)


async def test_a_short_retry_after_is_honoured(kind: str) -> None:
    async with asked(kind, (429, {"Retry-After": "1"})) as (server, summariser):
        await summariser.summarise(TRANSCRIPT, Budget())
        assert len(server.requests) == 2


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_a_long_retry_after_is_passed_to_the_caller(kind: str, form: str) -> None:
    value = "900" if form == "seconds" else format_datetime(utc_now() + timedelta(seconds=900), usegmt=True)
    async with asked(kind, (429, {"Retry-After": value})) as (server, summariser):
        with pytest.raises(SummariserUnavailable) as caught:
            await summariser.summarise(TRANSCRIPT, Budget())
        assert caught.value.retry_after_s == pytest.approx(900, abs=30)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, BadAnswer), (413, BadAnswer), (401, SummariserUnavailable), (404, SummariserUnavailable)],
)
async def test_a_rejected_request_is_not_retried(kind: str, status: int, error: type[SummariserError]) -> None:
    async with asked(kind, status) as (server, summariser):
        with pytest.raises(error, match=str(status)):
            await summariser.summarise(TRANSCRIPT, Budget())
        assert len(server.requests) == 1


WRONG = [
    "certainly! here is the profile",
    "{}",
    '{"facts": [{"section": "hobbies", "text": "x", "messages": [1]}]}',
    '{"facts": [{"section": "avoid", "text": "x", "messages": []}]}',
    '{"facts": [{"section": "avoid", "text": "x", "messages": ["1"]}]}',
    '{"facts": [], "extra": true}',
    '{"facts": "none"}',
    "[" * 2000,
]


@pytest.mark.parametrize("text", WRONG)
async def test_an_invalid_answer_is_repaired_once(kind: str, text: str) -> None:
    async with asked(kind, {"text": text}) as (server, summariser):
        budget = Budget()
        assert len((await summariser.summarise(TRANSCRIPT, budget)).facts) == 1
        assert [m["role"] for m in server.requests[1]["messages"]][-3:] == ["user", "assistant", "user"]
        assert "not a valid answer" in server.requests[1]["messages"][-1]["content"]
        assert budget.spent_calls == 2


@pytest.mark.parametrize("text", WRONG)
async def test_two_invalid_answers_are_a_bad_answer(kind: str, text: str) -> None:
    async with asked(kind, {"text": text}, {"text": text}) as (server, summariser):
        with pytest.raises(BadAnswer, match="cannot use the answer"):
            await summariser.summarise(TRANSCRIPT, Budget())
        assert len(server.requests) == 2


@pytest.mark.parametrize("raw", [{}, {"choices": []}, {"choices": [{}]}, {"content": "x"}, {"content": [1]}])
async def test_a_response_in_another_format_is_a_bad_answer(kind: str, raw: Any) -> None:
    async with asked(kind, {"raw": raw}, {"raw": raw}) as (_, summariser):
        with pytest.raises(BadAnswer):
            await summariser.summarise(TRANSCRIPT, Budget())


async def test_an_endless_answer_is_rejected(kind: str) -> None:
    async with asked(kind, "huge") as (_, summariser):
        with pytest.raises(BadAnswer, match="longer than"):
            await summariser.summarise(TRANSCRIPT, Budget())


async def test_a_refused_connection_is_unavailable(kind: str) -> None:
    async with serving() as server:
        gone = server.url
    summariser = make(kind, gone)
    with pytest.raises(SummariserUnavailable):
        await summariser.summarise(TRANSCRIPT, Budget())
    await summariser.aclose()


async def test_a_spent_budget_prevents_the_call(kind: str) -> None:
    async with asked(kind) as (server, summariser):
        for budget in (Budget(calls=0), Budget(tokens=10)):
            with pytest.raises(BudgetSpent):
                await summariser.summarise(TRANSCRIPT, budget)
        assert server.requests == []


async def test_sources_outside_the_question_are_dropped(kind: str) -> None:
    facts = (
        '{"facts": [{"section": "avoid", "text": "x y", "messages": [7]},'
        ' {"section": "avoid", "text": "z", "messages": [1, 9]}]}'
    )
    made_up = (
        '{"summary": "s", "bullets": [{"section": "avoid", "text": "x", "sources": [{"session": "s2", "message": 1}]},'
        ' {"section": "avoid", "text": "y", "sources": [{"session": "s1", "message": 1},'
        ' {"session": "s1", "message": 2}]}]}'
    )
    async with asked(kind, {"text": facts}, {"text": made_up}) as (_, summariser):
        assert (await summariser.summarise(TRANSCRIPT, Budget())).facts == (Fact(Part.AVOID, "z", (1,)),)
        (bullet,) = (await summariser.draft_profile(REQUEST, Budget())).bullets
        assert (bullet.text, [str(s) for s in bullet.sources]) == ("y", ["s1#1"])


async def test_the_key_comes_from_a_file_or_the_environment_and_never_leaks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    monkeypatch.setenv("CANARY_KEY", "sk-other")
    caplog.set_level(logging.DEBUG)
    async with serving(401, 401) as server:
        for more in ({"key_file": file}, {"key_variable": "CANARY_KEY"}):
            base = f"{server.url}/v1" if kind == "openai" else server.url
            summariser = make_summariser(SummariserSettings(kind, "m", base, **more))  # type: ignore[arg-type]
            with pytest.raises(SummariserUnavailable) as caught:
                await summariser.summarise(TRANSCRIPT, Budget())
            await summariser.aclose()
            assert "sk-" not in repr(summariser) + repr(vars(summariser)) + str(caught.value)
        sent = [headers.get("x-api-key") or headers["Authorization"].split()[1] for headers in server.headers]
    assert sent == [KEY, "sk-other"]
    assert "sk-" not in caplog.text
    assert "sk-" not in repr(ApiKey(KEY))


def test_invalid_settings_are_rejected_at_once(tmp_path: Path) -> None:
    for settings in (
        SummariserSettings("openai"),
        SummariserSettings("openai", "m", "ftp://x"),
        SummariserSettings("anthropic", "m", key_file=tmp_path / "none"),
        SummariserSettings("command"),
    ):
        with pytest.raises(InvalidContent, match="cannot"):
            make_summariser(settings)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_the_service_writes_a_profile_made_by_a_model(store: BaseStore, clock: Clock, kind: str) -> None:
    await say(store, "s1", "I prefer short answers.")
    async with asked(kind) as (server, summariser):
        service = service_of(store, clock, summariser)
        result = await service.consolidate("acme", "ann")
        assert (result.outcome, result.calls, result.tokens) == (Outcome.WRITTEN, 2, 246)
        assert "- Prefers short answers <!-- from s1#1 -->" in await page(store)
        server.faults = [401, 401]
        await say(store, "s1", "I like graphs.")
        assert (await service.consolidate("acme", "ann")).outcome is Outcome.FAILED
        assert "- Prefers short answers <!-- from s1#1 -->" in await page(store)

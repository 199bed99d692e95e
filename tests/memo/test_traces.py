"""A failed trace write is logged and counted, and never stops an agent."""

from __future__ import annotations

import pytest

from memo import InMemoryStore
from memo.errors import InvalidContent, Unavailable
from memo.ids import SessionRef
from memo.traces import QuietTraceStore

pytestmark = pytest.mark.anyio

REF = SessionRef.of("acme", "s1")


# Specification: 001.85
async def test_a_failed_trace_write_is_counted_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    async with InMemoryStore() as store:
        traces = QuietTraceStore(store.session_trace_store(REF), REF)
        await traces.append_envelope({"n": 1})
        await traces.append_envelope({"n": {1, 2}})
        await traces.append_envelope({"n": 2})
        assert traces.failures == 1
        assert await traces.load_envelopes() == [{"n": 1}, {"n": 2}]
    assert "cannot write the trace of session acme:s1 (1 lost)" in caplog.text


async def test_the_store_itself_raises() -> None:
    async with InMemoryStore() as store:
        with pytest.raises(InvalidContent, match="cannot store this trace envelope"):
            await store.session_trace_store(REF).append_envelope({"n": float("nan")})


async def test_a_closed_store_refuses_traces() -> None:
    store = InMemoryStore()
    async with store:
        traces = store.session_trace_store(REF)
    with pytest.raises(Unavailable):
        await traces.append_envelope({"n": 1})


# Specification: 001.50
async def test_inspection_reads_everything_about_a_session() -> None:
    async with InMemoryStore() as store:
        await store.get_or_create("acme", "ann", "a", "s1")
        await store.append_turn("acme", "s1", [{"role": "user", "content": "hi"}], {"input": 3, "output": 4})
        assert await store.load_orchestration_state("acme", "s1") is None
        await store.session_trace_store(REF).append_envelope({"n": 1})
        await store.orchestration_persistence(REF).append_event({"eventId": "e1"})
        (session,) = await store.list_sessions("acme")
        assert (session.user, session.turns, session.tokens, session.message_count) == ("ann", 1, 7, 1)
        assert await store.list_sessions("other") == []
        assert await store.load_trace_envelopes("acme", "s1") == [{"n": 1}]
        assert await store.load_orchestration_events("acme", "s1") == [{"eventId": "e1"}]
        state = await store.load_orchestration_state("acme", "s1")
        assert state is not None
        assert (state.snapshot, state.events) == (None, [{"eventId": "e1"}])

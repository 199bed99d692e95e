"""Events become trace envelopes by themselves: each once, in order, whatever the store and the daemon go through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import open_store
from memo.errors import Corrupt, Unavailable
from memo.ids import AgentId, SessionRef, UserId
from sandboxd.events import EventBus, Excerpt
from sandboxd.history import EventHistory, SessionOwner
from sandboxd.history.trace_recorder import BATCH
from sandboxd.history_settings import HistoryOptions

pytestmark = pytest.mark.anyio

REF = SessionRef.of("acme", "s1")
HANG_S = 30
OpenStore = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.fixture(params=["memory", "sqlite", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/memo.db", "file": f"file://{tmp_path}/memo"}
    async with open_store(url[request.param]) as opened:
        await opened.get_or_create("acme", "ann", "default", "s1")
        yield opened


class FailingStore:
    """A store whose appends fail as told: `fails` gets the session and the number of the append."""

    def __init__(self, inner: Any, fails: Callable[[SessionRef, int], Exception | None]) -> None:
        self._inner = inner
        self._fails = fails
        self.appends = 0
        self.is_late = False
        """Whether an append happens although it fails, as after a timeout."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def session_trace_store(self, ref: SessionRef) -> Any:
        outer, inner = self, self._inner.session_trace_store(ref)

        class Traces:
            async def append_envelope(self, envelope: dict[str, Any]) -> None:
                outer.appends += 1
                error = outer._fails(ref, outer.appends)
                if error is None or outer.is_late:
                    await inner.append_envelope(envelope)
                if error is not None:
                    raise error

            async def load_envelopes(self) -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = await inner.load_envelopes()
                return found

        return Traces()


@asynccontextmanager
async def recording(
    directory: Path, store: object, owners: dict[SessionRef, SessionOwner] | None = None, **options: object
) -> AsyncIterator[tuple[EventBus, EventHistory]]:
    bus = EventBus()
    known = owners or {}
    history = EventHistory(
        directory, HistoryOptions.model_validate(options), bus, store=store, store_timeout_s=1, owner_of=known.get
    )
    async with history, anyio.create_task_group() as tasks:
        tasks.start_soon(history.run)
        yield bus, history
        tasks.cancel_scope.cancel()


async def traced(history: EventHistory) -> None:
    """Wait until everything published so far is in its trace or given up."""
    await history.log.write()
    with anyio.fail_after(HANG_S):
        while await history.log.untraced(1):
            await anyio.sleep(0.001)


async def envelopes(store: Any, ref: SessionRef = REF) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await store.load_trace_envelopes(ref.tenant, ref.session)
    return found


def publish(bus: EventBus, count: int, ref: SessionRef = REF, first: int = 0) -> None:
    for number in range(first, first + count):
        bus.publish("exec", tenant=ref.tenant, session=ref.session, number=number)


async def numbers(store: Any, ref: SessionRef = REF) -> list[int]:
    return [envelope["data"]["number"] for envelope in await envelopes(store, ref)]


async def test_every_event_of_a_session_becomes_one_envelope(store: Any, tmp_path: Path) -> None:
    async with recording(tmp_path, store) as (bus, history):
        bus.publish("exec", Excerpt(b"hello\n"), tenant="acme", session="s1", command="echo hello", exit_code=0)
        bus.publish("sandbox", tenant="acme", session=None, state="ready")
        bus.publish("memo", tenant="acme", user="ann", name="USER.md", by_session="s1")
        await history.log.write()
        await traced(history)
        (event, _, _) = bus.recent()
        first, second = await envelopes(store)
    assert first == {
        "id": str(event.id),
        "source": "sandboxd",
        "type": "exec",
        "at": event.model_dump(mode="json")["at"],
        "data": {"tenant": "acme", "session": "s1", "command": "echo hello", "exit_code": 0},
        "detail": {"output": "hello\n"},
    }
    assert (second["type"], second["data"]["name"]) == ("memo", "USER.md")


async def test_a_long_output_is_bounded_and_its_secrets_are_replaced(store: Any, tmp_path: Path) -> None:
    output = b"first TOKEN=abcdefgh\n" + b"x " * 50_000 + b"\npassword: hunter2 last"
    async with recording(tmp_path, store) as (bus, history):
        bus.publish("exec", Excerpt.of(output), tenant="acme", session="s1", command="x")
        await traced(history)
        text = (await envelopes(store))[0]["detail"]["output"]
    assert text.startswith("first TOKEN=[redacted]\n")
    assert text.endswith("password: [redacted] last")
    assert f"[{len(output) - 4096} bytes left out]" in text
    assert len(text) < 4200


async def test_a_kill_between_an_envelope_and_the_cursor_repeats_nothing(store: Any, tmp_path: Path) -> None:
    """Killed at every place of a batch: the next daemon finds what is there already."""
    total = 0
    for written in (0, 1, 7, 10):
        failing = FailingStore(store, partial(_fails_after, written))
        async with recording(tmp_path, failing) as (bus, history):
            history.log.set_traced = _never  # type: ignore[method-assign]  # killed before the cursor is on disk
            publish(bus, 10, first=total)
            await history.log.write()
            with anyio.fail_after(HANG_S):
                while failing.appends < written + (written < 10):
                    await anyio.sleep(0.001)
        total += 10
        async with recording(tmp_path, store) as (bus, history):
            await traced(history)
            assert await numbers(store) == list(range(total))


def _fails_after(written: int, _: SessionRef, count: int) -> Exception | None:
    return Unavailable("cannot reach the store") if count > written else None


async def _never(number: int) -> None:
    await anyio.sleep_forever()


async def test_an_append_that_timed_out_but_happened_is_not_repeated(store: Any, tmp_path: Path) -> None:
    failing = FailingStore(store, lambda _, count: TimeoutError() if count in (2, 4) else None)
    failing.is_late = True
    async with recording(tmp_path, failing) as (bus, history):
        publish(bus, 5)
        await traced(history)
    assert await numbers(store) == list(range(5))


async def test_a_store_that_is_down_delays_envelopes_and_loses_none(store: Any, tmp_path: Path) -> None:
    failing = FailingStore(store, lambda _, count: Unavailable("cannot reach the store") if count <= 3 else None)
    async with recording(tmp_path, failing) as (bus, history):
        publish(bus, 2 * BATCH + 5)
        await traced(history)
        assert history.figures().dropped == 0
    assert await numbers(store) == list(range(2 * BATCH + 5))


async def test_the_oldest_are_dropped_and_counted_when_the_store_is_down_for_too_long(tmp_path: Path) -> None:
    is_down = True
    async with open_store("memory://") as store:
        await store.get_or_create("acme", "ann", "default", "s1")
        failing = FailingStore(store, lambda _, __: Unavailable("cannot reach the store") if is_down else None)
        async with recording(tmp_path, failing, max_events=1000) as (bus, history):
            publish(bus, 1500)
            await history.log.write()
            assert history.figures().untraced == {"backlog": 500}
            is_down = False
            await traced(history)
        assert await numbers(store) == list(range(500, 1500))


async def test_a_damaged_session_does_not_stop_the_traces_of_others(store: Any, tmp_path: Path) -> None:
    other = SessionRef.of("acme", "s2")
    await store.get_or_create("acme", "bob", "default", "s2")
    failing = FailingStore(store, lambda ref, _: Corrupt("cannot write: damaged") if ref == REF else None)
    async with recording(tmp_path, failing) as (bus, history):
        publish(bus, 2)
        publish(bus, 2, other)
        await traced(history)
        assert history.figures().untraced == {"refused": 2, "backlog": 0}
    assert await numbers(store, other) == [0, 1]


async def test_a_session_that_always_fails_is_given_up_while_others_go_on(tmp_path: Path) -> None:
    other = SessionRef.of("acme", "s2")
    async with open_store("memory://") as store:
        for session in ("s1", "s2"):
            await store.get_or_create("acme", "ann", "default", session)
        failing = FailingStore(store, lambda ref, _: RuntimeError("a bug") if ref == REF else None)
        async with recording(tmp_path, failing) as (bus, history):
            publish(bus, 1)
            for number in range(8):  # the store works for others, or it would be an outage
                publish(bus, 1, other, first=number)
                await history.log.write()
                with anyio.fail_after(HANG_S):
                    while len(await envelopes(store, other)) <= number:
                        await anyio.sleep(0.001)
            await traced(history)
            assert history.figures().untraced["failed"] == 1
        assert await numbers(store, other) == list(range(8))


async def test_a_session_that_is_gone_is_not_brought_back_by_a_late_envelope(store: Any, tmp_path: Path) -> None:
    gone = SessionRef.of("acme", "gone")
    async with recording(tmp_path, store) as (bus, history):
        publish(bus, 1, gone)
        publish(bus, 1)
        await traced(history)
        assert history.figures().untraced == {"no_session": 1, "backlog": 0}
    assert await store.get_session("acme", "gone") is None
    assert await envelopes(store, gone) == []
    assert [session.session for session in await store.list_sessions("acme")] == ["s1"]


async def test_a_session_that_has_only_a_sandbox_is_introduced_with_its_user(store: Any, tmp_path: Path) -> None:
    new = SessionRef.of("acme", "new")
    owner = SessionOwner(UserId("bob"), AgentId("coder"))
    async with recording(tmp_path, store, {new: owner}) as (bus, history):
        publish(bus, 1, new)
        await traced(history)
        (event,) = bus.recent()
        assert event.fields["user"] == "bob"
    session = await store.get_session("acme", "new")
    assert (session.user, session.agent) == ("bob", "coder")
    assert await numbers(store, new) == [0]


async def test_a_store_without_traces_turns_the_recorder_off(tmp_path: Path) -> None:
    class Plain:
        async def read_memory_document(self, *_: str) -> str | None:
            return None

    async with recording(tmp_path, Plain()) as (bus, history):
        publish(bus, 1)
        assert history.recorder is None
        await history.log.write()
    async with open_store("memory://") as store:  # traces that are switched on later begin then
        await store.get_or_create("acme", "ann", "default", "s1")
        async with recording(tmp_path, Plain()):
            await anyio.wait_all_tasks_blocked()
        async with recording(tmp_path, store) as (bus, history):
            publish(bus, 1, first=7)
            await traced(history)
        assert await numbers(store) == [7]


async def test_output_leaves_the_log_once_it_is_in_the_trace(tmp_path: Path) -> None:
    async with open_store("memory://") as store:
        await store.get_or_create("acme", "ann", "default", "s1")
        async with recording(tmp_path, store) as (bus, history):
            bus.publish("exec", Excerpt(b"printed once"), tenant="acme", session="s1", command="x")
            await traced(history)
            (entry,) = await history.log._database.run(lambda db: db.execute("SELECT detail FROM events").fetchall())
            assert entry == (None,)

"""Wrappers: each has the capabilities of the provider it wraps, and adds one behaviour."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from memo import Author, DocumentKey, InMemoryStore, StoreLimits, capabilities_of
from memo.errors import Corrupt, InvalidContent, MemoError, Timeout, TooLarge, Unavailable, Unsupported
from memo.ledger import ConsolidationLedger
from memo.stores.filesystem import FilesystemStore
from memo.testing import check_change_feed, check_provider, check_session_store
from memo.wrap import LimitProvider, LogProvider, RetryProvider, TimeoutProvider
from memo.wrap.wrapper import VERBS

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of("acme", "s1", "session", "NOTES.md")
NAME = ("acme", "s1", "session", "NOTES.md")


def stacked(inner: object) -> object:
    return LogProvider(RetryProvider(TimeoutProvider(LimitProvider(inner))))


WRAPPERS: list[Callable[[Any], Any]] = [RetryProvider, TimeoutProvider, LimitProvider, LogProvider, stacked]


class OnlyReads:
    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return None


class Plain(OnlyReads):
    """A provider with only the plain methods, backed by a dict, that fails or hangs on request."""

    def __init__(self) -> None:
        self.texts: dict[tuple[str, ...], str] = {}
        self.failures: list[Exception] = []
        self.calls = 0
        self.gate: anyio.Event | None = None

    async def _work(self) -> None:
        self.calls += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        await self._work()
        return self.texts.get((tenant, owner, scope, name))

    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        await self._work()
        self.texts[tenant, owner, scope, name] = content


@pytest.mark.parametrize("wrap", WRAPPERS)
async def test_a_wrapped_store_keeps_every_promise(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    def made(store: Callable[[], Any]) -> Callable[[], Any]:
        @asynccontextmanager
        async def make() -> AsyncIterator[Any]:
            async with store() as opened:
                yield wrap(opened)

        return make

    await check_provider(made(InMemoryStore))
    await check_session_store(made(InMemoryStore))
    await check_change_feed(made(InMemoryStore))
    await check_provider(made(lambda: FilesystemStore(tmp_path, watch=False)))


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("inner", [OnlyReads, Plain, InMemoryStore])
async def test_a_wrapper_has_the_capabilities_of_what_it_wraps(
    wrap: Callable[[Any], Any], inner: Callable[[], Any]
) -> None:
    assert capabilities_of(wrap(inner())) == capabilities_of(inner())
    await check_provider(lambda: wrap(inner()))


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_an_object_that_is_not_a_provider_cannot_be_wrapped(wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(Unsupported):
        wrap(object())


def test_the_wrappers_cover_every_verb_of_a_store() -> None:
    """A new method must be added to the table, or it would silently bypass every wrapper."""
    not_verbs = {"open", "aclose", "changes", "session_trace_store", "orchestration_persistence", "spool"}
    records = {"apply_records", "read_record", "list_records"}
    ledger = {name for name in dir(ConsolidationLedger) if not name.startswith("_")}
    methods = {n for n in dir(InMemoryStore) if not n.startswith("_") and callable(getattr(InMemoryStore, n))}
    assert methods - not_verbs - records - ledger == set(VERBS)


async def test_retry_repeats_a_call_that_certainly_changed_nothing() -> None:
    plain = Plain()
    store = RetryProvider(plain, first_wait_s=0.001)
    plain.failures = [Unavailable("cannot reach it"), Unavailable("cannot reach it")]
    await store.write_memory_document(*NAME, "text")
    assert (plain.texts[NAME], plain.calls) == ("text", 3)


@pytest.mark.parametrize("error", [Corrupt("cannot read it"), OSError("broken"), ValueError("wrong")])
async def test_retry_does_not_repeat_an_error_that_is_not_retryable(error: Exception) -> None:
    plain = Plain()
    plain.failures = [error]
    with pytest.raises(type(error)):
        await RetryProvider(plain).read_memory_document(*NAME)
    assert plain.calls == 1


async def test_retry_gives_up_with_the_last_error() -> None:
    plain = Plain()
    plain.failures = [Unavailable(f"cannot reach it, {n}") for n in range(9)]
    with pytest.raises(Unavailable, match="cannot reach it, 2"):
        await RetryProvider(plain, attempts=3, first_wait_s=0.001).read_memory_document(*NAME)
    assert plain.calls == 3


class Forgetful(InMemoryStore):
    """Commits, then loses the results of the next `lost_appends` appends and `lost_reads` reads."""

    lost_appends = 0
    lost_reads = 0

    async def append_document(self, *args: Any, **named: Any) -> Any:
        document = await super().append_document(*args, **named)
        if self.lost_appends:
            self.lost_appends -= 1
            raise Timeout("cannot append: no answer")
        return document

    async def read_document(self, *args: Any, **named: Any) -> Any:
        if self.lost_reads:
            self.lost_reads -= 1
            raise Timeout("cannot read: no answer")
        return await super().read_document(*args, **named)


async def test_retry_never_repeats_a_write_with_an_unknown_outcome() -> None:
    async with Forgetful() as inner:
        store = RetryProvider(inner, first_wait_s=0.001)
        inner.lost_appends = 1
        with pytest.raises(Timeout):
            await store.append_document(KEY, "once\n")
        assert (await store.read_document(KEY)).content == "once\n"


async def test_retry_repeats_a_write_with_an_unknown_outcome_that_carries_a_request() -> None:
    async with Forgetful() as inner:
        store = RetryProvider(inner, first_wait_s=0.001)
        inner.lost_appends = 2
        document = await store.append_document(KEY, "once\n", author=Author(request="r1"))
        assert (document.content, document.revision) == ("once\n", 1)


async def test_retry_repeats_a_read_that_timed_out() -> None:
    async with Forgetful() as inner:
        await inner.write_document(KEY, "text")
        inner.lost_reads = 2
        assert (await RetryProvider(inner, first_wait_s=0.001).read_document(KEY)).content == "text"


async def test_a_timeout_says_whether_the_change_may_have_happened() -> None:
    plain = Plain()
    plain.gate = anyio.Event()
    store = TimeoutProvider(plain, read_s=0.01, write_s=0.01)
    with pytest.raises(Timeout, match=r"cannot write_memory_document acme/s1/session/NOTES.md: .* may or may not") as w:
        await store.write_memory_document(*NAME, "SECRET")
    assert w.value.outcome_unknown
    assert "SECRET" not in str(w.value)
    with pytest.raises(Timeout, match=r"no answer after 0.01 s$") as r:
        await store.read_memory_document(*NAME)
    assert not r.value.outcome_unknown


async def test_a_slow_summariser_is_not_a_slow_store() -> None:
    async with InMemoryStore() as inner:
        store = LimitProvider(TimeoutProvider(inner, read_s=0.05, write_s=0.05), calls=1)
        await store.get_or_create("acme", "ann", "a", "s1")
        await store.append_messages("acme", "s1", [{"role": "user", "content": str(n)} for n in range(4)])

        async def summarize(messages: list[Any]) -> str:
            await anyio.sleep(0.2)
            return f"{len(await store.load_all_messages('acme', 's1'))} messages"

        assert await store.compact_if_needed("acme", "s1", summarize, force=True)


async def test_concurrent_and_waiting_calls_are_bounded() -> None:
    plain = Plain()
    plain.gate = anyio.Event()
    store = LimitProvider(plain, calls=2, waiting=1)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(store.read_memory_document, *NAME)
        await anyio.wait_all_tasks_blocked()
        assert plain.calls == 2
        with pytest.raises(Unavailable, match="1 calls are already waiting"):
            await store.read_memory_document(*NAME)
        plain.gate.set()
    assert plain.calls == 3


async def test_a_text_over_the_limit_never_reaches_the_provider() -> None:
    plain = Plain()
    store = LimitProvider(plain, limits=StoreLimits(document_bytes=10))
    await store.write_memory_document(*NAME, "x" * 10)
    with pytest.raises(TooLarge):
        await store.write_memory_document(*NAME, content="x" * 11)
    with pytest.raises(InvalidContent):
        await store.write_memory_document(*NAME, "\ud800")
    assert (plain.texts[NAME], plain.calls) == ("x" * 10, 1)
    async with InMemoryStore() as inner:
        store = LimitProvider(inner, limits=StoreLimits(artifact_bytes=3, message_bytes=40))
        await store.get_or_create("acme", "ann", "a", "s1")
        with pytest.raises(TooLarge):
            await store.write_tool_result_artifact("acme:s1", "call-1", "four")
        with pytest.raises(TooLarge):
            await store.append_messages("acme", "s1", [{"role": "user", "content": "x" * 40}])
        assert await inner.load_all_messages("acme", "s1") == []


async def test_a_log_line_has_everything_but_the_content() -> None:
    plain = Plain()
    store = LogProvider(plain)
    with capture_logs() as lines:
        await store.write_memory_document(*NAME, "SECRET ü")
        await store.read_memory_document(*NAME)
        plain.failures = [Unavailable("cannot reach it"), ValueError("SECRET")]
        for _ in range(2):
            with pytest.raises((MemoError, ValueError)):
                await store.read_memory_document(*NAME)
    assert [(e["verb"], e["key"], e["size"], e["outcome"], e["log_level"]) for e in lines] == [
        ("write_memory_document", "acme/s1/session/NOTES.md", 9, "ok", "info"),
        ("read_memory_document", "acme/s1/session/NOTES.md", 9, "ok", "info"),
        ("read_memory_document", "acme/s1/session/NOTES.md", None, "store.unavailable", "warning"),
        ("read_memory_document", "acme/s1/session/NOTES.md", None, "ValueError", "warning"),
    ]
    assert all(entry["duration_ms"] >= 0 for entry in lines)
    assert "SECRET" not in str(lines)


async def test_a_cancelled_call_is_logged_too() -> None:
    plain = Plain()
    plain.gate = anyio.Event()
    with capture_logs() as lines, anyio.move_on_after(0.01):
        await LogProvider(plain).read_memory_document(*NAME)
    assert [entry["outcome"] for entry in lines] == ["cancelled"]


async def test_retrying_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stamina", None)
    with pytest.raises(Unsupported, match=r"install sandboxd\[retry\]"):
        RetryProvider(InMemoryStore())

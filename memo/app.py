"""AgentApp: memory for a program that embeds the library: store, mirrors, traces, orchestration and compaction.

Owns its per-session caches and the counts of lost writes. It does not open or close the parts that it is given, and
starts no tasks. The daemon wires the same parts from its settings.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

from memo.compaction import CompactionOptions
from memo.documents import NOTES
from memo.errors import MemoError, Unsupported
from memo.ids import SessionRef
from memo.inspection import InspectorDataSource
from memo.messages import Message
from memo.orchestration import OrchestrationFactory, OrchestrationPersistence
from memo.paths import MEMO_ROOT, ArtifactPath
from memo.sessions import Session, SessionStore, Summarize, Usage, compact_session
from memo.tool_results import artifact_id, compact_tool_results
from memo.traces import SessionTraceStore, TraceStoreFactory

_log = logging.getLogger("memo.app")

_ORCHESTRATION_WRITES = frozenset(
    {"append_event", "write_checkpoint", "append_mailbox_event", "write_mailbox_state", "write_agent_history"}
)
_TRACE_WRITES = frozenset({"append_envelope"})


class MirrorRefresher(Protocol):
    """The part of a sandbox manager that the app uses."""

    async def refresh_memo_mirror(self, session: SessionRef, container_path: str, content: str) -> object:
        """Show the new text in the session's running sandbox, if it has one."""


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    session: SessionRef
    compacted: bool


def create_agent_app(
    *,
    session_store: SessionStore,
    sandbox_manager: MirrorRefresher | None = None,
    trace_store_factory: TraceStoreFactory | None = None,
    create_orchestration_persistence: OrchestrationFactory | None = None,
    inspector: InspectorDataSource | None = None,
    summarize: Summarize | None = None,
    compaction: CompactionOptions | None = None,
) -> AgentApp:
    """Wire the parts. A part left out is taken from the store; if the store lacks it, using it raises Unsupported."""
    inspects = hasattr(session_store, "list_sessions") and hasattr(session_store, "load_orchestration_state")
    return AgentApp(
        store=session_store,
        sandbox_manager=sandbox_manager,
        traces=trace_store_factory or getattr(session_store, "session_trace_store", None),
        orchestrations=create_orchestration_persistence or getattr(session_store, "orchestration_persistence", None),
        inspector=inspector or (cast(InspectorDataSource, session_store) if inspects else None),
        summarize=summarize,
        compaction=compaction or CompactionOptions(),
    )


class AgentApp:
    """Made by `create_agent_app`. `lost` counts the writes that failed without raising, by kind."""

    def __init__(
        self,
        *,
        store: SessionStore,
        sandbox_manager: MirrorRefresher | None,
        traces: TraceStoreFactory | None,
        orchestrations: OrchestrationFactory | None,
        inspector: InspectorDataSource | None,
        summarize: Summarize | None,
        compaction: CompactionOptions,
    ) -> None:
        self.store = store
        self.sandbox_manager = sandbox_manager
        self.lost: dict[str, int] = {"trace": 0, "orchestration": 0, "mirror": 0}
        self._traces = _OncePerSession("traces", traces)
        self._orchestrations = _OncePerSession("orchestration", orchestrations)
        self._inspector = inspector
        self._summarize = summarize
        self._compaction = compaction

    @property
    def inspector(self) -> InspectorDataSource:
        if self._inspector is None:
            raise Unsupported("cannot inspect: this app has no inspector; pass inspector= to create_agent_app")
        return self._inspector

    async def start_session(self, tenant: str, user: str, agent: str, session: str | None = None) -> Session:
        return Session.parse(await self.store.get_or_create(tenant, user, agent, session), tenant, user, agent)

    async def load_messages(self, session: SessionRef | str, token_budget: int = 100_000) -> list[Message]:
        ref = SessionRef.parse(session)
        return await self.store.load_messages_with_budget(ref.tenant, ref.session, token_budget)

    async def finish_turn(
        self, session: SessionRef | str, messages: Sequence[Mapping[str, Any]], usage: Usage | Mapping[str, Any]
    ) -> TurnOutcome:
        """Store the messages and the usage, in one transaction if the store supports it; then compact if due."""
        ref = SessionRef.parse(session)
        append_turn = getattr(self.store, "append_turn", None)
        if append_turn is not None:
            await append_turn(ref.tenant, ref.session, messages, usage)
        else:
            await self.store.append_messages(ref.tenant, ref.session, messages)
            await self.store.record_turn(ref.tenant, ref.session, usage)
        return TurnOutcome(ref, await self.compact_if_needed(ref))

    async def compact_if_needed(self, session: SessionRef | str, *, force: bool = False) -> bool:
        """Compact with the app's summariser and options. Without a summariser, do nothing."""
        ref = SessionRef.parse(session)
        if self._summarize is None:
            return False
        options = replace(self._compaction, force=force or self._compaction.force)
        is_compacted = await compact_session(self.store, ref.tenant, ref.session, self._summarize, options)
        read = getattr(self.store, "read_memory_document", None)
        if is_compacted and self.sandbox_manager is not None and read is not None:
            notes = await read(ref.tenant, ref.session, "session", NOTES)
            if notes is not None:
                await self._refresh(ref, f"{MEMO_ROOT}/session/{NOTES}", notes)
        return is_compacted

    async def write_tool_result_artifact(self, session: SessionRef | str, tool_call_id: str, content: str) -> None:
        """Write the artifact to the store first, then to the mirror."""
        ref, artifact = SessionRef.parse(session), artifact_id(tool_call_id)
        write = getattr(self.store, "write_tool_result_artifact", None)
        if write is None:
            raise Unsupported(
                f"cannot store artifacts in {type(self.store).__name__}: it has no write_tool_result_artifact"
            )
        await write(ref, artifact, content)
        await self._refresh(ref, str(ArtifactPath(artifact)), content)

    async def compact_tool_results(
        self, session: SessionRef | str, messages: Sequence[Mapping[str, Any]], **options: int
    ) -> list[Message]:
        """Replace long tool results with stubs, and store them as artifacts if the store supports it."""
        keeps = hasattr(self.store, "write_tool_result_artifact")
        write = partial(self.write_tool_result_artifact, SessionRef.parse(session)) if keeps else None
        return await compact_tool_results(messages, write, **options)  # type: ignore[arg-type]  # only whole numbers

    def trace_store(self, session: SessionRef | str) -> SessionTraceStore:
        """Return the session's trace store. Its writes never raise."""
        ref = SessionRef.parse(session)
        return cast(SessionTraceStore, _Quiet(self._traces.of(ref), _TRACE_WRITES, "trace", ref, self.lost))

    def orchestration(self, session: SessionRef | str) -> OrchestrationPersistence:
        """Return the session's orchestration persistence. Its writes never raise; its reads do."""
        ref = SessionRef.parse(session)
        found = self._orchestrations.of(ref)
        return cast(OrchestrationPersistence, _Quiet(found, _ORCHESTRATION_WRITES, "orchestration", ref, self.lost))

    def forget_session(self, session: SessionRef | str) -> None:
        """Drop what is cached for a finished session."""
        ref = SessionRef.parse(session)
        self._traces.forget(ref)
        self._orchestrations.forget(ref)

    async def _refresh(self, ref: SessionRef, path: str, content: str) -> None:
        if self.sandbox_manager is not None:
            refresh = partial(self.sandbox_manager.refresh_memo_mirror, ref, path, content)
            await _quietly(refresh, "mirror", ref, self.lost)  # the text is stored; a mirror can be rebuilt


class _OncePerSession:
    """A factory that is called at most once for each session."""

    def __init__(self, noun: str, make: Callable[[SessionRef], Any] | None) -> None:
        self._noun = noun
        self._make = make
        self._made: dict[SessionRef, Any] = {}

    def of(self, ref: SessionRef) -> Any:
        if self._make is None:
            raise Unsupported(f"cannot store {self._noun}: neither this app nor its store has a factory")
        if ref not in self._made:
            self._made[ref] = self._make(ref)
        return self._made[ref]

    def forget(self, ref: SessionRef) -> None:
        self._made.pop(ref, None)


class _Quiet:
    """A proxy whose writes never raise: failures are logged and counted."""

    def __init__(self, inner: Any, writes: frozenset[str], noun: str, ref: SessionRef, lost: dict[str, int]) -> None:
        self._inner = inner
        self._writes = writes
        self._noun = noun
        self._ref = ref
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return partial(self._write, found) if name in self._writes else found

    async def _write(self, method: Callable[..., Awaitable[None]], *args: Any, **named: Any) -> None:
        await _quietly(partial(method, *args, **named), self._noun, self._ref, self._lost)


async def _quietly(write: Callable[[], Awaitable[object]], noun: str, ref: SessionRef, lost: dict[str, int]) -> None:
    try:
        await write()
    except Exception as error:  # noqa: BLE001  # the contract: no failure of a backend may stop an agent here
        lost[noun] += 1
        reason = (
            str(error) if isinstance(error, MemoError) else type(error).__name__
        )  # a third-party error message may contain memory
        _log.warning("cannot write %s of session %s (%d lost): %s", noun, ref, lost[noun], reason)

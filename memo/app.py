"""AgentApp: memory for a program that embeds the library: store, mirrors, traces, orchestration and compaction.

With profiles it also answers turns, and is an ASGI app (`memo.agent_http`). Owns its per-session caches and the counts
of lost writes. It does not open or close the parts that it is given, and starts no tasks. The daemon wires the same
parts from its settings.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Literal, Protocol, cast

from memo.compaction import CompactionOptions
from memo.documents import NOTES
from memo.errors import MemoError, Unsupported
from memo.ids import SessionRef
from memo.inspection import InspectorDataSource
from memo.messages import Message
from memo.orchestration import OrchestrationFactory, OrchestrationPersistence
from memo.paths import MEMO_ROOT, ArtifactPath
from memo.profiles import (
    AgentReply,
    AgentTurn,
    Event,
    Profile,
    ProfileContext,
    ReadinessCheck,
    awaited,
    events_of,
    find_profile,
)
from memo.session_parts import OncePerSession, QuietWrites, quietly
from memo.sessions import Session, SessionStore, Summarize, Usage, compact_session
from memo.tool_results import artifact_id, compact_tool_results
from memo.traces import SessionTraceStore, TraceStoreFactory

_log = logging.getLogger("memo.app")

_ORCHESTRATION_WRITES = frozenset(
    {"append_event", "write_checkpoint", "append_mailbox_event", "write_mailbox_state", "write_agent_history"}
)
ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]

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
    inspector: InspectorDataSource | Literal[True] | None = None,
    summarize: Summarize | None = None,
    compaction: CompactionOptions | Mapping[str, Any] | None = None,
    profiles: Sequence[Profile] = (),
    default_profile: str | None = None,
    readiness_checks: Sequence[ReadinessCheck] = (),
) -> AgentApp:
    """Wire the parts. A part left out is taken from the store; if the store lacks it, using it raises Unsupported.

    Over HTTP the app serves the inspector only if `inspector` is given: True means the store's own data.
    """
    inspects = hasattr(session_store, "list_sessions") and hasattr(session_store, "load_orchestration_state")
    own = cast(InspectorDataSource, session_store) if inspects else None
    if inspector is True and own is None:
        raise Unsupported("cannot inspect: this store does not list sessions; pass a data source as inspector=")
    source = own if inspector is True else inspector
    return AgentApp(
        store=session_store,
        sandbox_manager=sandbox_manager,
        traces=trace_store_factory or getattr(session_store, "session_trace_store", None),
        orchestrations=create_orchestration_persistence or getattr(session_store, "orchestration_persistence", None),
        inspector=source or own,
        summarize=summarize,
        compaction=CompactionOptions.parse(compaction),
        profiles=profiles,
        default_profile=default_profile,
        make_asgi=partial(_make_asgi, source=source, checks=readiness_checks),
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
        profiles: Sequence[Profile] = (),
        default_profile: str | None = None,
        make_asgi: Callable[[AgentApp], ASGIApp] | None = None,
    ) -> None:
        self.store = store
        self.profiles = tuple(profiles)
        self._default_profile = default_profile
        self._make_asgi = make_asgi or _make_asgi
        self._asgi: ASGIApp | None = None
        self.sandbox_manager = sandbox_manager
        self.lost: dict[str, int] = {"trace": 0, "orchestration": 0, "mirror": 0}
        self._traces = OncePerSession("traces", traces)
        self._orchestrations = OncePerSession("orchestration", orchestrations)
        self._inspector = inspector
        self._summarize = summarize
        self._compaction = compaction

    @property
    def inspector(self) -> InspectorDataSource:
        if self._inspector is None:
            raise Unsupported("cannot inspect: this app has no inspector; pass inspector= to create_agent_app")
        return self._inspector

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve HTTP: an AgentApp is an ASGI app."""
        if self._asgi is None:
            self._asgi = self._make_asgi(self)
        await self._asgi(scope, receive, send)

    async def check_store(self) -> None:
        """Raise if the store does not answer."""
        await self.store.load_messages("readiness", "readiness", 1)

    async def run_turn(
        self, message: str, *, tenant: str, user: str, profile: str | None = None, session: str | None = None
    ) -> AsyncGenerator[Event]:
        """Let a profile answer a message; yield `session.start`, what it reports, then `agent_end` or `error`.

        The turn is stored once the agent has replied; a turn that fails stores nothing.
        """
        sequence, ref = count(), None
        try:
            chosen = find_profile(self.profiles, profile, self._default_profile)
            started = await self.start_session(tenant, user, chosen.id, session)
            ref = started.ref
            yield await self._traced(ref, sequence, {"type": "session.start", "sessionId": ref.session})
            turn = await self._turn(chosen, ref, user, message)
            async for event in events_of(chosen, turn):
                if not isinstance(event, AgentReply):
                    yield await self._traced(ref, sequence, event)
                    continue
                said = [{"role": "user", "content": message}, *event.all_messages()]
                outcome = await self.finish_turn(ref, said, event.usage)
                yield await self._traced(ref, sequence, _end_of(event, outcome))
        except Exception as error:  # noqa: BLE001  # the boundary of a turn: an agent may raise anything
            is_known = isinstance(error, MemoError)
            if not is_known:
                _log.exception("cannot finish a turn of session %s", ref)
            text = str(error) if is_known else f"cannot finish this turn: the agent failed with {type(error).__name__}"
            code = error.code if isinstance(error, MemoError) else "agent.failed"
            failed = {"type": "error", "error": {"message": text, "code": code}}
            yield failed if ref is None else await self._traced(ref, sequence, failed)

    async def _turn(self, profile: Profile, ref: SessionRef, user: str, message: str) -> AgentTurn:
        """Return what the agent answers, with its memory as the profile wants it."""
        memory = profile.memory

        async def write(tool_call_id: str, content: str) -> None:
            if memory.write_tool_result_artifact is None:
                await self.write_tool_result_artifact(ref, tool_call_id, content)
            else:
                await memory.write_tool_result_artifact(context, tool_call_id, content)

        context = ProfileContext(ref.tenant, user, ref.session, profile.id, write)
        messages = [*await self.load_messages(ref, profile.token_budget), {"role": "user", "content": message}]
        if memory.compact_messages is not None:
            messages = await awaited(memory.compact_messages(messages, context))
        else:
            keeps = hasattr(self.store, "write_tool_result_artifact")
            messages = await compact_tool_results(messages, write if keeps else None)
        build = getattr(self.store, "build_memory_index", None)
        if memory.build_memory_index is not None:
            index = await awaited(memory.build_memory_index(context))
        else:
            index = None if build is None else await build(ref.tenant, user, ref.session)
        return AgentTurn(context, message, messages, index)

    async def _traced(self, ref: SessionRef, sequence: Iterator[int], event: Event) -> Event:
        """Keep an event in the session's trace, if the app has traces, and return it. Text as it grows is left out."""
        if self._traces.is_known and event.get("type") != "message_update":
            number = next(sequence)
            envelope = {
                "id": str(uuid.uuid4()),
                "timestamp": datetime.now(UTC).isoformat(),
                "sequence": number,
                "source": "runtime",
                "sessionId": ref.session,
                "tenantId": ref.tenant,
                "event": event,
            }
            await self.trace_store(ref).append_envelope(envelope)
        return event

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
        return cast(SessionTraceStore, QuietWrites(self._traces.of(ref), _TRACE_WRITES, "trace", ref, self.lost))

    def orchestration(self, session: SessionRef | str) -> OrchestrationPersistence:
        """Return the session's orchestration persistence. Its writes never raise; its reads do."""
        ref = SessionRef.parse(session)
        found = self._orchestrations.of(ref)
        return cast(
            OrchestrationPersistence, QuietWrites(found, _ORCHESTRATION_WRITES, "orchestration", ref, self.lost)
        )

    def forget_session(self, session: SessionRef | str) -> None:
        """Drop what is cached for a finished session."""
        ref = SessionRef.parse(session)
        self._traces.forget(ref)
        self._orchestrations.forget(ref)

    async def _refresh(self, ref: SessionRef, path: str, content: str) -> None:
        if self.sandbox_manager is not None:
            refresh = partial(self.sandbox_manager.refresh_memo_mirror, ref, path, content)
            await quietly(refresh, "mirror", ref, self.lost)  # the text is stored; a mirror can be rebuilt


def _make_asgi(
    app: AgentApp, source: InspectorDataSource | None = None, checks: Sequence[ReadinessCheck] = ()
) -> ASGIApp:
    from memo.agent_http import make_asgi  # a program that serves no HTTP does not load Starlette

    return make_asgi(app, source, checks)


def _end_of(reply: AgentReply, outcome: TurnOutcome) -> Event:
    usage = Usage.parse(reply.usage)
    return {
        "type": "agent_end",
        "sessionId": outcome.session.session,
        "text": reply.text,
        "usage": {"inputTokens": usage.input, "outputTokens": usage.output}
        | {"cacheReadTokens": usage.cache_read, "cacheWriteTokens": usage.cache_write},
        "stopReason": reply.stop_reason,
        "compacted": outcome.compacted,
    }

"""The overview: the state of the daemon on one page, and which events report a failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from sandboxd.metrics import PoolFigures
from sandboxd.models.event import Event
from sandboxd.models.health import Check, Readiness
from sandboxd.models.inspector import Overview, OverviewSandbox, PoolState, StoreState
from sandboxd.models.sandbox import SandboxView

MOST_FAILURES = 50
FAILURE_KINDS = frozenset({"sandbox", "egress", "consolidation", "exec", "tool", "process", "run"})
_BAD_CONSOLIDATIONS = frozenset({"failed", "session_failed"})


def describe_daemon(
    *,
    version: str,
    readiness: Readiness,
    unsupported: list[str],
    states: dict[str, int],
    pool: PoolFigures,
    sessions: int | None,
    sandboxes: Iterable[tuple[SandboxView, float]],
    events: Iterable[Event],
) -> Overview:
    """`sandboxes` come with the seconds for which each has had no call, `events` newest first."""
    now = datetime.now(UTC)
    store = readiness.store
    return Overview(
        version=version,
        now=now,
        engine=readiness.engine,
        store=StoreState(name=store.name, ok=store.ok, detail=store.detail, unsupported=unsupported),
        ready=readiness.ready,
        checks=[_check(subject, check) for subject, check in readiness.checks()],
        states=states,
        pool=PoolState(warm=pool.ready, target=pool.target),
        sessions=sessions,
        sandboxes=[_sandbox(view, idle_s, now) for view, idle_s in sandboxes],
        failures=list(_failures(events)),
    )


def is_failure(event: Event) -> bool:
    """Return whether an event is a death, a failed start, a limit hit, refused egress or a failed consolidation."""
    fields = event.fields
    match event.kind:
        case "sandbox":
            return fields.get("state") == "gone" or fields.get("what") == "failed" or fields.get("ok") is False
        case "egress":
            return fields.get("decision") in ("denied", "failed")
        case "consolidation":
            return fields.get("what") in _BAD_CONSOLIDATIONS
        case _:
            return bool(fields.get("limits_hit"))


def _failures(events: Iterable[Event]) -> Iterator[Event]:
    found = 0
    for event in events:
        if found == MOST_FAILURES:
            return
        if is_failure(event):
            found += 1
            yield event


def _check(subject: str, check: Check) -> Check:
    detail = check.name if not check.detail else f"{check.name}: {check.detail}"
    return Check(name=subject, ok=check.ok, detail=detail)


def _sandbox(view: SandboxView, idle_s: float, now: datetime) -> OverviewSandbox:
    return OverviewSandbox(
        tenant=view.tenant,
        session=view.session,
        user=view.user,
        state=view.state,
        cause=view.cause,
        created_at=view.created_at,
        idle_since=view.resting_since or (now - timedelta(seconds=idle_s) if idle_s > 0 else None),
    )

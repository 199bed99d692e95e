"""Retention: only workspaces without a container are removed, by rule, and with a record of it. (I14)"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from memo.ids import SessionRef, TenantId
from sandboxd.runner.calls import Exec
from sandboxd.sandboxes.retention import RestingWorkspace, find_due
from tests.world.world import HANG_S, World, open_world

NOW = datetime(2026, 1, 31, tzinfo=UTC)
DAY_S = 86_400

workspaces = st.lists(
    st.builds(
        lambda age_s, size: (NOW - timedelta(seconds=age_s), size),
        st.integers(0, 60 * DAY_S),
        st.integers(0, 1000),
    ),
    max_size=8,
).map(lambda pairs: [RestingWorkspace(f"w{number}", *pair) for number, pair in enumerate(pairs)])


@given(workspaces, st.integers(0, 5000), st.integers(0, 5000), st.sampled_from([0, DAY_S, 30 * DAY_S]))
def test_the_oldest_go_first_and_never_more_than_the_rules_demand(
    resting: list[RestingWorkspace], running_bytes: int, max_bytes: int, retention_s: int
) -> None:
    used = running_bytes + sum(workspace.size_bytes for workspace in resting)
    due = find_due(resting, used, now=NOW, retention_s=retention_s, max_bytes=max_bytes)
    by_id = {workspace.id: workspace for workspace in resting}
    ages = [by_id[workspace_id].since for workspace_id, _ in due]
    assert ages == sorted(ages)
    expired = {w.id for w in resting if retention_s and (NOW - w.since).total_seconds() >= retention_s}
    assert {workspace_id for workspace_id, removal in due if removal == "expired"} == expired
    for workspace_id, removal in due:
        if removal == "over_limit":
            assert max_bytes
            assert used > max_bytes, "removed although the others were within the limit"
        used -= by_id[workspace_id].size_bytes
    if max_bytes and used > max_bytes:
        assert len(due) == len(resting), "over the limit with workspaces left to remove"


def removals(world: World) -> list[tuple[str, str]]:
    events = [event.fields for event in world.manager.events.recent() if event.kind == "workspace"]
    return [(str(fields["session"]), str(fields["cause"])) for fields in events if fields["what"] == "removed"]


async def wait_for_sessions(world: World, expected: set[str]) -> None:
    with anyio.fail_after(HANG_S):
        while {view.session for view in world.manager.of_tenant(TenantId("acme"))} != expected:
            await anyio.sleep(0.01)


async def write(world: World, session: str, size_kb: int) -> None:
    with await world.manager.call(SessionRef.of("acme", session)) as runner:
        await runner.exec(Exec(f"head -c {size_kb * 1024} /dev/urandom > big"))


@pytest.mark.anyio
async def test_a_workspace_that_rested_too_long_is_removed_with_a_log_line_and_an_event(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with open_world(tmp_path, workspace_retention_s=1) as world:
            await world.create("used")
            await world.create("unused")
            await world.manager.hibernate(SessionRef.of("acme", "unused"))
            await wait_for_sessions(world, {"used"})
            assert removals(world) == [("unused", "expired")]
    (line,) = [entry for entry in logs if entry["event"] == "workspace removed"]
    assert (line["cause"], line["session"]) == ("expired", "unused")


@pytest.mark.anyio
async def test_over_the_limit_the_least_recently_used_goes_first_and_never_one_in_use(tmp_path: Path) -> None:
    async with open_world(tmp_path, workspaces_max_mb=3) as world:
        for session in ("oldest", "newer", "newest", "busy"):
            await world.create(session)
            await write(world, session, 1500)
        for session in ("oldest", "newer", "newest"):
            await world.manager.hibernate(SessionRef.of("acme", session))
        await wait_for_sessions(world, {"newer", "newest", "busy"})
        assert removals(world) == [("oldest", "over_limit")]

"""Consolidation over HTTP and through both clients: runs, states, errors, events and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest

import memo
from memo.consolidation import with_ledger
from memo.errors import Unsupported
from memo.ids import UserRef
from memo.leases import Lease
from memo.testing.promises import made
from sandboxd.client import AsyncClient, Client
from sandboxd.consolidation.service import ConsolidationService
from sandboxd.consolidation_settings import ConsolidationOptions
from sandboxd.errors import DependencyError, InvalidRequest
from sandboxd.events import EventBus
from sandboxd.metrics import Metrics
from sandboxd.sandboxes.manager import SandboxManager
from tests.guide_store import GuideStore
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

ON_DEMAND = ConsolidationOptions(enabled=False)
HANG_GUARD_S = 30
ANN = UserRef.of("default", "ann")


class OnlyReads:
    """A minimal provider, without sessions and ledger."""

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return None


class Desk:
    """A served API and the objects behind it."""

    def __init__(self, world: World, store: Any, consolidation: ConsolidationService, metrics: Metrics) -> None:
        self.world = world
        self.store = store
        self.consolidation = consolidation
        self.metrics = metrics

    async def say(self, session: str, *texts: str, user: str = "ann", tenant: str = "default") -> None:
        await say(self.store, session, *texts, user=user, tenant=tenant)

    async def ask(self, method: str, target: str, **options: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
        connector = aiohttp.UnixConnector(str(self.world.socket))
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            http.request(method, f"http://localhost/v1/tenants/{target}", **options) as response,
        ):
            return response.status, await response.json(content_type=None), dict(response.headers)

    async def page(self, user: str = "ann") -> str:
        return await self.store.read_memory_document("default", user, "user", "USER.md") or ""

    def told(self) -> list[tuple[object, ...]]:
        events = self.world.manager.events.recent()
        names = ("what", "user", "outcome")
        return [tuple(e.fields.get(name) for name in names) for e in events if e.kind == "consolidation"]


async def say(store: Any, session: str, *texts: str, user: str = "ann", tenant: str = "default") -> None:
    await store.get_or_create(tenant, user, "agent", session)
    await store.append_messages(tenant, session, [{"role": "user", "content": text} for text in texts])


@asynccontextmanager
async def desk(
    directory: Path, options: ConsolidationOptions = ON_DEMAND, store: Any = None, **more: Any
) -> AsyncIterator[Desk]:
    running: list[tuple[ConsolidationService, Metrics]] = []

    @asynccontextmanager
    async def consolidating(manager: SandboxManager, metrics: Metrics) -> AsyncIterator[ConsolidationService]:
        service = ConsolidationService(
            opened, options, events=manager.events, metrics=metrics, writer=manager.memory, **more
        )
        async with service:
            running.append((service, metrics))
            yield service

    async with (
        made(lambda: store or memo.open_store("memory://")) as opened,
        serving(directory, store=opened, consolidation=consolidating) as world,
    ):
        yield Desk(world, opened, *running[0])


async def test_a_run_on_demand_answers_with_what_changed(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        await at.say("s1", "I prefer short answers.")
        status, shown, _ = await at.ask("POST", "default/users/ann/consolidation", json={"dry_run": True})
        assert (status, shown["changed"], shown["revision"], shown["dry_run"]) == (200, True, 1, True)
        assert "+- Prefers short answers <!-- from s1#1 -->" in shown["diff"]
        assert await at.page() == ""
        status, done, _ = await at.ask("POST", "default/users/ann/consolidation")
        assert (status, done["changed"], done["revision"], done["sessions"]) == (200, True, 1, ["s1"])
        assert (done["outcome"], done["failed"], done["diff"]) == ("written", [], shown["diff"])
        assert "Prefers short answers" in await at.page()
        _, again, _ = await at.ask("POST", "default/users/ann/consolidation", json={})
        assert (again["changed"], again["outcome"], again["revision"]) == (False, "unchanged", 1)
        status, unknown, _ = await at.ask("POST", "default/users/stranger/consolidation")
        assert (status, unknown["outcome"], unknown["revision"]) == (200, "nothing", None)
        assert at.told() == [
            ("started", "ann", None),
            ("summarised", "ann", None),
            ("finished", "ann", "written"),
            ("started", "ann", None),
            ("finished", "ann", "unchanged"),
            ("finished", "stranger", "nothing"),
        ]
        counted = at.metrics.render().decode()
        assert 'sandboxd_consolidation_runs_total{outcome="written"} 1.0' in counted
        assert "sandboxd_consolidation_seconds_count 3.0" in counted


async def test_the_state_shows_which_users_are_due_and_why(tmp_path: Path) -> None:
    async with desk(tmp_path, ConsolidationOptions(enabled=False, idle_s=0)) as at:
        await at.say("s1", "I prefer short answers.")
        await at.say("s2", "I like graphs.", user="bob")
        await at.say("s3", "I like tea.", user="eve", tenant="other")
        status, state, _ = await at.ask("GET", "default/users/ann/consolidation")
        assert (status, state["due"], state["why"]) == (200, True, "no profile yet")
        assert (state["changed_sessions"], state["revision"], state["background"]) == (1, None, False)
        await at.ask("POST", "default/users/ann/consolidation")
        _, states, _ = await at.ask("GET", "default/consolidation")
        seen = [(s["user"], s["due"], s["why"], s["last_outcome"], s["runs"]) for s in states["items"]]
        assert seen == [
            ("ann", False, "nothing changed", "written", 1),
            ("bob", True, "no profile yet", None, 0),
        ]
        status, unknown, _ = await at.ask("GET", "default/users/stranger/consolidation")
        assert (status, unknown["due"], unknown["runs"]) == (200, False, 0)


async def test_a_user_held_by_another_run_is_a_retryable_conflict(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        await at.say("s1", "I prefer short answers.")
        lease = await at.store.acquire_lease(ANN, "other", 60)
        status, problem, headers = await at.ask("POST", "default/users/ann/consolidation")
        assert (status, problem["code"], problem["retryable"]) == (409, "consolidation.held", True)
        assert problem["detail"].startswith("cannot consolidate this user now: another run holds the lease")
        assert headers["Content-Type"] == "application/problem+json"
        _, state, _ = await at.ask("GET", "default/users/ann/consolidation")
        assert state["held_by"] == "other"
        status, _, _ = await at.ask("POST", "default/users/ann/consolidation", json={"dry_run": True})
        assert status == 200, "a dry run needs no lease"
        await at.store.release_lease(lease)
        assert (await at.ask("POST", "default/users/ann/consolidation"))[0] == 200


@pytest.mark.parametrize(
    ("command", "status", "code", "retryable"),
    [
        (["false"], 502, "consolidation.summariser", True),
        (["echo", "no json"], 502, "consolidation.summariser", True),
        (["/no/such/program"], 503, "consolidation.summariser_unavailable", True),
    ],
)
async def test_a_failed_summariser_is_a_problem_and_shown_in_the_state(
    tmp_path: Path, command: list[str], status: int, code: str, retryable: bool
) -> None:
    options = ConsolidationOptions(enabled=False, summariser="command", command=tuple(command))
    async with desk(tmp_path, options) as at:
        await at.say("s1", "I prefer short answers.")
        seen, problem, _ = await at.ask("POST", "default/users/ann/consolidation")
        assert (seen, problem["code"], problem["retryable"]) == (status, code, retryable)
        assert problem["detail"].startswith("cannot ")
        _, state, _ = await at.ask("GET", "default/users/ann/consolidation")
        assert state["failure"] == {
            "reason": problem["detail"],
            "count": 1,
            "retry_at": state["look_again_at"],
        }
        assert (state["why"], state["last_outcome"]) == ("the last try failed", "failed")
        assert at.told()[-1] == ("failed", "ann", "failed")
        assert await at.page() == ""


async def test_a_run_that_takes_too_long_says_so(tmp_path: Path) -> None:
    options = ConsolidationOptions(enabled=False, summariser="command", command=("sleep", "600"), run_timeout_s=0.2)
    async with desk(tmp_path, options) as at:
        await at.say("s1", "I prefer short answers.")
        status, problem, _ = await at.ask("POST", "default/users/ann/consolidation")
        assert (status, problem["code"]) == (504, "consolidation.timeout")


async def test_a_budget_too_small_for_one_session_is_reported(tmp_path: Path) -> None:
    options = ConsolidationOptions(enabled=False, summariser="command", command=("cat",), run_tokens=1)
    async with desk(tmp_path, options) as at:
        await at.say("s1", "I prefer short answers.")
        status, problem, _ = await at.ask("POST", "default/users/ann/consolidation")
        assert (status, problem["code"], problem["retryable"]) == (422, "consolidation.budget", False)


async def test_a_store_without_a_ledger_leaves_the_daemon_without_consolidation(tmp_path: Path) -> None:
    async with desk(tmp_path, ConsolidationOptions(), store=OnlyReads()) as at:
        assert not at.consolidation.is_running
        for method, target in (
            ("POST", "default/users/ann/consolidation"),
            ("GET", "default/users/ann/consolidation"),
            ("GET", "default/consolidation"),
        ):
            status, problem, _ = await at.ask(method, target)
            assert (status, problem["code"], problem["retryable"]) == (501, "memo.unsupported", False)
            assert problem["detail"].startswith("cannot consolidate in OnlyReads: it does not implement acquire_lease")


async def test_a_store_of_another_program_is_consolidated_with_a_ledger_beside_the_daemon(tmp_path: Path) -> None:
    """As the daemon opens it: background and demand, events, and the page in the mirror of a live sandbox."""
    plain = GuideStore(tmp_path / "store.json")
    options = ConsolidationOptions(idle_s=0, scan_s=0.1)
    async with with_ledger(plain, tmp_path) as store, desk(tmp_path, options, store=store) as at:
        assert at.consolidation.is_running
        await at.world.create("s1", user="ann", tenant="default")
        shown = at.world.mirror("s1", tenant="default") / "user" / "USER.md"
        await at.say("s1", "I prefer short answers.")
        with anyio.fail_after(HANG_GUARD_S):
            async with at.world.manager.events.subscribe() as events:
                while ("finished", "ann", "written") not in at.told():
                    await anext(events)
        assert "- Prefers short answers <!-- from s1#1 -->" in await at.page()
        assert shown.read_text() == await at.page()
        status, again, _ = await at.ask("POST", "default/users/ann/consolidation")
        assert (status, again["outcome"], again["changed"]) == (200, "unchanged", False)
        _, listed, _ = await at.ask("GET", "default/consolidation")
        assert [(item["user"], item["due"]) for item in listed["items"]] == [("ann", False)]
        await plain.write_memory_document(
            "default", "ann", "user", "USER.md", await at.page() + "\n## Mine\n\nBy hand.\n"
        )
        await at.say("s1", "I like graphs.")
        _, done, _ = await at.ask("POST", "default/users/ann/consolidation")
        assert done["outcome"] in ("written", "unchanged")  # the background may have been first
        assert "By hand." in await at.page()
        assert "Likes graphs" in shown.read_text()
    assert (tmp_path / "consolidation.db").exists()


async def test_a_repeated_request_is_carried_out_once(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        await at.say("s1", "I prefer short answers.")
        key = {"Idempotency-Key": "k1"}
        _, first, _ = await at.ask("POST", "default/users/ann/consolidation", headers=key)
        _, second, headers = await at.ask("POST", "default/users/ann/consolidation", headers=key)
        assert first == second
        assert first["changed"]
        assert headers["idempotency-replayed"] == "true"
        _, state, _ = await at.ask("GET", "default/users/ann/consolidation")
        assert state["runs"] == 1


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("default/users/ann/consolidation", {"dry_run": "yes"}),
        ("default/users/ann/consolidation", {"force": True}),
        ("default/users/ann/consolidation", []),
        ("default/users/a%20b/consolidation", {}),
        ("de%00fault/users/ann/consolidation", {}),
    ],
)
async def test_invalid_input_is_rejected_and_changes_nothing(tmp_path: Path, target: str, body: Any) -> None:
    async with desk(tmp_path) as at:
        await at.say("s1", "I prefer short answers.")
        status, problem, _ = await at.ask("POST", target, json=body)
        assert status == 400
        assert problem["code"] in ("request.invalid", "memo.invalid_key")
        assert await at.page() == ""


async def test_background_runs_skip_users_who_are_being_served(tmp_path: Path) -> None:
    options = ConsolidationOptions(idle_s=0, scan_s=0.2)
    busy = {ANN}
    async with memo.open_store("memory://") as store:
        await say(store, "s1", "I prefer short answers.")
        await say(store, "s2", "I like graphs.", user="bob")
        async with desk(tmp_path, options, store=store, busy_users=lambda: set(busy)) as at:
            assert at.consolidation.is_running
            async with at.world.manager.events.subscribe(after=0) as events:
                await finished(events, "bob")
                assert await at.page() == ""
                _, state, _ = await at.ask("GET", "default/users/ann/consolidation")
                assert (state["due"], state["why"]) == (False, "the user is being served")
                busy.clear()
                await finished(events, "ann")
            assert "Prefers short answers" in await at.page()
            assert "sandboxd_consolidation_due_users" in at.metrics.render().decode()


async def finished(events: AsyncIterator[Any], user: str) -> None:
    with anyio.fail_after(HANG_GUARD_S):
        async for event in events:
            if event.fields.get("what") == "finished" and event.fields.get("user") == user:
                return


async def test_stopping_drops_running_users_and_their_leases() -> None:
    options = ConsolidationOptions(idle_s=0, lease_s=600, summariser="command", command=("sleep", "600"))
    events = EventBus()
    metrics = Metrics(states=dict, dropped=lambda: 0)
    async with memo.open_store("memory://") as store:
        await say(store, "s1", "I prefer short answers.")
        with anyio.fail_after(HANG_GUARD_S):
            async with (
                events.subscribe() as told,
                ConsolidationService(store, options, events=events, metrics=metrics, drain_s=0.1),
            ):
                assert (await anext(told)).fields["what"] == "started"
        assert isinstance(await store.acquire_lease(ANN, "next", 60), Lease)
        assert len(await store.list_pending()) == 1


async def test_invalid_settings_are_rejected_before_anything_starts(tmp_path: Path) -> None:
    options = ConsolidationOptions(summariser="openai", model="m", key_file=tmp_path / "none")
    metrics = Metrics(states=dict, dropped=lambda: 0)
    async with memo.open_store("memory://") as store:
        with pytest.raises(InvalidRequest, match="cannot consolidate: cannot read the key file"):
            ConsolidationService(store, options, events=EventBus(), metrics=metrics)


async def test_the_async_client_runs_and_reads_the_state(tmp_path: Path) -> None:
    async with desk(tmp_path) as at, AsyncClient(at.world.socket) as client:
        await at.say("s1", "I prefer short answers.", "I like graphs.")
        shown = await client.consolidate("ann", dry_run=True)
        assert (shown.changed, shown.dry_run) == (True, True)
        done = await client.consolidate("ann", idempotency_key="k")
        assert (done.outcome, done.revision, done.sessions, done.failed) == ("written", 1, ("s1",), {})
        state = await client.get_consolidation("ann")
        assert (state.runs, state.revision, state.failure, state.held_by) == (1, 1, None, None)
        assert [one.user for one in await client.list_consolidations()] == ["ann"]
        assert await client.list_consolidations(tenant="other") == []
        await at.store.acquire_lease(ANN, "other", 60)
        with pytest.raises(DependencyError) as held:
            await client.consolidate("ann")
        assert (held.value.code, held.value.retryable) == ("consolidation.held", True)


async def test_bullets_missing_from_a_restored_revision_stay_deleted(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        await at.say("s1", "I prefer short answers.")
        await anyio.to_thread.run_sync(partial(_restore, at.world.socket, 1))
        await at.say("s2", "I like graphs.")
        await anyio.to_thread.run_sync(partial(_restore, at.world.socket, 2))
        assert "Likes graphs" in await at.page()
        await anyio.to_thread.run_sync(partial(_restore, at.world.socket, 2, 1))
        assert "Likes graphs" not in await at.page()
        await at.say("s3", "I like graphs.", "I like maps.")
        await anyio.to_thread.run_sync(partial(_restore, at.world.socket, 4))
        page = await at.page()
        assert "Likes maps" in page
        assert "graphs" not in page


def _restore(socket: Path, expected: int, restored: int | None = None) -> None:
    """Consolidate, or restore an old revision, with the client."""
    with Client(socket) as client:
        if restored is None:
            assert client.consolidate("ann").revision == expected
        else:
            assert client.restore_memo("ann", "USER.md", restored, scope="user").revision == expected + 1
            assert client.get_consolidation("ann").failed_sessions == {}
            assert [one.user for one in client.list_consolidations()] == ["ann"]


async def test_a_client_gets_the_error_of_a_daemon_without_consolidation(tmp_path: Path) -> None:
    async with desk(tmp_path, store=OnlyReads()) as at, AsyncClient(at.world.socket) as client:
        with pytest.raises(Unsupported):
            await client.consolidate("ann")

"""Consolidation in a store that has only the methods of the storage guide: its ledger is in a file beside it."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import SQLiteStore
from memo.consolidation import (
    ConsolidationSettings,
    LedgeredStore,
    Policy,
    ServiceConfig,
    SummariserSettings,
    UserMemoryConsolidationService,
    with_ledger,
)
from memo.documents import USER, DocumentKey
from memo.errors import InvalidContent, RevisionConflict, Unsupported
from memo.ids import UserRef
from memo.leases import Lease
from memo.ledger import DocumentChange, Settlement
from memo.testing.ledger import LEASE_PROMISES
from memo.testing.promises import keep
from memo.testing.records import RECORD_PROMISES
from tests.guide_store import GuideStore
from tests.memo.consolidation.scenes import ANN, Scripted, page, say

pytestmark = pytest.mark.anyio

AT_ONCE = ConsolidationSettings(policy=Policy(idle=timedelta()))


@pytest.fixture
def store(tmp_path: Path) -> GuideStore:
    return GuideStore(tmp_path / "store.json")


class Mirrors:
    """The part of a sandbox manager that the service uses; it records what it is told to show."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, ...]] = []
        self.seen = anyio.Event()

    async def refresh_user_memo_mirror_for_all_sessions(self, *shown: str) -> None:
        self.shown.append(shown)
        self.seen.set()


# Specification: 001.31, 001.32, 001.76, 001.78, 001.82
async def test_the_service_starts_with_the_five_arguments_of_the_guide(store: GuideStore, tmp_path: Path) -> None:
    await say(store, "s1", "I prefer short answers.")
    (tmp_path / "data/tenants/acme/users/ann").mkdir(parents=True)  # what the guide's own service scans
    mirrors = Mirrors()
    service = UserMemoryConsolidationService(store, store, tmp_path / "data", {"idleMinutes": 0}, mirrors)
    service.start()
    with anyio.fail_after(30):
        await mirrors.seen.wait()
    await service.aclose()
    assert "- Prefers short answers <!-- from s1#1 -->" in await page(store)
    assert mirrors.shown == [("acme", "ann", "USER.md", await page(store))]


# Specification: 001.82
async def test_a_disabled_config_starts_nothing(store: GuideStore, tmp_path: Path) -> None:
    service = UserMemoryConsolidationService(store, store, tmp_path / "data", {"enabled": False})
    service.start()
    await service.aclose()
    assert not service.is_stopping


# Specification: 001.28
async def test_a_lister_of_its_own_is_asked_for_the_sessions(store: GuideStore, tmp_path: Path) -> None:
    await say(store, "s1", "I prefer short answers.")

    class Lister:
        async def list_sessions_by_user(self, tenant: str, user: str) -> list[dict[str, Any]]:
            return [{"sessionId": "s1", "updatedAt": "2026-01-01T12:00:00Z"}] if user == "ann" else []

        async def list_users(self) -> list[dict[str, str]]:
            return [{"tenantId": "acme", "userId": "ann"}, {"tenantId": "acme", "userId": "bob"}]

    service = UserMemoryConsolidationService(store, Lister(), tmp_path, AT_ONCE)
    assert [(result.user, result.outcome) for result in await service.run_once()] == [(ANN, "written")]
    await service.aclose()


# Specification: 001.33
async def test_only_what_changed_is_summarised_again_also_by_the_next_process(
    store: GuideStore, tmp_path: Path
) -> None:
    for session in ("s1", "s2"):
        await say(store, session, "I prefer short answers.")
    seen: list[list[str]] = []
    for round_number in range(3):
        summariser = Scripted()
        service = UserMemoryConsolidationService(store, summariser, tmp_path, AT_ONCE)
        await service.consolidate("acme", "ann")
        state = await service.state("acme", "ann")
        await service.aclose()
        seen.append(sorted(summariser.sessions))
        assert (state.changed, state.standing.runs) == (0, round_number + 1)
        if round_number == 1:
            await store.append_messages("acme", "s2", [{"role": "user", "content": "I like graphs."}])
    assert seen == [["s1", "s2"], [], ["s2"]]
    assert "Likes graphs" in await page(store)


async def test_what_the_user_wrote_and_deleted_stays_so(store: GuideStore, tmp_path: Path) -> None:
    await say(store, "s1", "I prefer short answers.", "Don't use emojis.")
    service = UserMemoryConsolidationService(store, store, tmp_path, AT_ONCE)
    await service.consolidate("acme", "ann")
    lines = (await page(store)).splitlines(keepends=True)
    edited = "".join(line for line in lines if "emojis" not in line) + "\n## Mine\n\nBy hand.\n"
    await store.write_memory_document("acme", "ann", "user", USER, edited)
    await say(store, "s2", "I like graphs.", "Don't use emojis.")
    await service.consolidate("acme", "ann")
    await service.aclose()
    text = await page(store)
    assert "By hand." in text
    assert "Likes graphs" in text
    assert "- Asks not to use emojis" not in text


async def test_an_edit_between_reading_and_writing_is_a_conflict_and_changes_nothing(
    store: GuideStore, tmp_path: Path
) -> None:
    async with LedgeredStore(store, tmp_path) as ledgered:
        key = DocumentKey.of_user(ANN.tenant, ANN.user, USER)
        await store.write_memory_document("acme", "ann", "user", USER, "one")
        before = await ledgered.read_document(key)
        assert before is not None
        await store.write_memory_document("acme", "ann", "user", USER, "two")
        lease = await ledgered.acquire_lease(ANN, "me", 60)
        assert isinstance(lease, Lease)
        with pytest.raises(RevisionConflict):
            await ledgered.settle(lease, Settlement({"runs": 1}, document=DocumentChange(key, "x", before.revision)))
        assert await page(store) == "two"
        assert (await ledgered.read_ledger(ANN)).standing == {}


class _Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_run_killed_around_its_write_counts_if_the_document_was_written(
    store: GuideStore, tmp_path: Path, is_written: bool
) -> None:
    await say(store, "s1", "I prefer short answers.")

    class Dying(GuideStore):
        async def write_memory_document(self, *where: str) -> None:
            if is_written:
                await super().write_memory_document(*where)
            raise _Killed

    dying = UserMemoryConsolidationService(Dying(tmp_path / "store.json"), None, tmp_path, AT_ONCE)
    with pytest.raises(BaseException):  # noqa: B017  # a group or the error itself, by the runner of the tasks
        await dying.consolidate("acme", "ann")
    await dying.aclose()
    async with LedgeredStore(store, tmp_path) as ledgered:
        entry = await ledgered.read_ledger(ANN)
        assert (entry.standing.get("runs"), entry.changed) == ((1, 0) if is_written else (None, 1))


async def test_one_user_whose_sessions_cannot_be_listed_stops_no_other_user(
    store: GuideStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(GuideStore):
        async def list_sessions_by_user(self, tenant: str, user: str) -> list[dict[str, Any]]:
            if user == "bob":
                raise ConnectionError("SECRET")
            listed = await super().list_sessions_by_user(tenant, user)
            return [*listed, {"updatedAt": 1}, {"sessionId": "s9", "updatedAt": "yesterday"}]

    async with with_ledger(Failing(tmp_path / "store.json"), tmp_path) as ledgered:
        for user in ("ann", "bob"):
            await say(ledgered, f"of-{user}", "I prefer short answers.", user=user)
        service = UserMemoryConsolidationService(ledgered, settings=AT_ONCE)
        with caplog.at_level(logging.WARNING):
            results = await service.run_once()
    assert [(result.user.user, result.outcome) for result in results] == [("ann", "written")]
    assert "of user acme:bob: ConnectionError" in caplog.text
    assert "SECRET" not in caplog.text
    assert "does not name a session" in caplog.text


async def test_a_store_without_a_lister_is_consolidated_from_what_passed_through(tmp_path: Path) -> None:
    class Seven(GuideStore):
        list_sessions_by_user = None  # type: ignore[assignment]

    async with with_ledger(Seven(tmp_path / "store.json"), tmp_path) as store:
        await say(store, "s1", "I prefer short answers.")
        service = UserMemoryConsolidationService(store, settings=AT_ONCE)
        assert [result.outcome for result in await service.run_once()] == ["written"]
        assert await service.run_once() == []
        await store.append_messages("acme", "s1", [{"role": "user", "content": "I like graphs."}])
        assert [result.outcome for result in await service.run_once([ANN])] == ["written"]
        assert "Likes graphs" in await page(store)


async def test_a_store_with_a_ledger_keeps_its_own(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "memo.db") as store:
        async with with_ledger(store, tmp_path / "data") as same:
            assert same is store
        service = UserMemoryConsolidationService(store, store, tmp_path / "data")
        await say(store, "s1", "I prefer short answers.")
        await service.consolidate("acme", "ann")
        await service.aclose()
        assert (await store.read_ledger(ANN)).changed == 0
    assert not (tmp_path / "data").exists()


async def test_a_store_that_keeps_no_messages_or_only_reads_is_left_as_it_is(tmp_path: Path) -> None:
    class Reader:
        async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
            return None

    class ReadsMessages(Reader):
        async def load_all_messages(self, tenant: str, session: str) -> list[dict[str, Any]]:
            return []

    class Documents(Reader):
        async def write_memory_document(self, *where: str) -> None: ...

    for kind in (Reader, ReadsMessages, Documents):
        store = kind()
        async with with_ledger(store, tmp_path / "data") as same:
            assert same is store
        with pytest.raises(Unsupported, match=f"cannot consolidate in {kind.__name__}"):
            UserMemoryConsolidationService(store, store, tmp_path / "data")
    assert not (tmp_path / "data").exists()


async def test_without_a_directory_such_a_store_is_refused(store: GuideStore) -> None:
    with pytest.raises(Unsupported, match="cannot consolidate in GuideStore"):
        UserMemoryConsolidationService(store)


async def test_history_that_the_store_does_not_keep_is_not_restored(store: GuideStore, tmp_path: Path) -> None:
    service = UserMemoryConsolidationService(store, store, tmp_path)
    with pytest.raises(Unsupported, match="keeps no history"):
        await service.restore("acme", "ann", 1)


async def test_its_leases_and_records_keep_the_promises_of_the_kit(store: GuideStore, tmp_path: Path) -> None:
    await keep(lambda: LedgeredStore(store, tmp_path), (*LEASE_PROMISES, *RECORD_PROMISES))


def test_a_config_is_parsed_in_both_spellings() -> None:
    camel = ServiceConfig.parse(
        {"provider": "openai", "modelId": "m", "apiKey": "k", "baseUrl": "http://x", "minChangedSessions": 3}
    )
    snake = ServiceConfig.parse(
        {"provider": "openai", "model_id": "m", "api_key": "k", "base_url": "http://x", "min_changed_sessions": 3}
    )
    assert camel == snake
    assert camel.summariser == SummariserSettings("openai", "m", "http://x", key="k")
    assert camel.settings.policy.sessions == 3
    assert ServiceConfig.parse({"scanIntervalMinutes": 2, "minIntervalHours": 1}).settings.scan_s == 120
    assert "k" not in repr(camel.summariser).replace("kind", "").replace("key", "")
    for bad in ({"idle": 1}, {"idleMinutes": "x"}, {"idleMinutes": -1}, {"provider": "oracle"}, 7):
        with pytest.raises(InvalidContent, match="cannot consolidate"):
            ServiceConfig.parse(bad)


def test_users_are_found_in_the_directory_of_the_guides_own_layout(tmp_path: Path) -> None:
    async def list_users() -> list[UserRef]:
        (tmp_path / "tenants/acme/users/bob").mkdir(parents=True)
        (tmp_path / "tenants/acme/users/..x").mkdir()
        async with LedgeredStore(GuideStore(tmp_path / "store.json"), tmp_path) as store:
            return await store.list_users()

    assert anyio.run(list_users) == [UserRef.of("acme", "bob")]

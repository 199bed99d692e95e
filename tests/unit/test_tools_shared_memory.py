"""I13: a write is compared with what its session last saw. Two agents of one user never overwrite each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo.documents import DocumentKey
from memo.errors import Unavailable
from memo.ids import SessionRef
from sandboxd.memory import views
from sandboxd.memory.views import View, Views
from sandboxd.tools.context import MODEL_CHARS
from sandboxd.tools.read import MAX_LINE_CHARACTERS, slice_text
from tests.agents import USER_KEY, USER_MD, Agent, Team, team
from tests.plain_store import PlainStore

pytestmark = pytest.mark.anyio

TEN = "".join(f"line {number}\n" for number in range(1, 11))


@pytest.fixture(params=["sqlite", "plain"])
async def pair(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Team]:
    store = PlainStore(tmp_path / "plain") if request.param == "plain" else None
    async with team(tmp_path, store=store) as opened:
        yield opened


async def text_of(pair: Team) -> str | None:
    document = await pair.memory.read(USER_KEY)
    return None if document is None else document.content


async def test_of_two_changes_to_the_same_lines_the_second_gets_the_newer_text(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write("# Ann\n")
    assert (await ada.read()).ok
    assert (await bob.read()).ok
    assert (await ada.write("# Ann\nallergic to nuts\n")).ok
    refused = await bob.write("# Ann\nlives in Oslo\n")
    assert (refused.ok, refused.details["code"]) == (False, "memo.conflict")
    assert refused.content.endswith("# Ann\nallergic to nuts\n")
    assert await text_of(pair) == "# Ann\nallergic to nuts\n"
    assert (await bob.write("# Ann\nallergic to nuts\nlives in Oslo\n")).ok
    assert await text_of(pair) == "# Ann\nallergic to nuts\nlives in Oslo\n"


async def test_changes_to_other_lines_are_merged_and_shown(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write(TEN)
    await bob.read()
    assert (await ada.write(TEN.replace("line 2\n", "allergic to nuts\n"))).ok
    merged = await bob.write(f"{TEN}lives in Oslo\n")
    assert (merged.ok, merged.details["merged"]) == (True, True)
    assert merged.content.endswith("@@ line 2 @@\n-line 2\n+allergic to nuts\n")
    both = TEN.replace("line 2\n", "allergic to nuts\n") + "lives in Oslo\n"
    assert await text_of(pair) == both
    assert merged.details["size_bytes"] == len(both)
    assert (await bob.write(both.replace("Oslo", "Bergen"))).details.get("merged") is None  # it has seen the whole text
    assert (await ada.write("all new\n")).ok is False


async def test_the_same_change_by_both_is_applied_once(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write(TEN)
    await bob.read()
    assert (await ada.write(f"{TEN}new\n")).ok
    result = await bob.write(f"{TEN}new\n")
    assert (result.ok, result.details.get("merged")) == (True, None)
    assert await text_of(pair) == f"{TEN}new\n"


async def test_a_merge_that_cannot_be_shown_in_full_does_not_count_as_seen(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write(TEN)
    await bob.read()
    long = "".join(f"{number} of many\n" for number in range(MODEL_CHARS // 8))
    assert (await ada.write(long + TEN)).ok
    merged = await bob.write(f"{TEN}mine\n")
    assert (merged.ok, merged.details["merged"], "Read" in merged.content) == (True, True, True)
    assert len(merged.content) < MODEL_CHARS + 1000
    assert (await bob.write(f"{TEN}mine, again\n")).ok is False
    assert await text_of(pair) == f"{long}{TEN}mine\n"


async def test_a_document_that_the_session_never_read_is_not_replaced(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write(TEN)
    refused = await bob.write("mine\n")
    assert (refused.ok, refused.content.endswith(TEN)) == (False, True)
    assert (await bob.write("mine\n")).ok  # now it has seen what it replaces
    assert (await ada.call("write_notes", content="own notes", mode="replace")).ok  # never written: no need to read


async def test_an_unread_document_may_be_added_to_if_none_of_its_lines_is_lost(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write(TEN)
    assert (await bob.write(f"first\n{TEN}last\n")).ok  # as after reading it with a shell
    assert await text_of(pair) == f"first\n{TEN}last\n"


async def test_lines_that_were_not_shown_do_not_count_as_seen(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write(TEN)
    await bob.read(limit=4)
    refused = await bob.write("line 1\n")
    assert refused.ok is False
    ada_again = f"{TEN}{'x' * (MAX_LINE_CHARACTERS + 1)}\n"
    assert (await ada.write(ada_again)).ok
    await bob.read(limit=4)
    await bob.read(offset=5)  # the last line is cut
    assert await bob.memory.agents.seen_text(bob.ref, USER_KEY) == TEN  # what the refusal has shown
    assert (await bob.write("")).ok is False
    assert await text_of(pair) == ada_again


async def test_a_text_read_in_parts_counts_as_seen_once_every_line_was_shown(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write(TEN)
    for offset in (9, 1, 5):
        assert (await bob.read(offset=offset, limit=4)).ok
    assert (await bob.write("mine\n")).ok
    await ada.read(limit=1)
    await bob.write("mine\nand more\n")
    await ada.read(offset=2)  # the rest, of another revision
    assert (await ada.write("ada's\n")).ok is False
    assert await text_of(pair) == "mine\nand more\n"


async def test_of_two_concurrent_writes_of_a_new_document_one_is_refused(pair: Team) -> None:
    results = []

    async def write(agent: Agent) -> None:
        results.append(await agent.write(f"by {agent.ref.session}\n"))

    async with anyio.create_task_group() as tasks:
        for agent in pair.agents:
            tasks.start_soon(write, agent)
    assert sorted(result.ok for result in results) == [False, True]


async def test_an_edit_needs_no_read_and_keeps_what_others_wrote(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write(TEN)
    assert (await bob.edit("line 3\n", "line three\n")).ok
    await ada.edit("line 4\n", "line four\n")
    assert await text_of(pair) == TEN.replace("3", "three").replace("4", "four")
    assert (await bob.write("only mine\n")).ok is False  # an edit shows no other line


async def test_an_edit_of_text_that_is_gone_gets_the_newer_text(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write(TEN)
    await bob.read()
    await ada.edit("line 3\n", "line three\n")
    refused = await bob.edit("line 3\n", "third\n")
    assert (refused.ok, refused.details["code"]) == (False, "memo.conflict")
    assert refused.content.endswith(TEN.replace("3", "three"))
    unknown = await bob.edit("line 33\n", "third\n")
    assert (unknown.ok, unknown.details["code"]) == (False, "request.invalid")


async def test_concurrent_edits_of_different_lines_are_all_applied(tmp_path: Path) -> None:
    async with team(tmp_path, 5) as five:
        await five.memory.write(USER_KEY, TEN)
        async with anyio.create_task_group() as tasks:
            for number, agent in enumerate(five.agents, 1):
                tasks.start_soon(agent.edit, f"line {number}\n", f"edited {number}\n")
        assert await five.text() == "".join(f"{'edited' if n < 6 else 'line'} {n}\n" for n in range(1, 11))


async def test_a_session_s_own_appends_keep_the_document_seen(pair: Team) -> None:
    ada, _ = pair.agents
    for note in ("one", "two", "three"):
        await ada.call("write_notes", content=note)
    assert (await ada.call("write_notes", content="all new\n", mode="replace")).ok
    await pair.memory.append(DocumentKey.of_session(ada.ref, "NOTES.md"), "by the host\n")
    await ada.call("write_notes", content="four")
    assert (await ada.call("write_notes", content="all new", mode="replace")).ok is False


async def test_what_a_session_saw_is_forgotten_with_its_sandbox(pair: Team) -> None:
    ada, bob = pair.agents
    await ada.write(TEN)
    await bob.read()
    await bob.forget()
    assert (await bob.write("mine\n")).ok is False


async def test_a_retry_of_a_merged_write_is_not_merged_again(tmp_path: Path) -> None:
    async with team(tmp_path) as two:
        ada, bob = two.agents
        await ada.write(TEN)
        await bob.read()
        await ada.write(f"first\n{TEN}")
        call = {"file_path": USER_MD, "contents": f"{TEN}last\n"}
        results = [await bob.call("Write", "call 1", **call) for _ in range(2)]
        assert [result.ok for result in results] == [True, True]
        assert [result.details["revision"] for result in results] == [3, 3]
        assert await two.text() == f"first\n{TEN}last\n"
        assert (await bob.write(TEN)).ok is False  # the retry did not show the rest of the text


class Switch:
    """A real store that can be made unavailable."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.is_down = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name.startswith("_") or name in ("changes", "options", "session_trace_store"):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            if self.is_down:
                raise Unavailable("cannot reach the store")
            return await found(*args, **named)

        return call


@pytest.fixture
async def queueing(tmp_path: Path) -> AsyncIterator[tuple[Team, Switch]]:
    switch = Switch(None)
    async with team(tmp_path / "outer") as outer:
        switch.store = outer.store
        async with team(tmp_path / "inner", store=switch, outbox=True) as opened:
            yield Team(outer.store, opened.memory, opened.agents), switch


async def test_with_the_store_down_a_session_continues_from_its_own_queued_text(
    queueing: tuple[Team, Switch],
) -> None:
    pair, switch = queueing
    ada, bob = pair.agents
    await ada.write(TEN)
    switch.is_down = True
    assert (await ada.write(f"{TEN}queued\n")).details["queued"] is True
    assert (await ada.write(f"{TEN}queued\nmore\n")).details["queued"] is True
    refused = await bob.write("blind\n")
    assert (refused.ok, refused.content.endswith(f"{TEN}queued\nmore\n")) == (False, True)
    assert (await bob.read()).content.count("\n") == 11  # the mirror shows the queued text
    assert (await bob.write(f"{TEN}queued\nmore\nbob's\n")).details["queued"] is True
    switch.is_down = False
    with anyio.fail_after(30):
        while pair.memory.waiting:
            await anyio.sleep(0.005)
    assert await pair.text() == f"{TEN}queued\nmore\nbob's\n"
    assert (await bob.write(f"{TEN}bob's\n")).ok  # what was seen while it waited is known after its delivery


async def test_with_the_store_down_an_unread_document_is_not_replaced(queueing: tuple[Team, Switch]) -> None:
    pair, switch = queueing
    ada, bob = pair.agents
    await ada.write(TEN)
    switch.is_down = True
    refused = await bob.write("blind\n")
    assert (refused.ok, refused.content.endswith(TEN)) == (False, True)
    assert (await bob.write("seen\n")).details["queued"] is True


async def test_with_the_store_down_a_stale_text_is_refused(queueing: tuple[Team, Switch]) -> None:
    pair, switch = queueing
    ada, bob = pair.agents
    await ada.write(TEN)
    await bob.read()
    await ada.write(f"{TEN}ada's\n")
    switch.is_down = True
    refused = await bob.write("bob's\n")  # the base of a merge is in the store
    assert (refused.ok, refused.content.endswith(f"{TEN}ada's\n")) == (False, True)


REF = SessionRef.of("acme", "s1")


def test_views_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Views()
    keys = [DocumentKey.of_session(REF, f"doc-{number}") for number in range(views.MOST_OF_SESSION + 10)]
    for key in keys:
        seen.saw(REF, key, View(1, "x"))
    assert len(seen) == views.MOST_OF_SESSION
    assert (seen.whole(REF, keys[0]), seen.whole(REF, keys[-1])) == (None, View(1, "x"))
    monkeypatch.setattr(views, "MOST_IN_ALL", views.MOST_OF_SESSION + 5)
    for number in range(20):
        seen.saw(SessionRef.of("acme", f"other-{number}"), USER_KEY, View(1, "x"))
    assert len(seen) == views.MOST_OF_SESSION + 5
    assert seen.whole(SessionRef.of("acme", "other-19"), USER_KEY) == View(1, "x")
    for key in keys:
        seen.forget(REF, key)
    assert len(seen) == 20
    for number in range(20):
        seen.forget(SessionRef.of("acme", f"other-{number}"))
    assert len(seen) == 0


def test_the_number_of_remembered_pieces_is_bounded() -> None:
    seen = Views()
    for number in range(0, 10_000, 2):
        seen.saw_lines(REF, USER_KEY, View(1, "x"), range(number, number + 1), 10_000)
    for number in range(1, 10_000, 2):
        seen.saw_lines(REF, USER_KEY, View(1, "x"), range(number, number + 1), 10_000)
    assert seen.whole(REF, USER_KEY) is None
    for number in range(0, 10_000, 100):
        seen.saw_lines(REF, USER_KEY, View(1, "x"), range(number, number + 100), 10_000)
    assert seen.whole(REF, USER_KEY) == View(1, "x")


def test_an_empty_document_counts_as_seen_once_it_is_read() -> None:
    part, uncut = slice_text("", 1, 10)
    assert (part.lines, part.total_lines, part.truncated) == ((), 0, False)
    seen = Views()
    for lines in uncut:
        seen.saw_lines(REF, USER_KEY, View(1, "x"), lines, part.total_lines)
    assert seen.whole(REF, USER_KEY) == View(1, "x")

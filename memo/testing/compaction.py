"""What compaction promises: a shorter log, nothing lost, nothing torn apart, and nothing at all if it fails.

What a summary says is the business of whoever summarises.
"""

from __future__ import annotations

import contextlib
from typing import Any

from memo.testing.promises import Promise, expect, expect_equal
from memo.testing.talk import call, expect_no_orphan, new_talk, result, said


async def compaction_puts_a_summary_in_the_place_of_the_oldest(store: Any) -> None:
    at = await new_talk(store)
    log = [said(f"message {number} " + "word " * 50) for number in range(30)]
    await at.append(*log)
    given: list[Any] = []

    async def summarize(messages: list[Any]) -> str:
        given.extend(messages)
        return "they talked"

    expect(await at.compact(summarize, trigger_tokens=1_000_000) is False, "it compacted below the trigger")
    expect(await at.compact(summarize, trigger_tokens=10, min_messages=31) is False, "it compacted too few messages")
    expect_equal((given, await at.all()), ([], log), "what the summariser was given, and the log")
    expect(await at.compact(summarize, trigger_tokens=10) is True, "it did not compact")
    expect_equal(given, log[:15], "what the summariser was given")
    seen = await at.all()
    expect_equal(seen[1:], log[15:], "the tail")
    expect("they talked" in str(seen[0]["content"]), "the first message is not the summary")
    await at.append(said("after"))
    expect_equal((await at.all())[-1], said("after"), "the newest message after a compaction")


async def a_summariser_that_fails_or_says_nothing_changes_nothing(store: Any) -> None:
    at = await new_talk(store)
    log = [said(f"message {number}") for number in range(30)]
    await at.append(*log)

    async def fail(messages: list[Any]) -> str:
        raise ConnectionError("the model is away")

    async def say_nothing(messages: list[Any]) -> str:
        return "  \n"

    with contextlib.suppress(ConnectionError):
        expect(await at.compact(fail, force=True) is False, "a failed compaction says it compacted")
    expect_equal(await at.all(), log, "the log after the summariser failed")
    expect(await at.compact(say_nothing, force=True) is False, "an empty summary was used")
    expect_equal(await at.all(), log, "the log after the summariser said nothing")


async def compaction_never_splits_a_call_from_its_result(store: Any) -> None:
    at = await new_talk(store)
    log = [said("ask"), call("a"), result("a"), call("b"), result("b"), said("and"), call("c"), result("c")]
    await at.append(*log)
    for fraction in (0.25, 0.5, 0.9):
        await at.compact(lambda messages: f"summary of {len(messages)}", force=True, compact_fraction=fraction)
        expect_no_orphan(await at.all(), f"after a cut at {fraction}")


async def what_compaction_cut_stays_readable_for_ever(store: Any) -> None:
    at = await new_talk(store)
    log: list[dict[str, Any]] = []
    for turn in range(4):
        batch = [said(f"turn {turn} message {number}") for number in range(6)]
        log += batch
        await at.append(*batch)
        await at.compact(lambda messages: "a summary", force=True)
    expect(len(await at.all()) < len(log), "nothing was compacted")
    expect_equal(await store.load_full_history(at.tenant, at.session), log, "the full history")


async def compaction_extends_the_notes(store: Any) -> None:
    at = await new_talk(store)
    await store.write_memory_document(at.tenant, at.session, "session", "NOTES.md", "my notes\n")
    await at.append(*[said(str(number)) for number in range(10)])
    await at.compact(lambda messages: "they counted to ten", force=True)
    notes = await store.read_memory_document(at.tenant, at.session, "session", "NOTES.md")
    expect(notes.startswith("my notes\n") and "they counted to ten" in notes, f"the notes are {notes!r}")


COMPACTION_PROMISES: tuple[Promise, ...] = (
    compaction_puts_a_summary_in_the_place_of_the_oldest,
    a_summariser_that_fails_or_says_nothing_changes_nothing,
    compaction_never_splits_a_call_from_its_result,
)

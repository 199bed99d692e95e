"""What a memo provider promises.

Only the capabilities it has are checked; reading is always checked. All keys are legal: the daemon parses them at the
edge, and a plain provider need not check them again.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel

from memo.errors import MemoError
from memo.provider import capabilities_of
from memo.testing.artifacts import ARTIFACT_PROMISES, RICH_ARTIFACT_PROMISES, SNAPSHOT_PROMISES
from memo.testing.deletions import DELETION_PROMISES, MOVE_PROMISES
from memo.testing.promises import Factory, Promise, expect, expect_equal, fresh, keep, keep_one, made, together
from memo.testing.revisions import HISTORY_PROMISES, LISTING_PROMISES, REVISION_PROMISES

TEXTS = ("", "plain", "# Ünïcödé 日本 🜚\r\nline\n\ttab", " leading and trailing \n\n", "x" * 100_000)

Outage = Callable[[Any], Awaitable[None] | None]


async def check_provider(make: Factory, *, outage: Outage | None = None) -> None:
    """Check every capability the provider has. `outage` makes it unreachable, to check that it raises."""
    async with made(make) as provider:
        has = capabilities_of(provider)
    await keep(make, [a_document_never_written_is_none])
    if has.write:
        await keep(make, WRITE_PROMISES)
    if has.append:
        await keep(make, APPEND_PROMISES)
    if has.write_artifacts and has.read_artifacts and has.list_artifacts:
        await keep(make, ARTIFACT_PROMISES)
    if has.revisions:
        await keep(make, REVISION_PROMISES)
    if has.list_documents and has.revisions:
        await keep(make, LISTING_PROMISES)
    if has.history and has.revisions:
        await keep(make, HISTORY_PROMISES)
    if has.delete_documents and has.revisions and has.list_documents and has.history:
        await keep(make, DELETION_PROMISES)
        if has.move_documents:
            await keep(make, MOVE_PROMISES)
    if has.rich_artifacts:
        await keep(make, RICH_ARTIFACT_PROMISES)
    if has.snapshots and has.rich_artifacts and has.revisions:
        await keep(make, SNAPSHOT_PROMISES)
    if outage is not None:
        await _keep_in_outage(make, outage)


async def _keep_in_outage(make: Factory, outage: Outage) -> None:
    async with made(make) as provider:
        broken = outage(provider)
        if inspect.isawaitable(broken):
            await broken
        await keep_one(an_outage_never_looks_like_an_empty_document, provider)


async def an_outage_never_looks_like_an_empty_document(provider: Any) -> None:
    try:
        text = await provider.read_memory_document(fresh("t"), fresh("u"), "user", "USER.md")
    except (MemoError, OSError, ConnectionError):
        return
    expect(False, f"an unreachable store answered {text!r}")


# Specification: 001.21
async def a_document_never_written_is_none(provider: Any) -> None:
    for owner, scope, name in ((fresh("s"), "session", "NOTES.md"), (fresh("u"), "user", "USER.md")):
        text = await provider.read_memory_document(fresh("t"), owner, scope, name)
        expect(text is None, f"{name} of a new {scope} is {text!r}, expected None")


# Specification: 001.22
async def a_written_document_reads_back_exactly(provider: Any) -> None:
    tenant, session = fresh("t"), fresh("s")
    for text in TEXTS:
        await provider.write_memory_document(tenant, session, "session", "NOTES.md", text)
        seen = await provider.read_memory_document(tenant, session, "session", "NOTES.md")
        expect_equal(seen, text, "the text read")


# Specification: 001.22
async def tenants_owners_scopes_and_names_are_separate(provider: Any) -> None:
    one, two, three, four = fresh("t"), fresh("t"), fresh("o"), fresh("o")
    keys = [
        (tenant, owner, scope, name)
        for tenant in (one, two)
        for owner in (three, four)
        for scope in ("session", "user")
        for name in ("NOTES.md", "TODO.md", "notes.md")
    ]
    for key in keys:
        await provider.write_memory_document(*key, "/".join(key))
    for key in keys:
        expect_equal(await provider.read_memory_document(*key), "/".join(key), f"the text of {'/'.join(key)}")


async def a_name_may_have_several_segments(provider: Any) -> None:
    tenant, session = fresh("t"), fresh("s")
    names = ("memories/projects/x.md", "memories/projects/y.md", "memories/x.md", "x.md", "a/b/c/d/e/f/g/h")
    for name in names:
        await provider.write_memory_document(tenant, session, "session", name, f"text of {name}")
    for name in names:
        seen = await provider.read_memory_document(tenant, session, "session", name)
        expect_equal(seen, f"text of {name}", f"the text of {name}")


async def invalid_text_raises_and_changes_nothing(provider: Any) -> None:
    key = (fresh("t"), fresh("s"), "session", "NOTES.md")
    await provider.write_memory_document(*key, "before")
    bad = "half \ud800 of a pair"
    try:
        await provider.write_memory_document(*key, bad)
    except (MemoError, ValueError):
        expect_equal(await provider.read_memory_document(*key), "before", "the text after a refused write")
    else:
        expect_equal(await provider.read_memory_document(*key), bad, "the text after an accepted write")


async def readers_never_see_half_a_document(provider: Any) -> None:
    key = (fresh("t"), fresh("s"), "session", "NOTES.md")
    texts = [letter * 50_000 for letter in "ab"]
    await provider.write_memory_document(*key, texts[0])
    is_done = False

    async def write(_: int) -> None:
        nonlocal is_done
        for turn in range(20):
            await provider.write_memory_document(*key, texts[turn % 2])
        is_done = True

    async def read(_: int) -> None:
        while not is_done:
            seen = await provider.read_memory_document(*key)
            expect(seen in texts, f"a reader saw {_shape(seen)}, which was never written")
            await anyio.lowlevel.checkpoint()

    await together(3, lambda number: write(number) if number == 0 else read(number))


def _shape(text: str | None) -> str:
    return "None" if text is None else f"{len(text)} characters with {len(set(text))} different ones"


# Specification: 001.23
async def an_append_adds_to_the_end(provider: Any) -> None:
    key = (fresh("t"), fresh("s"), "session", "NOTES.md")
    await provider.append_memory_document(*key, "one\n")
    await provider.append_memory_document(*key, "two")
    await provider.append_memory_document(*key, "")
    expect_equal(await provider.read_memory_document(*key), "one\ntwo", "the text after the appends")


async def concurrent_appends_are_all_kept(provider: Any) -> None:
    key = (fresh("t"), fresh("s"), "session", "NOTES.md")
    await together(20, lambda number: provider.append_memory_document(*key, f"line {number}\n"))
    seen = sorted((await provider.read_memory_document(*key) or "").splitlines())
    expect_equal(seen, sorted(f"line {number}" for number in range(20)), "the lines after 20 appends at once")


WRITE_PROMISES: tuple[Promise, ...] = (
    a_written_document_reads_back_exactly,
    tenants_owners_scopes_and_names_are_separate,
    a_name_may_have_several_segments,
    invalid_text_raises_and_changes_nothing,
    readers_never_see_half_a_document,
)
APPEND_PROMISES: tuple[Promise, ...] = (an_append_adds_to_the_end, concurrent_appends_are_all_kept)

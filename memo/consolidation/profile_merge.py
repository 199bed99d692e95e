"""Merge a draft into the current page. What people wrote, changed or deleted wins over what is generated.

A line is generated if it is exactly as a run wrote it, in its section. Every other line stays unchanged. A missing
generated line was deleted by a person and becomes a tombstone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from memo.consolidation.page import Page, PageEdit, parse_page
from memo.consolidation.profile import (
    HISTORY,
    TITLES,
    Bullet,
    Correction,
    Part,
    ProfileDraft,
    ProfileMemory,
    ProfileRefused,
    Tombstone,
    WrittenBullet,
    is_alike,
    plain,
)

MAX_REPLACEMENTS = 5
"""How many replacements one merge names."""


@dataclass(frozen=True, slots=True)
class MergeLimits:
    bullets_per_part: int = 12
    tombstones: int = 500
    history_bytes: int = 2048
    least_fraction: float = 0.5
    """A draft with less than this fraction of the previous bullets is refused ..."""
    judged_from: int = 6
    """... if there were at least this many."""


@dataclass(frozen=True, slots=True)
class MergedProfile:
    """The page and the memory after a merge. `text` is unchanged if there was nothing to change."""

    text: str
    memory: ProfileMemory
    added: int
    changed: int
    gone: int
    replaced: tuple[Correction, ...] = ()
    """What this merge replaced; an earlier merge has noted the rest."""

    @property
    def is_changed(self) -> bool:
        return bool(self.added or self.changed or self.gone)


def merge_profile(
    current: str, memory: ProfileMemory, draft: ProfileDraft, now: datetime, limits: MergeLimits | None = None
) -> MergedProfile:
    """Return the new page. Raise ProfileRefused if the draft is much smaller than what it would replace."""
    limits = limits or MergeLimits()
    page = parse_page(current)
    generated = _find_generated(page, memory)
    noted = set(memory.history)  # the history names bullets; it does not state them
    by_hand = [text for i, text in page.bullets() if i not in generated and page.lines[i].rstrip() not in noted]
    tombstones = _bury(memory, generated, by_hand, now, limits)
    wanted = _wanted(draft.bullets, by_hand, tombstones, limits)
    _check_size(len(generated), len(wanted), limits)
    edit = PageEdit(page)
    written, added, changed = _place(edit, generated, wanted)
    gone = _remove_stale(edit, generated, {w.line for w in written})
    merged = replace(memory, written=tuple(written), tombstones=tombstones)
    merged = _put_summary(edit, merged, draft.summary)
    replaced = _replaced_now(draft.replaced, generated.values(), wanted)
    if added or changed or gone:
        counts = f"{added} new, {changed} changed, {gone} gone, {len(wanted)} in all"
        lines = [f"- {now:%Y-%m-%d %H:%M} UTC: {what}" for what in (counts, *map(str, replaced))]
        merged = _put_history(edit, merged, lines, limits)
    return MergedProfile(edit.apply(), merged, added, changed, gone, replaced)


def _find_generated(page: Page, memory: ProfileMemory) -> dict[int, WrittenBullet]:
    """Return the generated lines by number, except those to which a person added an indented note."""
    generated: dict[int, WrittenBullet] = {}
    for written in memory.written:
        section = page.section(written.bullet.part.value)
        index = None if section is None else page.find(written.line, section)
        if index is not None and index not in generated and page.continues(index) == index:
            generated[index] = written
    return generated


def _bury(
    memory: ProfileMemory, generated: dict[int, WrittenBullet], by_hand: list[str], now: datetime, limits: MergeLimits
) -> tuple[Tombstone, ...]:
    alive = {id(written) for written in generated.values()}
    present = {plain(text) for text in by_hand}
    deleted = [w.bullet.text for w in memory.written if id(w) not in alive and plain(w.bullet.text) not in present]
    kept = [t for t in memory.tombstones if plain(t.text) not in present]  # a person wrote it again
    known = {plain(t.text) for t in kept}
    new = [Tombstone(text, now) for text in deleted if plain(text) not in known]
    return tuple([*kept, *new][-limits.tombstones :])


def _wanted(
    bullets: Iterable[Bullet], by_hand: list[str], tombstones: tuple[Tombstone, ...], limits: MergeLimits
) -> list[Bullet]:
    unwanted = [*by_hand, *(t.text for t in tombstones)]
    wanted: list[Bullet] = []
    for part in Part:
        chosen: dict[str, Bullet] = {}
        for bullet in bullets:
            if bullet.part is part and len(chosen) < limits.bullets_per_part:
                said = plain(bullet.text)
                if said not in chosen and not any(is_alike(bullet.text, text) for text in unwanted):
                    chosen[said] = bullet
        wanted += chosen.values()
    return wanted


def _check_size(before: int, after: int, limits: MergeLimits) -> None:
    if before >= limits.judged_from and after < before * limits.least_fraction:
        raise ProfileRefused(f"cannot use this profile: it has {after} bullets and the current one has {before}")


def _place(
    edit: PageEdit, generated: dict[int, WrittenBullet], wanted: list[Bullet]
) -> tuple[list[WrittenBullet], int, int]:
    """Keep, replace or add each wanted bullet."""
    at = {(w.bullet.part, plain(w.bullet.text)): index for index, w in generated.items()}
    written: list[WrittenBullet] = []
    new: dict[Part, list[str]] = {}
    changed = 0
    for bullet in wanted:
        index = at.get((bullet.part, plain(bullet.text)))
        if index is None:
            new.setdefault(bullet.part, []).append(bullet.line)
        elif generated[index].line != bullet.line:
            edit.replaced[index] = bullet.line
            changed += 1
        written.append(WrittenBullet(bullet, bullet.line))
    for part, lines in new.items():
        last_generated = max((index for index, w in generated.items() if w.bullet.part is part), default=None)
        _add_lines(edit, part.value, lines, last_generated)
    return written, sum(map(len, new.values())), changed


def _remove_stale(edit: PageEdit, generated: dict[int, WrittenBullet], kept: set[str]) -> int:
    gone = [index for index, written in generated.items() if written.line not in kept and index not in edit.replaced]
    edit.removed.update(gone)
    return len(gone)


def _add_lines(edit: PageEdit, title: str, lines: list[str], after: int | None = None) -> None:
    """Add lines to a section, below the line `after` or at its end. Create a missing section where it belongs."""
    page = edit.page
    section = page.section(title)
    if section is not None:
        last = page.last_of(section)
        blank = [""] if after is None and last == section.heading else []
        edit.insert(last if after is None else after, [*blank, *lines])
        return
    before = TITLES[: TITLES.index(title)]
    above = next((s for s in map(page.section, reversed(before)) if s is not None), None)
    below = next((s for s in map(page.section, TITLES) if s is not None), None)
    block = [f"## {title}", "", *lines]
    if above is not None:
        edit.insert(page.last_of(above), ["", *block])
    elif below is not None:
        edit.insert(below.heading - 1, [*block, ""])
    else:
        last = next((i for i in range(len(page.lines) - 1, -1, -1) if page.lines[i].strip()), -1)
        edit.insert(last, ["", *block] if last >= 0 or edit.after.get(-1) else block)


def _put_summary(edit: PageEdit, memory: ProfileMemory, summary: str) -> ProfileMemory:
    line = f"<!-- summary: {summary} -->"
    if not summary or line == memory.summary:
        return memory
    if memory.summary:
        index = edit.page.find(memory.summary, None)
        if index is None:
            return memory  # a person changed or removed it
        edit.replaced[index] = line
    else:
        has_own = any(text.lstrip().startswith("<!-- summary:") for text in edit.page.lines)
        if has_own or edit.page.lines[0].startswith("---"):  # front matter must stay at the top
            return memory
        top = edit.after.get(-1, [])
        is_blank = not any(text.strip() for text in edit.page.lines)
        edit.after[-1] = [line, "# About the user", "", *top] if is_blank else [line, *top]
    return replace(memory, summary=line)


def _replaced_now(
    replaced: Iterable[Correction], before: Iterable[WrittenBullet], wanted: Iterable[Bullet]
) -> tuple[Correction, ...]:
    """Return the replacements whose newer bullet is wanted and was not on the page before this merge."""
    old = {plain(written.bullet.text) for written in before}
    new = {plain(bullet.text) for bullet in wanted} - old
    found = dict.fromkeys(r for r in replaced if plain(r.newer) in new or (plain(r.older) in old and r.newer))
    return tuple(found)[:MAX_REPLACEMENTS]


def _put_history(edit: PageEdit, memory: ProfileMemory, lines: list[str], limits: MergeLimits) -> ProfileMemory:
    page = edit.page
    section = page.section(HISTORY)
    if memory.is_history_unwanted or (memory.history and section is None):
        return replace(memory, is_history_unwanted=True)
    kept = [text for text in memory.history if section is not None and page.find(text, section) is not None]
    while kept and sum(len(text.encode()) + 1 for text in [*kept, *lines]) > limits.history_bytes:
        index = page.find(kept.pop(0), section)
        if index is not None:
            edit.removed.add(index)
    _add_lines(edit, HISTORY, lines)
    return replace(memory, history=(*kept, *lines))

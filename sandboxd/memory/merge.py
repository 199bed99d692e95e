"""Three-way merge of texts by lines, and the name under which a text that cannot be merged is kept. Pure.

Two changes collide when they overlap or touch. A collision, or a comparison that would take too long, gives None; the
caller then refuses the write and nothing is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from itertools import accumulate

from memo.document_names import MOST_NAME_BYTES
from memo.documents import DocumentKey, DocumentName

MOST_STEPS = 2_000_000
"""Steps of one comparison, about a third of a second. Counted, not timed, so that a merge is deterministic."""

_MOST_SEGMENT = 128
_MOST_SUFFIX = 32  # leaves room for the start of the stem even with the longest mark


@dataclass(frozen=True, slots=True)
class MergedText:
    """`text` has both changes; `theirs` shows the other side's changes as hunks of removed and added lines."""

    text: str
    theirs: str


def merge(base: str, mine: str, theirs: str) -> MergedText | None:
    """Return a text with both changes, or None if they collide or take too long to compare."""
    before = lines_of(base)
    try:
        ours = _changes(before, lines_of(mine)) if mine != base else []
        others = _changes(before, lines_of(theirs)) if theirs != base else []
    except _TooLong:
        return None
    merged: list[str] = []
    shown: list[str] = []
    done = 0  # how many lines of `before` are in `merged`
    for left, right in _groups(ours, others):
        start, end = _span([*left, *right])
        merged += before[done:start]
        new = _apply(before, left or right, start, end)
        if left and right and new != _apply(before, right, start, end):
            return None
        if not left:
            shown += _hunk(len(merged) + 1, before[start:end], new)
        merged += new
        done = end
    return MergedText("".join(merged + before[done:]), "".join(shown))


def contains(text: str, other: str) -> bool:
    """Return whether a text has every line of the other, unchanged and in order."""
    left = iter(lines_of(text))
    return all(line in left for line in lines_of(other))


def lines_of(text: str) -> list[str]:
    """Split at newlines only, as the Read tool counts lines; every line keeps its newline."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def copy_key(key: DocumentKey, base: int, mark: str) -> DocumentKey:
    """Return the key for a conflicting text: next to its document, named after the revision it was based on."""
    directory, slash, file = key.name.rpartition("/")
    stem, dot, suffix = file.rpartition(".")
    if not dot:
        stem, suffix = file, ""
    tail = f".conflict-{base}-{mark}{dot}{suffix[:_MOST_SUFFIX]}"
    copy = stem[: _MOST_SEGMENT - len(tail)] + tail
    if len(directory) + 1 + len(copy) > MOST_NAME_BYTES:
        directory = slash = ""  # no room below such a long path
    return DocumentKey(key.tenant, key.owner, key.scope, DocumentName(f"{directory}{slash}{copy}"))


@dataclass(frozen=True, slots=True)
class _Change:
    """Lines `start` to before `end` of the base become `lines`."""

    start: int
    end: int
    lines: list[str]


class _TooLong(Exception):
    """The comparison needs more than MOST_STEPS."""


class _Matcher(SequenceMatcher[str]):
    """A comparison with a bounded number of steps: with many equal lines, plain difflib is worse than quadratic."""

    def __init__(self, a: Sequence[str], b: Sequence[str]) -> None:
        super().__init__(None, a, b, autojunk=False)  # no line is junk: a frequent line may be a change too
        self._steps_left = MOST_STEPS
        places = Counter(b)  # the search visits, for each line of `a`, its places in `b`
        self._steps_before = [0, *accumulate(1 + places[line] for line in a)]

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        ahi = len(self._steps_before) - 1 if ahi is None else ahi
        self._steps_left -= self._steps_before[ahi] - self._steps_before[alo]
        if self._steps_left < 0:
            raise _TooLong
        return super().find_longest_match(alo, ahi, blo, bhi)


def _changes(before: list[str], after: list[str]) -> list[_Change]:
    """Return the changes that turn one text into the other, in order. A common head and tail are skipped."""
    most = min(len(before), len(after))
    head = next((n for n in range(most) if before[n] != after[n]), most)
    most -= head
    tail = next((n for n in range(most) if before[-1 - n] != after[-1 - n]), most)
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    return [
        _Change(head + start, head + end, new[low:high])
        for tag, start, end, low, high in _Matcher(old, new).get_opcodes()
        if tag != "equal"
    ]


def _groups(ours: list[_Change], others: list[_Change]) -> list[tuple[list[_Change], list[_Change]]]:
    """Group the changes of both sides that overlap or touch."""
    groups: list[tuple[list[_Change], list[_Change]]] = []
    reach = -1
    tagged = [(change, 0) for change in ours] + [(change, 1) for change in others]
    for change, side in sorted(tagged, key=lambda one: (one[0].start, one[0].end)):
        if change.start > reach:
            groups.append(([], []))
        groups[-1][side].append(change)
        reach = max(reach, change.end)
    return groups


def _span(changes: list[_Change]) -> tuple[int, int]:
    return min(change.start for change in changes), max(change.end for change in changes)


def _apply(before: list[str], changes: list[_Change], start: int, end: int) -> list[str]:
    """Return these lines of the base with one side's changes applied."""
    result: list[str] = []
    for change in changes:
        result += before[start : change.start] + change.lines
        start = change.end
    return result + before[start:end]


def _hunk(line: int, removed: list[str], added: list[str]) -> list[str]:
    marked = [f"-{text}" for text in removed] + [f"+{text}" for text in added]
    return [f"@@ line {line} @@\n", *(text if text.endswith("\n") else f"{text}\n" for text in marked)]

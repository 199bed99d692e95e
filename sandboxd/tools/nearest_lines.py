"""Why a text was not found in a file: what differs, and the lines that are nearest to it.

The work is bounded, whatever the file and the text contain: both are cut, words are compared before characters, and
characters only in the best few places.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Iterator, Sequence

MAX_TEXT_CHARS = 524_288
_MAX_OLD_CHARS = 16_384
_MAX_LINES = 20_000
_MOST_WANTED = 200
_MOST_SHOWN = 12
_SHOWN_CHARS = 200
_COMPARED_CHARS = 300
_CANDIDATES = 5
_WORD = re.compile(r"\w+")
_LINE_NUMBER = re.compile(r"[ \t]*\d+\t")
_TYPOGRAPHIC = str.maketrans("\u201c\u201d\u2018\u2019\u2013\u2014\u00a0", "\"\"''-- ")
_LEAST_RATIO = 0.4


def explain_mismatch(text: str, old: str) -> str:
    """Return the difference between `old` and the nearest part of the text, with its lines as Read shows them."""
    text, old = text[:MAX_TEXT_CHARS], old[:_MAX_OLD_CHARS]
    lines = text.split("\n")[:_MAX_LINES]
    if not old.strip():
        return "old_string is only whitespace; include the text around it."
    for reason, variant in _variants(text, old):
        position = text.find(variant) if reason != _CASE else text.lower().find(variant)
        if position >= 0:
            return f"{reason}\n{_show(lines, text.count(chr(10), 0, position), variant.count(chr(10)) + 1)}"
    wanted = old.strip("\n").split("\n")
    start = _find_by_words(lines, wanted)
    if start is not None:
        return f"{_whitespace(lines, start, wanted)}\n{_show(lines, start, len(wanted))}"
    start = _find_nearest(lines, wanted)
    if start is None:
        return f"No line of the file is similar; it has {len(lines) - (lines[-1] == '')} lines."
    return f"The nearest lines are:\n{_show(lines, start, len(wanted))}"


_CASE = "The file has this text in other letters (capital or small):"


def _variants(text: str, old: str) -> Iterator[tuple[str, str]]:
    """Yield texts that `old` may stand for, each with the mistake that it would be."""
    rows = old.split("\n")
    if all(_LINE_NUMBER.match(row) for row in rows if row):
        bare = "\n".join(_LINE_NUMBER.sub("", row, count=1) for row in rows)
        yield "old_string contains the line numbers that Read shows; leave out each number and the tab after it:", bare
    if "\r\n" in text and "\r" not in old and "\n" in old:
        yield (
            "The file ends its lines with CRLF, old_string with LF: use \\r\\n in both strings, or convert the file "
            "first with `sed -i 's/\\r$//'`:",
            old.replace("\n", "\r\n"),
        )
    if "\r\n" in old:
        yield "old_string ends its lines with CRLF, the file with LF; use \\n:", old.replace("\r\n", "\n")
    if "\\" in old:
        plain = old.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"').replace("\\\\", "\\")
        if plain.strip():
            yield (
                "old_string has a backslash where the file has the character itself (such as \\n for a line end); "
                "escape it once less:",
                plain,
            )
    if (plain := old.translate(_TYPOGRAPHIC)) != old:
        yield "old_string has typographic quotes, dashes or spaces where the file has plain ones:", plain
    yield _CASE, old.lower()


def _find_by_words(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Return the first line from which the wanted ones match except for whitespace."""
    if len(wanted) > _MOST_WANTED:
        return None
    squeezed = [" ".join(line.split()) for line in wanted]
    first, last, count = squeezed[0], squeezed[-1], len(squeezed)
    rows = [" ".join(line.split()) for line in lines]
    if count == 1:
        return next((index for index, row in enumerate(rows) if first in row), None)
    for index in range(len(rows) - count + 1):
        if (
            rows[index].endswith(first)
            and rows[index + count - 1].startswith(last)
            and rows[index + 1 : index + count - 1] == squeezed[1:-1]
        ):
            return index
    return None


def _whitespace(lines: Sequence[str], start: int, wanted: Sequence[str]) -> str:
    """Say how the whitespace of the lines differs from the wanted one."""
    for index, line in enumerate(wanted):
        found, number = lines[start + index], start + index + 1
        if _is_part(line, found, is_first=index == 0, is_last=index == len(wanted) - 1):
            continue
        ours, theirs = _indent(line), _indent(found)
        if ours != theirs and line.lstrip() in found.lstrip():
            return (
                f"Only whitespace differs: line {number} is indented with {_name(theirs)}, old_string with "
                f"{_name(ours)}. Copy it exactly:"
            )
        if found.endswith("\r") != line.endswith("\r"):
            where = "the file has it" if found.endswith("\r") else "old_string has it"
            return f"Only whitespace differs: line {number} ends with a carriage return (CRLF), and only {where}:"
        ours, theirs = line[len(line.rstrip()) :], found[len(found.rstrip()) :]
        if ours != theirs and line.rstrip() in found:
            return (
                f"Only whitespace differs: line {number} ends with {_name(theirs)}, old_string with {_name(ours)}. "
                "Copy it exactly:"
            )
        return f"Only whitespace differs, inside line {number}. Copy it exactly:"
    return "Only whitespace differs, at the beginning or the end. Copy it exactly:"


def _is_part(line: str, found: str, *, is_first: bool, is_last: bool) -> bool:
    """Return whether a line of a text fits a line of the file: the first may begin, the last may end, inside it."""
    if is_first and is_last:
        return line in found
    if is_first:
        return found.endswith(line)
    return found.startswith(line) if is_last else found == line


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _name(space: str) -> str:
    if not space:
        return "no whitespace"
    names = []
    for character, noun in ((" ", "space"), ("\t", "tab"), ("\r", "carriage return")):
        if count := space.count(character):
            names.append(f"{count} {noun}{'' if count == 1 else 's'}")
    return " and ".join(names) or "other whitespace"


def _find_nearest(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Return the line from which the text is most similar: by common words first, then by characters."""
    height = min(len(wanted), _MOST_SHOWN)
    words = set(_WORD.findall("\n".join(wanted[:height])[:_MAX_OLD_CHARS]))
    scores = [len(words.intersection(_WORD.findall(line[:_COMPARED_CHARS]))) for line in lines]
    sums, running = [], 0
    for index, score in enumerate(scores):
        running += score - (scores[index - height] if index >= height else 0)
        sums.append(running)
    # the sum at an index is that of the window that ends there
    ends = heapq.nlargest(_CANDIDATES, range(len(sums)), key=sums.__getitem__)
    starts = {max(0, end - height + 1) for end in ends if sums[end]}
    if not starts:  # no common word, as after a typing error
        starts = set(range(min(len(lines), 2000)))
        return _most_similar(lines, wanted, starts, quick=True)
    return _most_similar(lines, wanted, starts, quick=False)


def _most_similar(lines: Sequence[str], wanted: Sequence[str], starts: set[int], *, quick: bool) -> int | None:
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2("\n".join(wanted)[:_COMPARED_CHARS])
    best, best_ratio = None, _LEAST_RATIO if quick else 0.0
    for start in sorted(starts):
        matcher.set_seq1("\n".join(lines[start : start + len(wanted)])[:_COMPARED_CHARS])
        ratio = matcher.quick_ratio() if quick else matcher.ratio()
        if ratio > best_ratio:
            best, best_ratio = start, ratio
    return best


def _show(lines: Sequence[str], start: int, count: int) -> str:
    """Return lines with their numbers, one more on each side, cut to what a model needs."""
    first, end = max(0, start - 1), min(len(lines), start + min(count, _MOST_SHOWN) + 1)
    shown = [f"{first + index + 1:6}\t{line[:_SHOWN_CHARS]}" for index, line in enumerate(lines[first:end])]
    if count > _MOST_SHOWN:
        shown.append(f"[{count - _MOST_SHOWN} more lines]")
    return "\n".join(shown)

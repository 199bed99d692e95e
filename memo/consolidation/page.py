"""Page: USER.md as lines, headings and bullets, and an edit that touches only the lines it names.

All other lines stay byte-identical: unknown sections, prose, fences, comments, line endings. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_BULLET = re.compile(r"^\s*[-*+]\s+(.*)$")
_COMMENT = re.compile(r"<!--.*?-->")


@dataclass(frozen=True, slots=True)
class Section:
    """A level-two heading and its content: the lines `heading` + 1 up to, not including, `end`."""

    title: str
    heading: int
    end: int


@dataclass(frozen=True, slots=True)
class Page:
    lines: tuple[str, ...]
    newline: str
    sections: tuple[Section, ...]
    plain: frozenset[int]
    """The lines outside fences and comments."""

    def section(self, title: str) -> Section | None:
        """Return the first section with this title; if there is a second one, a person wrote it."""
        return next((s for s in self.sections if s.title.casefold() == title.casefold()), None)

    def bullets(self) -> Iterable[tuple[int, str]]:
        """Yield every list item of the page, and its text without comments."""
        for index in sorted(self.plain):
            found = _BULLET.match(self.lines[index].rstrip())
            if found:
                yield index, bullet_text(found.group(1))

    def find(self, line: str, section: Section | None) -> int | None:
        """Return the index of this exact line in the section, or on the page, or None."""
        inside = range(len(self.lines)) if section is None else range(section.heading + 1, section.end)
        return next((i for i in inside if i in self.plain and self.lines[i].rstrip() == line), None)

    def continues(self, index: int) -> int:
        """Return the last line of the item at the index; the indented lines below it belong to it."""
        last = index
        for after in range(index + 1, len(self.lines)):
            if not self.lines[after].strip() or not self.lines[after].startswith((" ", "\t")):
                break
            last = after
        return last

    def last_of(self, section: Section) -> int:
        """Return the last line of the section that is not blank."""
        return next(i for i in range(section.end - 1, section.heading - 1, -1) if self.lines[i].strip())


def bullet_text(item: str) -> str:
    return _COMMENT.sub("", item).strip()


def parse_page(text: str) -> Page:
    lines = tuple(text.split("\n"))
    plain = _plain_lines(lines)
    found = [(i, _HEADING.match(lines[i].rstrip())) for i in sorted(plain)]
    headings = [(i, len(match.group(1)), match.group(2)) for i, match in found if match]
    sections = []
    for number, (index, level, title) in enumerate(headings):
        if level == 2:
            end = next((i for i, below, _ in headings[number + 1 :] if below <= 2), len(lines))
            sections.append(Section(title, index, end))
    return Page(lines, "\r\n" if "\r\n" in text else "\n", tuple(sections), frozenset(plain))


def _plain_lines(lines: tuple[str, ...]) -> set[int]:
    """Return the lines outside fences and multi-line comments. An unclosed one counts as plain text."""
    plain: set[int] = set()
    index = 0
    while index < len(lines):
        end = _end_of_hidden(lines, index)
        if end is None:
            plain.add(index)
            index += 1
        else:
            index = end + 1
    return plain


def _end_of_hidden(lines: tuple[str, ...], index: int) -> int | None:
    fence = _FENCE.match(lines[index])
    if fence:
        mark = fence.group(1)
        closing = re.compile(rf"^ {{0,3}}{re.escape(mark[0])}{{{len(mark)},}}\s*$")
        return next((i for i in range(index + 1, len(lines)) if closing.match(lines[i].rstrip())), None)
    if "<!--" in _COMMENT.sub("", lines[index]):
        # A complete comment on one line does not close an open one: a generated one would close a person's comment and
        # be hidden.
        return next((i for i in range(index + 1, len(lines)) if "-->" in _COMMENT.sub("", lines[i])), None)
    return None


@dataclass(slots=True)
class PageEdit:
    """Changes to a page, by line number. They take effect in `apply`."""

    page: Page
    removed: set[int] = field(default_factory=set)
    replaced: dict[int, str] = field(default_factory=dict)
    after: dict[int, list[str]] = field(default_factory=dict)
    """The lines to insert after a line; -1 inserts at the top."""

    def insert(self, after: int, lines: Iterable[str]) -> None:
        self.after.setdefault(after, []).extend(lines)

    def apply(self) -> str:
        ending = self.page.newline.removesuffix("\n")
        result: list[str] = [line + ending for line in self.after.get(-1, [])]
        for index, line in enumerate(self.page.lines):
            if index in self.replaced:
                result.append(self.replaced[index] + ending)
            elif index not in self.removed:
                result.append(line)
            added = self.after.get(index, [])
            if added and index == len(self.page.lines) - 1 and line.strip():
                result[-1] = result[-1].rstrip("\r") + ending
                result += [*(text + ending for text in added), ""]  # the last line had no newline
            else:
                result += [text + ending for text in added]
        return "\n".join(result)

"""Write the column of tests in docs/specification.md: which tests defend each statement of the specification.

A test names the statements that it defends in a comment above it: `# Specification: 001.4, 001.5`. So does a promise of
the conformance kit. Usage: `.venv/bin/python -m scripts.statements`; tests/unit/test_statements.py fails when the page
is stale, a statement has no test, or a test names a statement that the page lacks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "specification.md"
SOURCES = ("tests", "memo/testing", "memo/turn/conformance.py", "memo/steps/conformance.py")
"""Where tests and promises are."""

_ID = r"\d{3}\.\d{1,3}"
_COMMENT = re.compile(rf"^\s*# Specification: ({_ID}(?:, {_ID})*)$")
_ROW = re.compile(rf"^\| ({_ID}) \| (.+) \| (.*) \| (.*) \|$")
_DEFINED = re.compile(r"^\s*(?:async )?def (\w+)")
_LOOSE = re.compile(r"#\s*Specification\b")


@dataclass(frozen=True, slots=True)
class Statement:
    """One row of the page. `deviation` says what differs and why; it is empty if the statement is kept as it is."""

    id: str
    text: str
    tests: str
    deviation: str

    def row(self) -> str:
        return f"| {self.id} | {self.text} | {self.tests} | {self.deviation} |"


def statements(page: str) -> list[Statement]:
    return [Statement(*match.groups()) for line in page.splitlines() if (match := _ROW.match(line))]


def named_tests() -> dict[str, list[str]]:
    """Return a link to every test, by the statement that it names. Raise ValueError at a comment that names none."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in _sources():
        for number, name in _named(path):
            found[number].append(f"[{name}](../{path.relative_to(ROOT)})")
    return dict(found)


def render(page: str, tests: dict[str, list[str]]) -> str:
    """Return the page with its column of tests brought up to date."""
    lines = []
    for line in page.splitlines():
        match = _ROW.match(line)
        if match is not None:
            row = Statement(*match.groups())
            line = replace(row, tests=", ".join(tests.get(row.id, []))).row()
        lines.append(line)
    return "\n".join(lines) + "\n"


def _sources() -> Iterator[Path]:
    for source in SOURCES:
        path = ROOT / source
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def _named(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each statement with the name of the test below the comment that names it."""
    numbers: list[str] = []
    for place, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if match := _COMMENT.match(line):
            numbers += match[1].split(", ")
        elif line.lstrip().startswith("#") and _LOOSE.search(line):
            raise ValueError(f"cannot read {path.relative_to(ROOT)}:{place}: write `# Specification: 001.4, 001.5`")
        elif numbers and (match := _DEFINED.match(line)):
            yield from ((number, match[1]) for number in numbers)
            numbers = []
    if numbers:
        raise ValueError(f"cannot read {path.relative_to(ROOT)}: no test follows the statements {', '.join(numbers)}")


def main() -> None:
    TARGET.write_text(render(TARGET.read_text(encoding="utf-8"), named_tests()), encoding="utf-8")


if __name__ == "__main__":
    main()

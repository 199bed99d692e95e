"""Calls to a runner and results that only the daemon sees: plain values, no transport.

Results that the API returns as they are, are models. Paths are absolute paths inside the container. Results
come from inside the container and are untrusted: the client checks their types and sizes before it builds these values.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sandboxd.models.command import DEFAULT_OUTPUT_BYTES, DEFAULT_TIMEOUT_S, ExecOutcome
from sandboxd.runner.inside.container_paths import WORKSPACE

MAX_TEXT_BYTES = 10_485_760


@dataclass(frozen=True, slots=True)
class Exec:
    """Run a command to its end. A string runs under `bash -lc` (or `sh -c`); a tuple is executed directly."""

    command: str | tuple[str, ...]
    cwd: str = WORKSPACE
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | AsyncIterable[bytes] = b""
    """A stream is read only as fast as the command reads it, and no further once the command has ended."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    """The limit for stdout and for stderr. Output beyond it is read and dropped, so that the command never blocks."""
    merge_stderr: bool = False
    """Whether stderr goes to stdout, in the order in which both are written."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """The terminal that a process is started in."""

    term: str = "xterm-256color"
    """TERM, unless the environment of the call sets it."""
    echo: bool = True
    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class ProcessLabel:
    """What a process is for. The runner refuses a second one with the same kind and name, and too many of a kind."""

    kind: str
    name: str
    most: int


class CommandResult(ExecOutcome):
    """How a command ended, and its output as bytes."""

    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class TextSlice:
    """Some lines of a text file."""

    lines: tuple[str, ...]
    first_line: int
    """1-based."""
    total_lines: int
    truncated: bool
    """Whether lines were left out, or a line was cut, to stay within the bounds."""
    is_total_exact: bool = True
    """Whether `total_lines` counts the whole file; if not, the file is large and has at least that many lines."""


@dataclass(frozen=True, slots=True)
class Edited:
    replacements: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GlobResult:
    paths: tuple[str, ...]
    """Newest first."""
    truncated: bool


@dataclass(frozen=True, slots=True)
class Grep:
    pattern: str
    path: str = WORKSPACE
    glob: str | None = None
    output_mode: Literal["content", "files_with_matches", "count"] = "files_with_matches"
    case_insensitive: bool = False
    multiline: bool = False
    timeout_s: float = 30.0
    max_output_bytes: int = 262_144


@dataclass(frozen=True, slots=True)
class GrepResult:
    text: str
    matched: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """What the workspace contains, measured for hosts that cannot enforce a quota."""

    bytes_used: int
    inodes_used: int

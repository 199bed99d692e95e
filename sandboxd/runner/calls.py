"""Calls to a runner and their results: plain values, no transport.

Paths are absolute paths inside the container. Results come from inside the container and are untrusted: the client
checks their types and sizes before it builds these values.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_MAX_TIMEOUT_S = 3600.0
"""The longest timeout of a command unless the daemon's settings raise it."""
MAX_TIMEOUT_S = 2_592_000.0
"""The longest timeout that the settings allow: 30 days."""
DEFAULT_OUTPUT_BYTES = 1_048_576
MAX_OUTPUT_BYTES = 16_777_216
MAX_STDIN_BYTES = 16_777_216
"""The bound of stdin that is given as bytes. A stream has none."""
MAX_READ_BYTES = 1_048_576
"""How much of a process's output the runner keeps, and so the most that one read can return."""
MAX_FILE_BYTES = 1_073_741_824
MAX_TEXT_BYTES = 10_485_760

Limit = Literal["memory", "pids"]
SignalName = Literal[
    "HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "USR2", "PIPE", "ALRM", "TERM", "CONT", "STOP", "TSTP", "WINCH"
]
SignalTarget = Literal["process", "foreground", "children"]
"""The process itself; the foreground process group of its terminal; everything it started, but not itself."""


@dataclass(frozen=True, slots=True)
class Exec:
    """Run a command to its end. A string runs under `bash -lc` (or `sh -c`), a tuple runs as it is."""

    command: str | tuple[str, ...]
    cwd: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | AsyncIterable[bytes] = b""
    """A stream is read as fast as the command reads it, and no further once the command has ended."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    """For stdout and stderr each. Output beyond it is read and dropped, so the command never blocks on it."""
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
class ExecResult:
    exit_code: int | None
    """128 + n after signal n, as in a shell; None after a timeout."""
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    duration_ms: float
    limits_hit: tuple[Limit, ...] = ()
    """Limits of the sandbox that the kernel enforced while this ran."""


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of a streamed command's output."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Process:
    """A background process. Its stdout and stderr are one stream of bytes, numbered from 0."""

    id: str
    command: str
    started_at: float
    running: bool
    exit_code: int | None
    output_bytes: int
    """How many bytes it has written so far, which is the offset where new output starts."""
    ended_by: str | None = None
    """The signal after which nothing of a process that was told to end was left."""


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    process: Process
    offset: int
    """Where `data` starts: later than asked for when older output has been dropped."""
    data: bytes
    next_offset: int


@dataclass(frozen=True, slots=True)
class FileStat:
    path: str
    size_bytes: int
    mode: int
    modified_at: float


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
    path: str = "/workspace"
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

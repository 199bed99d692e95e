"""The runner's protocol on the daemon's side: turns calls into frames, and frames into results. Pure.

The frames themselves are defined once, in `inside/wire.py`, which both sides import. Answers come from inside a
container: every field is checked here, and a wrong one is a WireError, never another exception.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from sandboxd.errors import (
    Busy,
    Conflict,
    DirectoryNotEmpty,
    FileExists,
    FileNotFound,
    InvalidRequest,
    IsADirectory,
    LimitReached,
    NotADirectory,
    NotFound,
    NothingListens,
    OutsideSandbox,
    PermissionDenied,
    ProcessNotFound,
    ReadOnly,
    SandboxdError,
    SandboxError,
    ToolTimeout,
    WorkspaceFull,
)
from sandboxd.models.command import DEFAULT_MAX_TIMEOUT_S, MAX_OUTPUT_BYTES, MAX_STDIN_BYTES
from sandboxd.models.files import ArchiveSummary, FileEvent, FileEventKind, FileInfo, FileType, shown_path
from sandboxd.models.network import ListeningPort
from sandboxd.models.process import KilledProcess, Process, ProcessOutput, SignalName
from sandboxd.runner.calls import (
    CommandResult,
    Edited,
    Exec,
    GlobResult,
    Grep,
    GrepResult,
    Terminal,
    TextSlice,
    Usage,
)
from sandboxd.runner.inside import wire
from sandboxd.runner.inside.listening_ports import MAX_PORTS
from sandboxd.runner.inside.wire import WireError

ENTRANCE_LEVEL = 4
"""The level of runners that open streams to the daemon."""
RUNNER_DIR = Path(__file__).with_name("inside")
"""Mounted read-only at RUNNER_TARGET."""
RUNNER_TARGET = "/run/sandboxd-runner"
RUN_TARGET = "/run/sandboxd"
CONTEXT = "context"
"""The kind of a process that serves a context, in its label."""
RUNNER_COMMAND = ("python3", "-I", "-S", "-B", f"{RUNNER_TARGET}/server.py", RUN_TARGET)

Head = Mapping[str, Any]

_LIMITS = (
    (wire.MEMORY_HIT, "memory"),
    (wire.PIDS_HIT, "pids"),
    (wire.WORKSPACE_HIT, "workspace"),
    (wire.TMP_HIT, "tmp"),
)
_MAX_INTEGER = 2**63
_MAX_MESSAGE = 1_000
_ERRORS: dict[str, type[SandboxdError]] = {
    kind.__name__: kind
    for kind in (
        *(Busy, Conflict, InvalidRequest, LimitReached, NotFound, OutsideSandbox, ProcessNotFound, SandboxError),
        *(DirectoryNotEmpty, NothingListens, ToolTimeout),
        *(FileExists, FileNotFound, IsADirectory, NotADirectory, PermissionDenied, ReadOnly, WorkspaceFull),
    )
}


@dataclass(frozen=True, slots=True)
class Hello:
    """What a runner reports about itself when it connects."""

    pid: int
    python: str
    protocol: int
    started_at: float
    level: int = 0
    """What it supports beyond its protocol version; see `wire.LEVEL`."""
    problem: str = ""
    """Why the image cannot run the runner; empty if it can."""


def integer(head: Head, name: str) -> int:
    value = head.get(name)
    if type(value) is not int or not 0 <= value < _MAX_INTEGER:
        raise WireError(f"a {name} that is not a number")
    return value


def number(head: Head, name: str) -> float:
    value = head.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < _MAX_INTEGER:
        raise WireError(f"a {name} that is not a number")
    return float(value)


def timestamp(head: Head, name: str) -> float:
    """Return a file's time, which may be before 1970."""
    value = head.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not -_MAX_INTEGER < value < _MAX_INTEGER:
        raise WireError(f"a {name} that is not a time")
    return float(value)


def text(head: Head, name: str, most: int = 4_096) -> str:
    value = head.get(name)
    if type(value) is not str or len(value) > most:
        raise WireError(f"a {name} that is not text")
    return value.encode("utf-8", "replace").decode("utf-8")


def truth(head: Head, name: str) -> bool:
    value = head.get(name, False)
    if type(value) is not bool:
        raise WireError(f"a {name} that is not true or false")
    return value


def exit_code(head: Head) -> int | None:
    value = head.get("code")
    if value is not None and (type(value) is not int or not 0 <= value <= 255):
        raise WireError("an invalid exit code")
    return value


def read_hello(head: Head) -> Hello:
    return Hello(
        pid=integer(head, "pid"),
        python=text(head, "python", 64),
        protocol=integer(head, "version"),
        started_at=number(head, "started_at"),
        level=integer({"level": 0, **head}, "level"),
        problem=text(head, "problem", 500),
    )


def read_error(head: Head) -> SandboxdError:
    """Return the runner's error as one of the daemon's own. Its message is untrusted, so it is bounded and cleaned."""
    message = text(head, "message", _MAX_MESSAGE * 2)[:_MAX_MESSAGE]
    message = "".join(character if character.isprintable() else "?" for character in message)
    if not message.startswith("cannot"):
        message = f"cannot do this: {message}"
    return _ERRORS.get(text(head, "code", 64), SandboxError)(message)


def exec_head(call: Exec, *, stream: bool = False, max_timeout_s: float = DEFAULT_MAX_TIMEOUT_S) -> dict[str, Any]:
    """Return the head of a call that runs a command; raise InvalidRequest if no container could run it."""
    _check_timeout("run this", call.timeout_s, max_timeout_s)
    if not 0 <= call.max_output_bytes <= MAX_OUTPUT_BYTES:
        raise InvalidRequest(f"cannot run this: max_output_bytes must be 0 to {MAX_OUTPUT_BYTES}")
    if isinstance(call.stdin, bytes) and len(call.stdin) > MAX_STDIN_BYTES:
        raise InvalidRequest(
            f"cannot run this: stdin has {len(call.stdin)} bytes, and the limit is {MAX_STDIN_BYTES}; stream it instead"
        )
    if not call.cwd.startswith("/"):
        raise InvalidRequest("cannot run this: the working directory must be absolute")
    _check_text(call.command if isinstance(call.command, str) else "".join(call.command), "command")
    _check_text(call.cwd, "working directory")
    head: dict[str, Any] = {
        "op": "exec",
        "cwd": call.cwd,
        "env": checked_env(call.env),
        "timeout": call.timeout_s,
        "max": call.max_output_bytes,
    }
    if isinstance(call.command, str):
        head["shell"] = call.command
    elif call.command and call.command[0]:
        head["argv"] = list(call.command)
    else:
        raise InvalidRequest("cannot run this: the command is empty")
    if stream:
        head["stream"] = True
    if call.merge_stderr:
        head["merge"] = True
        head["level"] = 1
    return head


def configure_head(env: Mapping[str, str], proxy: int) -> dict[str, Any]:
    """Return the head of a call that sets the environment, and opens the proxy's entrance for this many streams."""
    head: dict[str, Any] = {"op": "configure", "env": dict(env)}
    return {**head, "proxy": proxy, "level": ENTRANCE_LEVEL} if proxy else head


def terminal_head(terminal: Terminal) -> dict[str, Any]:
    """Return the terminal's fields of a start's head; every runner supports the default terminal."""
    if terminal == Terminal():
        return {"tty": True}
    check_size("start a process", terminal.rows, terminal.columns)
    _check_text(terminal.term, "terminal type")
    options = {"term": terminal.term, "rows": terminal.rows, "columns": terminal.columns, "echo": terminal.echo}
    return {"tty": True, "terminal": options, "level": 1}


def check_size(action: str, rows: int, columns: int) -> None:
    if not (0 < rows < 65_536 and 0 < columns < 65_536):
        raise InvalidRequest(f"cannot {action}: rows and columns must be 1 to 65535")


def _check_timeout(action: str, timeout_s: float, max_timeout_s: float) -> None:
    if not 0 < timeout_s <= max_timeout_s:
        raise InvalidRequest(
            f"cannot {action}: timeout_s must be more than 0 and at most {max_timeout_s:.10g}; "
            "the daemon's setting max_timeout_s raises it"
        )


def checked_env(env: Mapping[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not name or "=" in name:
            raise InvalidRequest("cannot use this environment: a name must not be empty or contain =")
        _check_text(name + value, "environment")
    return dict(env)


def _check_text(text: str, noun: str) -> None:
    if "\0" in text:
        raise InvalidRequest(f"cannot use this {noun}: it contains a NUL")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequest(f"cannot use this {noun}: it is not valid UTF-8") from None


def read_command_result(head: bytes, stdout: bytes, stderr: bytes) -> CommandResult:
    flags, code, duration_ms, _size = wire.read_exited(head)
    return CommandResult(
        exit_code=None if flags & wire.NO_CODE else code,
        stdout=stdout,
        stderr=stderr,
        timed_out=bool(flags & wire.TIMED_OUT),
        truncated=bool(flags & wire.TRUNCATED),
        duration_ms=round(duration_ms, 3),
        limits_hit=_read_limits(flags) if flags else (),
    )


def _read_limits(flags: int) -> tuple[str, ...]:
    return tuple(limit for bit, limit in _LIMITS if flags & bit)


def moment(seconds: float) -> datetime | None:
    """Return a time set inside the container, where it may be any number; None if it is not a valid date."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def read_process(head: Head) -> Process:
    return Process(
        id=text(head, "id", 16),
        command=text(head, "command"),
        started_at=moment(number(head, "started_at")),
        running=truth(head, "running"),
        exit_code=exit_code(head),
        output_bytes=integer(head, "size"),
        tty=truth(head, "tty") if "tty" in head else None,
        context=_read_context(head.get("label")),
    )


def _read_context(label: object) -> str | None:
    if label is None:
        return None
    if not isinstance(label, list) or len(label) != 2 or not all(type(part) is str for part in label):
        raise WireError("an invalid label")
    kind, name = label
    return text({"name": name}, "name", 64) if kind == CONTEXT else None


def read_killed(head: Head, asked: SignalName) -> KilledProcess:
    """Return a process that was sent this signal to end it."""
    was_killed = truth({"killed": True, **head}, "killed")
    return KilledProcess(**{**dict(read_process(head)), "ended_by": "KILL" if was_killed else asked})


def read_processes(head: Head) -> list[Process]:
    items = head.get("items")
    if type(items) is not list or len(items) > 256 or not all(type(item) is dict for item in items):
        raise WireError("an invalid list of items")
    return [read_process(item) for item in items]


def read_ports(head: Head) -> list[ListeningPort]:
    items = head.get("items")
    if type(items) is not list or len(items) > MAX_PORTS or not all(type(item) is dict for item in items):
        raise WireError("an invalid list of ports")
    ports = [_read_port(item) for item in items]
    if any(later.port <= earlier.port for earlier, later in pairwise(ports)):
        raise WireError("ports that are not in order")
    return ports


def _read_port(head: Head) -> ListeningPort:
    port = integer(head, "port")
    if not 1 <= port <= 65_535:
        raise WireError("an invalid port")
    return ListeningPort(
        port=port,
        process=text(head, "process", 16) if "process" in head else None,
        pid=integer(head, "pid") if "pid" in head else None,
        command=text(head, "command", 64) if "command" in head else None,
    )


def read_has_processes(head: Head) -> bool:
    # A runner of an earlier version counts only what it started in the background.
    alive = integer(head, "alive") if "alive" in head else 0
    return alive > 0 or any(process.running for process in read_processes(head))


def read_process_output(head: Head, data: bytes) -> ProcessOutput:
    offset = integer(head, "offset")
    return ProcessOutput(process=read_process(head), offset=offset, data=data, next_offset=offset + len(data))


def read_taken(head: Head, most: int) -> int:
    taken = integer(
        {"taken": most, **head}, "taken"
    )  # a runner of the previous version answers only when everything is taken
    if taken > most:
        raise WireError("a count of taken bytes larger than the write")
    return taken


def read_stat(head: Head, path: str | None = None) -> FileInfo:
    """Return a file's properties. The caller's path is used if given, because the runner could return any other."""
    return FileInfo.of(
        text(head, "path") if path is None else path,
        integer(head, "size"),
        integer(head, "mode"),
        moment(timestamp(head, "mtime")),
    )


def read_archive_summary(head: Head) -> ArchiveSummary:
    return ArchiveSummary(entries=integer(head, "entries"), bytes=integer(head, "bytes"))


def read_entries(directory: str, data: bytes) -> Iterator[FileInfo]:
    """Yield the entries of a page one by one, because a page may have thousands."""
    prefix = directory.rstrip("/") + "/"
    offset = 0
    while offset < len(data):
        try:
            size, mode, size_bytes, modified_at = wire.ENTRY.unpack_from(data, offset)
        except struct.error:
            raise WireError("an entry that is cut short") from None
        start = offset + wire.ENTRY.size
        offset = start + size
        name = data[start:offset]
        if offset > len(data) or not 0 < size < 256 or b"/" in name:
            raise WireError("an entry without a valid name")
        if size_bytes >= _MAX_INTEGER or not -_MAX_INTEGER < modified_at < _MAX_INTEGER:
            raise WireError("an entry with an invalid size or time")
        yield FileInfo.of(prefix + name.decode("utf-8", "surrogateescape"), size_bytes, mode, moment(modified_at))


_EVENTS: tuple[FileEventKind, ...] = ("ready", "created", "changed", "removed", "overflow")
_TYPES: tuple[FileType | None, ...] = (None, "file", "directory", "symlink", "other")


def read_file_events(directory: str, data: bytes) -> Iterator[FileEvent]:
    """Yield the events of one frame of a watch."""
    prefix = directory.rstrip("/") + "/"
    offset = 0
    while offset < len(data):
        try:
            kind, number, size = wire.WATCHED.unpack_from(data, offset)
        except struct.error:
            raise WireError("an event that is cut short") from None
        start = offset + wire.WATCHED.size
        offset = start + size
        path = data[start:offset]
        if offset > len(data) or kind >= len(_EVENTS) or number >= len(_TYPES) or size > wire.MAX_WATCHED_PATH_BYTES:
            raise WireError("an invalid event")
        if size and any(part in (b"", b".", b"..") or b"\0" in part for part in path.split(b"/")):
            raise WireError("an event with an invalid path")
        if not size:  # about the directory itself
            yield FileEvent(event=_EVENTS[kind], path=shown_path(directory), type="directory")
        else:
            shown = shown_path(prefix + path.decode("utf-8", "surrogateescape"))
            yield FileEvent(event=_EVENTS[kind], path=shown, type=_TYPES[number])


def read_next(directory: str, head: Head) -> str | None:
    """Return the path after which the next page of a directory begins; None if there is none."""
    name = head.get("next")
    if type(name) is not str or len(name) > 255:
        raise WireError("an invalid name of the next page")
    return shown_path(f"{directory.rstrip('/')}/{name}") if name else None


def read_text_slice(head: Head, data: bytes) -> TextSlice:
    total = integer(head, "total")
    count = integer(head, "count")
    lines = tuple(data.decode("utf-8", "replace").split("\n")) if count else ()
    if len(lines) != count:
        raise WireError("an invalid number of lines")
    return TextSlice(
        lines=lines,
        first_line=integer(head, "first"),
        total_lines=total,
        truncated=truth(head, "truncated"),
        is_total_exact=truth({"exact": True, **head}, "exact"),
    )


def read_edited(head: Head) -> Edited:
    return Edited(replacements=integer(head, "replacements"), size_bytes=integer(head, "size"))


def read_glob(head: Head, data: bytes) -> GlobResult:
    paths = tuple(data.decode("utf-8", "replace").split("\0")) if data else ()
    return GlobResult(paths=paths, truncated=truth(head, "truncated"))


def grep_head(call: Grep, max_timeout_s: float = DEFAULT_MAX_TIMEOUT_S) -> dict[str, Any]:
    _check_timeout("search", call.timeout_s, max_timeout_s)
    if not 0 <= call.max_output_bytes <= MAX_OUTPUT_BYTES:
        raise InvalidRequest(f"cannot search: max_output_bytes must be 0 to {MAX_OUTPUT_BYTES}")
    if "\0" in call.pattern or "\0" in (call.glob or ""):
        raise InvalidRequest("cannot search: the pattern contains a NUL")
    return {
        "op": "grep",
        "pattern": call.pattern,
        "path": call.path,
        "glob": call.glob,
        "mode": call.output_mode,
        "insensitive": call.case_insensitive,
        "multiline": call.multiline,
        "timeout": call.timeout_s,
        "max": call.max_output_bytes,
    }


def read_usage(head: Head) -> Usage:
    return Usage(bytes_used=integer(head, "bytes"), inodes_used=integer(head, "inodes"))


def read_grep(call: Grep, result: CommandResult) -> GrepResult:
    """Interpret the exit code as ripgrep does: 0 found, 1 nothing found, 2 an error, possibly with some matches."""
    if result.timed_out:
        raise ToolTimeout(f"cannot finish the search: it took longer than {call.timeout_s:g} s")
    if result.exit_code not in (0, 1, 2) and "memory" in result.limits_hit:
        raise SandboxError("cannot finish the search: it needs more memory than the sandbox has; search a smaller path")
    if result.exit_code not in (0, 1) and result.stderr:
        raise InvalidRequest(f"cannot search: {_reason_of(result.stderr)}")
    if result.exit_code not in (0, 1, 2):
        raise SandboxError(f"cannot search: the search ended with exit code {result.exit_code}")
    return GrepResult(
        text=result.stdout.decode("utf-8", "replace"), matched=bool(result.stdout), truncated=result.truncated
    )


def _reason_of(stderr: bytes) -> str:
    lines = [line.strip() for line in stderr[:4096].decode("utf-8", "replace").splitlines() if line.strip()]
    return (lines[0] if lines else "unknown reason")[:300]

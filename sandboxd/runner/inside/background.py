"""Background processes: started, listed, read from any offset, written to, signalled, killed. They outlive the daemon.

Output is one ring of bytes per process with absolute offsets. The number of processes, their output and their unread
stdin are bounded.
"""

from __future__ import annotations

import os
import signal
import time

from . import wire
from .failure import Failure
from .hub import READABLE, exit_code_of
from .pipes import Feeder, close_all, open_pipe
from .spawn import NotStarted, make_env, prefer_for_oom
from .terminal import TERMINAL_EOF, foreground_group, open_terminal, resize_terminal
from .tree import end_tree, kill_tree, run_killing, signal_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from .core import RunnerCore
    from .hub import Timer
    from .tree import Proc

MAX_PROCESSES = 64
RING_BYTES = 1_048_576
MAX_COMMAND_CHARACTERS = 1_024
READS_AT_EXIT = 256
"""Enough for all that a full pipe (1 MiB, 64 KiB a read) or terminal (64 KiB, 4 KiB a read) holds at an exit."""
TERMINAL = {"term": "xterm-256color", "rows": 24, "columns": 80, "echo": True}


class Background:
    """One process, its output so far and the calls that wait for more."""

    def __init__(self, runner: RunnerCore, process_id: str, head: dict[str, Any]) -> None:
        self.id = process_id
        self._runner = runner
        self._hub = runner.hub
        self._command = (head.get("shell") or " ".join(head["argv"]))[:MAX_COMMAND_CHARACTERS]
        self._is_tty = bool(head.get("tty"))
        self.label: tuple[str, str] | None = tuple(head["label"]) if "label" in head else None
        """The kind and name of a process that the daemon started for itself, such as a context."""
        self._started_at = time.time()
        self._ring = bytearray()
        self._dropped_bytes = 0
        self._exit_code: int | None = None
        self._readers: dict[int, Callable[[], None]] = {}
        self.feeder: Feeder | None = None
        self._start(head)

    def _start(self, head: dict[str, Any]) -> None:
        env = make_env(self._runner.env, head["env"], head["cwd"])
        argv = head.get("argv") or [*self._runner.shell, head["shell"]]
        actions: tuple[tuple[Any, ...], ...]
        if self._is_tty:
            options = {**TERMINAL, **head.get("terminal", {})}
            env = {**env, "TERM": options["term"], **head["env"]}
            output, child_end, name = open_terminal(options["rows"], options["columns"], options["echo"])
            given, write_stdin = [child_end], os.dup(output)
            # opened by the child after its setsid, which makes it the controlling terminal
            actions = ((os.POSIX_SPAWN_OPEN, 0, name, os.O_RDWR, 0),)
            actions += ((os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2))
        else:
            output, child_output = open_pipe()
            child_stdin, write_stdin = os.pipe2(os.O_CLOEXEC)
            given = [child_output, child_stdin]
            actions = ((os.POSIX_SPAWN_DUP2, child_stdin, 0), (os.POSIX_SPAWN_DUP2, child_output, 1))
            actions += ((os.POSIX_SPAWN_DUP2, child_output, 2),)
        try:
            self._pid, self.mark = self._runner.spawner.spawn(argv, env, head["cwd"], actions)
        except (NotStarted, Failure) as error:
            close_all(output, write_stdin)
            if isinstance(error, NotStarted):
                raise Failure("InvalidRequest", f"cannot start {error.message.strip()}") from None
            raise
        finally:
            close_all(*given)
        prefer_for_oom(self._hub, self._pid)
        self._output = output
        self._hub.on_exit(self._pid, self._exited)
        self._hub.watch(output, READABLE, self._read)
        self.feeder = Feeder(self._hub, write_stdin, lambda _size: self._wake())

    @property
    def is_running(self) -> bool:
        return self._exit_code is None

    @property
    def end(self) -> int:
        return self._dropped_bytes + len(self._ring)

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "command": self._command,
            "started_at": self._started_at,
            "running": self.is_running,
            "code": self._exit_code,
            "size": self.end,
            "tty": self._is_tty,
            **({"label": self.label} if self.label else {}),
        }

    def has_news(self, offset: int) -> bool:
        # An exit is news even if what the process left behind keeps its output open.
        return self.end > offset or not self.is_running

    def slice(self, offset: int, limit: int) -> tuple[int, bytes]:
        """Return the offset where the data actually starts, and the data."""
        start = min(max(offset, self._dropped_bytes), self.end)
        position = start - self._dropped_bytes
        return start, bytes(self._ring[position : position + limit])

    def on_change(self, key: int, action: Callable[[], None]) -> None:
        self._readers[key] = action

    def off_change(self, key: int) -> None:
        self._readers.pop(key, None)

    def send_eof(self) -> None:
        if self.feeder is None:
            return
        if self._is_tty:
            self.feeder.feed(TERMINAL_EOF)
        else:
            self.feeder.end()

    def resize(self, rows: int, columns: int) -> None:
        if not self._is_tty:
            raise Failure("InvalidRequest", f"cannot resize {self.id}: it has no terminal")
        if self._output >= 0:
            resize_terminal(self._output, rows, columns)

    def signal(self, number: int, to: str | None, told: Callable[[int], None]) -> None:
        """Signal the process, everything it started, or its terminal's foreground process group."""
        to = to or ("foreground" if self._is_tty else "process")
        if to == "foreground" and not self._is_tty:
            raise Failure("InvalidRequest", f"cannot signal the foreground of {self.id}: it has no terminal")
        if to != "children" and not self.is_running:
            raise Failure("InvalidRequest", f"cannot signal {self.id}: it has ended")
        group = foreground_group(self._output) if to == "foreground" and self._output >= 0 else 0

        def is_meant(pid: int, proc: Proc) -> bool:
            if to == "children":
                return pid != self._pid
            return proc.group == group if group else pid == self._pid

        def steps() -> Generator[float, None, None]:
            told((yield from signal_tree(os.getpid(), self.mark, number, is_meant)))

        run_killing(self._hub, steps(), lambda: None)

    def kill(self, number: int, grace_s: float, done: Callable[[bool], None]) -> None:
        """Signal the whole tree, kill what is left after the grace period, and report whether that was needed."""
        runner = os.getpid()

        def steps() -> Generator[float, None, None]:
            if number == signal.SIGKILL:
                yield from kill_tree(runner, self._pid, self.mark)
                done(True)
            else:
                done((yield from end_tree(runner, self._pid, self.mark, number, grace_s)))

        run_killing(self._hub, steps(), lambda: None)

    def close(self) -> None:
        """Forget an exited process. Output of processes that it left behind is dropped from now on."""
        if self._output >= 0:
            self._hub.unwatch(self._output)
            self._runner.leftovers.adopt(self._output)
            self._output = -1
        if self.feeder is not None:
            self.feeder.close()
        self._wake()

    def _read(self) -> None:
        self._read_piece()
        self._wake()

    def _read_piece(self) -> bool:
        """Read once; return whether there may be more."""
        try:
            piece = os.read(self._output, wire.CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # a terminal reports an error once its last process is gone
            piece = b""
        if piece:
            self._ring += piece
            excess = len(self._ring) - RING_BYTES
            if excess > 0:
                del self._ring[:excess]
                self._dropped_bytes += excess
        else:
            self._hub.unwatch(self._output)
            os.close(self._output)
            self._output = -1
        return bool(piece)

    def _exited(self, status: int) -> None:
        # Its own output comes first, because a reader that sees the exit stops. Its descendants may write without end.
        reads = 0
        while self._output >= 0 and reads < READS_AT_EXIT and self._read_piece():
            reads += 1
        self._exit_code = exit_code_of(status)
        self._wake()

    def _wake(self) -> None:
        for action in list(self._readers.values()):
            action()


class Processes:
    """All background processes of this sandbox."""

    def __init__(self, runner: RunnerCore) -> None:
        self._runner = runner
        self._number = 0
        self._all: dict[str, Background] = {}

    def start(self, head: dict[str, Any]) -> dict[str, Any]:
        if "label" in head:
            self._check_label((head["label"][0], head["label"][1]), head["most"])
        if len(self._all) >= MAX_PROCESSES:
            finished = next((process for process in self._all.values() if not process.is_running), None)
            if finished is None:
                raise Failure(
                    "LimitReached", f"cannot start a process: {MAX_PROCESSES} are already running; kill one first"
                )
            del self._all[finished.id]
            finished.close()
        process = Background(self._runner, f"p{self._number + 1}", head)
        self._number += 1
        self._all[process.id] = process
        return process.describe()

    def _check_label(self, label: tuple[str, str], most: int) -> None:
        labels = [process.label for process in self._all.values() if process.label and process.is_running]
        if label in labels:
            raise Failure("Conflict", f"cannot start the {label[0]} {label[1]}: it exists already")
        if sum(other[0] == label[0] for other in labels) >= most:
            raise Failure("LimitReached", f"cannot start another {label[0]}: {most} are open; remove one first")

    def describe(self) -> list[dict[str, Any]]:
        return [process.describe() for process in self._all.values()]

    def marks(self) -> dict[int, str]:
        """Return the ids by the marks that their processes carry."""
        return {process.mark: process.id for process in self._all.values()}

    def get(self, process_id: str) -> Background:
        process = self._all.get(process_id)
        if process is None:
            raise Failure("ProcessNotFound", f"cannot find process {process_id!r}")
        return process


class Waiting:
    """A call that waits for a background process: for output, for room in its stdin, for a signal or for its death."""

    def __init__(self, runner: RunnerCore, call: int, process: Background) -> None:
        self._runner = runner
        self._call = call
        self._process = process
        self._timer: Timer | None = None
        self._withdraw: Callable[[], None] | None = None
        self._is_over = False

    def read(self, offset: int, limit: int, wait_s: float) -> None:
        def answer() -> None:
            start, data = self._process.slice(offset, limit)
            self._answer({**self._process.describe(), "offset": start}, data)

        def look() -> None:
            if self._process.has_news(offset):
                answer()

        if wait_s <= 0 or self._process.has_news(offset):
            answer()
        else:
            self._timer = self._runner.hub.after(wait_s, answer)
            self._process.on_change(self._call, look)

    def write(self, data: bytes, eof: bool, wait_s: float) -> None:
        """Write until the process has taken everything, its stdin is closed or the time is up.

        The result says how much was taken; the rest is withdrawn. An error means that nothing was taken.
        """
        process = self._process
        feeder = process.feeder
        is_closed = Failure("InvalidRequest", f"cannot write to {process.id}: its stdin is closed")
        is_busy = Failure("Busy", f"cannot write to {process.id}: it does not read its stdin, and nothing was written")
        if feeder is None or not feeder.is_open or not process.is_running:
            raise is_closed
        if feeder.is_full:
            raise is_busy
        before = feeder.written_bytes

        def finish(reason: Failure) -> None:
            self._withdraw = None
            feeder.withdraw()
            taken = feeder.written_bytes - before
            if data and not taken:
                self._close()
                self._runner.refuse(self._call, reason)
                return
            if eof and feeder.is_open and taken == len(data):
                process.off_change(self._call)  # on a terminal EOF is a byte, not the caller's data
                process.send_eof()
            self._answer({"taken": taken})

        def look() -> None:
            if not self._is_over and not (feeder.is_open and feeder.is_full and process.is_running):
                finish(is_closed)

        feeder.feed(data)
        self._withdraw = feeder.withdraw
        self._timer = self._runner.hub.after(wait_s, lambda: finish(is_busy))
        process.on_change(self._call, look)
        look()

    def kill(self, number: int, grace_s: float) -> None:
        # Wait for both: its whole tree is dead, and it was reaped, so that it is never listed as running.
        was_killed: bool | None = None

        def look() -> None:
            if was_killed is not None and not self._process.is_running:
                self._answer({**self._process.describe(), "killed": was_killed})

        def ended(by_kill: bool) -> None:
            nonlocal was_killed
            was_killed = by_kill
            look()

        self._process.on_change(self._call, look)
        self._process.kill(number, grace_s, ended)

    def signal(self, number: int, to: str | None) -> None:
        self._process.signal(number, to, lambda count: self._answer({"count": count}))

    def take_data(self, data: bytes) -> None:
        raise wire.WireError("data for a call that takes none")

    def take_end(self) -> None:
        return

    def take_credit(self, size_bytes: int) -> None:
        return

    def cancel(self) -> None:
        if self._withdraw is not None:
            self._withdraw()
        self._close()

    def _answer(self, head: dict[str, Any], data: bytes = b"") -> None:
        if self._is_over:
            return  # cancelled while its process was being killed
        self._close()
        self._runner.connection.send(wire.pack(wire.RESULT, self._call, head, data))

    def _close(self) -> None:
        self._is_over = True
        self._process.off_change(self._call)
        if self._timer is not None:
            self._runner.hub.cancel(self._timer)
        self._runner.forget(self._call, self)

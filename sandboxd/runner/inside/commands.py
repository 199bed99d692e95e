"""Foreground commands: bounds their output, feeds their input, and kills the whole process tree at the deadline.

A small command takes one frame in and one frame out. A command that leaves processes behind ends when it has exited;
the pipes that they hold open are drained elsewhere (`leftovers`). It never blocks in a system call.
"""

from __future__ import annotations

import os
import time

from . import wire
from .confinement import Unconfined
from .counters import find_full
from .failure import Failure
from .hub import READABLE, exit_code_of
from .pipes import Feeder, close_all, open_pipe
from .spawn import NotStarted, make_env, prefer_for_oom
from .tree import kill_tree, run_killing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .confinement import Confinement
    from .core import RunnerCore
    from .hub import Timer

GRACE_S = 0.1
FLUSH_BYTES = 131_072
DRAIN_READS = 8


class Intake:
    """The reading end of a command's stdout or stderr."""

    __slots__ = ("fd", "is_open", "kind", "pieces", "pieces_bytes", "room")

    def __init__(self, fd: int, kind: int, room: int) -> None:
        self.fd = fd
        self.kind = kind
        self.room = room
        self.is_open = fd >= 0
        self.pieces: list[bytes] = []
        self.pieces_bytes = 0


class Command:
    """One foreground call, from the spawn to the answer."""

    def __init__(self, runner: RunnerCore, call: int, head: dict[str, Any]) -> None:
        self._runner = runner
        self._hub = runner.hub
        self._call = call
        self._head = head
        self._is_stream = "stream" in head
        self._credit = wire.WINDOW_BYTES
        self._truncated = False
        self._timed_out = False
        self._killing = False
        self._paused = False
        self._finished = False
        self._silent = False
        self._exit_code: int | None = None
        self._grace: Timer | None = None
        self._deadline: Timer | None = None
        self._feeder: Feeder | None = None
        self._intakes: tuple[Intake, ...] = ()
        self._started = time.monotonic()
        self._before = runner.counters.read()
        self._pid = 0
        self._mark = 0
        self._is_starting = False

    def start_confined(self, confinement: Confinement, unconfined: Callable[[], None]) -> None:
        """Start the command in the confined thread; if that is impossible, drop the command and call `unconfined`."""
        head = self._head
        actions, given = self._open_output()
        self._is_starting = True
        self._hub.expect_child()

        def started(child: tuple[int, int]) -> None:
            close_all(*given)
            self._is_starting = False
            self._pid, self._mark = child
            self._attend(self._hub.claim_child(self._pid))
            if self._killing:
                self._kill_tree()

        def refused(failure: Failure) -> None:
            close_all(*given)
            self._is_starting = False
            self._hub.claim_child(0)
            self._close_output()
            self._runner.forget(self._call, self)
            if self._silent:
                return
            if isinstance(failure, Unconfined):
                unconfined()
            else:
                self._runner.refuse(self._call, failure)

        env = make_env(self._runner.env, head["env"], head["cwd"])
        confinement.spawn(head["argv"], env, head["cwd"], actions, started, refused)

    def start(self, stdin: bytes) -> None:
        """Start the command. Raise Failure if it cannot be started; a missing program is a result instead."""
        has_stdin = bool(stdin) or "more" in self._head
        in_read, in_write = os.pipe2(os.O_CLOEXEC) if has_stdin else (-1, -1)
        try:
            self._spawn(in_read)
        except (NotStarted, Failure) as error:
            close_all(in_write)
            if isinstance(error, Failure):
                raise
            self._exit_code = error.exit_code
            message = error.message.encode("utf-8", "replace")[: self._head["max"]]
            intake = self._intakes[0 if "merge" in self._head else 1]
            if self._is_stream:
                self._send(intake.kind, message)
            else:
                intake.pieces.append(message)
            self._finish()
            return
        finally:
            close_all(in_read)
        if has_stdin:
            self._feeder = Feeder(self._hub, in_write, self._fed)
            self._feeder.feed(stdin)
            if "more" not in self._head:
                self._feeder.end()
        # after vfork a short command has often ended before the runner runs again: check before setting up a
        # wait
        self._attend(self._hub.take_dead(self._pid))

    def _attend(self, status: int | None) -> None:
        """Wait for the process, or collect its output if it is dead already."""
        pid = self._pid
        if status is not None:
            self._exit_code = exit_code_of(status)
            self._read_all()
            if self._finished:
                return
        else:
            prefer_for_oom(self._hub, pid)
            self._hub.on_exit(pid, self._exited)
        if not self._paused:
            self._watch()
        self._deadline = self._hub.after(self._head["timeout"], self._expire)
        if status is not None:
            self._drain()

    def _spawn(self, stdin: int) -> None:
        head, runner = self._head, self._runner
        argv = head.get("argv") or [*runner.shell, head["shell"]]
        env = make_env(runner.env, head["env"], head["cwd"])
        actions, given = self._open_output()
        if stdin >= 0:
            actions.append((os.POSIX_SPAWN_DUP2, stdin, 0))  # otherwise it inherits the runner's stdin, which is empty
        try:
            self._pid, self._mark = runner.spawner.spawn(argv, env, head["cwd"], actions)
        except (NotStarted, Failure):
            self._close_output()
            raise
        finally:
            close_all(*given)

    def _open_output(self) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
        """Make the pipes for the output; return the child's file actions for its ends, and those ends."""
        most = self._head["max"]
        out_read, out_write = open_pipe()
        if "merge" in self._head:  # one pipe for both: the kernel keeps the order in which they are written
            self._intakes = (Intake(out_read, wire.STDOUT, most), Intake(-1, wire.STDERR, 0))
            return [(os.POSIX_SPAWN_DUP2, out_write, 1), (os.POSIX_SPAWN_DUP2, out_write, 2)], (out_write, -1)
        err_read, err_write = open_pipe()
        self._intakes = (Intake(out_read, wire.STDOUT, most), Intake(err_read, wire.STDERR, most))
        actions = [(os.POSIX_SPAWN_DUP2, out_write, 1), (os.POSIX_SPAWN_DUP2, err_write, 2)]
        return actions, (out_write, err_write)

    def _close_output(self) -> None:
        for intake in self._intakes:
            close_all(intake.fd)
            intake.is_open = False

    def _watch(self) -> None:
        for intake, action in zip(self._intakes, (self._read_stdout, self._read_stderr)):  # noqa: B905 - 3.9
            if intake.is_open:
                self._hub.watch(intake.fd, READABLE, action)

    def take_data(self, data: bytes) -> None:
        if self._feeder is not None:
            self._feeder.feed(data)

    def take_end(self) -> None:
        if self._feeder is not None:
            self._feeder.end()

    def take_credit(self, size_bytes: int) -> None:
        self._credit += size_bytes
        self._resume()

    def cancel(self) -> None:
        """Kill the tree without answering, because the caller is gone."""
        self._silent = True
        self._kill()

    def _fed(self, size_bytes: int) -> None:
        if size_bytes and not self._finished:
            self._runner.connection.send(wire.pack_credit(self._call, size_bytes))

    def _read_stdout(self) -> None:
        self._read(self._intakes[0])

    def _read_stderr(self) -> None:
        self._read(self._intakes[1])

    def _read(self, intake: Intake) -> bool:
        """Read once. Returns whether there may be more right now."""
        if self._paused or not intake.is_open:
            return False
        size = wire.CHUNK_BYTES
        if self._is_stream and intake.room:
            size = min(size, self._credit)
        try:
            piece = os.read(intake.fd, size)
        except BlockingIOError:
            return False
        if piece:
            self._keep(intake, piece)
            return True
        intake.is_open = False
        self._hub.close(intake.fd)
        if self._exit_code is not None and not self._killing:
            self._finish_if_drained()
        return False

    def _keep(self, intake: Intake, piece: bytes) -> None:
        if len(piece) > intake.room:
            piece = piece[: intake.room]
            self._truncated = True
        if not piece:
            return
        intake.room -= len(piece)
        if self._is_stream:
            self._credit -= len(piece)
            self._send(intake.kind, piece)
            if self._credit <= 0:
                self._pause()
        else:
            intake.pieces.append(piece)
            intake.pieces_bytes += len(piece)
            if intake.pieces_bytes >= FLUSH_BYTES:
                self._send(intake.kind, b"".join(intake.pieces))
                intake.pieces.clear()
                intake.pieces_bytes = 0
        if self._runner.connection.is_congested and not self._paused:
            self._pause()
            self._runner.connection.when_drained(self._resume)

    def _send(self, kind: int, data: bytes) -> None:
        if not self._silent:
            self._runner.connection.send(wire.pack(kind, self._call, None, data))

    def _pause(self) -> None:
        self._paused = True
        for intake in self._intakes:
            if intake.is_open:
                self._hub.unwatch(intake.fd)

    def _resume(self) -> None:
        if not self._paused or self._finished:
            return
        if self._runner.connection.is_congested:  # the callback of another command filled the buffer in the meantime
            self._runner.connection.when_drained(self._resume)
            return
        if self._is_stream and self._credit <= 0:
            return
        self._paused = False
        self._watch()
        if self._exit_code is not None and not self._killing:
            self._drain()

    def _read_all(self) -> None:
        """Read what is in the pipes now, up to a limit, because a process may still be writing."""
        for intake in self._intakes:
            for _ in range(DRAIN_READS):
                if not self._read(intake):
                    break

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._hub.cancel(self._deadline)

    def _exited(self, status: int) -> None:
        self._exit_code = exit_code_of(status)
        if self._killing:
            return
        self._drain()

    def _drain(self) -> None:
        """Read what is in the pipes after the exit, and give processes that are left behind a moment to close them."""
        self._read_all()
        self._finish_if_drained()
        if not self._finished and not self._paused and self._grace is None:
            self._stop_clock()
            self._grace = self._hub.after(GRACE_S, self._finish)

    def _finish_if_drained(self) -> None:
        if not self._intakes[0].is_open and not self._intakes[1].is_open:
            self._finish()

    def _expire(self) -> None:
        if self._exit_code is not None:
            self._truncated = True  # it has exited, but its output was not read in time
            self._finish()
            return
        self._timed_out = True
        self._kill()

    def _kill(self) -> None:
        if self._killing or self._finished:
            return
        self._killing = True
        self._stop_clock()
        if not self._is_starting:
            self._kill_tree()

    def _kill_tree(self) -> None:
        run_killing(self._hub, kill_tree(os.getpid(), self._pid, self._mark), self._killed)

    def _killed(self) -> None:
        self._read_all()
        self._finish()

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        self._stop_clock()
        if self._grace is not None:
            self._hub.cancel(self._grace)
        if self._feeder is not None:
            self._feeder.close()
        for intake in self._intakes:
            if intake.is_open:
                self._hub.unwatch(intake.fd)
                self._runner.leftovers.adopt(intake.fd)
        self._runner.forget(self._call, self)
        if not self._silent:
            self._answer()

    def _answer(self) -> None:
        counters = self._runner.counters
        after = counters.read()
        flags = 0
        if after != self._before:
            for limit in counters.grown(self._before, after):
                flags |= wire.MEMORY_HIT if limit == "memory" else wire.PIDS_HIT
        if self._truncated:
            flags |= wire.TRUNCATED
        code = self._exit_code
        if code != 0 or self._timed_out:  # after a success a full filesystem did no harm
            for limit in find_full(code):
                flags |= wire.WORKSPACE_HIT if limit == "workspace" else wire.TMP_HIT
        if self._timed_out or code is None:
            flags |= wire.NO_CODE | wire.TIMED_OUT
            code = 0
        duration_ms = (time.monotonic() - self._started) * 1000
        stdout, stderr = (b"".join(intake.pieces) for intake in self._intakes)
        self._runner.connection.send(wire.pack_exited(self._call, flags, code, duration_ms, stdout, stderr))

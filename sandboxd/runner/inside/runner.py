"""The runner: receives calls from the daemon and dispatches each to its handler. Owns what the parts share.

A call that fails returns an error; it never ends PID 1, which would end the sandbox.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import stat
import sys

from . import confinement, files, find, listing, names, paths, search, text, wire
from .archive_calls import Archiving, Extracting
from .background import Processes, Waiting
from .commands import Command
from .confinement import Confinement
from .connection import Connection
from .container_paths import WORKSPACE
from .core import RunnerCore
from .failure import Failure, reason_of
from .greeting import read_secret
from .listening_ports import list_ports
from .proxy_entrance import ProxyEntrance
from .streams import DialledStream
from .time_slices import take_short_turns, use_up_own_ids
from .transfers import FileCall, Reading, Removing, Writing
from .tree import count_others
from .watch_calls import Watching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .core import LiveCall


PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
LARGE_BYTES = 262_144
SWITCH_INTERVAL_S = 0.0005
# these end or stop an ordinary process; Python's own SIGINT handler would raise in the middle of the loop
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)


class Runner(RunnerCore):
    def __init__(self, run_dir: str, secret: bytes) -> None:
        super().__init__()
        self._ripgrep = search.find_ripgrep()
        self._confinement: Confinement | None = None
        if self._ripgrep and confinement.is_available():
            self._confinement = Confinement(self._ripgrep, self.spawner, self.workers)
        self._submit_listing = self.workers.add_lane()  # one after another, so that only one page is held in memory
        self._processes = Processes(self)
        self._entrance = ProxyEntrance(self)
        self._operations: dict[str, Callable[[int, dict[str, Any], bytes], LiveCall | None]] = {
            "exec": self._exec,
            "configure": self._configure,
            "start": self._start_process,
            "processes": self._list_processes,
            "read_process": self._read_process,
            "write_process": self._write_process,
            "resize": self._resize_process,
            "signal": self._signal_process,
            "kill": self._kill_process,
            "read": self._read,
            "write": self._write,
            "stat": self._stat,
            "list": self._list,
            "remove": self._remove,
            "mkdir": self._make_directory,
            "move": self._move,
            "archive": self._archive,
            "extract": self._extract,
            "watch": self._watch,
            "text": self._text,
            "edit": self._edit,
            "glob": self._glob,
            "grep": self._grep,
            "usage": self._usage,
            "dial": self._dial,
            "ports": self._ports,
        }
        self.connection = Connection(self.hub, run_dir + "/socket", secret, self._take_frame, self._lost)

    def _lost(self) -> None:
        """Cancel every call, because the daemon is gone and no caller waits. Background processes stay."""
        for live in list(self.calls.values()):
            live.cancel()
        self.calls.clear()
        self._entrance.lost()

    def _take_frame(self, kind: int, call: int, head: bytes, data: bytes) -> None:
        if kind == wire.CALL:
            self._begin(call, wire.read_head(head), data)
            return
        live = self._entrance.get(call) if call & wire.OPENED else self.calls.get(call)
        if kind == wire.CANCEL and call & wire.OPENED:
            self._entrance.cancel(call)
            return
        if live is None:
            return  # it has just been answered, and the answer is on its way
        if kind == wire.DATA:
            live.take_data(data)
        elif kind == wire.END:
            live.take_end()
        elif kind == wire.CREDIT:
            live.take_credit(wire.read_credit(data))
        elif kind == wire.CANCEL:
            del self.calls[call]
            live.cancel()
        else:
            raise wire.WireError(f"a frame of kind {kind} from the daemon")

    def _begin(self, call: int, head: dict[str, Any], data: bytes) -> None:
        try:
            if len(self.calls) >= wire.MAX_CALLS:
                raise Failure("Busy", f"cannot accept this call: {wire.MAX_CALLS} are under way")
            live = self._operations[head["op"]](call, head, data)
        except Failure as failure:
            self.refuse(call, failure)
        except OSError as error:
            self.refuse(call, Failure("LimitReached", f"cannot accept this call: {reason_of(error)}"))
        except Exception as error:  # noqa: BLE001 - PID 1 must outlive any single call
            self.refuse(call, Failure("SandboxError", f"cannot accept this call: {type(error).__name__}: {error}"))
        else:
            if live is not None:
                self.calls[call] = live

    def _answer(self, call: int, head: dict[str, Any], data: bytes = b"") -> None:
        self.connection.send(wire.pack(wire.RESULT, call, head, data))

    def _configure(self, call: int, head: dict[str, Any], data: bytes) -> None:
        self.env = head["env"]
        self._entrance.allow(head.get("proxy", 0))
        self._answer(call, {})

    def _exec(self, call: int, head: dict[str, Any], data: bytes) -> None:
        command = self.calls[call] = Command(
            self, call, head
        )  # registered before it starts, because it may end at once
        try:
            command.start(data)
        except (Failure, OSError):
            self.forget(call, command)
            raise

    def _start_process(self, call: int, head: dict[str, Any], data: bytes) -> None:
        self._answer(call, self._processes.start(head))

    def _list_processes(self, call: int, head: dict[str, Any], data: bytes) -> None:
        self._answer(call, {"items": self._processes.describe(), "alive": count_others(os.getpid())})

    def _waiting(self, call: int, head: dict[str, Any]) -> Waiting:
        waiting = Waiting(self, call, self._processes.get(head["id"]))
        self.calls[call] = waiting  # registered before it begins, because it may be answered and forgotten at once
        return waiting

    def _read_process(self, call: int, head: dict[str, Any], data: bytes) -> None:
        self._waiting(call, head).read(head["offset"], min(head["limit"], wire.MAX_DATA_BYTES), head["wait"])

    def _write_process(self, call: int, head: dict[str, Any], data: bytes) -> None:
        waiting = self._waiting(call, head)
        try:
            waiting.write(data, head["eof"], head["wait"])
        except Failure:
            self.forget(call, waiting)
            raise

    def _resize_process(self, call: int, head: dict[str, Any], data: bytes) -> None:
        self._processes.get(head["id"]).resize(head["rows"], head["columns"])
        self._answer(call, {})

    def _signal_process(self, call: int, head: dict[str, Any], data: bytes) -> None:
        waiting = self._waiting(call, head)
        try:
            waiting.signal(head["signal"], head["to"])
        except Failure:
            self.forget(call, waiting)
            raise

    def _kill_process(self, call: int, head: dict[str, Any], data: bytes) -> None:
        self._waiting(call, head).kill(head.get("signal", signal.SIGKILL), head.get("grace", 0.0))

    def _read(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        return Reading(self, call, head["path"], head["offset"], head["length"])

    def _write(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        writing = Writing(self, call, head["path"], head["parents"], head.get("size"))
        writing.take_data(data)
        if not head.get("more"):
            writing.take_end()
        return writing

    def _file_call(
        self, call: int, head: dict[str, Any], data: bytes, job: Callable[[memoryview], tuple[dict[str, Any], bytes]]
    ) -> LiveCall:
        file_call = FileCall(self, call, job)
        if data:
            file_call.take_data(data)
        if not head.get("more"):
            file_call.take_end()
        return file_call

    def _stat(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        follow = head.get("follow", True)
        return self._file_call(call, head, data, lambda _body: (files.look_at(head["path"], follow), b""))

    def _list(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        def job(_body: memoryview) -> tuple[dict[str, Any], bytes]:
            return listing.list_directory(head["path"], head["after"], head["limit"], lambda: file_call.is_cancelled)

        file_call = FileCall(self, call, job, self._submit_listing)
        file_call.take_end()
        return file_call

    def _remove(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        if head["recursive"]:
            return Removing(self, call, head["path"])
        return self._file_call(call, head, data, lambda _body: (names.remove(head["path"]), b""))

    def _make_directory(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        return self._file_call(
            call, head, data, lambda _body: (names.make_directory(head["path"], head["parents"]), b"")
        )

    def _move(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        return self._file_call(
            call, head, data, lambda _body: (names.move(head["from"], head["to"], head["replace"]), b"")
        )

    def _archive(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        return Archiving(self, call, head["path"], head["hold"])

    def _extract(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        return Extracting(self, call, head["path"])

    def _watch(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        return Watching(self, call, head["path"], head["recursive"])

    def _text(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        return self._file_call(
            call, head, data, lambda _body: text.read_text(head["path"], head["first"], head["limit"])
        )

    def _edit(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        def job(body: memoryview) -> tuple[dict[str, Any], bytes]:
            old, new = body[: head["old"]], body[head["old"] :]
            return text.edit(head["path"], old, new, head["all"]), b""

        return self._file_call(call, head, data, job)

    def _glob(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        return self._file_call(call, head, data, lambda _body: find.glob(head["pattern"], head["path"], head["limit"]))

    def _usage(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        return self._file_call(call, head, data, lambda _body: find.measure_usage())

    def _dial(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        return DialledStream(self, call, head)

    def _ports(self, call: int, head: dict[str, Any], data: bytes) -> LiveCall:
        own, marks = self._entrance.port, self._processes.marks()
        file_call = FileCall(
            self,
            call,
            lambda _body: (list_ports(own, marks, lambda: file_call.is_cancelled), b""),
            self._submit_listing,
        )
        file_call.take_end()
        return file_call

    def _grep(self, call: int, head: dict[str, Any], data: bytes) -> None:
        fd = paths.open_any(head["path"], "search")
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISDIR(mode):
                paths.check_regular(os.fstat(fd), "search", head["path"])
            real = paths.real_path(fd).decode("utf-8", "replace")
        finally:
            os.close(fd)
        common = {"cwd": WORKSPACE, "env": {}, "timeout": head["timeout"], "max": head["max"]}

        def search_slowly() -> None:
            self._confinement = None
            try:
                self._exec(call, {**common, "argv": search.make_command("", head, real)}, b"")
            except Failure as failure:
                self.refuse(call, failure)
            except OSError as error:
                self.refuse(call, Failure("LimitReached", f"cannot search: {reason_of(error)}"))

        if self._confinement is None:
            search_slowly()
            return
        command = Command(self, call, {**common, "argv": search.make_command(self._ripgrep, head, real)})
        self.calls[call] = command
        command.start_confined(self._confinement, search_slowly)


def harden() -> None:
    """Make the runner unreadable to the agent, immune to signals, and the parent of every orphan."""
    libc = ctypes.CDLL(None, use_errno=True)
    # not dumpable, which closes /proc/1/environ, mem, fd and ptrace to the agent's processes
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot make the runner undumpable")
    if os.getpid() != 1 and libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot adopt orphans")
    take_short_turns(libc)
    if hasattr(libc, "mallopt"):
        # larger allocations return to the kernel when they are freed: after a large request PID 1 is as small as before
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        libc.mallopt(M_ARENA_MAX, 1)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o022)
    null = os.open("/dev/null", os.O_RDONLY)
    if null != 0:
        os.dup2(null, 0)  # stdin of commands without input
        os.close(null)


def serve(run_dir: str) -> int:
    harden()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    runner = Runner(run_dir, read_secret(run_dir))
    use_up_own_ids()
    gc.freeze()  # everything loaded so far stays, so the collector need not scan it again
    runner.connection.connect()
    runner.hub.run()
    return 0

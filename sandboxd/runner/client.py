"""The client of one sandbox's runner: commands, processes, files and searches as calls on its channel.

Cancelling a call here kills it in the container. See `call_channel` for what happens when the connection breaks.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel

from sandboxd.errors import InvalidRequest, NotReady, RequestError, SandboxError
from sandboxd.models.command import DEFAULT_MAX_TIMEOUT_S, ExecOutput
from sandboxd.models.files import ArchiveSummary, DirectoryPage, FileEvent, FileInfo
from sandboxd.models.network import ListeningPort
from sandboxd.models.process import MAX_READ_BYTES, KilledProcess, Process, ProcessOutput, SignalName, SignalTarget
from sandboxd.runner import protocol
from sandboxd.runner.call_channel import CallChannel
from sandboxd.runner.calls import (
    MAX_TEXT_BYTES,
    CommandResult,
    Edited,
    Exec,
    GlobResult,
    Grep,
    GrepResult,
    ProcessLabel,
    Terminal,
    TextSlice,
    Usage,
)
from sandboxd.runner.inside import wire
from sandboxd.runner.inside.container_paths import WORKSPACE
from sandboxd.runner.pending_call import PendingCall
from sandboxd.runner.stream import RunnerStream

MAX_WAIT_S = 600.0
WRITE_PATIENCE_S = 10.0
"""How long a write to a process may take. It then returns how much the process took, before the call's deadline."""
TRANSFER_TIMEOUT_S = 3600.0
STREAM_TIMEOUT_S = 2_592_000.0
LISTING_TIMEOUT_S = 60.0
"""Longer than one listing may take, because concurrent listings wait for each other."""
WATCH_TIMEOUT_S = 2_592_000.0
ENTRIES_AT_ONCE = 500
"""How many entries of a page are read in one pass of the event loop."""
REMOVAL_TIMEOUT_S = 300.0

_joining = anyio.Lock()
"""Held while a large output is joined, one per pass of the event loop: each takes milliseconds, and many may end at
once."""


class FileReader:
    """A file being read: its stat is known at once, and iterating yields its bytes."""

    def __init__(self, stat: FileInfo, chunks: AsyncIterator[bytes]) -> None:
        self.stat = stat
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks


class FileWatch:
    """A watch of a directory under way."""

    def __init__(self, path: str, pending: PendingCall, checking: Callable[[], AbstractContextManager[None]]) -> None:
        self._path = path
        self._pending = pending
        self._checking = checking
        self._is_ended = False

    async def batch(self) -> list[FileEvent]:
        """Wait for events and return them; none once the watch is over. Cancelling loses nothing."""
        pending = self._pending
        while not pending.chunks and not pending.is_over:
            await pending.changed()
        if pending.chunks and not self._is_ended:
            _kind, _head, data = pending.chunks.popleft()
            pending.allow(len(data))
            with self._checking():
                return list(protocol.read_file_events(self._path, data))
        if pending.error is not None and not self._is_ended:
            raise pending.error.with_traceback(None)
        return []

    def end(self) -> None:
        """End the watch from this side: the next batch is empty."""
        self._is_ended = True
        self._pending.interrupt(NotReady("cannot go on watching: the sandbox is being stopped"))


class RunnerClient(CallChannel):
    """What the daemon may ask of a runner: commands, processes, files and searches, one method each."""

    def __init__(self, env: Mapping[str, str], max_timeout_s: float = DEFAULT_MAX_TIMEOUT_S, *, proxy: int = 0) -> None:
        super().__init__(env, proxy)
        self.max_timeout_s = max_timeout_s
        self._watches: set[FileWatch] = set()

    def remember(self, env: Mapping[str, str], *, proxy: int = 0) -> None:
        """Set what `configure` sets, for a runner that is not connected yet."""
        self._env = protocol.checked_env(env)
        self._proxy = proxy

    async def configure(self, env: Mapping[str, str], *, proxy: int = 0) -> None:
        """Set the environment that every later command gets, now and after reconnects.

        `proxy` is how many streams at a time processes inside may open to the daemon, through the port of the proxy;
        with 0 nothing listens there. Raise Conflict if another process has that port: the environment is set, but the
        port is not opened.
        """
        self._env = protocol.checked_env(env)
        previous, self._proxy = self._proxy, proxy
        self._streams.allow(proxy)
        try:
            await self._ask(protocol.configure_head(self._env, proxy), lambda _head, _data: None)
        except RequestError:
            self._proxy = previous
            self._streams.allow(previous)
            raise

    async def exec(self, call: Exec) -> CommandResult:
        head = protocol.exec_head(call, max_timeout_s=self.max_timeout_s)
        return await self._ask_exec(head, call.stdin, call.timeout_s, call.max_output_bytes)

    @asynccontextmanager
    async def stream(self, call: Exec) -> AsyncGenerator[AsyncIterator[ExecOutput | CommandResult]]:
        """Run a command and yield its output as it arrives; the last item is the result, with empty output."""
        head = protocol.exec_head(call, stream=True, max_timeout_s=self.max_timeout_s)
        async with self._begun(head, call.stdin, wire.WINDOW_BYTES, call.timeout_s) as pending:
            items = self._stream_items(pending)
            try:
                yield items
            finally:
                await items.aclose()

    async def start_process(
        self, call: Exec, *, tty: bool | Terminal = False, label: ProcessLabel | None = None
    ) -> Process:
        if call.stdin:
            raise InvalidRequest("cannot start a process with stdin: start it without stdin, then write to it")
        # The limits on a command's time and output do not apply to a background process.
        head = protocol.exec_head(replace(call, timeout_s=1.0, merge_stderr=False))
        head["op"] = "start"
        if tty:
            head.update(protocol.terminal_head(Terminal() if tty is True else tty))
        if label is not None:
            head.update(label=[label.kind, label.name], most=label.most, level=3)
        return await self._ask(head, lambda head, _data: protocol.read_process(head))

    async def list_processes(self) -> list[Process]:
        return await self._ask({"op": "processes"}, lambda head, _data: protocol.read_processes(head))

    async def has_processes(self) -> bool:
        """Return whether anything runs inside: background processes, terminals, or what commands left behind."""
        return await self._ask({"op": "processes"}, lambda head, _data: protocol.read_has_processes(head))

    async def read_process(
        self, process_id: str, offset: int = 0, limit: int = wire.MAX_DATA_BYTES, wait_s: float = 0
    ) -> ProcessOutput:
        """Read output from an offset. With `wait_s`, wait up to that long for the first new byte or the end."""
        if offset < 0 or not 0 <= limit <= MAX_READ_BYTES or not 0 <= wait_s <= MAX_WAIT_S:
            raise InvalidRequest(
                f"cannot read {process_id}: offset must not be negative, limit must be 0 to {MAX_READ_BYTES} and "
                f"wait_s 0 to {MAX_WAIT_S:g}"
            )
        output = await self._read_piece(process_id, offset, limit, wait_s)
        start, pieces, room = output.offset, [output.data], limit - len(output.data)
        while room > 0 and len(output.data) == wire.MAX_DATA_BYTES:  # a full frame: there may be more
            following = await self._read_piece(process_id, output.next_offset, room, 0)
            if following.offset != output.next_offset:
                break  # the next output was dropped in the meantime
            output = following
            pieces.append(output.data)
            room -= len(output.data)
        return ProcessOutput(
            process=output.process, offset=start, data=b"".join(pieces), next_offset=output.next_offset
        )

    async def _read_piece(self, process_id: str, offset: int, limit: int, wait_s: float) -> ProcessOutput:
        """Read as much as one frame holds."""
        limit = min(limit, wire.MAX_DATA_BYTES)
        head = {"op": "read_process", "id": process_id, "offset": offset, "limit": limit, "wait": wait_s}
        return await self._ask(head, protocol.read_process_output, timeout_s=wait_s)

    async def write_process(self, process_id: str, data: bytes, *, eof: bool = False) -> int:
        """Write to its stdin and return how many bytes it took: fewer than given if it stops reading or closes stdin.

        A RequestError or NotReady means that nothing was taken. stdin is closed only after all of the data.
        """
        taken = 0
        deadline = anyio.current_time() + WRITE_PATIENCE_S
        while True:
            chunk = data[taken : taken + wire.CHUNK_BYTES]
            is_last = taken + len(chunk) == len(data)
            wait_s = max(0.0, deadline - anyio.current_time())
            head = {"op": "write_process", "id": process_id, "eof": eof and is_last, "wait": wait_s}
            try:
                count = await self._write_chunk(head, chunk, taken)
            except (RequestError, NotReady):
                if not taken:
                    raise
                return taken
            taken += count
            if is_last or count < len(chunk):
                return taken

    async def _write_chunk(self, head: dict[str, Any], chunk: bytes, taken: int) -> int:
        pending = await self._begin(head, chunk, 0, head["wait"])
        try:
            await pending.over()
            with self._checking(pending):
                return protocol.read_taken(wire.read_head(self._end_of(pending)), len(chunk))
        except NotReady as error:  # it was sent, so the error must not suggest a retry
            raise SandboxError(
                f"cannot tell how much {head['id']} took: at least {taken} bytes, then the runner was lost"
            ) from error
        finally:
            self._close(pending)

    async def resize_process(self, process_id: str, rows: int, columns: int) -> None:
        protocol.check_size(f"resize {process_id}", rows, columns)
        head = {"op": "resize", "id": process_id, "rows": rows, "columns": columns}
        await self._ask(head, lambda _head, _data: None)

    async def signal_process(self, process_id: str, name: SignalName, to: SignalTarget | None = None) -> int:
        """Send a signal and return how many processes got it. The default is a terminal's foreground, if any."""
        number = int(signal.Signals[f"SIG{name}"])
        head = {"op": "signal", "id": process_id, "signal": number, "to": to, "level": 1}
        return await self._ask(head, lambda head, _data: protocol.integer(head, "count"))

    async def kill_process(self, process_id: str, name: SignalName = "KILL", grace_s: float = 0) -> KilledProcess:
        """End it and everything it started; all of them are dead when this returns.

        With a signal other than KILL, all of them get that signal first, and those left after `grace_s` are killed.
        """
        if not 0 <= grace_s <= MAX_WAIT_S:
            raise InvalidRequest(f"cannot end {process_id}: grace_s must be 0 to {MAX_WAIT_S:g}")
        head: dict[str, Any] = {"op": "kill", "id": process_id}
        if name != "KILL":
            head.update(signal=int(signal.Signals[f"SIG{name}"]), grace=grace_s, level=1)
        return await self._ask(head, lambda head, _data: protocol.read_killed(head, name), timeout_s=grace_s)

    @asynccontextmanager
    async def read_file(self, path: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[FileReader]:
        """Read a file in chunks, as fast as the caller takes them. Leaving the context early stops the read."""
        if offset < 0 or (length is not None and length < 0):
            raise InvalidRequest(f"cannot read {path}: offset and length must not be negative")
        head = {"op": "read", "path": path, "offset": offset, "length": length}
        async with self._begun(head, b"", wire.WINDOW_BYTES + wire.MAX_HEAD_BYTES, TRANSFER_TIMEOUT_S) as pending:
            while not pending.chunks and not pending.is_over:
                await pending.changed()
            with self._checking(pending):
                if not pending.chunks:
                    self._end_of(pending)
                    raise wire.WireError("no stat")
                stat = protocol.read_stat(wire.read_head(pending.chunks.popleft()[1]))
            chunks = self._file_chunks(pending)
            try:
                yield FileReader(stat, chunks)
            finally:
                await chunks.aclose()

    async def write_file(
        self,
        path: str,
        data: AsyncIterable[bytes] | bytes,
        *,
        make_parents: bool = True,
        size_bytes: int | None = None,
    ) -> FileInfo:
        """Write a file atomically: readers see the old content or the new.

        With `size_bytes`, which is only needed for a stream, a large file can be replaced without room for both
        versions.
        """
        size = len(data) if isinstance(data, bytes) else size_bytes
        head = {"op": "write", "path": path, "parents": make_parents, "size": size}
        if isinstance(data, bytes):
            return await self._ask(head, lambda head, _data: protocol.read_stat(head), data)
        async with self._begun({**head, "more": True}, b"", 0, TRANSFER_TIMEOUT_S) as pending:
            await pending.send_stream(data)
            await pending.over()
            with self._checking(pending):
                return protocol.read_stat(wire.read_head(self._end_of(pending)))

    @asynccontextmanager
    async def dial(self, *, unix: str | None = None, port: int | None = None) -> AsyncGenerator[RunnerStream]:
        """Connect to a server inside the container: a socket's path, or a port on its loopback addresses.

        Leaving the context closes the stream. Raise NothingListens if no process accepts the connection.
        """
        target = {"port": port} if unix is None else {"unix": unix}
        head = {"op": "dial", **target, "level": 3}
        async with self._begun(head, b"", wire.WINDOW_BYTES + wire.MAX_HEAD_BYTES, STREAM_TIMEOUT_S) as pending:
            while not pending.chunks and not pending.is_over:
                await pending.changed()
            if not pending.chunks:
                self._end_of(pending)
            yield RunnerStream(pending, lambda: self._checking(pending))

    async def list_ports(self) -> list[ListeningPort]:
        """Return the TCP ports on which processes inside listen and that `dial` reaches, in ascending order."""
        return await self._ask({"op": "ports", "level": 4}, lambda head, _data: protocol.read_ports(head))

    @asynccontextmanager
    async def read_archive(self, path: str, *, hold_processes: bool = False) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Read a file, or a directory with everything below it, as a tar, as fast as the caller takes it.

        Leaving the context early stops the read. With `hold_processes`, every other process of the container is stopped
        until the context is left, so that the tar is consistent.
        """
        head = {"op": "archive", "path": path, "hold": hold_processes, "level": 3}
        async with self._begun(head, b"", wire.WINDOW_BYTES + wire.MAX_HEAD_BYTES, TRANSFER_TIMEOUT_S) as pending:
            while not pending.chunks and not pending.is_over:
                await pending.changed()
            if not pending.chunks:
                self._end_of(pending)
            chunks = self._file_chunks(pending)
            try:
                yield chunks
            finally:
                await chunks.aclose()

    async def write_archive(self, path: str, data: AsyncIterable[bytes]) -> ArchiveSummary:
        """Extract a tar into a directory, which is made if it is missing. What fails leaves the entries before it."""
        head = {"op": "extract", "path": path, "level": 3, "more": True}
        async with self._begun(head, b"", 0, TRANSFER_TIMEOUT_S) as pending:
            await pending.send_stream(data)
            await pending.over()
            with self._checking(pending):
                return protocol.read_archive_summary(wire.read_head(self._end_of(pending)))

    @asynccontextmanager
    async def watch_directory(self, path: str, *, recursive: bool = False) -> AsyncGenerator[FileWatch]:
        """Watch a directory, or the whole tree. The first event is `ready`; nothing that happens later is missed."""
        head = {"op": "watch", "path": path, "recursive": recursive, "level": 3}
        async with self._begun(head, b"", wire.WINDOW_BYTES + wire.MAX_HEAD_BYTES, WATCH_TIMEOUT_S) as pending:
            while not pending.chunks and not pending.is_over:
                await pending.changed()
            if not pending.chunks:
                self._end_of(pending)
            watch = FileWatch(path, pending, lambda: self._checking(pending))
            self._watches.add(watch)
            try:
                yield watch
            finally:
                self._watches.remove(watch)

    def end_watches(self) -> None:
        """End every watch, which would otherwise go on for ever."""
        for watch in tuple(self._watches):
            watch.end()

    async def read_text(self, path: str, offset: int = 1, limit: int = 2_000) -> TextSlice:
        """Read lines, starting at line `offset`, counted from 1."""
        if offset < 1 or limit < 0:
            raise InvalidRequest(f"cannot read {path}: offset counts lines from 1, limit must not be negative")
        head = {"op": "text", "path": path, "first": offset, "limit": limit}
        return await self._ask(head, protocol.read_text_slice)

    async def edit_file(self, path: str, old: str, new: str, *, replace_all: bool = False) -> Edited:
        old_bytes, new_bytes = old.encode("utf-8", "surrogatepass"), new.encode("utf-8", "surrogatepass")
        if len(old_bytes) + len(new_bytes) > MAX_TEXT_BYTES:
            raise InvalidRequest(f"cannot edit {path}: the texts have more than {MAX_TEXT_BYTES} bytes")
        head = {"op": "edit", "path": path, "old": len(old_bytes), "all": replace_all}
        return await self._ask(head, lambda head, _data: protocol.read_edited(head), old_bytes + new_bytes)

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Return the stat of a path of any kind; `mode` distinguishes files from directories.

        Without `follow`, a link at the end of the path is described itself.
        """
        head: dict[str, Any] = {"op": "stat", "path": path}
        if not follow:
            head.update(follow=False, level=2)
        return await self._ask_stat(head, path)

    async def list_directory(self, path: str, after: str = "", limit: int = wire.MAX_PAGE_ENTRIES) -> DirectoryPage:
        """Return entries of a directory in the order of their names, from the first one after the name `after`.

        A page has at most `limit` entries, and fewer if their names are long.
        """
        if not 1 <= limit <= wire.MAX_PAGE_ENTRIES:
            raise InvalidRequest(f"cannot list {path}: limit must be 1 to {wire.MAX_PAGE_ENTRIES}")
        head = {"op": "list", "path": path, "after": after, "limit": limit, "level": 2}
        pending = await self._begin(head, b"", 0, LISTING_TIMEOUT_S)
        try:
            await pending.over()
            with self._checking(pending):
                following = protocol.read_next(path, wire.read_head(self._end_of(pending)))
                entries = []
                for entry in protocol.read_entries(path, pending.data):
                    entries.append(entry)
                    if len(entries) % ENTRIES_AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()
                return DirectoryPage(items=entries, next=following)
        finally:
            self._close(pending)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty directory; with `recursive`, a directory and everything below it."""
        head = {"op": "remove", "path": path, "recursive": recursive, "level": 2}
        await self._ask(head, lambda _head, _data: None, timeout_s=REMOVAL_TIMEOUT_S if recursive else 0.0)

    async def make_directory(self, path: str, *, parents: bool = False) -> tuple[FileInfo, bool]:
        """Make a directory; return its stat and whether it is new.

        With `parents`, missing directories above it are made too, and one that exists is not an error.
        """
        head = {"op": "mkdir", "path": path, "parents": parents, "level": 2}
        return await self._ask(
            head,
            lambda head, _data: (protocol.read_stat(head, path), not protocol.truth(head, "existed")),
        )

    async def move(self, source: str, target: str, *, replace: bool = False) -> FileInfo:
        """Rename a file, a link or a directory; with `replace`, an existing target is replaced in the same step."""
        head = {"op": "move", "from": source, "to": target, "replace": replace, "level": 2}
        return await self._ask_stat(head, target)

    async def _ask_stat(self, head: dict[str, Any], path: str) -> FileInfo:
        # The path is the caller's own, because the runner's answer could name any other.
        return await self._ask(head, lambda head, _data: protocol.read_stat(head, path))

    async def glob(self, pattern: str, path: str = WORKSPACE, limit: int = 1_000) -> GlobResult:
        head = {"op": "glob", "pattern": pattern, "path": path, "limit": max(0, limit)}
        return await self._ask(head, protocol.read_glob)

    async def grep(self, call: Grep) -> GrepResult:
        head = protocol.grep_head(call, self.max_timeout_s)
        result = await self._ask_exec(head, b"", call.timeout_s, call.max_output_bytes)
        return protocol.read_grep(call, result)

    async def usage(self) -> Usage:
        return await self._ask({"op": "usage"}, lambda head, _data: protocol.read_usage(head))

    async def _ask_exec(
        self, head: dict[str, Any], stdin: bytes | AsyncIterable[bytes], timeout_s: float, most: int
    ) -> CommandResult:
        """Run a command to its end and collect its output."""
        if not isinstance(stdin, bytes):
            async with self._begun(head, stdin, 2 * most, timeout_s) as pending:
                return await self._collect(pending, most)
        pending = await self._begin(head, stdin, 2 * most, timeout_s)
        try:
            return await self._collect(pending, most)
        finally:
            self._close(pending)

    async def _collect(self, pending: PendingCall, most: int) -> CommandResult:
        """Wait for a command to end and join its output."""
        try:
            await pending.over()
            end = self._end_of(pending)
            data = pending.data
            if not data and not pending.chunks:
                return protocol.read_command_result(end, b"", b"")
            split = wire.read_exited(end)[3]
            stdout, stderr = data[:split], data[split:]
            if pending.chunks:
                async with _joining:
                    stdout = _join(pending, wire.STDOUT, stdout)
                    stderr = _join(pending, wire.STDERR, stderr)
                    pending.chunks.clear()
            if len(stdout) > most or len(stderr) > most:
                raise wire.WireError("more output than requested")
            return protocol.read_command_result(end, stdout, stderr)
        except wire.WireError as error:
            raise self._distrust(pending, error) from None

    async def _stream_items(self, pending: PendingCall) -> AsyncGenerator[ExecOutput | CommandResult]:
        while True:
            while pending.chunks:
                kind, _head, data = pending.chunks.popleft()
                yield ExecOutput("stdout" if kind == wire.STDOUT else "stderr", data)
                pending.allow(len(data))
            if pending.is_over:
                with self._checking(pending):
                    yield protocol.read_command_result(self._end_of(pending), b"", b"")
                return
            await pending.changed()

    async def _file_chunks(self, pending: PendingCall) -> AsyncGenerator[bytes]:
        while True:
            while pending.chunks:
                _kind, _head, data = pending.chunks.popleft()
                yield data
                pending.allow(len(data))
            if pending.is_over:
                self._end_of(pending)
                return
            await pending.changed()


def _join(pending: PendingCall, stream: int, rest: bytes) -> bytes:
    return b"".join([*(piece for kind, _head, piece in pending.chunks if kind == stream), rest])

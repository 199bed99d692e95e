# Generated from sandboxd/client/_async/processes.py by scripts/unasync.py; change that file and run `make client`.
"""Background process calls; and the running commands and terminals of a `Sandbox`."""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from sandboxd.client._sync.calls import Calls, SandboxPart
from sandboxd.client.errors import AnswerLost, DaemonUnreachable, WriteIncomplete, malformed_answers, rebuild
from sandboxd.client.request import SHORT_S, encode_text, given, json_request, timeout_for, with_query
from sandboxd.client.stdin import PIECE_BYTES, WRITE_BYTES, part_key
from sandboxd.client.streams import Callback, Stream, make_lock, notify
from sandboxd.errors import ProcessNotFound, SandboxdError
from sandboxd.models.process import Process, ProcessList, ProcessOutput, Signalled, StdinTaken

if TYPE_CHECKING:
    from sandboxd.client.websocket import ClientSocket

KILL_GRACE_S = 5.0
WAIT_S = 20.0
KEPT_CHARS = 1_048_576
"""How much of its output a running command keeps as `output`."""


class ProcessCalls(Calls):
    def _process_path(self, session: str, process: str, tenant: str | None) -> str:
        return f"{self._session_path(session, tenant)}/processes/{quote(process, safe='')}"

    def start_process(
        self,
        session: str,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        tty: bool = False,
        term: str | None = None,
        echo: bool | None = None,
        rows: int | None = None,
        columns: int | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Process:
        """Start a command in the background. `term`, `echo`, `rows` and `columns` are options of its terminal."""
        content = given(
            command=command if isinstance(command, str) else list(command),
            cwd=cwd,
            env=None if env is None else dict(env),
            tty=tty or None,
            term=term,
            echo=echo,
            rows=rows,
            columns=columns,
        )
        target = f"{self._session_path(session, tenant)}/processes"
        return self._ask(Process, json_request("POST", target, content, key=idempotency_key))

    def list_processes(self, session: str, *, tenant: str | None = None) -> list[Process]:
        return (self._ask(ProcessList, json_request("GET", f"{self._session_path(session, tenant)}/processes"))).items

    def read_process(
        self,
        session: str,
        process: str,
        *,
        offset: int = 0,
        limit: int | None = None,
        wait_s: float = 0,
        tenant: str | None = None,
    ) -> ProcessOutput:
        """Return the output of a process from an offset: up to 256 KiB, or `limit` bytes of at most 1 MiB."""
        path = self._process_path(session, process, tenant)
        target = with_query(path, offset=offset, limit=limit, wait_s=wait_s, encoding="base64")
        return self._ask(ProcessOutput, json_request("GET", target, timeout_s=timeout_for(wait_s, SHORT_S)))

    def write_process(
        self,
        session: str,
        process: str,
        data: str | bytes,
        *,
        eof: bool = False,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Write all of the data; raise WriteIncomplete with the size written if the process stops reading."""
        target = f"{self._process_path(session, process, tenant)}/stdin"
        whole = data if isinstance(data, bytes) else encode_text(data)
        taken_bytes = 0
        while True:
            piece = whole[taken_bytes : taken_bytes + WRITE_BYTES]
            is_last = taken_bytes + len(piece) == len(whole)
            content = {"data": base64.b64encode(piece).decode(), "encoding": "base64", "eof": eof and is_last}
            request = json_request("POST", target, content, key=part_key(idempotency_key, taken_bytes))
            try:
                taken_bytes += (self._ask(StdinTaken, request)).taken_bytes
            except SandboxdError as error:
                if taken_bytes:
                    raise WriteIncomplete(taken_bytes, len(whole), error) from error
                raise
            if taken_bytes >= len(whole):
                return

    def resize_process(self, session: str, process: str, rows: int, columns: int, *, tenant: str | None = None) -> None:
        target = f"{self._process_path(session, process, tenant)}/size"
        self._send(json_request("PUT", target, {"rows": rows, "columns": columns}, is_idempotent=True))

    def signal_process(
        self,
        session: str,
        process: str,
        signal: str,
        *,
        to: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Send a signal such as INT, and return how many processes got it.

        `to` is `process`, `foreground` (the default if it has a terminal) or `children`: all its descendants.
        """
        target = f"{self._process_path(session, process, tenant)}/signal"
        request = json_request("POST", target, given(signal=signal, to=to), key=idempotency_key)
        return (self._ask(Signalled, request)).signalled

    def kill_process(
        self,
        session: str,
        process: str,
        *,
        signal: str | None = None,
        grace_s: float | None = None,
        tenant: str | None = None,
    ) -> Process:
        """Kill a process and everything it started.

        A signal such as TERM is sent first, and processes left after `grace_s` (5 by default) are killed;
        `ended_by` says which signal ended the last of them.
        """
        target = with_query(self._process_path(session, process, tenant), signal=signal, grace_s=grace_s)
        patience_s = timeout_for(KILL_GRACE_S if grace_s is None else grace_s, SHORT_S)
        return self._ask(Process, json_request("DELETE", target, timeout_s=patience_s))

    def open_pty(
        self, session: str, process: str, *, offset: int | None = None, tenant: str | None = None
    ) -> ClientSocket:
        """Open a WebSocket to a process. `Sandbox.pty` is easier to use."""
        path = f"{self._session_path(session, tenant)}/pty"
        return self._transport.open_socket(with_query(path, process=process, offset=offset))


class BackgroundProcess(SandboxPart[ProcessCalls]):
    """A process that was started in the background: read it, write to it or kill it."""

    def __init__(self, calls: ProcessCalls, session: str, tenant: str, process: str) -> None:
        super().__init__(calls, session, tenant)
        self.id = process
        self._offset = 0

    def pieces(self) -> Stream[bytes]:
        """Yield its output, stdout and stderr together, until it ends. A second call resumes where the first ended."""
        while True:
            read = self._calls.read_process(
                self._session, self.id, offset=self._offset, wait_s=WAIT_S, tenant=self._tenant
            )
            self._offset = read.next_offset
            if read.data:
                yield read.data
            if not read.process.running and self._offset >= read.process.output_bytes:
                return

    def get_record(self) -> Process:
        """Return its record: whether it runs, or how it ended."""
        read = self._calls.read_process(self._session, self.id, offset=self._offset, limit=1, tenant=self._tenant)
        return read.process

    def send_stdin(self, data: str | bytes, *, eof: bool = False) -> None:
        """Write all of the data to its stdin; with `eof`, close it afterwards."""
        self._calls.write_process(self._session, self.id, data, eof=eof, tenant=self._tenant)

    def kill(self, *, signal: str | None = None, grace_s: float | None = None) -> bool:
        """Kill it and everything it started; return False if it was unknown."""
        return kill_known(self._calls, self._session, self.id, self._tenant, signal, grace_s)


class CommandHandle(BackgroundProcess):
    """A command that runs in the background. Iterate over it for its output as text."""

    def __init__(
        self,
        calls: ProcessCalls,
        session: str,
        tenant: str,
        process: str,
        on_stdout: Callback[str] | None = None,
    ) -> None:
        super().__init__(calls, session, tenant, process)
        self._on_stdout = on_stdout
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.output = ""
        """The stdout and stderr read so far: the last 1 MiB."""

    def __iter__(self) -> Stream[str]:
        for piece in self.pieces():
            if text := self._decoder.decode(piece):
                self.output = (self.output + text)[-KEPT_CHARS:]
                notify(self._on_stdout, text)
                yield text

    def wait(self) -> Process:
        """Read its output until it ends, and return its record with the exit code."""
        for _ in self:
            pass
        return self.get_record()


class Terminal(BackgroundProcess):
    """A process in a terminal. Iterate over it for what it shows, as bytes.

    It uses a WebSocket, which is opened when it is first needed and again after it was lost; what was shown in between
    is not missed. `close` detaches: the process keeps running.
    """

    def __init__(self, calls: ProcessCalls, session: str, tenant: str, process: str, *, offset: int | None = 0) -> None:
        """Show output from this offset; None means about the last screenful."""
        super().__init__(calls, session, tenant, process)
        self._offset = offset or 0
        self._shows_tail = offset is None
        self._open_socket: ClientSocket | None = None
        self._opening = make_lock()
        self._is_detached = False
        self._has_ended = False
        self.exit_code: int | None = None
        """Its exit code; None until its last output has been read."""

    def __iter__(self) -> Stream[bytes]:
        return self.pieces()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def attach(self) -> None:
        """Open the WebSocket now; raise if the process is unknown."""
        self._is_detached = False
        self._socket()

    def pieces(self) -> Stream[bytes]:
        """Yield what it shows until it ends or `close` is called. A second call resumes where the first ended."""
        is_second = self._is_detached = False
        while not self._has_ended:
            socket = self._socket()
            if socket is None:
                return
            try:
                message = socket.receive()
            except AnswerLost:
                self._drop(socket)
                if is_second and not self._is_detached:
                    raise
                is_second = True  # reading again from the offset is safe
                continue
            if socket is not self._open_socket:
                continue  # another task has opened a new one, which sends this again
            is_second = False
            if isinstance(message, bytes):
                self._offset += len(message)
                yield message
            else:
                try:
                    self._note(message)
                except BaseException:
                    self._drop(socket)
                    raise
        if self._open_socket is not None:
            self._drop(self._open_socket)

    def send(self, data: str | bytes) -> None:
        """Type into it."""
        whole = data if isinstance(data, bytes) else encode_text(data)
        for start in range(0, len(whole), PIECE_BYTES):
            self._send(whole[start : start + PIECE_BYTES])

    def send_eof(self) -> None:
        """End its input: close its stdin; in a terminal, type Ctrl-D."""
        self._send('{"type":"eof"}')

    def resize(self, rows: int, columns: int) -> None:
        if self._open_socket is None:
            self._calls.resize_process(self._session, self.id, rows, columns, tenant=self._tenant)
        else:
            self._send(json.dumps({"type": "resize", "rows": rows, "cols": columns}))

    def wait(self) -> Process:
        """Read what it shows until it ends, and return its record with the exit code."""
        for _ in self:
            pass
        return self.get_record()

    def close(self) -> None:
        """Detach: close the WebSocket, and leave the process running."""
        self._is_detached = True
        if self._open_socket is not None:
            self._drop(self._open_socket)

    def _socket(self) -> ClientSocket | None:
        """Return the WebSocket, opened if necessary; None after `close`."""
        with self._opening:
            if self._open_socket is None and not self._is_detached:
                offset = None if self._shows_tail else self._offset
                self._open_socket = self._calls.open_pty(self._session, self.id, offset=offset, tenant=self._tenant)
            return self._open_socket

    def _send(self, message: str | bytes) -> None:
        self._is_detached = False
        is_second = False
        while (socket := self._socket()) is not None:
            try:
                socket.send(message)
                return
            except DaemonUnreachable as error:
                self._drop(socket)
                if is_second or isinstance(error, AnswerLost):
                    raise
                is_second = True

    def _drop(self, socket: ClientSocket) -> None:
        if self._open_socket is socket:
            self._open_socket = None
        socket.close()

    def _note(self, text: str) -> None:
        """Take a message of the daemon. Those of unknown types are for newer clients."""
        with malformed_answers():
            message = json.loads(text)
            kind = message["type"]
            if kind in ("attached", "dropped"):
                self._offset, self._shows_tail = int(message["offset"]), False
            elif kind == "exit":
                self.exit_code, self._has_ended = message["exit_code"], True
        if kind == "error":
            raise rebuild(message)


class SandboxPty(SandboxPart[ProcessCalls]):
    """The terminals of a sandbox."""

    def create(
        self,
        command: str | Sequence[str] = "exec bash -l",
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        """Start a command in a terminal, by default a login shell."""
        process = self._calls.start_process(
            self._session, command, cwd=cwd, env=env, tty=True, rows=rows, columns=columns, tenant=self._tenant
        )
        return self.connect(process.id)

    def connect(self, terminal: str, *, offset: int | None = 0) -> Terminal:
        """Return a terminal that was created before, by its id, to show from an offset of its output.

        All that the sandbox keeps, up to 1 MiB, is shown by default; `offset=None` means about the last screenful.
        """
        return Terminal(self._calls, self._session, self._tenant, terminal, offset=offset)

    def send(self, terminal: str, data: str | bytes) -> None:
        """Type into a terminal."""
        self._calls.write_process(self._session, terminal, data, tenant=self._tenant)

    def resize(self, terminal: str, rows: int, columns: int) -> None:
        self._calls.resize_process(self._session, terminal, rows, columns, tenant=self._tenant)

    def kill(self, terminal: str) -> bool:
        """Kill a terminal and everything in it; return False if it was unknown."""
        return kill_known(self._calls, self._session, terminal, self._tenant)


def kill_known(
    calls: ProcessCalls,
    session: str,
    process: str,
    tenant: str,
    signal: str | None = None,
    grace_s: float | None = None,
) -> bool:
    try:
        calls.kill_process(session, process, signal=signal, grace_s=grace_s, tenant=tenant)
    except ProcessNotFound:
        return False
    return True

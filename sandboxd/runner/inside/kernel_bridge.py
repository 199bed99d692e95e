"""The bridge of a context: starts a Jupyter kernel and serves it to the daemon on a socket of its own.

The one part that imports from the image: jupyter_client, which comes with ipykernel. A connection carries one request,
a line of JSON, and its answer, lines of JSON of bounded length. It outlives daemons and kernels: a kernel that dies is
replaced at the next run. It keeps no output: what its client does not take is dropped within the bounds of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
import time

from .kernel_outputs import Outputs
from .kernel_process import Kernel, KernelFailed
from .marks import read_marks_as_a_marked_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_REQUEST_BYTES = 16_777_216
INTERRUPT_GRACE_S = 5.0
"""How long a kernel may take to react to an interrupt before it is killed."""
REPEAT_AFTER_S = 2.0
"""Code may catch the first interrupt by mistake, so it is sent again."""


class Bridge:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._kernel: Kernel | None = None
        self._running: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._interrupted = asyncio.Event()
        self._count = 0
        self._lost: dict[str, str] | None = None
        """Why the state of the last kernel is gone; None once a run has reported it."""

    async def start(self) -> None:
        """Start the first kernel."""
        await self._live_kernel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of one connection."""
        try:
            line = await reader.readline()
            request = json.loads(line) if line.endswith(b"\n") else None
            if isinstance(request, dict):
                await self._answer(request, reader, writer)
        except (ConnectionError, ValueError):
            pass  # the daemon has left, or this is not the daemon
        finally:
            writer.close()

    async def _answer(
        self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        op = request.get("op")
        if op == "run":
            await self._run(request, reader, writer)
            return
        if op == "interrupt":
            self._interrupted.set()
        elif op == "restart":
            await self._restart()
        await send(writer, self._describe())

    def _describe(self) -> dict[str, Any]:
        kernel = self._kernel
        if self._starting.locked():
            state = "starting"
        elif self._running is not None:
            state = "busy"
        else:
            state = "idle" if kernel is not None and kernel.is_alive else "dead"
        return {"state": state, "execution_count": self._count}

    async def _restart(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        await self._drop_kernel()
        self._count = 0
        await self._live_kernel()
        self._lost = None  # the caller has asked for it

    async def _drop_kernel(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            await kernel.close()

    async def _live_kernel(self) -> Kernel:
        """Return the kernel; start another one if it is dead."""
        async with self._starting:
            if self._kernel is not None and not self._kernel.is_alive:
                self._lost = self._lost or await self._kernel.cause()
                await self._drop_kernel()
            if self._kernel is None:
                self._kernel = await Kernel.start(self._directory)
            return self._kernel

    async def _run(self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._running is not None:
            await send(writer, {"refused": "busy"})
            return
        self._interrupted.clear()
        self._running = asyncio.ensure_future(self._run_code(request, reader, writer))
        try:
            await asyncio.wait({self._running})
            if self._running.cancelled():
                end = {"ok": False, "count": self._count, "timed_out": False, "truncated": False, "ms": 0.0}
                await send(writer, {"end": {**end, "lost": {"why": "restarted"}}})
            else:
                self._running.result()
        finally:
            self._running = None

    async def _run_code(
        self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        began = time.monotonic()
        outputs = Outputs(int(request["max"]))
        await send(writer, {"began": True})
        sending = asyncio.ensure_future(_send_outputs(outputs, writer))
        leaving = asyncio.ensure_future(reader.read(1))  # the daemon sends nothing more: it has left
        try:
            end = await self._execute(str(request["code"]), float(request["timeout"]), outputs, leaving)
            outputs.end()
            await sending
            end["truncated"] = outputs.is_truncated
            end["ms"] = (time.monotonic() - began) * 1000
            await send(writer, {"end": end})
        finally:
            leaving.cancel()
            sending.cancel()

    async def _execute(
        self, code: str, timeout_s: float, outputs: Outputs, leaving: asyncio.Future[bytes]
    ) -> dict[str, Any]:
        """Run the code, interrupt it when it must end, and say how it ended."""
        try:
            kernel = await self._live_kernel()
        except KernelFailed as failed:
            return {"ok": False, "count": self._count, "timed_out": False, "lost": failed.cause}
        lost, self._lost = self._lost, None
        if lost is not None:
            self._count = 0
        run = asyncio.ensure_future(kernel.execute(code, outputs))
        death = asyncio.ensure_future(kernel.wait())
        asked = asyncio.ensure_future(self._interrupted.wait())
        waiting: set[asyncio.Future[Any]] = {run, death, asked, leaving}
        timed_out = False
        try:
            done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not done
            if not {run, death} & done:
                await _interrupt(kernel, run, death)
            if run.done() and not run.cancelled():
                reply = run.result()
                self._count = reply["count"] or self._count
                if reply["exits"]:
                    await kernel.wait()
                if kernel.is_alive:
                    earlier = None if lost is None else {**lost, "earlier": True}
                    return {"ok": reply["ok"], "count": self._count, "timed_out": timed_out, "lost": earlier}
            lost = {"why": "stuck"} if kernel.is_alive else await kernel.cause()
            await self._drop_kernel()
            return {"ok": False, "count": self._count, "timed_out": timed_out, "lost": lost}
        finally:
            for task in (run, death, asked):
                task.cancel()


async def _interrupt(kernel: Kernel, run: asyncio.Future[Any], death: asyncio.Future[Any]) -> None:
    """Interrupt the code, and give it some time to end."""
    deadline = time.monotonic() + INTERRUPT_GRACE_S
    while time.monotonic() < deadline:
        await kernel.interrupt(REPEAT_AFTER_S)
        done, _ = await asyncio.wait({run, death}, timeout=REPEAT_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return


async def _send_outputs(outputs: Outputs, writer: asyncio.StreamWriter) -> None:
    async for line in outputs:
        with contextlib.suppress(ConnectionError):  # the run goes on until it is interrupted
            await send(writer, line)


async def send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n")
    await writer.drain()


async def serve(listening: socket.socket, directory: str) -> int:
    bridge = Bridge(directory)
    server = await asyncio.start_unix_server(bridge.serve, sock=listening, limit=MAX_REQUEST_BYTES)
    async with server:
        try:
            await bridge.start()
        except KernelFailed as failed:
            report({"bridge": "failed", "cause": failed.cause})
            return 1
        report({"bridge": "ready"})
        await server.serve_forever()
    return 0


def report(message: dict[str, Any]) -> None:
    """Tell the daemon, which reads the output of this process until it is ready."""
    print("\n" + json.dumps(message), flush=True)


def main(name: str) -> int:
    """Serve on the abstract socket of this name, which no file stands for, so that no agent removes it by mistake."""
    read_marks_as_a_marked_process()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind("\0" + name)
    with tempfile.TemporaryDirectory(prefix=".context-", dir="/tmp") as directory:
        return asyncio.run(serve(listening, directory))

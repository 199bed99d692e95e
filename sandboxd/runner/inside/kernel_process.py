"""A Jupyter kernel of the image: its process, its connection and the run under way.

It listens on unix sockets in a directory of its own, never on a port. Everything it has started ends with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile

import jupyter_client
import zmq.asyncio

from .counters import Counters
from .kernel_outputs import Outputs
from .marks import mark_of
from .tree import kill_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

READY_S = 60
IDLE_S = 10.0
"""How long to wait for the last output after the reply, because the kernel may have dropped it."""
REPLY_S = 1.0
"""How long to wait for a reply once the kernel is idle again: it was sent before."""
CONNECT_S = 0.2


class KernelFailed(Exception):
    """The kernel did not start."""

    def __init__(self, cause: dict[str, str]) -> None:
        super().__init__(cause["why"])
        self.cause = cause


class KernelRun:
    """The run under way: its message and its outputs."""

    def __init__(self, message_id: str, outputs: Outputs) -> None:
        self.message_id = message_id
        self.outputs = outputs
        self.has_begun = asyncio.Event()
        """Set when the kernel begins to run the code."""
        self.is_idle = asyncio.Event()
        """Set when the kernel is done with it: this comes after its last output, and even if there is no reply."""


class Kernel:
    """A live kernel; made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process, client: Any) -> None:
        self._process = process
        self._client = client
        self._counters = Counters()
        self._before = self._counters.read()
        self._run: KernelRun | None = None
        self._pump = asyncio.ensure_future(self._read_outputs())

    @classmethod
    async def start(cls, directory: str) -> Kernel:
        place = tempfile.mkdtemp(prefix="kernel-", dir=directory)
        file, _ = jupyter_client.write_connection_file(
            place + "/connection.json", transport="ipc", ip=place + "/socket"
        )
        env = {
            "MPLCONFIGDIR": "/tmp/.matplotlib",  # noqa: S108 - its font cache, which would otherwise be in /workspace
            **os.environ,
            "IPYTHONDIR": place + "/ipython",
            "JPY_PARENT_PID": str(os.getpid()),  # it ends itself if the bridge is killed
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "ipykernel_launcher", "-f", file, "--HistoryManager.enabled=False"),
            stdin=asyncio.subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )
        context = zmq.asyncio.Context()
        context.rcvhwm = 0  # outputs are bounded by the bridge, which says what it drops
        context.reconnect_ivl = 10  # milliseconds: the kernel needs a moment until it listens
        client = jupyter_client.AsyncKernelClient(connection_file=file, context=context)
        client.load_connection_file()
        client.start_channels(stdin=False, hb=False, control=False)
        kernel = cls(process, client)
        try:
            await kernel._wait_ready()
        except BaseException:
            await kernel.close()
            raise
        return kernel

    async def _wait_ready(self) -> None:
        ready = asyncio.ensure_future(self._connect())
        death = asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait({ready, death}, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done() or ready.exception() is not None:
                raise KernelFailed({"why": "stuck"} if self.is_alive else await self.cause())
        finally:
            death.cancel()
            ready.cancel()

    async def _connect(self) -> None:
        """Ask the kernel about itself until its outputs arrive too: they are lost before it knows of this reader."""
        while True:
            run = self._run = KernelRun(self._client.kernel_info(), Outputs(0))
            await self._reply_to(run)
            if await within(CONNECT_S, run.is_idle.wait()):
                self._run = None
                return

    async def _reply_to(self, run: KernelRun) -> dict[str, Any]:
        while True:
            reply: dict[str, Any] = await self._client.get_shell_msg(timeout=None)
            if reply["parent_header"].get("msg_id") == run.message_id:
                return dict(reply["content"])

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> None:
        """Wait until it is dead."""
        await self._process.wait()

    async def cause(self) -> dict[str, str]:
        """Return why it died."""
        code = await self._process.wait()
        if code >= 0:
            return {"why": "exited", "code": str(code)}
        if -code == signal.SIGKILL and "memory" in self._counters.grown(self._before, self._counters.read()):
            return {"why": "oom"}
        return {"why": "killed", "signal": signal.Signals(-code).name}

    async def execute(self, code: str, outputs: Outputs) -> dict[str, Any]:
        """Run the code; return its number, whether it succeeded, and whether the kernel ends now."""
        # By default a kernel refuses what arrives right after an error, without running it; here no other run can wait.
        message_id = self._client.execute(code, allow_stdin=False, stop_on_error=False)
        run = self._run = KernelRun(message_id, outputs)
        replying = asyncio.ensure_future(self._reply_to(run))
        idling = asyncio.ensure_future(run.is_idle.wait())
        try:
            await asyncio.wait({replying, idling}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({replying, idling}, timeout=IDLE_S if replying.done() else REPLY_S)
            if not replying.done():  # an interrupt has hit the kernel itself, just before or after the code
                outputs.add("error", {"ename": "KeyboardInterrupt", "traceback": ["KeyboardInterrupt"]})
                return {"count": 0, "ok": False, "exits": False}
            outputs.is_truncated |= not idling.done()
            reply = replying.result()
        finally:
            self._run = None
            replying.cancel()
            idling.cancel()
        exits = any(payload.get("source") == "ask_exit" for payload in reply.get("payload", ()))
        return {"count": reply.get("execution_count") or 0, "ok": reply.get("status") == "ok", "exits": exits}

    async def interrupt(self, patience_s: float) -> None:
        """Send SIGINT to the kernel and to what it runs in the foreground, as soon as the code runs.

        Before that the kernel ignores the signal, or loses the code.
        """
        if self._run is not None:
            await within(patience_s, self._run.has_begun.wait())
        if self.is_alive:
            os.killpg(self._process.pid, signal.SIGINT)

    async def close(self) -> None:
        """End the kernel and everything it has started."""
        mark = mark_of(os.getpid()) or 0
        if mark > 0:  # which all of them have inherited: see `marks`
            for delay in kill_tree(os.getpid(), self._process.pid, mark):
                await asyncio.sleep(delay)
        elif self.is_alive:
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._pump.cancel()
        self._client.stop_channels()
        self._client.context.destroy(linger=0)

    async def _read_outputs(self) -> None:
        """Read all the time, so that the kernel never has to drop output; keep only that of the run under way."""
        while True:
            message = await self._client.get_iopub_msg(timeout=None)
            run, kind = self._run, message["header"]["msg_type"]
            if run is None or message["parent_header"].get("msg_id") != run.message_id:
                continue
            if kind == "execute_input":
                run.has_begun.set()
            elif kind == "status":
                if message["content"].get("execution_state") == "idle":
                    run.is_idle.set()
            else:
                run.outputs.add(kind, message["content"])


async def within(patience_s: float, happening: Coroutine[Any, Any, Any]) -> bool:
    """Wait for something; return whether it happened in time."""
    waiting = asyncio.ensure_future(happening)
    try:
        done, _ = await asyncio.wait({waiting}, timeout=patience_s)
    finally:
        waiting.cancel()
    return bool(done)

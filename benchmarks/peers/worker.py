"""One contender in its own process: one line of JSON per request and per answer, with times measured in the worker.

So the interpreter, event loop and libraries of one contender never affect the figures of another, and no figure
includes the transport of the request. `python -m benchmarks.peers.worker MODULE OPTIONS` runs in the environment that
the contender needs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TextIO, cast

import anyio
from anyio import to_thread

from benchmarks.afternoon import CHUNK, play, script
from benchmarks.peers import Absent, Options, Peer, PeerModule, Session

CONTENT = b"0123456789abcdef" * 256
_THREADS = 64


class Contender:
    """Owns the open sessions and answers requests about them."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._sessions: dict[str, Session] = {}

    async def prepare(self, name: str) -> object:
        await self._peer.prepare(name)
        return {}

    async def settle(self) -> object:
        await self._peer.settle()
        return {}

    async def open(self, name: str) -> object:
        """Open a session, run its first command and return how long both took."""
        started = time.perf_counter()
        session = await self._peer.open(name)
        self._sessions[name] = session
        await session.run(["true"])
        return {"took_ms": [(time.perf_counter() - started) * 1000], "container": session.container}

    async def run(self, name: str, times: int, before: int = 0) -> object:
        """Run this many commands, after warm-up commands that are not measured."""
        session = self._sessions[name]
        for _ in range(before):
            await session.run(["true"])
        return {"took_ms": await _timed(times, lambda: session.run(["true"]))}

    async def write(self, name: str, times: int) -> object:
        session = self._sessions[name]
        path = f"{session.root}/bench.txt"
        return {"took_ms": await _timed(times, lambda: session.write(path, CONTENT))}

    async def read(self, name: str, times: int) -> object:
        session = self._sessions[name]
        path = f"{session.root}/bench.txt"
        if await session.read(path) != CONTENT:
            raise Absent("it read back something other than what was written")
        return {"took_ms": await _timed(times, lambda: session.read(path))}

    async def play(self, name: str, chunk: int) -> object:
        session = self._sessions[name]
        if (chunk + 1) * CHUNK > len(calls := script(session.root)):
            raise ValueError(f"cannot run chunk {chunk}: the afternoon is over")
        return {"took_ms": await play(session, calls[chunk * CHUNK : (chunk + 1) * CHUNK])}

    async def rate(self, names: list[str], clients: int, seconds: float) -> object:
        """Return commands per second with this many clients, distributed over the sessions."""
        sessions = [self._sessions[name] for name in names]
        done = 0

        async def client(number: int) -> None:
            nonlocal done
            while time.perf_counter() < end:
                await sessions[number % len(sessions)].run(["true"])
                done += 1

        started = time.perf_counter()
        end = started + seconds
        async with anyio.create_task_group() as tasks:
            for number in range(clients):
                tasks.start_soon(client, number)
        return {"done": done, "seconds": time.perf_counter() - started}

    async def close(self, name: str) -> object:
        await self._sessions.pop(name).close()
        return {}

    async def close_all(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(60):
            for session in self._sessions.values():
                await session.close()


async def _timed(times: int, act: Callable[[], Awaitable[object]]) -> list[float]:
    took = []
    for _ in range(times):
        started = time.perf_counter()
        await act()
        took.append((time.perf_counter() - started) * 1000)
    return took


async def serve(module: str, options: Options, answers: TextIO) -> None:
    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    to_thread.current_default_thread_limiter().total_tokens = _THREADS
    try:
        found = cast(PeerModule, importlib.import_module(f"benchmarks.peers.{module}"))
    except ImportError as error:
        answer({"absent": f"it is not installed: {error}"})
        return
    try:
        async with found.open_peer(options) as peer:
            contender = Contender(peer)
            answer({"ready": True})
            try:
                while line := await to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
                    asked: dict[str, Any] = json.loads(line)
                    answer(await _try(getattr(contender, asked.pop("verb")), asked))
            finally:
                await contender.close_all()
    except Absent as error:
        answer({"absent": str(error)})


async def _try(verb: Callable[..., Awaitable[object]], arguments: dict[str, Any]) -> object:
    """Return the answer, or the reason why there is none: a failing library must not end the comparison."""
    try:
        return await verb(**arguments)
    except Exception as error:  # noqa: BLE001  whatever a peer raises is its reason, and is shown
        return {"absent": reason_of(error)}


def reason_of(error: BaseException) -> str:
    """Return one line of an exception; of a group, the first exception that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def main() -> None:
    module, encoded = sys.argv[1:]
    given = json.loads(encoded)
    socket = given.get("socket")
    options = Options(
        given["image"], Path(given["directory"]), given["label"], given["pooled"], Path(socket) if socket else None
    )
    # Libraries print to stdout, so answers go through a stream that they cannot reach.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        backend = {"use_uvloop": True} if module == "ours" else {}
        anyio.run(serve, module, options, answers, backend_options=backend)


if __name__ == "__main__":
    main()

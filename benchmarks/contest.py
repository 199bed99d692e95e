"""Contenders side by side: each in its own worker process, called in turn, so that noise hits all of them equally.

It owns the workers and the daemons that ours connect to. A contender that cannot do a job is reported with the reason
and skipped for the rest of that job.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from rich.progress import track

from benchmarks.daemon import image, remove_containers, serving
from benchmarks.measure import Figure, Missing, figure
from benchmarks.peers import Absent, Entry
from benchmarks.peers.environment import ROOT, python, server_image
from benchmarks.peers.ours import POOL

_ANSWER_S = 300
_MOST_BYTES = 4_000_000


class Worker:
    """One contender, which handles one request at a time."""

    def __init__(self, entry: Entry, process: Process, log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.entry = entry
        self._process = process
        self._stdin = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)
        self._log = log

    async def answer(self) -> dict[str, Any]:
        try:
            with anyio.fail_after(_ANSWER_S):
                answer: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", _MOST_BYTES))
        except (anyio.IncompleteRead, anyio.EndOfStream):
            last = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()][-1:]
            raise Absent(f"it died: {' '.join(last)[:200]}") from None
        except TimeoutError:
            raise Absent(f"it did not answer within {_ANSWER_S} s") from None
        if "absent" in answer:
            raise Absent(answer["absent"])
        return answer

    async def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        try:
            await self._stdin.send(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
        except anyio.BrokenResourceError:
            raise Absent("it died earlier") from None
        return await self.answer()

    async def stop(self) -> None:
        """Close the worker, which cleans up when its input ends."""
        await self._stdin.aclose()
        with anyio.move_on_after(90):
            await self._process.wait()
            return
        self._process.kill()


@dataclass(slots=True)
class Contest:
    workers: dict[str, Worker] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    job: str = "start"
    containers: dict[tuple[str, str], str | None] = field(default_factory=dict)
    """The engine's id of every open sandbox, by contender and name; None for those without a container."""

    async def ask_all(self, names: Sequence[str], ask: Callable[[Worker], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Get one answer from each contender in turn; drop a contender that gives none."""
        answers = {}
        for name in names:
            try:
                answers[name] = await ask(self.workers[name])
            except Absent as error:
                self.missing.append(Missing(name, f"{error} ({self.job})"))
        return answers

    async def open_sandboxes(self, count: int, names: Sequence[str]) -> None:
        """Open sessions s0, s1 and so on for each of these, for use by any job."""
        for number in range(count):
            name = f"s{number}"
            answers = await self.ask_all(names, lambda worker, name=name: worker.ask("open", name=name))  # type: ignore[misc]
            for contender, answer in answers.items():
                self.containers[contender, name] = answer["container"]

    async def interleave(
        self,
        title: str,
        rounds: int,
        ask: Callable[[Worker, int], Awaitable[dict[str, Any]]],
        *,
        among: Sequence[str] | None = None,
        rarely: Mapping[str, int] | None = None,
    ) -> list[Figure]:
        """Run every contender once per round; `rarely` gives the interval, in rounds, of slow ones."""
        took: dict[str, list[float]] = {name: [] for name in (self.workers if among is None else among)}
        every = rarely or {}
        for number in track(range(rounds), description=title, transient=True):
            playing = [name for name in took if number % every.get(name, 1) == 0]
            answers = await self.ask_all(playing, lambda worker, number=number: ask(worker, number))  # type: ignore[misc]
            for name in playing:
                if name not in answers:
                    del took[name]
                else:
                    took[name] += answers[name]["took_ms"]
        return [figure(name, values) for name, values in took.items() if values]


@asynccontextmanager
async def contest(entries: Sequence[Entry], root: Path) -> AsyncIterator[Contest]:
    """Start a worker for each of these that can run, and the daemons for ours."""
    found = Contest()
    label = f"sandboxd-bench={os.getpid()}"
    async with AsyncExitStack() as stack:
        if any(entry.kind == "container" for entry in entries):
            stack.push_async_callback(remove_containers, label)  # a peer that died left its containers behind
        for number, entry in enumerate(entries):
            directory = root / f"worker{number}"
            directory.mkdir()
            directory.chmod(0o711)
            socket = None
            if entry.kind == "ours":
                daemon = await stack.enter_async_context(
                    serving(root / f"daemon{number}", pool=POOL if entry.pooled else 0)
                )
                socket = daemon.socket
            try:
                worker = await stack.enter_async_context(_worker(entry, directory, socket, label))
                await worker.answer()
            except Absent as error:
                found.missing.append(Missing(entry.name, str(error)))
                continue
            found.workers[entry.name] = worker
        yield found


@asynccontextmanager
async def _worker(entry: Entry, directory: Path, socket: Path | None, label: str) -> AsyncIterator[Worker]:
    interpreter = python() if entry.is_foreign else Path(sys.executable)
    if not interpreter.exists():
        raise Absent("the peers' environment does not exist; `make bench` creates it")
    options = {
        "image": image(),
        "directory": str(directory),
        "label": label,
        "pooled": entry.pooled,
        "socket": str(socket) if socket else None,
    }
    command = [str(interpreter), "-m", "benchmarks.peers.worker", entry.module, json.dumps(options)]
    # The system's programs first: otherwise the wrappers of a version manager would be measured too.
    path = f"/usr/bin:/bin:{os.environ.get('PATH', '')}"
    env = {**os.environ, "PATH": path, "BENCH_SWE_REX_IMAGE": server_image(image())}
    log = directory / "worker.log"
    with log.open("wb") as stderr:
        async with await anyio.open_process(command, stderr=stderr, cwd=ROOT, env=env) as process:
            worker = Worker(entry, process, log)
            try:
                yield worker
            finally:
                with anyio.CancelScope(shield=True):
                    await worker.stop()

"""A scripted agent's afternoon: 200 tool calls over a hundred files, the same for every contender.

It explores, reads, edits, runs tests and searches, in the proportions typical of agents. For a contender without tools,
calls are made as an agent would make them: an edit is a read and a write, a search is a command.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers import Session, WithTools

FILES = 100
CALLS = 200
CHUNK = 20


@dataclass(frozen=True, slots=True)
class Call:
    verb: str
    path: str
    text: str = ""
    new: str = ""


def file_text(number: int) -> str:
    lines = [f"def step_{number}_{line}(value):\n    return value + {line}\n" for line in range(20)]
    return f'"""Part {number}."""\n\nVERSION = "before"\n\n' + "\n".join(lines)


def script(root: str) -> list[Call]:
    """Return the afternoon in chunks of one kind of work: 100 writes, 40 edits, 30 reads, 15 searches, 15 commands."""
    files = [f"{root}/part{number:03}.py" for number in range(FILES)]
    calls = [Call("write", path, file_text(number)) for number, path in enumerate(files)]
    rest: list[Call] = []
    for number in range(40):
        path = files[number]  # already written, however the two halves are mixed
        rest.append(Call("edit", path, 'VERSION = "before"', 'VERSION = "after"'))
        if number < 30:
            rest.append(Call("read", path))
        if number < 15:
            rest.append(Call("run", path))
        if number < 10:
            rest.append(Call("grep", root, f"step_{number}_1"))
        if number < 5:
            rest.append(Call("glob", root, f"part{number}*.py"))
    # Alternate writes and other work, so that every chunk resembles the whole.
    return [call for pair in zip(calls, rest, strict=True) for call in pair]


async def play(session: Session, calls: Sequence[Call]) -> list[float]:
    """Make the calls sequentially and return the duration of each in milliseconds."""
    took = []
    for call in calls:
        started = time.perf_counter()
        await make(session, call)
        took.append((time.perf_counter() - started) * 1000)
    return took


async def make(session: Session, call: Call) -> None:
    tools = session if isinstance(session, WithTools) else ToolsByCommand(session)
    match call.verb:
        case "write":
            await session.write(call.path, call.text.encode())
        case "read":
            await session.read(call.path)
        case "run":
            await session.run(["python3", "-S", "-c", f"compile(open({call.path!r}).read(), 'part', 'exec')"])
        case "edit":
            await tools.edit(call.path, call.text, call.new)
        case "grep":
            await tools.grep(call.text, call.path)
        case "glob":
            await tools.glob(call.text, call.path)


class ToolsByCommand:
    """The tools of an agent whose sandbox has none."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def edit(self, path: str, old: str, new: str) -> None:
        text = (await self._session.read(path)).decode()
        await self._session.write(path, text.replace(old, new).encode())

    async def grep(self, pattern: str, path: str) -> None:
        await self._session.run(["grep", "-rlE", pattern, path])

    async def glob(self, pattern: str, path: str) -> None:
        await self._session.run(["find", path, "-name", pattern])

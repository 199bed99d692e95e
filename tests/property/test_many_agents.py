"""I13: whatever many agents do to one document, only an agent that has seen a line can remove it."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from memo.documents import Author
from sandboxd.models.tool import ToolResult
from tests.agents import USER_KEY, USER_MD, Agent, Team, team
from tests.long_runs import scaled

ACTIONS = ("read", "read a part", "insert", "delete", "blind", "edit", "append", "forget")
STEP = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5))
Script = list[tuple[str, int]]
SCRIPTS = st.lists(st.lists(STEP, max_size=10), min_size=2, max_size=4)


@dataclass
class Writer:
    """A careless author: writes back what it last saw, changed, and ignores the others."""

    agent: Agent
    copy: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    known_at: dict[int, set[str]] = field(default_factory=dict)
    """By revision: the lines that it had seen before the call that made the revision."""
    count: int = 0

    def line(self) -> str:
        self.count += 1
        return f"line-{self.agent.ref.session}-{self.count}"

    async def act(self, action: str, place: int, team: Team) -> None:
        match action:
            case "read":
                await self._read(offset=1)
            case "read a part":
                await self._read(offset=place + 1, limit=2)
            case "insert":
                lines = list(self.copy)
                lines.insert(place % (len(lines) + 1), self.line())
                await self._write(lines)
            case "delete":
                await self._write([line for number, line in enumerate(self.copy) if number != place])
            case "blind":
                await self._write([self.line()])
            case "edit" if self.copy:
                old, new = self.copy[place % len(self.copy)], self.line()
                known = set(self.known)
                self.learn(await self.agent.edit(old, new), [new], known)
            case "append":  # by the host, so that no session has seen it
                await team.memory.append(USER_KEY, f"{self.line()}\n", author=Author("host"))
            case "forget":
                await self.agent.forget()

    async def _read(self, offset: int, limit: int = 2000) -> None:
        result = await self.agent.read(offset=offset, limit=limit)
        if result.ok:
            self.copy = _lines(result.content)
            self.known |= set(self.copy)

    async def _write(self, lines: list[str]) -> None:
        known = set(self.known)
        result = await self.agent.call("Write", file_path=USER_MD, contents="".join(f"{line}\n" for line in lines))
        self.learn(result, lines, known)
        if result.ok:
            self.copy = lines
        else:
            self.copy = _lines(result.content)

    def learn(self, result: ToolResult, wrote: list[str], known: set[str]) -> None:
        self.known |= set(_lines(result.content))
        if result.ok:
            self.known |= set(wrote)
            self.known_at.setdefault(result.details["revision"], known)


def _lines(text: str) -> list[str]:
    return re.findall(r"line-s\d+-\d+", text)


@settings(deadline=None, max_examples=scaled(25, 200), suppress_health_check=list(HealthCheck))
@example(scripts=[[("blind", 0), ("insert", 1)], [("read", 0), ("insert", 1)]], at_once=False)
@example(scripts=[[("append", 0)] * 6, [("read a part", 0), ("insert", 0), ("insert", 1)]], at_once=False)
@example(scripts=[[("read", 0), ("edit", 1), ("insert", 0)], [("append", 0)]], at_once=False)
@given(scripts=SCRIPTS, at_once=st.booleans())
def test_only_an_agent_that_has_seen_a_line_can_remove_it(scripts: list[Script], at_once: bool) -> None:
    anyio.run(_play, scripts, at_once, backend_options={"use_uvloop": True})


async def _play(scripts: list[Script], at_once: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with team(Path(directory), len(scripts)) as members:
            await members.memory.append(USER_KEY, "line-s9-1\nline-s9-2\nline-s9-3\n")
            writers = [Writer(agent) for agent in members.agents]

            async def follow(writer: Writer, script: Script) -> None:
                for action, place in script:
                    await writer.act(action, place, members)

            if at_once:
                async with anyio.create_task_group() as tasks:
                    for writer, script in zip(writers, scripts, strict=True):
                        tasks.start_soon(follow, writer, script)
            else:  # in turns
                for number in range(max(map(len, scripts))):
                    for writer, script in zip(writers, scripts, strict=True):
                        await follow(writer, script[number : number + 1])
            await _check(members, {writer.agent.ref.session: writer for writer in writers})


async def _check(members: Team, writers: dict[str, Writer]) -> None:
    before: set[str] = set()
    for revision in reversed(await members.store.document_history(USER_KEY)):
        document = await members.store.read_document(USER_KEY, revision.revision)
        assert document is not None
        after = set(_lines(document.content))
        lost = before - after
        if lost:
            assert revision.session is not None
            assert lost <= writers[revision.session].known_at[revision.revision]
        before = after

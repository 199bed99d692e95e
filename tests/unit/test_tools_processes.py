"""The tools for background processes: what a model reads, from the start of a process to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from memo.ids import SessionRef
from sandboxd.models.tool import ToolResult
from sandboxd.tools import Toolbox
from sandboxd.tools.context import MODEL_CHARS, ToolContext
from tests.world.world import World, open_world

pytestmark = pytest.mark.anyio

TOOLBOX = Toolbox.discover()
REF = SessionRef.of("acme", "s1")
WAIT_MS = 30_000


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        await world.create(REF.session)
        yield world


async def call(world: World, tool: str, **arguments: Any) -> ToolResult:
    with await world.manager.call(REF) as runner:
        return await TOOLBOX.call(tool, arguments, ToolContext(REF, runner))


async def start(world: World, command: str) -> ToolResult:
    return await call(world, "Bash", command=command, run_in_background=True)


def test_the_process_tools_have_the_arguments_that_agents_expect() -> None:
    fields = {name: set(tool.describe().input_schema["properties"]) for name, tool in TOOLBOX.items()}
    assert fields["ProcessOutput"] == {"process", "offset", "timeout"}
    assert fields["ProcessList"] == set()
    assert fields["ProcessKill"] == {"process", "signal"}
    assert fields["ProcessInput"] == {"process", "input", "eof"}


async def test_a_model_starts_a_process_talks_to_it_and_reads_how_it_ended(world: World) -> None:
    started = await start(world, "echo ready; read name; echo hello $name; exit 3")
    assert "process p1" in started.content
    for tool in ("ProcessOutput", "ProcessInput", "ProcessKill"):
        assert tool in started.content
    first = await call(world, "ProcessOutput", process="p1", offset=0, timeout=WAIT_MS)
    assert first.content == "ready\n[p1: running; next offset 6]"
    nothing = await call(world, "ProcessOutput", process="p1", offset=6)
    assert nothing.content == "[no new output]\n[p1: running; next offset 6]"
    written = await call(world, "ProcessInput", process="p1", input="ada\n")
    assert (written.ok, written.content) == (True, "Wrote 4 bytes to p1.")
    last = await call(world, "ProcessOutput", process="p1", offset=6, timeout=WAIT_MS)
    while last.details["running"]:
        last = await call(world, "ProcessOutput", process="p1", offset=6)
    assert last.content == "hello ada\n[p1: ended with exit code 3; next offset 16]"
    assert last.details == {
        "process_id": "p1",
        "running": False,
        "exit_code": 3,
        "offset": 6,
        "next_offset": 16,
        "more": False,
    }
    whole = await call(world, "ProcessOutput", process="p1")
    assert whole.content == "ready\nhello ada\n[p1: ended with exit code 3; next offset 16]"


async def test_without_an_offset_a_model_reads_the_end_of_a_long_output(world: World) -> None:
    await start(world, "seq 100000; exec sleep 600")
    seen = await call(world, "ProcessOutput", process="p1", timeout=WAIT_MS)
    while "\n100000\n" not in seen.content:
        seen = await call(world, "ProcessOutput", process="p1")
    assert len(seen.content) < MODEL_CHARS + 200
    first, *_, last = seen.content.splitlines()
    assert first == f"[{588_895 - MODEL_CHARS} earlier bytes are not shown]"
    assert last == "[p1: running; next offset 588895]"


async def test_a_model_that_follows_the_next_offset_reads_every_character_once(world: World) -> None:
    await start(world, "for i in $(seq 20000); do printf 'äö€😀'; done")
    text, offset = "", 0
    while True:
        read = await call(world, "ProcessOutput", process="p1", offset=offset, timeout=WAIT_MS)
        assert len(read.content) <= MODEL_CHARS + 200
        shown, _, note = read.content.rpartition("\n")
        text += shown if shown != "[no new output]" else ""
        offset = read.details["next_offset"]
        assert f"next offset {offset}]" in note
        if not read.details["running"] and not read.details["more"]:
            break
    assert text == "äö€😀" * 20_000


async def test_output_that_the_sandbox_no_longer_keeps_is_mentioned(world: World) -> None:
    await start(world, "head -c 2000000 /dev/zero | tr '\\0' x; exec sleep 600")
    read = await call(world, "ProcessOutput", process="p1", timeout=WAIT_MS)
    while read.details["next_offset"] < 2_000_000:
        read = await call(world, "ProcessOutput", process="p1")
    early = await call(world, "ProcessOutput", process="p1", offset=10)
    assert early.content.startswith(f"[{2_000_000 - 1_048_576 - 10} bytes before this were discarded]\nxxx")
    assert early.content.endswith(", and there is more output; next offset 981424]")


async def test_processes_are_listed_and_killed(world: World) -> None:
    assert (await call(world, "ProcessList")).content == "[no background processes]"
    await start(world, "echo one;\n exec sleep 600")
    await start(world, "exit 7")
    read = await call(world, "ProcessOutput", process="p2", timeout=WAIT_MS)
    assert read.content == "[no output]\n[p2: ended with exit code 7; next offset 0]"
    await call(world, "ProcessOutput", process="p1", offset=0, timeout=WAIT_MS)
    listed = await call(world, "ProcessList")
    assert listed.content.splitlines() == [
        "p1: running, 4 bytes of output: echo one; exec sleep 600",
        "p2: ended with exit code 7, 0 bytes of output: exit 7",
    ]
    killed = await call(world, "ProcessKill", process="p1", signal="TERM")
    assert (killed.ok, killed.content) == (True, "p1 was ended by TERM and ended with exit code 143.")
    assert [item["running"] for item in (await call(world, "ProcessList")).details["items"]] == [False, False]


async def test_a_mistake_is_a_result_that_names_the_running_processes(world: World) -> None:
    unknown = await call(world, "ProcessOutput", process="p9")
    assert (unknown.ok, unknown.content) == (False, "cannot find process 'p9'; no process is running")
    await start(world, "exit 0")
    await start(world, "exec sleep 600")
    await call(world, "ProcessOutput", process="p1", timeout=WAIT_MS)
    for tool, arguments in (("ProcessKill", {}), ("ProcessInput", {"input": "x"})):
        for process in ("p1", "p9"):
            result = await call(world, tool, process=process, **arguments)
            assert not result.ok
            assert result.content.endswith("; running: p2"), result.content
            assert result.details["running"] == ["p2"]


async def test_input_can_end_and_must_not_be_empty(world: World) -> None:
    await start(world, "wc -c")
    closed = await call(world, "ProcessInput", process="p1", input="12345", eof=True)
    assert closed.content == "Wrote 5 bytes to p1 and closed its stdin."
    assert "5" in (await call(world, "ProcessOutput", process="p1", offset=0, timeout=WAIT_MS)).content
    empty = await call(world, "ProcessInput", process="p1")
    assert (empty.ok, "input must not be empty" in empty.content) == (False, True)

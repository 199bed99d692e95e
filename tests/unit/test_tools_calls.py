"""The tools: what they accept, what they do through the runner, and what a model reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import sandboxd.tools
from memo.ids import SessionRef
from sandboxd.errors import OutsideSandbox
from sandboxd.models.tool import ToolResult
from sandboxd.runner.calls import CommandResult
from sandboxd.tools import Toolbox, run_tool
from sandboxd.tools.commands import render_result
from sandboxd.tools.context import MODEL_CHARS, ToolContext, cut_for_model
from sandboxd.tools.glob import split_absolute
from tests.world.world import World, open_world

pytestmark = pytest.mark.anyio

TOOLBOX = Toolbox.discover()


REF = SessionRef.of("acme", "s1")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        await world.create(REF.session)
        yield world


async def call(world: World, tool: str, **arguments: Any) -> ToolResult:
    with await world.manager.call(REF) as runner:
        return await TOOLBOX.call(tool, arguments, ToolContext(REF, runner))


def test_the_tools_have_the_names_and_arguments_that_agents_expect() -> None:
    assert set(TOOLBOX) >= {"Bash", "Python", "Read", "Write", "Edit", "Glob", "Grep"}
    fields = {name: set(tool.describe().input_schema["properties"]) for name, tool in TOOLBOX.items()}
    assert fields["Bash"] == {"command", "description", "working_directory", "timeout", "run_in_background"}
    assert fields["Python"] == {"code", "working_directory", "timeout", "context"}
    assert fields["Read"] == {"file_path", "offset", "limit"}
    assert fields["Write"] == {"file_path", "content"}
    assert fields["Edit"] == {"file_path", "old_string", "new_string", "replace_all"}
    assert fields["Glob"] == {"pattern", "path"}
    assert fields["Grep"] == {"pattern", "path", "glob", "output_mode", "case_insensitive", "multiline"}
    for tool in TOOLBOX.values():
        for described in tool.describe().input_schema["properties"].values():
            assert described["description"]


async def test_a_tool_is_added_by_adding_one_file(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shout.py").write_text(
        "from sandboxd.models.tool import ToolResult\n"
        "from sandboxd.tools.arguments import ToolArguments\n"
        "name = 'Shout'\n"
        "description = 'Says it louder.'\n"
        "class Arguments(ToolArguments):\n"
        "    text: str\n"
        "async def run(context, arguments):\n"
        "    return ToolResult(ok=True, content=arguments.text.upper())\n"
    )
    monkeypatch.setattr(sandboxd.tools, "__path__", [*sandboxd.tools.__path__, str(tmp_path)])
    toolbox = Toolbox.discover()
    assert set(toolbox) == {*TOOLBOX, "Shout"}
    tool = toolbox["Shout"]
    with await world.manager.call(REF) as runner:
        result = await run_tool(tool, ToolContext(REF, runner), tool.arguments.model_validate({"text": "hi"}))
    assert result == ToolResult(ok=True, content="HI")


async def test_an_incomplete_tool_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_tool.py").write_text("name = 'Half'\n")
    monkeypatch.setattr(sandboxd.tools, "__path__", [*sandboxd.tools.__path__, str(tmp_path)])
    with pytest.raises(TypeError, match="half_a_tool"):
        Toolbox.discover()


async def test_bash_shows_output_then_errors_then_the_exit_code(world: World) -> None:
    result = await call(world, "Bash", command="echo out; echo err >&2; exit 7")
    assert result.ok is False
    assert result.content == "out\nerr\n[exit code 7]"
    assert result.details["exit_code"] == 7


async def test_bash_without_output_says_so(world: World) -> None:
    result = await call(world, "Bash", command="true")
    assert (result.ok, result.content) == (True, "[no output]")


async def test_bash_says_that_it_timed_out(world: World) -> None:
    result = await call(world, "Bash", command="echo begun; sleep 60", timeout=300)
    assert result.ok is False
    assert result.content.startswith("begun\n[timed out after 0.3 s")


async def test_bash_in_the_background_returns_a_process(world: World) -> None:
    result = await call(world, "Bash", command="sleep 60", run_in_background=True)
    assert result.ok
    assert result.details == {"process_id": "p1"}
    assert "p1" in result.content


def test_limits_and_truncation_are_reported() -> None:
    result = render_result(
        CommandResult(
            exit_code=137,
            stdout=b"a",
            stderr=b"",
            timed_out=False,
            truncated=True,
            duration_ms=1.0,
            limits_hit=("memory", "pids", "workspace", "tmp"),
        ),
        120,
    )
    assert result.content.splitlines()[1:] == [
        "[output exceeded the limit; the rest was discarded]",
        "[the sandbox reached its memory limit and the kernel killed a process]",
        "[the sandbox reached its process limit; new processes could not start]",
        "[the workspace reached its limit: no room for more bytes or files, or a file grew larger than the limit; "
        "remove files you do not need]",
        "[/tmp is full: no room for more bytes or files; remove files there or use /var/tmp]",
        "[exit code 137]",
    ]


def test_long_output_is_cut_in_the_middle() -> None:
    text, left_out = cut_for_model("a" + "x" * MODEL_CHARS + "z")
    assert left_out == 2
    assert text.startswith("a")
    assert text.endswith("z")
    assert "2 characters omitted" in text


async def test_python_runs_its_code(world: World) -> None:
    result = await call(world, "Python", code="print(6 * 7)")
    assert (result.ok, result.content) == (True, "42")
    result = await call(world, "Python", code="raise SystemExit(3)")
    assert (result.ok, result.details["exit_code"]) == (False, 3)


async def test_read_numbers_lines_and_says_how_to_continue(world: World) -> None:
    (world.workspace("s1") / "a").write_bytes(b"one\ntwo\nthree\n")
    (world.workspace("s1") / "empty").touch()
    result = await call(world, "Read", file_path="/workspace/a", limit=2)
    assert result.content == "     1\tone\n     2\ttwo\n[lines 1 to 2 of 3; continue with offset 3]"
    result = await call(world, "Read", file_path="/workspace/a", offset=3)
    assert result.content == "     3\tthree"
    result = await call(world, "Read", file_path="/workspace/a", offset=9)
    assert (result.ok, "3 lines" in result.content) == (False, True)
    assert (await call(world, "Read", file_path="/workspace/empty")).content == "[the file is empty]"


async def test_a_negative_offset_counts_from_the_end(world: World) -> None:
    (world.workspace("s1") / "a").write_bytes(b"one\ntwo\nthree\n")
    (world.workspace("s1") / "empty").touch()
    assert (await call(world, "Read", file_path="a", offset=-2)).content == "     2\ttwo\n     3\tthree"
    result = await call(world, "Read", file_path="a", offset=-2, limit=1)
    assert result.content == "     2\ttwo\n[lines 2 to 2 of 3; continue with offset 3]"
    assert (await call(world, "Read", file_path="a", offset=-99)).details["first_line"] == 1
    assert (await call(world, "Read", file_path="empty", offset=-1)).content == "[the file is empty]"


async def test_a_line_that_was_cut_is_named(world: World) -> None:
    (world.workspace("s1") / "a").write_text(f"short\n{'x' * 3000}\nend\n")
    result = await call(world, "Read", file_path="a")
    assert "[cut after 2000 characters: line 2; use Bash" in result.content
    assert result.details["truncated"]
    assert (await call(world, "Read", file_path="a", limit=1)).content.startswith("     1\tshort\n[lines 1 to 1 of 3")


async def test_an_argument_that_read_does_not_take_is_ignored_with_a_note(world: World) -> None:
    (world.workspace("s1") / "a").write_bytes(b"one\n")
    result = await call(world, "Read", file_path="a", encoding="utf-8")
    assert (result.ok, result.details["ignored"]) == (True, ["encoding"])
    assert result.content == "     1\tone\n[ignored, because Read does not take it: 'encoding']"


async def test_edit_with_an_empty_old_string_creates_a_file(world: World) -> None:
    result = await call(world, "Edit", file_path="new/a.txt", old_string="", new_string="text\n")
    assert (result.ok, result.content) == (True, "Created /workspace/new/a.txt.")
    assert (world.workspace("s1") / "new/a.txt").read_text() == "text\n"
    result = await call(world, "Edit", file_path="new/a.txt", old_string="", new_string="other\n")
    assert (result.ok, "not empty" in result.content) == (False, True)
    (world.workspace("s1") / "empty").touch()
    assert (await call(world, "Edit", file_path="empty", old_string="", new_string="x")).ok
    assert (world.workspace("s1") / "empty").read_text() == "x"


async def test_edit_names_the_lines_of_its_matches(world: World) -> None:
    lines = [f"line {number}" if number % 40_000 else "needle\nmore" for number in range(1, 120_001)]
    (world.workspace("s1") / "large").write_text("\n".join(lines))
    result = await call(world, "Edit", file_path="large", old_string="needle\nmore", new_string="x")
    assert "found 3 matches, on lines 40000, 80001, 120002;" in result.content
    (world.workspace("s1") / "many").write_text("x\n" * 100)
    result = await call(world, "Edit", file_path="many", old_string="x", new_string="y")
    assert "found 100 matches, on lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...;" in result.content


async def test_edit_shows_the_nearest_lines_of_a_large_file(world: World) -> None:
    (world.workspace("s1") / "large").write_text("\n".join(f"value_{number} = {number}" for number in range(30_000)))
    result = await call(world, "Edit", file_path="large", old_string="value_15000 = 1", new_string="x")
    assert result.ok  # a part of the line matches
    result = await call(world, "Edit", file_path="large", old_string="value_12000=12000", new_string="x")
    assert (result.ok, " 12001\tvalue_12000 = 12000" in result.content) == (False, True)


async def test_a_command_is_accepted_as_a_list_of_words(world: World) -> None:
    assert (await call(world, "Bash", command=["printf", "%s|", "a b", "$HOME"])).content == "a b|$HOME|"


async def test_a_missing_file_is_a_result_the_model_can_read(world: World) -> None:
    result = await call(world, "Read", file_path="/workspace/none")
    assert result.ok is False
    assert "/workspace/none" in result.content
    assert "Glob" in result.content
    assert result.details["code"] == "file.not_found"


async def test_write_then_edit_changes_the_file(world: World) -> None:
    assert (await call(world, "Write", file_path="/workspace/a", contents="häl hal")).ok
    assert (world.workspace("s1") / "a").read_text() == "häl hal"
    result = await call(world, "Edit", file_path="/workspace/a", old_string="l", new_string="r")
    assert (result.ok, "2 matches" in result.content) == (False, True)
    result = await call(world, "Edit", file_path="/workspace/a", old_string="l", new_string="r", replace_all=True)
    assert (result.ok, result.details["replacements"]) == (True, 2)
    assert (world.workspace("s1") / "a").read_text() == "här har"


async def test_memo_and_skills_are_never_written_by_the_runner(world: World) -> None:
    for path in ("/workspace/memo/NOTES.md", "/workspace/memo", "/workspace/a/../memo/x", "/skills/a"):
        result = await call(world, "Write", file_path=path, contents="x")
        assert result.ok is False
        result = await call(world, "Edit", file_path=path, old_string="a", new_string="b")
        assert result.ok is False
        if path == "/skills/a":
            assert result.details["code"] == "file.read_only"
    assert [path.name for path in world.workspace("s1").iterdir()] == ["memo"]


async def test_glob_and_grep_find_files(world: World) -> None:
    (world.workspace("s1") / "a.py").write_text("import os")
    (world.workspace("s1") / "b.txt").write_text("x")
    assert (await call(world, "Glob", pattern="*.py")).content == "/workspace/a.py"
    assert (await call(world, "Glob", pattern="/workspace/*.py")).content == "/workspace/a.py"
    assert "no file matches" in (await call(world, "Glob", pattern="*.c")).content
    assert (await call(world, "Grep", pattern="import")).content == "/workspace/a.py"
    result = await call(world, "Grep", pattern="nothing")
    assert (result.ok, result.content) == (True, "[no matches]")


def test_an_absolute_pattern_is_split_where_it_stops_being_literal() -> None:
    assert split_absolute("/workspace/src/**/*.py", "/tmp") == ("**/*.py", "/workspace/src")
    assert split_absolute("/workspace/a.py", "/tmp") == ("a.py", "/workspace")
    assert split_absolute("*.py", "/tmp") == ("*.py", "/tmp")
    with pytest.raises(OutsideSandbox):
        split_absolute("/etc/*", "/workspace")


BAD_ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("Bash", {}),
    ("Bash", {"command": ""}),
    ("Bash", {"command": "a\0"}),
    ("Bash", {"command": 1.5}),
    ("Bash", {"command": []}),
    ("Bash", {"command": "x" * 200_000}),
    ("Bash", {"command": "true", "timeout": 0}),
    ("Bash", {"command": "true", "timeout": 2_592_000_001}),
    ("Bash", {"command": "true", "timeout": "5 s"}),
    ("Bash", {"command": "true", "timeout": 5.5}),
    ("Bash", {"command": "true", "timeout": True}),
    ("Bash", {"command": "true", "run_in_background": "yes"}),
    ("Bash", {"command": "true", "user": "root"}),
    ("Bash", {"command": "true", "cmd": "false"}),
    ("Python", {"code": ""}),
    ("Read", {"file_path": ""}),
    ("Read", {"file_path": "/workspace/a\0"}),
    ("Read", {"file_path": "/workspace/a", "offset": -(10**30)}),
    ("Read", {"file_path": "/workspace/a", "limit": 10**30}),
    ("Write", {"file_path": "/workspace/a"}),
    ("Write", {"file_path": "/workspace/a", "contents": None}),
    ("Edit", {"file_path": "/workspace/a", "old_string": "a"}),
    ("Glob", {"pattern": ""}),
    ("Grep", {"pattern": "a", "output_mode": "json"}),
]


@pytest.mark.parametrize(("tool", "arguments"), BAD_ARGUMENTS, ids=lambda value: ascii(value)[:40])
def test_wrong_arguments_are_refused(tool: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TOOLBOX[tool].arguments.model_validate(arguments)


@pytest.mark.parametrize("path", ["/etc/passwd", "/workspace/../etc/x", "/", "//etc/x", "/workspacex", "/proc/1/mem"])
@pytest.mark.parametrize("tool", ["Write", "Edit", "Glob", "Grep"])
def test_a_path_outside_is_refused(tool: str, path: str) -> None:
    arguments: dict[str, dict[str, str]] = {
        "Write": {"file_path": path, "contents": "x"},
        "Edit": {"file_path": path, "old_string": "a", "new_string": "b"},
        "Glob": {"pattern": "*", "path": path},
        "Grep": {"pattern": "x", "path": path},
    }
    with pytest.raises(OutsideSandbox):
        TOOLBOX[tool].arguments.model_validate(arguments[tool])


async def test_every_root_can_be_named(world: World) -> None:
    for path in ("/workspace/a", "/tmp/a", "/var/tmp/a"):
        assert (await call(world, "Write", file_path=path, contents="x")).ok
        assert (await call(world, "Read", file_path=path)).ok
    assert (await call(world, "Read", file_path="/etc/passwd")).ok  # every user may read it

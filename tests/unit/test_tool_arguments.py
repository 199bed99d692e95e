"""What a model may send as arguments: other names, other types, null, relative paths; and what is ignored."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.models.tool import ToolResult
from sandboxd.tools import PreparedCall, Toolbox
from sandboxd.tools.arguments import ToolArguments

TOOLBOX = Toolbox.discover()


def accept(tool: str, arguments: dict[str, Any] | str) -> Any:
    prepared = TOOLBOX.prepare(tool, arguments)
    assert isinstance(prepared, PreparedCall), prepared
    return prepared.arguments


ACCEPTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Write", {"file_path": "/workspace/a", "content": "x"}, {"file_path": "/workspace/a", "content": "x"}),
    ("Write", {"file_path": "/workspace/a", "contents": "x"}, {"content": "x"}),
    ("Write", {"path": "a", "text": "x"}, {"file_path": "/workspace/a", "content": "x"}),
    ("Write", {"filePath": "a", "Content": "x"}, {"file_path": "/workspace/a", "content": "x"}),
    ("Write", {"file_path": "a", "content": "x", "contents": "x"}, {"content": "x"}),
    ("Write", {"file_path": "a", "content": 123}, {"content": "123"}),
    ("Write", {"file_path": "a", "content": "123"}, {"content": "123"}),
    ("Write", {"file_path": "a", "content": "true"}, {"content": "true"}),
    ("Write", {"file_path": "a", "content": ""}, {"content": ""}),
    ("Read", {"file_path": "src/../a.txt"}, {"file_path": "/workspace/a.txt"}),
    ("Read", {"file_path": "./a"}, {"file_path": "/workspace/a"}),
    ("Read", {"file_path": "~/a"}, {"file_path": "/workspace/a"}),
    ("Read", {"file_path": "/etc/os-release"}, {"file_path": "/etc/os-release"}),
    ("Read", {"file_path": "a", "offset": "5", "limit": 10.0}, {"offset": 5, "limit": 10}),
    ("Read", {"file_path": "a", "offset": "-5"}, {"offset": -5}),
    ("Read", {"file_path": "a", "offset": None, "limit": None}, {"offset": 1, "limit": 2000}),
    ("Edit", {"path": "a", "old_str": "x", "new_str": "y"}, {"old_string": "x", "new_string": "y"}),
    ("Edit", {"file_path": "a", "oldString": "x", "newString": "y", "replaceAll": "true"}, {"replace_all": True}),
    ("Edit", {"file_path": "a", "old_string": "1", "new_string": "2", "replace_all": 1}, {"replace_all": True}),
    ("Bash", {"command": "ls", "description": "List"}, {"command": "ls"}),
    ("Bash", {"cmd": "ls", "cwd": "src"}, {"command": "ls", "working_directory": "/workspace/src"}),
    ("Bash", {"command": ["bash", "-lc", "echo 'a b'"]}, {"command": "bash -lc 'echo '\"'\"'a b'\"'\"''"}),
    ("Bash", {"command": "ls", "timeout": "5000", "run_in_background": "False"}, {"timeout": 5000}),
    ("Bash", {"command": "ls", "dangerouslyDisableSandbox": True, "reasoning": "to see"}, {"command": "ls"}),
    ("Python", {"code": "1", "context": "true"}, {"context": True}),
    ("Python", {"code": "1", "context": "mine"}, {"context": "mine"}),
    ("Glob", {"pattern": "*", "path": "."}, {"path": "/workspace"}),
    ("Glob", {"pattern": "*", "path": ""}, {"path": "/workspace"}),
    ("Grep", {"pattern": "x", "-i": True, "-n": True, "include": "*.py"}, {"case_insensitive": True, "glob": "*.py"}),
    ("ProcessOutput", {"bash_id": "p1"}, {"process": "p1"}),
    ("write_todo", {"todos": '[{"id": 1, "task": "x", "activeForm": "doing x"}]'}, {}),
]


@pytest.mark.parametrize(("tool", "sent", "meant"), ACCEPTED, ids=lambda value: ascii(value)[:60])
def test_what_has_one_meaning_is_accepted(tool: str, sent: dict[str, Any], meant: dict[str, Any]) -> None:
    arguments = accept(tool, sent).model_dump()
    assert {name: arguments[name] for name in meant} == meant


def test_items_of_a_list_are_forgiven_too() -> None:
    todos = accept(
        "write_todo", {"items": [{"id": 7, "text": "x", "status": "In-Progress"}, {"id": "b", "status": "done"}]}
    )
    assert [(todo.id, todo.content, todo.status) for todo in todos.todos] == [
        ("7", "x", "in_progress"),
        ("b", None, "completed"),
    ]


def test_arguments_may_be_the_text_of_a_json_object() -> None:
    assert accept("Read", '{"file_path": "a"}').file_path == "/workspace/a"
    assert isinstance(TOOLBOX.prepare("ProcessList", ""), PreparedCall)
    for text in ("[]", "nothing", '{"file_path": '):
        refused = TOOLBOX.prepare("Read", text)
        assert isinstance(refused, ToolResult)
        assert "must be a JSON object" in refused.content


def test_an_unknown_argument_is_ignored_by_a_tool_that_only_reads_and_refused_by_one_that_changes_something() -> None:
    read = TOOLBOX.prepare("Grep", {"pattern": "x", "head_limit": 5, "\ud800": 1})
    assert isinstance(read, PreparedCall)
    assert read.ignored == ("head_limit", "?")
    for name, tool in TOOLBOX.items():
        required = {field: "p1" for field in tool.schema.get("required", ()) if field != "todos"}
        todos: dict[str, list[str]] = {"todos": []} if name == "write_todo" else {}
        text = {"input": "x"} if name == "ProcessInput" else {}
        prepared = TOOLBOX.prepare(name, {**required, **todos, **text, "surprise": 1})
        assert isinstance(prepared, PreparedCall) == tool.hints.read_only, name


def test_no_alias_hides_a_field_or_another_alias() -> None:
    for tool in TOOLBOX.values():
        _check_aliases(tool.arguments)


def _check_aliases(model: type[ToolArguments]) -> None:
    folded = [name.lower().replace("_", "").replace("-", "") for name in (*model.model_fields, *model.aliases)]
    assert len(folded) == len(set(folded)), model
    assert set(model.aliases.values()) <= set(model.model_fields), model


def test_a_huge_number_of_problems_is_a_short_result() -> None:
    refused = TOOLBOX.prepare("Write", {f"field{number}": number for number in range(10_000)})
    assert isinstance(refused, ToolResult)
    assert len(refused.content) < 1000
    refused = TOOLBOX.prepare("Write", {"x" * 1_000_000: 1})
    assert isinstance(refused, ToolResult)
    assert len(refused.content) < 1000
    refused = TOOLBOX.prepare("x" * 1_000_000, {})
    assert isinstance(refused, ToolResult)
    assert len(refused.content) < 1000

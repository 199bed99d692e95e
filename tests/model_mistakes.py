"""Mistakes that models make when they call tools: one table for every way in which a tool can be called.

Each is a call and what its result must say. `prepare` makes the files and the memory that the calls are about; a
mistake changes nothing, so one session serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandboxd.client import Client
from sandboxd.models.tool import ToolResult

INVALID = "request.invalid"
USER_MD = "/workspace/memo/user/USER.md"
FILES = {
    "/workspace/list.txt": b"one\ntwo\nthree\n",
    "/workspace/twice.txt": b"same\nother\nsame\n",
    "/workspace/tabs.py": b"def area(r):\n\treturn 3.14 * r * r\n",
    "/workspace/windows.txt": b"first\r\nsecond\r\n",
    "/workspace/image.bin": b"\x89PNG\r\n\x1a\n" + bytes(1000),
    "/workspace/src/main.py": b"print('hello')\n",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    kind: str
    tool: str
    arguments: Mapping[str, Any]
    code: str
    says: tuple[str, ...]
    """What the model must be told, in these words."""

    def check(self, ok: bool, content: str, details: Mapping[str, Any] | None = None) -> None:
        assert ok is False, (self.kind, content)
        missing = [words for words in self.says if words not in content]
        assert missing == [], (self.kind, content)
        assert "Traceback" not in content
        if details is not None:
            assert details["code"] == self.code, (self.kind, details)

    def check_result(self, result: ToolResult) -> None:
        self.check(result.ok, result.content, result.details)


def prepare(client: Client, session: str, user: str) -> None:
    """Write the files, and a document of the user that this session has not read in its present form."""
    for path, content in FILES.items():
        client.write_file(session, path, content)
    before = client.list_memo(user, scope="user")
    client.write_memo(
        user, "USER.md", f"likes tea {len(before)}, {before[0].revision if before else 0}\n", scope="user"
    )


def _edit(path: str, old: str, new: str, **more: Any) -> dict[str, Any]:
    return {"file_path": f"/workspace/{path}", "old_string": old, "new_string": new, **more}


MISTAKES = [
    # the tool
    Mistake("an unknown tool", "ls", {}, "tool.not_found", ("no such tool", "Bash", "Glob", "write_todo")),
    Mistake("a misspelt tool", "Raed", {"file_path": "a"}, "tool.not_found", ("did you mean Read?",)),
    Mistake("a tool in other letters", "bash", {"command": "ls"}, "tool.not_found", ("did you mean Bash?",)),
    Mistake("a tool with a prefix", "functions.Read", {}, "tool.not_found", ("did you mean Read",)),
    # the arguments
    Mistake("a missing argument", "Read", {}, INVALID, ("file_path is missing", "Read needs file_path (text)")),
    Mistake(
        "several missing arguments",
        "Edit",
        {"file_path": "list.txt"},
        INVALID,
        ("old_string is missing", "new_string is missing", "Nothing was done"),
    ),
    Mistake("null for a needed argument", "Write", {"path": "a", "content": None}, INVALID, ("content is missing",)),
    Mistake("a word for a number", "Read", {"file_path": "list.txt", "limit": "many"}, INVALID, ("a whole number",)),
    Mistake("a fraction", "Bash", {"command": "true", "timeout": 1.5}, INVALID, ("timeout must be a whole number",)),
    Mistake(
        "an unclear truth value",
        "Bash",
        {"command": "true", "run_in_background": "maybe"},
        INVALID,
        ("run_in_background must be true or false",),
    ),
    Mistake(
        "an object for text",
        "Write",
        {"file_path": "a.json", "content": {"a": 1}},
        INVALID,
        ("send JSON as one string",),
    ),
    Mistake("a list for text", "Read", {"file_path": ["list.txt"]}, INVALID, ("file_path must be text",)),
    Mistake(
        "an argument that would change the effect",
        "Write",
        {"file_path": "list.txt", "content": "four\n", "append": True},
        INVALID,
        ("'append' is not an argument", "Write needs file_path (text), content (text)"),
    ),
    Mistake("a misspelt argument", "Bash", {"comand": "true"}, INVALID, ("did you mean command?", "is missing")),
    Mistake(
        "one argument under two names",
        "Write",
        {"file_path": "a", "content": "x", "contents": "y"},
        INVALID,
        ("content is given twice",),
    ),
    Mistake("an empty command", "Bash", {"command": ""}, INVALID, ("command must not be empty",)),
    Mistake("a NUL character", "Bash", {"command": "echo \0"}, INVALID, ("command must not contain a NUL",)),
    Mistake("half a character", "Write", {"file_path": "a", "content": "\ud83d"}, INVALID, ("half of a character",)),
    Mistake("a command that is too long", "Bash", {"command": "x" * 200_000}, INVALID, ("write a script to a file",)),
    Mistake("a timeout too long", "Bash", {"command": "true", "timeout": 10**12}, INVALID, ("must be at most",)),
    Mistake("a day of timeout", "Bash", {"command": "true", "timeout": 86_400_000}, INVALID, ("at most 3600",)),
    Mistake("no timeout", "Python", {"code": "1", "timeout": 0}, INVALID, ("timeout must be at least 1",)),
    Mistake(
        "an unknown choice",
        "Grep",
        {"pattern": "a", "output_mode": "lines"},
        INVALID,
        ("must be one of content, files_with_matches, count",),
    ),
    # paths
    Mistake(
        "a path outside",
        "Write",
        {"file_path": "/etc/passwd", "content": "x"},
        "request.outside_sandbox",
        ("/etc/passwd", "use a path under one of them"),
    ),
    Mistake(
        "a path that climbs out",
        "Edit",
        _edit("../etc/passwd", "a", "b"),
        "request.outside_sandbox",
        ("/etc/passwd", "/workspace/notes.txt"),
    ),
    Mistake(
        "a read-only directory",
        "Write",
        {"file_path": "/skills/a.md", "content": "x"},
        "file.read_only",
        ("write under /workspace instead",),
    ),
    Mistake("a missing file", "Read", {"file_path": "none.txt"}, "file.not_found", ("no such file", "Glob")),
    Mistake(
        "a misspelt file",
        "Read",
        {"file_path": "lists.txt"},
        "file.not_found",
        ("there is /workspace/list.txt;", "Glob"),
    ),
    Mistake(
        "a file of another directory",
        "Read",
        {"file_path": "/workspace/main.py"},
        "file.not_found",
        ("there is /workspace/src/main.py",),
    ),
    Mistake("a directory for a file", "Read", {"file_path": "src"}, "file.is_directory", ("directory", "Glob")),
    Mistake(
        "writing to a directory",
        "Write",
        {"file_path": "src", "content": "x"},
        "file.is_directory",
        ("it is a directory; name a file in it",),
    ),
    Mistake("a file for a directory", "Glob", {"glob": "*", "path": "list.txt"}, "file.not_a_directory", ("parent",)),
    Mistake(
        "a missing working directory",
        "Bash",
        {"command": "true", "working_directory": "none"},
        "file.not_found",
        ("no such directory",),
    ),
    Mistake("a binary file", "Read", {"file_path": "image.bin"}, INVALID, ("binary file", "use Bash")),
    Mistake("an offset past the end", "Read", {"file_path": "list.txt", "offset": 9}, INVALID, ("has 3 lines",)),
    # edits
    Mistake(
        "text that is not there",
        "Edit",
        _edit("list.txt", "one\ntwice\n", "x"),
        INVALID,
        ("old_string is not in the file", "nearest lines", "     1\tone\n     2\ttwo"),
    ),
    Mistake(
        "spaces for tabs",
        "Edit",
        _edit("tabs.py", "    return 3.14 * r * r", "    return 0"),
        INVALID,
        ("line 2 is indented with 1 tab, old_string with 4 spaces", "\treturn 3.14"),
    ),
    Mistake(
        "LF for CRLF", "Edit", _edit("windows.txt", "first\nsecond", "x"), INVALID, ("lines with CRLF", "use \\r\\n")
    ),
    Mistake(
        "line numbers as text",
        "Edit",
        _edit("list.txt", "     1\tone\n     2\ttwo", "x"),
        INVALID,
        ("line numbers that Read shows", "leave out each number"),
    ),
    Mistake(
        "text that is there twice",
        "Edit",
        _edit("twice.txt", "same", "x"),
        INVALID,
        ("found 2 matches, on lines 1, 3", "set replace_all"),
    ),
    Mistake("an edit without effect", "Edit", _edit("list.txt", "one", "one"), INVALID, ("nothing would change",)),
    Mistake(
        "creating a file that exists",
        "Edit",
        _edit("list.txt", "", "x"),
        INVALID,
        ("it exists and is not empty", "Write"),
    ),
    Mistake("editing a missing file", "Edit", _edit("none.txt", "a", "b"), "file.not_found", ("no such file", "Glob")),
    # searches
    Mistake("a broken regular expression", "Grep", {"pattern": "("}, INVALID, ("cannot search",)),
    Mistake("a pattern that climbs", "Glob", {"pattern": "../*"}, INVALID, ("`..` segment; set path instead",)),
    # processes
    Mistake("an unknown process", "ProcessOutput", {"process": "p99"}, "process.not_found", ("p99", "no process is")),
    Mistake("ending an unknown process", "ProcessKill", {"id": "p99"}, "process.not_found", ("p99", "no process is")),
    Mistake("empty input", "ProcessInput", {"process": "p1", "input": ""}, INVALID, ("input must not be empty",)),
    Mistake("an unknown signal", "ProcessKill", {"process": "p1", "signal": "STOP"}, INVALID, ("must be one of KILL",)),
    # memory
    Mistake(
        "replacing memory unread",
        "Write",
        {"file_path": USER_MD, "content": "likes coffee\n"},
        "memo.conflict",
        ("Nothing was changed", "likes tea", "apply your change to it and write again"),
    ),
    Mistake(
        "a memory path that does not exist",
        "Write",
        {"file_path": "/workspace/memo/nowhere/A.md", "content": "x"},
        "memo.invalid_key",
        ("cannot",),
    ),
    Mistake("an unknown mode", "write_notes", {"content": "a", "mode": "prepend"}, INVALID, ("append, replace",)),
    Mistake("text for a list", "write_todo", {"todos": "buy milk"}, INVALID, ("todos must be a list",)),
    Mistake("an item without id", "write_todo", {"todos": [{"content": "x"}]}, INVALID, ("todos.0.id is missing",)),
    Mistake(
        "an unknown status",
        "write_todo",
        {"todos": [{"id": "a", "content": "x", "status": "someday"}]},
        INVALID,
        ("must be one of pending, in_progress, completed, cancelled",),
    ),
    Mistake(
        "an id that is there twice",
        "write_todo",
        {"todos": [{"id": "a", "content": "x"}, {"id": "a", "content": "y"}]},
        INVALID,
        ("must not contain the same id twice",),
    ),
]

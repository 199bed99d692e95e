"""The HTTP API: a real server on a unix socket and on TCP, with a fake engine behind it."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import AsyncIterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from sandboxd import failpoints
from sandboxd.client.errors import rebuild
from sandboxd.errors import NotFound
from sandboxd.runner.client import RunnerClient
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving
from tests.world.world import HANG_S

pytestmark = pytest.mark.anyio

SESSION = "/v1/tenants/acme/sessions/s1"
EXEC = f"{SESSION}/exec"
JSON = {"content-type": "application/json"}


class Wire:
    """Raw requests over the unix socket."""

    def __init__(self, world: World, http: aiohttp.ClientSession) -> None:
        self.world = world
        self.http = http

    def files(self) -> dict[bytes, bytes]:
        """Return the files of the workspace by their paths in it."""
        root = os.fsencode(self.world.workspace("s1"))
        found = [os.path.join(directory, name) for directory, _, names in os.walk(root) for name in names]
        return {os.path.relpath(path, root): Path(os.fsdecode(path)).read_bytes() for path in found}

    async def ask(self, method: str, target: str, **options: Any) -> tuple[int, dict[str, str], bytes]:
        from yarl import URL

        url = URL("http://localhost" + target, encoded=True)
        async with self.http.request(method, url, allow_redirects=False, **options) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return response.status, headers, await response.read()

    async def problem(self, method: str, target: str, **options: Any) -> dict[str, Any]:
        status, headers, body = await self.ask(method, target, **options)
        assert headers["content-type"] == "application/problem+json", body
        problem: dict[str, Any] = json.loads(body)
        assert problem["status"] == status
        assert {"type", "title", "status", "code", "detail", "retryable"} <= set(problem)
        assert problem["detail"].startswith("cannot")
        assert "Traceback" not in body.decode()
        return problem


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with serving(tmp_path) as world:
        connector = aiohttp.UnixConnector(str(world.socket))
        async with aiohttp.ClientSession(connector=connector) as http:
            wire = Wire(world, http)
            status, _, _ = await wire.ask("PUT", f"{SESSION}/sandbox", json={"user": "u1"})
            assert status == 201
            yield wire


async def test_a_sandbox_is_made_once_and_then_returned(wire: Wire) -> None:
    status, _, body = await wire.ask("PUT", f"{SESSION}/sandbox", json={"user": "u1"})
    assert status == 200
    view = json.loads(body)
    assert {"tenant", "session", "user", "state", "engine", "container", "created_at", "from_pool"} <= set(view)
    assert (view["tenant"], view["session"], view["user"]) == ("acme", "s1", "u1")
    assert (await wire.problem("PUT", f"{SESSION}/sandbox", json={"user": "u2"}))["code"] == "request.conflict"
    _, _, body = await wire.ask("GET", "/v1/tenants/acme/sandboxes")
    assert [item["session"] for item in json.loads(body)["items"]] == ["s1"]


async def test_a_foreign_or_unknown_session_is_not_found_by_any_verb(wire: Wire) -> None:
    foreign = "/v1/tenants/other/sessions/s1"
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"{foreign}/sandbox", {}),
        ("DELETE", f"{foreign}/sandbox", {}),
        ("GET", f"{foreign}/stats", {}),
        ("POST", f"{foreign}/exec", {"json": {"command": "true"}}),
        ("POST", f"{foreign}/exec", {"json": {"command": "true"}, "headers": {"accept": "text/event-stream"}}),
        ("POST", f"{foreign}/processes", {"json": {"command": "true"}}),
        ("GET", f"{foreign}/processes", {}),
        ("GET", f"{foreign}/processes/p1", {}),
        ("POST", f"{foreign}/processes/p1/stdin", {"json": {"data": "x"}}),
        ("DELETE", f"{foreign}/processes/p1", {}),
        ("GET", f"{foreign}/files?path=/workspace/a", {}),
        ("PUT", f"{foreign}/files?path=/workspace/a", {"data": b"x"}),
        ("GET", f"{foreign}/files?path=/workspace&list=true", {}),
        ("GET", f"{foreign}/files?path=/workspace&stat=true", {}),
        ("DELETE", f"{foreign}/files?path=/workspace/a", {}),
        ("POST", f"{foreign}/files/mkdir", {"json": {"path": "/workspace/a"}}),
        ("POST", f"{foreign}/files/move", {"json": {"from": "/workspace/a", "to": "/workspace/b"}}),
        ("GET", f"{foreign}/tools", {}),
        ("POST", f"{foreign}/tools/Bash", {"json": {"command": "true"}}),
    ]
    for method, target, options in calls:
        problem = await wire.problem(method, target, **options)
        assert (problem["status"], problem["code"]) == (404, "sandbox.not_found"), (method, target)
    _, _, body = await wire.ask("GET", "/v1/tenants/other/sandboxes")
    assert json.loads(body) == {"items": []}


async def test_a_deleted_sandbox_is_gone(wire: Wire) -> None:
    status, _, body = await wire.ask("DELETE", f"{SESSION}/sandbox")
    assert (status, body) == (204, b"")
    assert (await wire.problem("DELETE", f"{SESSION}/sandbox"))["status"] == 404


async def test_exec_answers_with_output_and_exit_code(wire: Wire) -> None:
    command = {"command": "cat; echo $NAME >&2; exit 3", "stdin": "häl", "env": {"NAME": "x"}}
    status, headers, body = await wire.ask("POST", EXEC, json=command)
    assert (status, headers["content-type"]) == (200, "application/json")
    answer = json.loads(body)
    assert answer.pop("duration_ms") > 0
    assert answer == {
        "exit_code": 3,
        "stdout": "häl",
        "stderr": "x\n",
        "timed_out": False,
        "truncated": False,
        "limits_hit": [],
    }


async def test_exec_replaces_bytes_that_are_not_text_unless_base64_is_requested(wire: Wire) -> None:
    printf = ["printf", r"\377\000a"]
    _, _, body = await wire.ask("POST", EXEC, json={"command": printf})
    assert json.loads(body)["stdout"] == "�\0a"
    _, _, body = await wire.ask("POST", EXEC, json={"command": printf, "encoding": "base64"})
    assert json.loads(body)["stdout"] == "/wBh"


async def test_exec_streams_its_output_and_ends_with_exit(wire: Wire) -> None:
    command = {"command": "printf 'h\\303'; sleep 0.05; printf '\\244'; echo no >&2; exit 4"}
    status, headers, body = await wire.ask("POST", EXEC, json=command, headers={"accept": "text/event-stream"})
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    events = _events(body)
    text = {name: "".join(data["data"] for kind, data in events if kind == name) for name in ("stdout", "stderr")}
    assert text == {"stdout": "hä", "stderr": "no\n"}
    kind, result = events[-1]
    assert (kind, result["exit_code"], result["timed_out"]) == ("exit", 4, False)
    assert "stdout" not in result


async def test_a_timeout_is_a_result(wire: Wire) -> None:
    _, _, body = await wire.ask("POST", EXEC, json={"command": "sleep 60", "timeout_s": 0.2})
    answer = json.loads(body)
    assert (answer["exit_code"], answer["timed_out"]) == (None, True)


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_the_command_dies_when_its_client_disconnects(wire: Wire, accept: str) -> None:
    with anyio.move_on_after(0.5):
        await wire.ask("POST", EXEC, json={"command": "echo; sleep 60"}, headers={"accept": accept})
    await wire.world.wait_quiet("s1")


BAD_EXECS: list[Any] = [
    {},
    {"command": ""},
    {"command": []},
    {"command": [""]},
    {"command": 5},
    {"command": None},
    {"command": ["a", 5]},
    {"command": "a\0b"},
    {"command": ["a", "b\0"]},
    {"command": "x" * 200_000},
    {"command": "true", "unknown": 1},
    {"command": "true", "cwd": "relative"},
    {"command": "true", "cwd": ""},
    {"command": "true", "cwd": "/a\0"},
    {"command": "true", "cwd": "/" + "x" * 5000},
    {"command": "true", "env": {"A=B": "x"}},
    {"command": "true", "env": {"": "x"}},
    {"command": "true", "env": {"A": "x\0"}},
    {"command": "true", "env": {"A": 1}},
    {"command": "true", "env": ["A=1"]},
    {"command": "true", "env": {str(n): "" for n in range(262_145)}},
    {"command": "true", "stdin": 5},
    {"command": "true", "stdin": "?", "encoding": "base64"},
    {"command": "true", "encoding": "utf-16"},
    {"command": "true", "timeout_s": 0},
    {"command": "true", "timeout_s": -1},
    {"command": "true", "timeout_s": 3601},
    {"command": "true", "timeout_s": 1e400},
    {"command": "true", "timeout_s": float("nan")},
    {"command": "true", "timeout_s": float("inf")},
    {"command": "true", "timeout_s": "5"},
    {"command": "true", "timeout_s": True},
    {"command": "true", "max_output_bytes": -1},
    {"command": "true", "max_output_bytes": 10**30},
    {"command": "true", "max_output_bytes": 1.5},
    [],
    "true",
    None,
    {"command": "\ud800"},
    {"command": "true", "stdin": "\udfff"},
    {"command": "true", "cwd": "/\ud800"},
    {"command": "true", "env": {"\ud800": "x"}},
]


@pytest.mark.parametrize("body", BAD_EXECS, ids=lambda body: ascii(body)[:40])
async def test_a_wrong_exec_is_refused_and_nothing_runs(wire: Wire, body: Any) -> None:
    raw = io.BytesIO(json.dumps(body).encode())
    problem = await wire.problem("POST", EXEC, data=raw, headers={"content-type": "application/json"})
    assert (problem["status"], problem["code"]) == (400, "request.invalid")
    assert wire.world.commands() == 0


async def test_a_refusal_names_the_field(wire: Wire) -> None:
    problem = await wire.problem("POST", EXEC, json={"command": "true", "timeout_s": -1})
    assert "timeout_s" in problem["detail"]


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"command": "tr\xffue"}', b"\xff\xfe", b"[" * 100_000, b'{"command": NaN}', b"\0", b'"\\ud800"'],
    ids=ascii,
)
async def test_broken_json_is_refused(wire: Wire, raw: bytes) -> None:
    problem = await wire.problem("POST", EXEC, data=raw, headers={"content-type": "application/json"})
    assert (problem["status"], problem["code"]) == (400, "request.invalid")


@pytest.mark.parametrize("media", ["text/plain", "application/json; charset=latin-1", "multipart/form-data"])
async def test_another_content_type_is_refused(wire: Wire, media: str) -> None:
    problem = await wire.problem("POST", EXEC, data=b'{"command": "true"}', headers={"content-type": media})
    assert problem["status"] == 415


async def test_unknown_routes_and_methods_are_problems(wire: Wire) -> None:
    for target in ("/", "/nope", "/v1", f"{SESSION}/exec/", f"{SESSION}/"):
        assert (await wire.problem("GET", target))["status"] == 404
    for method in ("GET", "PUT", "PATCH", "OPTIONS"):
        assert (await wire.problem(method, EXEC))["status"] == 405
    status, headers, _ = await wire.ask("GET", EXEC)
    assert (status, headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "bad", ["..", ".", "-x", "a%20b", "a%00", "%ff", "%ED%A0%80", "x" * 129, "a:b", "a%5cb", "%C3%A4"]
)
async def test_an_illegal_id_is_refused(wire: Wire, bad: str) -> None:
    for target in (f"/v1/tenants/acme/sessions/{bad}/sandbox", f"/v1/tenants/{bad}/sessions/s1/sandbox"):
        problem = await wire.problem("GET", target)
        assert problem["status"] in (400, 404)
        assert not problem["code"].startswith("internal")


@pytest.mark.parametrize(
    "target",
    [
        "/v1/tenants/other%2fsessions/s1/sandbox",
        "/v1/tenants/acme/sessions/s1%2Fsandbox",
        "/v1/tenants/other/..%2facme/sessions/s1/sandbox",
        "/v1/tenants/other/%2e%2e/acme/sessions/s1/sandbox",
        "/v1/tenants/other/../acme/sessions/s1/sandbox",
        "/v1/tenants/./acme/sessions/s1/sandbox",
        "/v1/tenants//acme/sessions/s1/sandbox",
        "//v1/tenants/acme/sessions/s1/sandbox",
        "/v1/tenants/acme%5csessions/s1/sandbox",
        "/v1/tenants/acme/sessions/s1/sandbox%00",
        "/v1/tenants/acme/sessions/s1/sandbox%0a",
        "/v1/%74enants/acme/sessions/s1/sandbox",
        "/v1/tenants/%61cme/sessions/s1/sandbox",
        "/v1/tenants/acme/sessions/s%ff/sandbox",
        "/v1/tenants/acme/sessions/s%/sandbox",
        "/v1/tenants/acme/sessions/s1/..",
        "/healthz%0A",
    ],
)
async def test_an_ambiguous_path_is_refused(wire: Wire, target: str) -> None:
    problem = await wire.problem("GET", target)
    assert (problem["status"], problem["code"]) == (400, "request.invalid")
    assert problem["detail"].startswith("cannot use this path")


async def test_ordinary_percent_encoding_is_decoded_in_each_segment(wire: Wire) -> None:
    for target in ("/v1/tenants/a%40b%2Bc/sessions/s1/sandbox", "/v1/tenants/a@b+c/sessions/s%401/sandbox"):
        status, _, body = await wire.ask("PUT", target, json={"user": "u1"})
        assert (status, json.loads(body)["tenant"]) == (201, "a@b+c")


async def test_an_illegal_user_is_refused(wire: Wire) -> None:
    for user in ("", "../x", "a b", "x" * 129, "ü"):
        assert (await wire.problem("PUT", f"{SESSION}/sandbox", json={"user": user}))["status"] == 400


@pytest.mark.parametrize(
    "extra",
    [
        {"limits": {"memory_mb": -1}},
        {"limits": {"memory_mb": 10**30}},
        {"limits": {"cpus": float("nan")}},
        {"limits": {"ram": 1}},
        {"network": "host"},
        {"image": "-v"},
        {"image": "a b"},
        {"image": "a\0"},
        {"privileged": True},
        {"env": {"A=": ""}},
    ],
    ids=ascii,
)
async def test_a_wrong_sandbox_request_is_refused(wire: Wire, extra: dict[str, Any]) -> None:
    problem = await wire.problem("PUT", f"{SESSION}/sandbox", json={"user": "u1", **extra})
    assert (problem["status"], problem["code"]) == (400, "request.invalid")


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(wire: Wire) -> None:
    problem = await wire.problem("PUT", f"{SESSION}/sandbox", data=io.BytesIO(b"x" * 1_048_577), headers=JSON)
    assert (problem["status"], problem["code"]) == (413, "request.too_large")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 65_536

    problem = await wire.problem("PUT", f"{SESSION}/sandbox", data=pieces(), headers=JSON)
    assert problem["code"] == "request.too_large"


async def test_an_internal_error_is_answered_without_its_traceback(wire: Wire) -> None:
    failpoints.arm("create.answer=bug")
    try:
        problem = await wire.problem("PUT", f"{SESSION}/sandbox", json={"user": "u1"})
    finally:
        failpoints.arm("")
    assert (problem["status"], problem["code"]) == (500, "internal.error")
    assert "failpoint" not in json.dumps(problem)
    assert "RuntimeError" not in json.dumps(problem)


async def test_files_are_passed_through_unchanged(wire: Wire) -> None:
    content = bytes(range(256)) * 4096
    status, _, body = await wire.ask("PUT", f"{SESSION}/files?path=/workspace/a%20b", data=content)
    assert (status, json.loads(body)["size_bytes"]) == (200, len(content))
    status, headers, body = await wire.ask("GET", f"{SESSION}/files?path=/workspace/a%20b")
    assert (status, headers["content-type"], body) == (200, "application/octet-stream", content)


async def test_each_kind_of_not_found_has_its_own_code(wire: Wire) -> None:
    calls: list[tuple[str, str, dict[str, Any], str]] = [
        ("GET", "/v1/tenants/acme/sessions/none/sandbox", {}, "sandbox.not_found"),
        ("GET", f"{SESSION}/files?path=/workspace/none", {}, "file.not_found"),
        ("GET", f"{SESSION}/processes/p9", {}, "process.not_found"),
        ("GET", f"{SESSION}/processes/{'p' * 200}", {}, "process.not_found"),
        ("GET", f"{SESSION}/nothing/here", {}, "route.not_found"),
    ]
    for method, target, options, code in calls:
        problem = await wire.problem(method, target, **options)
        assert (problem["status"], problem["code"], problem["retryable"]) == (404, code, False), target
        assert isinstance(rebuild(problem), NotFound), target


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "request.invalid"),
        ("path=", "request.invalid"),
        ("path=a", "request.invalid"),
        ("path=/workspace/%00", "request.invalid"),
        ("path=/workspace/%ff", "request.invalid"),
        ("path=/workspace/a&path=/workspace/b", "request.invalid"),
        ("path=/workspace/a&x=1", "request.invalid"),
        ("path=/workspace/" + "x" * 5000, "request.invalid"),
    ],
)
async def test_an_invalid_path_is_refused(wire: Wire, query: str, code: str) -> None:
    assert (await wire.problem("GET", f"{SESSION}/files?{query}"))["code"] == code
    assert (await wire.problem("PUT", f"{SESSION}/files?{query}", data=b"x"))["code"] == code
    assert [path.name for path in wire.world.workspace("s1").iterdir()] == ["memo"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/etc/passwd", None),  # every user may read it
        ("/workspace/../etc/passwd", None),
        ("//etc/passwd", None),
        ("/workspacex", "file.not_found"),
        ("/var/tmpx", "file.not_found"),
        ("/proc/self/mem", "request.outside_sandbox"),
    ],
)
async def test_a_path_outside_is_not_written_and_the_runner_decides_about_reading_it(
    wire: Wire, path: str, code: str | None
) -> None:
    assert (await wire.problem("PUT", f"{SESSION}/files?path={path}", data=b"x"))["code"] == "request.outside_sandbox"
    if code is None:
        assert (await wire.ask("GET", f"{SESSION}/files?path={path}"))[2] == Path("/etc/passwd").read_bytes()
    else:
        assert (await wire.problem("GET", f"{SESSION}/files?path={path}"))["code"] == code


async def test_memo_and_skills_are_read_only_for_files(wire: Wire) -> None:
    for path in ("/workspace/memo/NOTES.md", "/workspace/x/../memo/a", "/skills/a", "file:///workspace/%256demo/%25ff"):
        move = {"json": {"from": path.replace("%25", "%"), "to": "/workspace/a"}}
        onto = {"json": {"from": "/workspace/a", "to": path.replace("%25", "%"), "replace": True}}
        requests: list[tuple[str, str, dict[str, Any]]] = [
            ("PUT", f"{SESSION}/files?path={path}", {"data": b"x"}),
            ("DELETE", f"{SESSION}/files?path={path}&recursive=true", {}),
            ("POST", f"{SESSION}/files/mkdir", {"json": {"path": path.replace("%25", "%"), "parents": True}}),
            ("POST", f"{SESSION}/files/move", move),
            ("POST", f"{SESSION}/files/move", onto),
        ]
        for method, target, options in requests:
            problem = await wire.problem(method, target, **options)
            assert (problem["status"], problem["code"]) == (403, "file.read_only"), (method, target)


async def test_a_file_that_grows_while_it_is_read_is_cut_at_its_first_size(wire: Wire) -> None:
    size_bytes = 8 * 1024 * 1024  # more than all buffers on the way hold
    path = wire.world.workspace("s1") / "growing"
    path.write_bytes(b"a" * size_bytes)
    path.chmod(0o644)
    async with wire.http.get(f"http://localhost{SESSION}/files?path=/workspace/growing") as response:
        first = await response.content.readexactly(1)
        with path.open("ab") as file:
            file.write(b"b" * size_bytes)
        rest = await response.content.read()
    assert (response.headers["content-length"], first + rest) == (str(size_bytes), b"a" * size_bytes)


async def test_directories_are_listed_in_pages(wire: Wire) -> None:
    for name in ("b", "a", "c"):
        await wire.ask("PUT", f"{SESSION}/files?path=/workspace/l/{name}", data=name.encode() * 3)
    await wire.ask("POST", f"{SESSION}/files/mkdir", json={"path": "/workspace/l/d"})
    size_bytes = (wire.world.workspace("s1") / "l/d").stat().st_size
    pages, after = [], ""
    for _ in range(3):
        status, _, body = await wire.ask("GET", f"{SESSION}/files?path=/workspace/l&list=true&limit=2{after}")
        assert status == 200
        page = json.loads(body)
        pages.append([(item["path"], item["type"], item["size_bytes"]) for item in page["items"]])
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert pages == [
        [("/workspace/l/a", "file", 3), ("/workspace/l/b", "file", 3)],
        [("/workspace/l/c", "file", 3), ("/workspace/l/d", "directory", size_bytes)],
    ]


async def test_a_large_page_is_sent_in_pieces(wire: Wire) -> None:
    many = wire.world.workspace("s1") / "many"
    many.mkdir(mode=0o755)
    for number in range(1000):
        (many / f"{number:05}{'x' * 200}").touch()
    status, headers, body = await wire.ask("GET", f"{SESSION}/files?path=/workspace/many&list=true")
    assert (status, len(json.loads(body)["items"])) == (200, 1000)
    assert "content-length" not in headers


async def test_a_file_is_described_by_its_headers_and_as_json(wire: Wire) -> None:
    await wire.ask("PUT", f"{SESSION}/files?path=/workspace/a", data=b"12345")
    status, headers, body = await wire.ask("HEAD", f"{SESSION}/files?path=/workspace/a")
    assert (status, headers["content-length"], headers["x-file-type"], body) == (200, "5", "file", b"")
    mode = int(headers["x-file-mode"])
    assert stat.S_ISREG(mode)
    modified_at = parsedate_to_datetime(headers["last-modified"])
    status, headers, _ = await wire.ask("HEAD", f"{SESSION}/files?path=/workspace")
    assert (status, headers["x-file-type"]) == (200, "directory")
    for path, wanted in (("/workspace/none", 404), ("relative", 400)):
        status, headers, body = await wire.ask("HEAD", f"{SESSION}/files?path={path}")
        assert (status, headers["content-type"], body) == (wanted, "application/problem+json", b"")
    _, _, body = await wire.ask("GET", f"{SESSION}/files?path=/workspace/a&stat=true")
    described = json.loads(body)
    assert datetime.fromisoformat(described.pop("modified_at")).replace(microsecond=0) == modified_at
    assert described == {"path": "/workspace/a", "type": "file", "size_bytes": 5, "mode": mode}


async def test_files_are_moved_and_removed(wire: Wire) -> None:
    await wire.ask("PUT", f"{SESSION}/files?path=/workspace/d/a", data=b"x")
    await wire.ask("PUT", f"{SESSION}/files?path=/workspace/b", data=b"y")
    move = {"from": "/workspace/d/a", "to": "/workspace/b"}
    assert (await wire.problem("POST", f"{SESSION}/files/move", json=move))["code"] == "file.exists"
    status, _, body = await wire.ask("POST", f"{SESSION}/files/move", json={**move, "replace": True})
    assert (status, json.loads(body)["path"], wire.files()) == (200, "/workspace/b", {b"b": b"x"})
    status, _, body = await wire.ask("POST", f"{SESSION}/files/mkdir", json={"path": "/workspace/e"})
    assert (status, json.loads(body)["type"]) == (201, "directory")
    assert (await wire.problem("POST", f"{SESSION}/files/mkdir", json={"path": "/workspace/e"}))["code"] == (
        "file.exists"
    )
    status, _, _ = await wire.ask("POST", f"{SESSION}/files/mkdir", json={"path": "/workspace/e", "parents": True})
    assert status == 200
    await wire.ask("PUT", f"{SESSION}/files?path=/workspace/d/a", data=b"x")
    problem = await wire.problem("DELETE", f"{SESSION}/files?path=/workspace/d")
    assert (problem["status"], problem["code"]) == (409, "file.not_empty")
    status, _, body = await wire.ask("DELETE", f"{SESSION}/files?path=/workspace/d&recursive=true")
    assert (status, body, wire.files()) == (204, b"", {b"b": b"x"})
    assert (await wire.problem("DELETE", f"{SESSION}/files?path=/workspace/d"))["code"] == "file.not_found"


async def test_a_removal_is_cancelled_when_its_client_disconnects(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    began, cancelled = anyio.Event(), anyio.Event()

    async def remove_for_ever(*args: object, **options: object) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    await wire.ask("PUT", f"{SESSION}/files?path=/workspace/a", data=b"x")
    target, headers = f"{SESSION}/files?path=/workspace/a&recursive=true", {"idempotency-key": "k"}
    with anyio.fail_after(HANG_S), monkeypatch.context() as patch:
        patch.setattr(RunnerClient, "remove", remove_for_ever)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: wire.ask("DELETE", target, headers=headers))
            await began.wait()
            tasks.cancel_scope.cancel()
        await cancelled.wait()
    for _ in range(2):  # the key was released, and now keeps the answer
        status, _, _ = await wire.ask("DELETE", target, headers=headers)
        assert (status, wire.files()) == (204, {})


async def test_a_path_that_is_not_utf_8_is_a_file_uri_in_both_directions(wire: Wire) -> None:
    await wire.ask("PUT", f"{SESSION}/files?path=file:///workspace/l/caf%25E9%2525", data=b"x")
    assert list(wire.files()) == [b"l/caf\xe9%"]
    _, _, body = await wire.ask("GET", f"{SESSION}/files?path=/workspace/l&list=true")
    assert [item["path"] for item in json.loads(body)["items"]] == ["file:///workspace/l/caf%E9%25"]
    move = {"from": "file:///workspace/l/caf%E9%25", "to": "file:///workspace/caf%C3%A9"}
    _, _, body = await wire.ask("POST", f"{SESSION}/files/move", json=move)
    assert json.loads(body)["path"] == "/workspace/caf\u00e9"


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "files?path=/workspace&list=yes,please"),
        ("GET", "files?path=/workspace&list=true&stat=true"),
        ("GET", "files?path=/workspace&list=true&limit=0"),
        ("GET", "files?path=/workspace&list=true&limit=10001"),
        ("GET", "files?path=/workspace&list=true&after=a"),
        ("GET", "files?path=/workspace&list=true&after=%00"),
        ("GET", "files?path=/workspace&after=/workspace/a"),
        ("GET", "files?path=/workspace&stat=true&limit=5"),
        ("GET", "files?path=/workspace&follow=false"),
        ("GET", "files?path=file://workspace/a"),
        ("GET", "files?path=file:///workspace/%2500"),
        ("GET", "files?path=FILE:///workspace/a"),
        ("GET", "files?path=file:///" + "x" * 5000),
        ("DELETE", "files"),
        ("DELETE", "files?path=/workspace/a&recursive=2"),
        ("DELETE", "files?path=/workspace/%00"),
        ("DELETE", "files?path=/workspace/a&force=true"),
    ],
)
async def test_an_invalid_query_of_a_file_verb_is_refused(wire: Wire, method: str, target: str) -> None:
    await wire.ask("PUT", f"{SESSION}/files?path=/workspace/a", data=b"x")
    assert (await wire.problem(method, f"{SESSION}/{target}"))["code"] == "request.invalid"
    assert wire.files() == {b"a": b"x"}


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("mkdir", {}),
        ("mkdir", {"path": ""}),
        ("mkdir", {"path": "a"}),
        ("mkdir", {"path": "/workspace/\0"}),
        ("mkdir", {"path": ["/workspace/a"]}),
        ("mkdir", {"path": "/workspace/a", "parents": "true"}),
        ("mkdir", {"path": "/workspace/a", "mode": 7}),
        ("mkdir", {"path": "/workspace/\udc80"}),
        ("move", {"from": "/workspace/a"}),
        ("move", {"to": "/workspace/a"}),
        ("move", {"source": "/workspace/a", "target": "/workspace/b"}),
        ("move", {"from": "/workspace/a", "to": "/workspace/b", "replace": 1}),
        ("move", {"from": "/workspace/a", "to": "/workspace/" + "x" * 5000}),
        ("move", []),
    ],
)
async def test_an_invalid_body_of_a_file_verb_is_refused(wire: Wire, verb: str, body: Any) -> None:
    await wire.ask("PUT", f"{SESSION}/files?path=/workspace/a", data=b"x")
    assert (await wire.problem("POST", f"{SESSION}/files/{verb}", json=body))["code"] == "request.invalid"
    assert wire.files() == {b"a": b"x"}


async def test_a_change_outside_the_sandbox_is_refused(wire: Wire) -> None:
    for path in ("/etc/passwd", "/workspace/../etc", "/", "file:///etc/passwd", "file:///workspace/..%2Fetc"):
        for method, target, options in [
            ("DELETE", f"{SESSION}/files?recursive=true&path={path.replace('%', '%25')}", {}),
            ("POST", f"{SESSION}/files/mkdir", {"json": {"path": path}}),
            ("POST", f"{SESSION}/files/move", {"json": {"from": path, "to": "/workspace/a"}}),
            ("POST", f"{SESSION}/files/move", {"json": {"from": "/workspace/a", "to": path}}),
        ]:
            problem = await wire.problem(method, target, **options)
            assert problem["code"] == "request.outside_sandbox", (method, target)


async def test_processes_are_started_read_written_and_killed(wire: Wire) -> None:
    terminal = {"tty": True, "echo": False}
    status, _, body = await wire.ask("POST", f"{SESSION}/processes", json={"command": "cat", **terminal})
    assert status == 201
    process = json.loads(body)["id"]
    target = f"{SESSION}/processes/{process}"
    status, _, body = await wire.ask("POST", f"{target}/stdin", json={"data": "abc", "eof": True})
    assert (status, json.loads(body)) == (200, {"taken_bytes": 3})
    _, _, body = await wire.ask("GET", f"{target}?offset=1&wait_s=30")
    output = json.loads(body)
    assert (output["offset"], output["data"], output["next_offset"]) == (1, "bc", 3)
    status, _, _ = await wire.ask("PUT", f"{target}/size", json={"rows": 24, "columns": 80})
    assert status == 204
    _, _, body = await wire.ask("DELETE", target)
    assert json.loads(body)["running"] is False
    for bad in ("offset=-1", "offset=x", "offset=1e400", "limit=0", "wait_s=nan", "wait_s=61", "what=1"):
        assert (await wire.problem("GET", f"{target}?{bad}"))["status"] == 400
    for unknown in ("p99", "x" * 70, "%C3%A4"):
        assert (await wire.problem("GET", f"{SESSION}/processes/{unknown}"))["status"] == 404


async def test_health_readiness_and_metrics_are_served(wire: Wire) -> None:
    _, _, body = await wire.ask("GET", "/healthz")
    assert json.loads(body) == {"status": "ok", "version": "0.0.1"}
    status, _, body = await wire.ask("GET", "/readyz")
    assert (status, json.loads(body)["ready"]) == (200, True)
    wire.world.table.leave()
    problem = await wire.problem("GET", "/readyz")
    assert (problem["status"], problem["retryable"], problem["engine"]["ok"]) == (503, True, False)
    await wire.ask("POST", EXEC, json={"command": "true"})
    _, headers, body = await wire.ask("GET", "/metrics")
    assert headers["content-type"].startswith("text/plain")
    text = body.decode()
    assert 'sandboxd_calls_total{kind="exec",outcome="ok"} 1.0' in text
    assert 'sandboxd_sandboxes{state="ready"} 1.0' in text
    assert "process_open_fds" in text
    assert "s1" not in text


async def test_the_openapi_document_describes_every_route(wire: Wire) -> None:
    status, _, body = await wire.ask("GET", "/openapi.json")
    assert status == 200
    document = json.loads(body)
    exec_path = document["paths"]["/v1/tenants/{tenant}/sessions/{session}/exec"]["post"]
    assert exec_path["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/ExecBody"
    }
    for reference in set(_references(document)):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


async def test_tcp_needs_token_and_host_and_refuses_browsers(wire: Wire) -> None:
    world = wire.world
    token = {"authorization": f"Bearer {world.token}"}
    async with aiohttp.ClientSession() as http:
        for headers, status in [
            (token, 200),
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": f"Basic {world.token}"}, 401),
            ({**token, "origin": "http://evil"}, 403),
            ({**token, "origin": "null"}, 403),
            ({**token, "host": "evil.example"}, 403),
            ({**token, "host": "127.0.0.1"}, 403),
        ]:
            async with http.get(f"{world.url}/healthz", headers=headers) as response:
                assert response.status == status, headers
                if status != 200:
                    assert response.headers["content-type"] == "application/problem+json"


async def test_events_are_numbered_and_resume_after_the_last_one(wire: Wire) -> None:
    for _ in range(2):
        await wire.ask("POST", EXEC, json={"command": "printf %s%s sec ret"})
    _, _, body = await wire.ask("GET", "/v1/events?follow=false")
    events = _events(body)
    assert [kind for kind, _ in events] == ["sandbox", "exec", "exec"]
    assert "secret" not in body.decode()
    numbers = [data["id"] for _, data in events]
    assert numbers == sorted(set(numbers))
    _, _, body = await wire.ask("GET", "/v1/events?follow=false", headers={"last-event-id": str(numbers[1])})
    assert [data["id"] for _, data in _events(body)] == numbers[2:]
    _, _, body = await wire.ask("GET", "/v1/events?follow=false", headers={"last-event-id": "5"})
    assert next(kind for kind, _ in _events(body)) == "gap"
    problem = await wire.problem("GET", "/v1/events", headers={"last-event-id": "x"})
    assert problem["status"] == 400


def _events(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    events = []
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":") and ": " in line)
        if "data" in fields:
            events.append((fields["event"], json.loads(fields["data"])))
    return events


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [reference for child in value.values() for reference in _references(child)]
    if isinstance(value, list):
        return [reference for child in value for reference in _references(child)]
    return []

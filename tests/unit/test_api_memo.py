"""The memory routes over HTTP: a real server on a real store."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

import memo
from memo.documents import Author, DocumentKey
from memo.ids import SessionRef
from sandboxd.memory import Memory
from tests.stopping_store import StoppingStore
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

TENANT = "/v1/tenants/acme"
SESSION = f"{TENANT}/sessions/s1"
USER = f"{TENANT}/users/u1"
NOTES = f"{SESSION}/memo/NOTES.md"


class Wire:
    """Raw requests over the unix socket."""

    def __init__(self, world: World, http: aiohttp.ClientSession) -> None:
        self.world = world
        self.http = http

    @property
    def memory(self) -> Memory:
        return self.world.memory

    async def ask(self, method: str, target: str, **options: Any) -> tuple[int, dict[str, str], bytes]:
        url = URL("http://localhost" + target, encoded=True)
        if isinstance(options.get("data"), bytes):
            options["data"] = io.BytesIO(options["data"])  # aiohttp requires a large body to be a file
        async with self.http.request(method, url, allow_redirects=False, **options) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return response.status, headers, await response.read()

    async def json(self, method: str, target: str, **options: Any) -> Any:
        status, headers, body = await self.ask(method, target, **options)
        assert status < 400, body
        assert headers["content-type"] == "application/json"
        return json.loads(body)

    async def problem(self, method: str, target: str, **options: Any) -> dict[str, Any]:
        status, headers, body = await self.ask(method, target, **options)
        assert headers["content-type"] == "application/problem+json", (status, body)
        problem: dict[str, Any] = json.loads(body)
        assert problem["status"] == status
        assert problem["detail"].startswith("cannot")
        assert not problem["code"].startswith("internal"), problem
        return problem


async def wired(world: World, *, sandbox: bool = True) -> AsyncIterator[Wire]:
    connector = aiohttp.UnixConnector(str(world.socket))
    async with aiohttp.ClientSession(connector=connector) as http:
        wire = Wire(world, http)
        if sandbox:
            status, _, body = await wire.ask("PUT", f"{SESSION}/sandbox", json={"user": "u1", "agent": "a1"})
            assert status in (200, 201), body
        yield wire


@pytest.fixture(params=["memory", "sqlite"])
async def wire(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/memo.db"
    async with memo.open_store(url) as store, serving(tmp_path, store=store) as world:
        async for wire in wired(world):
            yield wire


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[Wire]:
    async with memo.open_store("memory://") as inner:
        store = StoppingStore(inner, tmp_path / "stopped")
        async with serving(tmp_path, store=store, outbox=True) as world:
            async for wire in wired(world):
                yield wire


@pytest.mark.parametrize("base", [SESSION, USER])
async def test_a_document_is_written_read_and_listed_with_its_history(wire: Wire, base: str) -> None:
    target = f"{base}/memo/PLAN.md"
    assert (await wire.problem("GET", target))["code"] == "memo.absent"
    first = await wire.json("PUT", target, data="# Plän\none\n".encode(), headers={"x-memo-actor": "job-1"})
    assert (first["revision"], len(first["sha256"])) == (1, 64)
    status, headers, body = await wire.ask("GET", target)
    assert (status, headers["content-type"], headers["etag"]) == (200, "text/markdown; charset=utf-8", '"1"')
    assert body.decode() == "# Plän\none\n"
    assert (await wire.json("POST", target, data=b"two\n"))["revision"] == 2
    _, _, body = await wire.ask("GET", f"{target}?revision=1")
    assert body.decode() == "# Plän\none\n"
    assert (await wire.problem("GET", f"{target}?revision=9"))["code"] == "memo.absent"
    (item,) = (await wire.json("GET", f"{base}/memo"))["items"]
    assert {"name", "revision", "sha256", "size", "updated_at", "summary", "tokens"} <= set(item)
    assert (item["name"], item["revision"], item["summary"]) == ("PLAN.md", 2, "Plän")
    history = (await wire.json("GET", f"{target}/history"))["items"]
    assert [(one["revision"], one["actor"]) for one in history] == [(2, "host"), (1, "job-1")]
    assert {"session", "reason", "at", "sha256", "size"} <= set(history[0])
    assert len((await wire.json("GET", f"{target}/history?limit=1"))["items"]) == 1
    _, _, body = await wire.ask("GET", f"{target}/diff?from=1&to=2")
    assert "+two" in body.decode()
    _, _, newest = await wire.ask("GET", f"{target}/diff")
    assert newest == body
    restored = await wire.json("POST", f"{target}/restore", json={"revision": 1})
    assert restored["revision"] == 3
    assert restored["sha256"] == first["sha256"]


async def test_a_write_that_lost_the_race_gets_the_newer_text_and_changes_nothing(wire: Wire) -> None:
    await wire.ask("PUT", NOTES, data=b"one")
    await wire.ask("PUT", NOTES, data=b"two", headers={"if-match": '"1"'})
    problem = await wire.problem("PUT", NOTES, data=b"lost", headers={"if-match": '"1"'})
    assert (problem["status"], problem["code"]) == (412, "memo.conflict")
    assert (problem["revision"], problem["text"]) == (2, "two")
    assert (await wire.problem("PUT", NOTES, data=b"lost", headers={"if-none-match": "*"}))["revision"] == 2
    problem = await wire.problem("PUT", f"{SESSION}/memo/NEW.md", data=b"x", headers={"if-match": "*"})
    assert (problem["status"], problem["revision"], problem["text"]) == (412, 0, None)
    assert (await wire.ask("PUT", NOTES, data=b"three", headers={"if-match": "*"}))[0] == 200
    assert (await wire.ask("PUT", f"{SESSION}/memo/NEW.md", data=b"x", headers={"if-none-match": "*"}))[0] == 200
    _, _, body = await wire.ask("GET", NOTES)
    assert body == b"three"


@pytest.mark.parametrize(
    "headers",
    [
        {"if-match": "x"},
        {"if-match": '"1", "2"'},
        {"if-match": '"-1"'},
        {"if-match": '"99999999999999999999"'},
        {"if-none-match": '"1"'},
        {"if-match": '"1"', "if-none-match": "*"},
        {"x-memo-actor": "x" * 101},
        {"x-memo-reason": "x" * 1001},
        {"idempotency-key": "x" * 256},
    ],
    ids=ascii,
)
async def test_an_ambiguous_header_is_refused(quick: Wire, headers: dict[str, str]) -> None:
    assert (await quick.problem("PUT", NOTES, data=b"x", headers=headers))["status"] == 400
    assert (await quick.problem("GET", NOTES))["code"] == "memo.absent"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff\xfe", {}, 400),
        (b"a\0b", {}, 400),
        (b"\xed\xa0\x80", {}, 400),
        (b"x", {"content-type": "text/markdown; charset=latin-1"}, 415),
        (b"x", {"content-type": "multipart/form-data; boundary=x"}, 415),
        (b"x" * 1_048_577, {}, 413),
    ],
    ids=["not utf-8", "nul", "surrogate", "charset", "multipart", "large"],
)
async def test_a_body_that_is_not_text_is_refused(
    quick: Wire, body: bytes, headers: dict[str, str], status: int
) -> None:
    for method in ("PUT", "POST"):
        assert (await quick.problem(method, NOTES, data=body, headers=headers))["status"] == status
    assert (await quick.problem("GET", NOTES))["code"] == "memo.absent"


@pytest.mark.parametrize("name", ["..", ".hidden", "tool-results", "a%20b", "%00", "x" * 129, "a%5cb", "%C3%A4", "-x"])
async def test_an_illegal_name_is_refused_by_every_verb(quick: Wire, name: str) -> None:
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"{SESSION}/memo/{name}", {}),
        ("PUT", f"{SESSION}/memo/{name}", {"data": b"x"}),
        ("POST", f"{USER}/memo/{name}", {"data": b"x"}),
        ("GET", f"{SESSION}/memo/{name}/history", {}),
        ("POST", f"{SESSION}/memo/{name}/restore", {"json": {"revision": 1}}),
        ("POST", f"{USER}/mirror/refresh", {"json": {"name": name}}),
    ]
    for method, target, options in calls:
        assert (await quick.problem(method, target, **options))["status"] in (400, 404, 405)


async def test_an_unknown_query_field_is_refused(quick: Wire) -> None:
    await quick.ask("PUT", NOTES, data=b"x")
    for target in (
        f"{NOTES}?revision=0",
        f"{NOTES}?revision=x",
        f"{NOTES}?nope=1",
        f"{NOTES}?scope=all",
        f"{NOTES}/diff?from=-1",
        f"{NOTES}/diff?to=0",
        f"{NOTES}/history?limit=0",
        f"{SESSION}/messages?limit=-1",
        f"{SESSION}/messages?budget=x",
        f"{USER}/memo?scope=user",
    ):
        assert (await quick.problem("GET", target))["status"] == 400, target
    assert (await quick.problem("POST", f"{NOTES}/restore", json={"revision": 0}))["status"] == 400
    assert (await quick.problem("POST", f"{NOTES}/restore", json={"revision": 7}))["code"] == "memo.absent"


async def test_the_size_limit_of_a_document_is_the_store_s(tmp_path: Path) -> None:
    async with (
        memo.open_store("memory://") as store,
        serving(tmp_path, store=store, max_document_bytes=1_048_576) as world,
    ):
        async for wire in wired(world):
            assert (await wire.problem("PUT", NOTES, data=b"x" * 1_048_577))["code"] == "memo.too_large"
            assert (await wire.ask("PUT", NOTES, data=b"x" * 1_048_576))[0] == 200


async def test_a_session_reaches_the_documents_of_its_user(quick: Wire) -> None:
    await quick.ask("PUT", f"{USER}/memo/USER.md", data=b"brief")
    _, _, body = await quick.ask("GET", f"{SESSION}/memo/USER.md?scope=user")
    assert body == b"brief"
    assert (await quick.problem("GET", f"{SESSION}/memo/USER.md"))["code"] == "memo.absent"
    await quick.ask("PUT", f"{TENANT}/sessions/s2", json={"user": "u1"})  # without a sandbox
    await quick.ask("PUT", f"{TENANT}/sessions/s2/memo/USER.md?scope=user", data=b"long")
    _, _, body = await quick.ask("GET", f"{USER}/memo/USER.md")
    assert body == b"long"
    history = (await quick.json("GET", f"{USER}/memo/USER.md/history"))["items"]
    assert [one["session"] for one in history] == ["s2", None]
    assert (await quick.problem("GET", f"{TENANT}/sessions/s9/memo/USER.md?scope=user"))["status"] == 404


async def test_another_tenant_finds_nothing(quick: Wire) -> None:
    await quick.ask("PUT", NOTES, data=b"secret")
    await quick.ask("PUT", f"{SESSION}/artifacts/c1", data=b"secret")
    await quick.ask("POST", f"{SESSION}/messages", json={"messages": [{"role": "user", "content": "secret"}]})
    foreign = "/v1/tenants/other/sessions/s1"
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"{foreign}/memo", {}),
        ("GET", f"{foreign}/memo/NOTES.md", {}),
        ("GET", f"{foreign}/memo/NOTES.md/history", {}),
        ("GET", f"{foreign}/memo/NOTES.md/diff", {}),
        ("POST", f"{foreign}/memo/NOTES.md/restore", {"json": {"revision": 1}}),
        ("GET", f"{foreign}/artifacts", {}),
        ("GET", f"{foreign}/artifacts/c1", {}),
        ("GET", f"{foreign}/messages", {}),
        ("POST", f"{foreign}/messages", {"json": {"messages": []}}),
        ("POST", f"{foreign}/compaction", {"json": {"force": True}}),
        ("GET", f"{foreign}/mirror", {}),
        ("GET", foreign, {}),
        ("GET", "/v1/tenants/other/users/u1/memo/NOTES.md", {}),
    ]
    for method, target, options in calls:
        problem = await quick.problem(method, target, **options)
        assert problem["status"] == 404, (method, target)
        assert "secret" not in json.dumps(problem)
    assert (await quick.json("GET", "/v1/tenants/other/sessions"))["items"] == []


async def test_a_retry_with_the_same_key_is_one_revision(wire: Wire) -> None:
    for _ in range(2):
        answer = await wire.json("POST", NOTES, data=b"once\n", headers={"idempotency-key": "k"})
        assert answer["revision"] == 1
    _, _, body = await wire.ask("GET", NOTES)
    assert body == b"once\n"
    assert (await wire.json("PUT", NOTES, data=b"x", headers={"idempotency-key": "k"}))["revision"] == 2  # another verb


async def test_a_write_whose_answer_a_crash_lost_is_completed_by_a_retry(tmp_path: Path) -> None:
    """Crash with the key claimed and the text in the store, before the answer."""
    async with memo.open_store(f"sqlite:///{tmp_path}/memo.db") as store:
        async with serving(tmp_path, store=store) as world:
            async for wire in wired(world):
                await wire.ask("POST", NOTES, data=b"once\n", headers={"idempotency-key": "k"})
        with sqlite3.connect(tmp_path / "data" / "idempotency.db") as answers:
            answers.execute("UPDATE answers SET state = 'running', digest = NULL, body = NULL WHERE key = 'k'")
        answers.close()
        async with serving(tmp_path, store=store) as world:
            async for wire in wired(world):
                answer = await wire.json("POST", NOTES, data=b"once\n", headers={"idempotency-key": "k"})
                assert answer["revision"] == 1
                _, _, body = await wire.ask("GET", NOTES)
                assert body == b"once\n"


async def test_the_writer_and_the_reason_are_in_the_history(quick: Wire) -> None:
    headers = {"x-memo-actor": "nightly", "x-memo-reason": "räumt auf"}
    await quick.ask("PUT", NOTES, data=b"x", headers=headers)
    (revision,) = (await quick.json("GET", f"{NOTES}/history"))["items"]
    assert (revision["actor"], revision["reason"], revision["session"]) == ("nightly", "räumt auf", "s1")


async def test_artifacts_are_kept_listed_and_read(wire: Wire) -> None:
    assert (await wire.json("GET", f"{SESSION}/artifacts"))["items"] == []
    long = "ä" * 1_000_000
    kept = await wire.json("PUT", f"{SESSION}/artifacts/call-1", data=long.encode())
    assert (await wire.json("PUT", f"{SESSION}/artifacts/call-1", data=long.encode())) == kept
    (item,) = (await wire.json("GET", f"{SESSION}/artifacts"))["items"]
    assert (item["id"], item["revision"], item["sha256"], item["size"]) == ("call-1", 1, kept["sha256"], 2_000_000)
    _, headers, body = await wire.ask("GET", f"{SESSION}/artifacts/call-1")
    assert (headers["content-type"], body.decode()) == ("text/plain; charset=utf-8", long)
    assert (await wire.problem("GET", f"{SESSION}/artifacts/none"))["code"] == "memo.absent"
    assert (await wire.problem("PUT", f"{SESSION}/artifacts/..x", data=b"x"))["status"] == 400


async def test_mirrors_are_refreshed_and_inspected(quick: Wire) -> None:
    await quick.ask("PUT", NOTES, data=b"x")
    path = "/workspace/memo/session/NOTES.md"
    assert await quick.json("POST", f"{SESSION}/mirror/refresh") == {"refreshed": 1}
    assert await quick.json("POST", f"{SESSION}/mirror/refresh", json={"path": path, "content": "x"}) == {
        "refreshed": 1
    }
    assert await quick.json("POST", f"{TENANT}/sessions/s9/mirror/refresh", json={}) == {"refreshed": 0}
    await quick.memory.client.store.write_memory_document("acme", "u1", "user", "USER.md", "brief")
    assert await quick.json("POST", f"{USER}/mirror/refresh", json={"name": "USER.md"}) == {"refreshed": 1}
    assert (quick.world.mirror("s1") / "user/USER.md").read_text() == "brief"
    file, user_file = (await quick.json("GET", f"{SESSION}/mirror"))["items"]
    assert (file["path"], user_file["path"]) == (path, "/workspace/memo/user/USER.md")
    assert {"path", "revision", "sha256", "in_sync", "lag_ms"} <= set(file)
    for body in (
        {"path": "/etc/passwd"},
        {"path": "/workspace/memo/x"},
        {"content": "x"},
        {"path": path, "content": "\0"},
    ):
        assert (await quick.problem("POST", f"{SESSION}/mirror/refresh", json=body))["status"] == 400
    assert (await quick.problem("POST", f"{USER}/mirror/refresh", json={}))["status"] == 400


async def test_without_a_store_memory_calls_fail_clearly(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        async for wire in wired(world):
            calls: list[tuple[str, str, dict[str, Any]]] = [
                ("GET", f"{SESSION}/memo", {}),
                ("GET", NOTES, {}),
                ("PUT", NOTES, {"data": b"x"}),
                ("GET", f"{SESSION}/artifacts", {}),
                ("POST", f"{SESSION}/mirror/refresh", {}),
                ("GET", f"{SESSION}/mirror", {}),
                ("GET", f"{SESSION}/messages", {}),
                ("PUT", SESSION, {"json": {"user": "u1"}}),
            ]
            for method, target, options in calls:
                problem = await wire.problem(method, target, **options)
                assert (problem["status"], problem["code"]) == (503, "store.unavailable"), target


class OnlyReads:
    """A minimal provider."""

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return "kept elsewhere" if name == "NOTES.md" else None

    async def load_all_messages(self, tenant: str, session: str) -> list[Any]:
        raise OSError("postgres://user:password@host/ is unreachable")


async def test_an_unsupported_call_is_reported_and_a_store_failure_reveals_no_secret(tmp_path: Path) -> None:
    async with serving(tmp_path, store=OnlyReads()) as world:
        async for wire in wired(world):
            _, _, body = await wire.ask("GET", NOTES)
            assert body == b"kept elsewhere"
            calls: list[tuple[str, str, dict[str, Any]]] = [
                ("PUT", NOTES, {"data": b"x"}),
                ("POST", NOTES, {"data": b"x", "headers": {"idempotency-key": "k"}}),
                ("GET", f"{NOTES}/history", {}),
                ("GET", f"{SESSION}/artifacts", {}),
                ("GET", f"{SESSION}/messages?limit=1", {}),
                ("POST", f"{SESSION}/messages", {"json": {"messages": []}}),
                ("POST", f"{SESSION}/compaction", {}),
                ("GET", f"{TENANT}/sessions", {}),
            ]
            for method, target, options in calls:
                problem = await wire.problem(method, target, **options)
                assert (problem["status"], problem["code"]) == (501, "memo.unsupported"), target
            problem = await wire.problem("GET", f"{SESSION}/messages")
            assert (problem["status"], problem["code"]) == (503, "store.unavailable")
            assert "password" not in json.dumps(problem)


async def test_a_write_to_an_unavailable_store_is_queued_and_reported_as_such(quick: Wire) -> None:
    (quick.world.directory / "stopped").touch()
    status, _, body = await quick.ask("PUT", NOTES, data=b"x")
    assert (status, json.loads(body)) == (202, {"revision": None, "sha256": None, "queued": True, "merged": False})
    problem = await quick.problem("GET", NOTES)
    assert (problem["status"], problem["code"], problem["retryable"]) == (503, "store.unavailable", True)


async def test_a_write_by_another_process_to_the_same_store_is_seen(tmp_path: Path) -> None:
    async with memo.open_store("memory://") as store, serving(tmp_path, store=store) as world:
        async for wire in wired(world):
            key = DocumentKey.of_session(SessionRef.of("acme", "s1"), "NOTES.md")
            await store.write_document(key, "direct", author=Author("program"))
            _, headers, body = await wire.ask("GET", NOTES)
            assert (headers["etag"], body) == ('"1"', b"direct")


async def test_the_openapi_document_names_every_memory_route_once(quick: Wire) -> None:
    document = await quick.json("GET", "/openapi.json")
    ids = [verb["operationId"] for path in document["paths"].values() for verb in path.values()]
    assert len(ids) == len(set(ids))
    write = document["paths"]["/v1/tenants/{tenant}/users/{user}/memo/{name}"]["put"]
    names = {parameter["name"] for parameter in write["parameters"]}
    assert {"tenant", "user", "name", "merge", "If-Match", "X-Memo-Actor", "Idempotency-Key"} <= names

"""The inspector's read API over HTTP: what it shows, and that one damaged or hostile thing hides nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

import memo
from memo.ids import SessionRef
from sandboxd.inspector.page_files import PageFiles
from sandboxd.models.inspector import TimelineEntry
from tests.plain_store import PlainStore
from tests.unit.test_api_memo import SESSION, TENANT, Wire, wired
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

API = "/__inspector/api"
SHOWN = f"{API}/tenants/acme/sessions/s1"


@pytest.fixture(params=["memory", "sqlite", "file"])
async def wire(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/memo.db", "file": f"file:///{tmp_path}/store"}
    async with memo.open_store(urls[request.param]) as store, serving(tmp_path, store=store) as world:
        async for wire in wired(world):
            yield wire


def said(*texts: str, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for text in texts]


async def test_the_page_has_a_strict_policy_and_is_not_stored(wire: Wire) -> None:
    status, headers, body = await wire.ask("GET", "/__inspector/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<html" in body
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert headers["cache-control"] == "no-store"
    again, _, rest = await wire.ask("GET", "/__inspector/", headers={"if-none-match": headers["etag"]})
    assert (again, rest) == (304, b"")


async def test_only_files_of_the_page_are_served(wire: Wire) -> None:
    for name in PageFiles.read().names:
        assert (await wire.ask("GET", f"/__inspector/static/{name}"))[0] == 200
    for name in ("page_files.py", "../page_files.py", "..%2fpage_files.py", "%2e%2e/page_files.py", "", "/etc/passwd"):
        assert (await wire.problem("GET", f"/__inspector/static/{name}"))["status"] in (400, 404)


async def test_over_tcp_everything_needs_the_token_and_a_browser_is_refused(wire: Wire) -> None:
    token = {"authorization": f"Bearer {wire.world.token}"}
    for path in ("/__inspector/", "/__inspector/static/index.html", f"{API}/overview", SHOWN, "/__inspector/sessions"):
        for headers, expected in (({}, 401), (token, 200), ({**token, "origin": wire.world.url}, 403)):
            async with aiohttp.request("GET", f"{wire.world.url}{path}", headers=headers) as answer:
                assert answer.status == expected, (path, headers)


async def test_the_overview_shows_sandboxes_and_what_works(wire: Wire) -> None:
    overview = await wire.json("GET", f"{API}/overview")
    assert overview["ready"] is True
    assert [check["name"] for check in overview["checks"]] == ["engine", "store", "disk"]
    assert overview["states"]["ready"] == 1
    (sandbox,) = overview["sandboxes"]
    assert (sandbox["tenant"], sandbox["session"], sandbox["state"]) == ("acme", "s1", "ready")
    assert overview["pool"] == {"warm": 0, "target": 0}
    assert overview["sessions"] == 1


async def test_sessions_come_newest_first_in_pages(wire: Wire) -> None:
    for number in range(7):
        path = f"/v1/tenants/{'acme' if number % 2 else 'other'}/sessions/p{number}"
        await wire.ask("PUT", path, json={"user": f"u{number}"})
        await wire.ask("POST", f"{path}/messages", json={"messages": said("x")})
    seen: list[str] = []
    target = f"{API}/sessions?limit=3"
    while True:
        page = await wire.json("GET", target)
        seen += [item["session"] for item in page["items"]]
        if page["next"] is None:
            break
        target = f"{API}/sessions?limit=3&cursor={page['next']}"
    assert seen == [f"p{number}" for number in range(6, -1, -1)] + ["s1"]
    assert [i["session"] for i in (await wire.json("GET", f"{API}/sessions?tenant=other&user=u4"))["items"]] == ["p4"]
    assert [i["session"] for i in (await wire.json("GET", f"{API}/sessions?q=P5"))["items"]] == ["p5"]
    (live,) = (await wire.json("GET", f"{API}/sessions?q=s1"))["items"]
    assert (live["state"], live["user"]) == ("ready", "u1")
    assert (await wire.problem("GET", f"{API}/sessions?cursor=x"))["status"] == 400


async def test_a_session_is_shown_with_its_sandbox_and_another_tenants_is_not_found(wire: Wire) -> None:
    shown = await wire.json("GET", SHOWN)
    assert (shown["session"], shown["state"], shown["sandbox"]["user"], shown["forks"]) == ("s1", "ready", "u1", [])
    for path in ("", "/messages", "/trace", "/timeline", "/timeline/m0", "/orchestration/state"):
        problem = await wire.problem("GET", f"{API}/tenants/other/sessions/s1{path}")
        assert problem["status"] == 404, path


async def test_a_timeline_has_messages_envelopes_and_events_in_order(wire: Wire) -> None:
    await wire.ask("POST", f"{SESSION}/messages", json={"messages": said("<b>first</b>\nline", "second")})
    await wire.ask("POST", f"{SESSION}/exec", json={"command": "exit 3"})
    envelopes = [{"type": "agent.step", "timestamp": "2001-02-03T04:05:06Z", "note": "early"}]
    await wire.ask("POST", f"{SESSION}/trace", json={"envelopes": envelopes})
    timeline = await wire.json("GET", f"{SHOWN}/timeline")
    entries = [TimelineEntry.model_validate(entry) for entry in timeline["items"]]
    assert timeline["total"] == len(entries)
    assert timeline["next"] is None
    assert (entries[0].kind, entries[0].id, entries[0].lane) == ("trace", "t0", "trace")
    assert [entry.title for entry in entries if entry.kind == "message"] == ["<b>first</b> line", "second"]
    (command,) = [entry for entry in entries if entry.kind == "exec"]
    assert (command.ok, command.lane) == (False, "commands")
    assert "exit 3" in command.title
    known = await wire.json("GET", f"{SHOWN}/timeline/{command.id}")
    assert known["detail"]["data"]["exit_code"] == 3
    assert (await wire.json("GET", f"{SHOWN}/timeline/m0"))["detail"]["message"]["content"] == "<b>first</b>\nline"
    rest = await wire.json("GET", f"{SHOWN}/timeline?after=t0&limit=1")
    assert [entry["id"] for entry in rest["items"]] == [entries[1].id]
    assert (await wire.problem("GET", f"{SHOWN}/timeline?after=zz"))["status"] == 400
    assert (await wire.problem("GET", f"{SHOWN}/timeline/zz"))["status"] == 404


async def test_orchestration_is_null_until_there_is_some(wire: Wire) -> None:
    assert await wire.json("GET", f"{SHOWN}/orchestration/state") is None
    place = f"{SESSION}/orchestration"
    await wire.ask("POST", f"{place}/events", json={"events": [{"eventId": "e1"}, {"eventId": "e2"}]})
    await wire.ask("PUT", f"{place}/checkpoint", json={"snapshot": {"lastEventId": "e1"}})
    state = await wire.json("GET", f"{SHOWN}/orchestration/state")
    assert state == {"snapshot": {"lastEventId": "e1"}, "events": [{"eventId": "e2"}], "source": "checkpoint"}
    assert len((await wire.json("GET", f"{SHOWN}/orchestration/events"))["items"]) == 2


async def test_search_finds_text_in_everything_and_says_where(wire: Wire) -> None:
    await wire.ask("POST", f"{SESSION}/messages", json={"messages": said("nothing", "The Needle (1+1) is here")})
    await wire.ask("PUT", f"{SESSION}/memo/NOTES.md", data=b"# needle (1+1) notes")
    await wire.ask("PUT", f"{TENANT}/users/u1/memo/USER.md", data=b"likes NEEDLE (1+1)")
    await wire.ask("PUT", f"{SESSION}/artifacts/call-1", data=b"x" * 500 + b"needle (1+1)" + b"y" * 500)
    found = await wire.json("GET", f"{API}/search?q=needle%20(1%2B1)")
    assert found["incomplete"] is False
    by_type = {hit["type"]: hit for hit in found["items"] if hit["type"] != "document"}
    assert by_type["message"]["index"] == 1
    assert by_type["artifact"]["name"] == "call-1"
    assert len(by_type["artifact"]["snippet"]) < 250
    documents = {(hit["name"], hit["session"]) for hit in found["items"] if hit["type"] == "document"}
    assert documents == {("NOTES.md", "s1"), ("USER.md", None)}
    assert (await wire.json("GET", f"{API}/search?q=needle&tenant=other"))["items"] == []
    assert (await wire.json("GET", f"{API}/search?q=needle&limit=1"))["incomplete"] is True
    assert [hit["type"] for hit in (await wire.json("GET", f"{API}/search?q=S1"))["items"]] == ["session"]


async def test_statistics_are_measured_only_while_a_reader_listens(wire: Wire) -> None:
    samples = []
    async with wire.http.get(f"http://localhost{API}/stats") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        with anyio.fail_after(60):
            async for line in answer.content:
                if line.startswith(b"data: "):
                    samples.append(json.loads(line[6:]))
                    if len(samples) == 2:
                        break
    (sandbox,) = samples[1]["sandboxes"]
    assert (sandbox["tenant"], sandbox["session"]) == ("acme", "s1")
    assert sandbox["memory_limit_bytes"] > 0
    assert samples[1]["host"]["memory_total"] > samples[1]["host"]["memory_used"] > 0
    assert samples[1]["host"]["cpu_percent"] is not None


async def test_a_daemon_that_stops_ends_the_statistics_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, drain_s=3600) as world:
        async for wire in wired(world, sandbox=False):
            with anyio.fail_after(60):
                async with wire.http.get(f"http://localhost{API}/stats") as answer:
                    await answer.content.readline()
                    world.stop_server()
                    assert [line async for line in answer.content][-1:] in ([], [b"\n"])


async def test_a_store_that_keeps_no_sessions_leaves_the_rest_usable(tmp_path: Path) -> None:
    async with serving(tmp_path, store=PlainStore(tmp_path / "plain")) as world:
        async for wire in wired(world):
            overview = await wire.json("GET", f"{API}/overview")
            assert {"sessions", "messages", "traces", "orchestration"} <= set(overview["store"]["unsupported"])
            assert overview["sessions"] is None
            assert [item["session"] for item in (await wire.json("GET", f"{API}/sessions"))["items"]] == ["s1"]
            assert (await wire.problem("GET", f"{SHOWN}/messages"))["code"] == "memo.unsupported"
            assert (await wire.problem("GET", f"{SHOWN}/trace"))["code"] == "memo.unsupported"
            await wire.ask("POST", f"{SESSION}/exec", json={"command": "true"})
            assert "exec" in {entry["kind"] for entry in (await wire.json("GET", f"{SHOWN}/timeline"))["items"]}


class OddStore(memo.InMemoryStore):
    """Lists sessions as a foreign store might: in the seed's spelling, with a damaged one among them."""

    async def list_sessions(self, tenant: str | None = None) -> Any:
        return [
            {
                "tenantId": "acme",
                "sessionId": "good",
                "userId": "u",
                "updatedAt": 1_700_000_000_000,
            },
            {"tenantId": "acme", "sessionId": "../../etc"},
            {"tenantId": "acme", "sessionId": "broken", "error": "cannot read messages.jsonl: line 3"},
            None,
        ]


async def test_one_damaged_session_is_an_item_with_an_error(tmp_path: Path) -> None:
    async with OddStore() as store, serving(tmp_path, store=store) as world:
        async for wire in wired(world):
            items = (await wire.json("GET", f"{API}/sessions"))["items"]
    shown = {item["session"]: item for item in items}
    assert shown["good"]["user"] == "u"
    assert shown["good"]["updated_at"].startswith("2023-11-14T22:13:20")
    assert "line 3" in shown["broken"]["error"]
    assert "error" in shown["../../etc"]
    assert shown["s1"]["state"] == "ready"
    assert len(items) == 5


async def test_a_damaged_session_of_a_directory_is_named_with_its_file_and_hides_no_other(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with memo.open_store(f"file:///{root}") as store, serving(tmp_path, store=store) as world:
        async for wire in wired(world):
            for name in ("good", "bad"):
                await store.get_or_create("acme", "u", "a", name)
                await store.append_messages("acme", name, said("needle"))
            (root / "tenants/acme/sessions/bad/session.jsonl").write_bytes(b"\xff{not json\n")
            first, *rest = (await wire.json("GET", f"{API}/sessions"))["items"]
            assert (first["session"], "session.jsonl" in first["error"]) == ("bad", True)
            assert {item["session"] for item in rest} == {"good", "s1"}
            hits = (await wire.json("GET", f"{API}/search?q=needle"))["items"]
            assert [hit["session"] for hit in hits if hit["type"] == "message"] == ["good"]
            problem = await wire.problem("GET", f"{API}/tenants/acme/sessions/bad/timeline")
            assert problem["code"] == "store.corrupt"


async def test_ten_thousand_entries_fit_in_two_megabytes(tmp_path: Path) -> None:
    async with memo.open_store("memory://") as store, serving(tmp_path, store=store) as world:
        async for wire in wired(world):
            trace = store.session_trace_store(SessionRef.of("acme", "s1"))
            for number in range(5000):
                at = f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}.123Z"
                data = {"command": "echo " + 'ä"' * 200, "exit_code": 0, "duration_ms": 12.345, "actor": "agent"}
                await trace.append_envelope(
                    {"id": str(number), "source": "sandboxd", "type": "exec", "at": at, "data": data}
                )
            await store.append_messages("acme", "s1", said(*(["\u65e5\u672c\\ " * 200] * 5000)))
            _, _, body = await wire.ask("GET", f"{SHOWN}/timeline?limit=20000")
    assert json.loads(body)["total"] >= 10_000
    assert len(body) < 2_000_000 * len(json.loads(body)["items"]) / 10_000

"""Sandboxes over the wire: options, pauses, hibernation, filters and conflicts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import memo
from sandboxd.client import AsyncClient, AsyncSandbox
from sandboxd.errors import Differs, Hibernated, Paused, SandboxNotFound
from tests.unit.test_api_memo import SESSION, TENANT, Wire, wired
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

SANDBOX = f"{SESSION}/sandbox"


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with memo.open_store("memory://") as store, serving(tmp_path, store=store) as world:
        async for wire in wired(world):
            yield wire


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with serving(tmp_path) as world, AsyncClient(world.socket) as client:
        yield client


async def test_a_patch_changes_what_it_names_and_nothing_else(wire: Wire) -> None:
    before = await wire.json("GET", SANDBOX)
    after = await wire.json("PATCH", SANDBOX, json={"idle_timeout_s": 60, "labels": {"team": "search"}})
    assert after == {**before, "idle_timeout_s": 60, "labels": {"team": "search"}}
    assert (await wire.json("PATCH", SANDBOX, json={"resume": "manual"}))["labels"] == {"team": "search"}
    assert (await wire.json("PATCH", SANDBOX, json={"ttl_s": 600}))["expires_at"] is not None
    assert (await wire.json("PATCH", SANDBOX, json={"ttl_s": None}))["expires_at"] is None


@pytest.mark.parametrize(
    "bad",
    [
        {"idle_timeout_s": -1},
        {"ttl_s": 0},
        {"ttl_s": 1e12},
        {"resume": "never"},
        {"labels": {"": "x"}},
        {"labels": {"-team": "x"}},
        {"labels": {"team": "x" * 257}},
        {"labels": {"team": "a\0b"}},
        {"labels": {f"l{number}": "" for number in range(65)}},
        {"user": "u2"},
        {"image": "other"},
    ],
)
async def test_a_wrong_patch_is_refused_and_changes_nothing(wire: Wire, bad: dict[str, Any]) -> None:
    before = await wire.json("GET", SANDBOX)
    assert (await wire.problem("PATCH", SANDBOX, json=bad))["code"] == "request.invalid"
    assert await wire.json("GET", SANDBOX) == before


async def test_another_tenants_sandbox_is_not_found_by_any_verb(wire: Wire) -> None:
    foreign = SANDBOX.replace(TENANT, "/v1/tenants/other")
    for verb, path in (("PATCH", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/hibernate")):
        problem = await wire.problem(verb, f"{foreign}{path}", **({"json": {}} if verb == "PATCH" else {}))
        assert (problem["status"], problem["code"]) == (404, "sandbox.not_found")


async def test_a_create_that_differs_names_the_differences(client: AsyncClient) -> None:
    await client.ensure_sandbox("s1", env={"KEY": "secret"})
    with pytest.raises(Differs, match="set recreate to replace its container") as refused:
        await client.ensure_sandbox("s1", env={"KEY": "other"}, limits={"pids": 64})
    assert refused.value.differences == {"limits.pids": {"is": 256, "requested": 64}, "env": {"names": ["KEY"]}}
    recreated = await client.ensure_sandbox("s1", env={"KEY": "other"}, limits={"pids": 64}, recreate=True)
    assert (recreated.created, recreated.limits["pids"]) == (True, 64)
    assert (await client.exec("s1", "echo $KEY")).stdout == "other\n"


async def test_sandboxes_are_found_by_labels_and_state(client: AsyncClient) -> None:
    await client.ensure_sandbox("s1", labels={"team": "search", "tier": "1"})
    await client.ensure_sandbox("s2", labels={"team": "search", "tier": "a=b,c"})
    await client.ensure_sandbox("s3")
    await client.hibernate_sandbox("s3")

    async def found(**filters: Any) -> list[str]:
        return [sandbox.session for sandbox in await client.list_sandboxes(**filters)]

    assert await found() == ["s1", "s2", "s3"]
    assert await found(labels={"team": "search"}) == ["s1", "s2"]
    assert await found(labels={"team": "search", "tier": "a=b,c"}) == ["s2"]
    assert await found(labels={"team": "ads"}) == []
    assert await found(state="hibernated") == ["s3"]
    assert await found(state="ready", labels={"tier": "1"}) == ["s1"]


async def test_a_filter_that_cannot_match_anything_is_refused(wire: Wire) -> None:
    for query in ("label=team", "state=asleep", "state=ready&state=gone", "name=x"):
        assert (await wire.problem("GET", f"{TENANT}/sandboxes?{query}"))["code"] == "request.invalid"


async def test_the_object_api_pauses_hibernates_and_resumes(client: AsyncClient) -> None:
    sandbox = await AsyncSandbox.create("s1", client=client, resume="manual", labels={"team": "search"})
    await sandbox.files.write("/workspace/kept", b"kept")
    assert (await sandbox.pause()).state == "paused"
    with pytest.raises(Paused, match="it is paused"):
        await sandbox.commands.run("true")
    assert (await sandbox.resume()).state == "ready"
    assert (await sandbox.hibernate()).state == "hibernated"
    with pytest.raises(Hibernated, match=r"hibernated \(asked\); its files are kept"):
        await sandbox.commands.run("true")
    assert (await sandbox.update(resume="auto")).resume == "auto"
    assert (await sandbox.commands.run("cat /workspace/kept")).stdout == "kept"
    await sandbox.kill()
    with pytest.raises(SandboxNotFound):
        await sandbox.get_view()

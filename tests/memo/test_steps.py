"""Storage steps: fifteen operations that survive JSON and replay, on disk and in every store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from memo import InMemoryStore
from memo.errors import Absent, Corrupt, InvalidContent, Unsupported
from memo.steps import (
    METHODS,
    InvalidStep,
    InvalidStepRecord,
    StepMessage,
    StepPart,
    StepRecord,
    StepSandbox,
    StepSession,
    StepSetup,
    StorageStep,
    check_handlers,
    local_storage,
    record_of,
    store_handlers,
)
from memo.steps.conformance import SAMPLES
from tests.memo.turn.stores import STORES, opened

pytestmark = pytest.mark.anyio

FIFTEEN = {
    "session.get", "session.set", "session.update",
    "message.get", "message.set", "message.update", "message.listBySession",
    "part.get", "part.set", "part.listBySession",
    "sandbox.get", "sandbox.set", "sandbox.update",
    "setup.get", "setup.set",
}  # fmt: skip
PARAMETERS: dict[str, dict[str, Any]] = {
    "get": {"id": "x"},
    "set": {"id": "x", "value": {"a": 1}},
    "update": {"id": "x", "updates": {"a": 1}},
}


def event(method: str) -> dict[str, Any]:
    return {"method": method, **PARAMETERS.get(method.split(".")[1], {"sessionId": "s"})}


# Specification: 004.4, 004.19
def test_there_are_fifteen_operations() -> None:
    assert set(METHODS) == FIFTEEN
    assert set(local_storage()) == set(store_handlers(InMemoryStore())) == FIFTEEN


# Specification: 004.6, 004.7, 004.9
@pytest.mark.parametrize("kind", STORES)
async def test_all_fifteen_keep_their_promises_on_a_real_store(kind: str, tmp_path: Path) -> None:
    numbers = count()

    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        place = tmp_path / str(next(numbers))
        place.mkdir()
        async with opened(kind, place) as store:
            yield store_handlers(store)

    await check_handlers(make)


# Specification: 004.6, 004.7
async def test_all_fifteen_keep_their_promises_on_disk(tmp_path: Path) -> None:
    numbers = count()
    await check_handlers(lambda: local_storage(dir=tmp_path / str(next(numbers))))


@pytest.mark.parametrize(
    ("promise", "method"),
    [
        ("a session that was never set is None", "session.get"),
        ("a setup keeps every field", "setup.set"),
        ("all fifteen handlers exist", "part.listBySession"),
        ("updating a session returns the merged record", "session.update"),
        ("every message of a session is listed", "message.listBySession"),
    ],
)
async def test_the_check_names_the_broken_promise(promise: str, method: str) -> None:
    def make() -> Any:
        handlers = dict(store_handlers(InMemoryStore()))
        update = handlers["session.update"]

        async def wrong(**parameters: Any) -> Any:
            if method == "session.update":
                await update(**parameters)
            return {} if method == "session.get" else [] if method == "message.listBySession" else None

        return {**handlers, method: wrong} if method != "part.listBySession" else {
            name: handler for name, handler in handlers.items() if name != method
        }  # fmt: skip

    with pytest.raises(AssertionError, match=promise):
        await check_handlers(make)


# Specification: 004.1, 004.10
@pytest.mark.parametrize("method", sorted(FIFTEEN))
async def test_a_step_calls_only_its_handler(method: str) -> None:
    reached: list[Any] = []

    def handler(name: str) -> Any:
        async def run(**parameters: Any) -> str:
            reached.append((name, parameters))
            return f"result of {name}"

        return run

    step = StorageStep(event=event(method))
    assert await step.on({name: handler(name) for name in FIFTEEN}) == f"result of {method}"
    assert reached == [(method, {name: value for name, value in event(method).items() if name != "method"})]


# Specification: 004.11
@pytest.mark.parametrize("method", sorted(FIFTEEN))
def test_a_step_survives_json(method: str) -> None:
    step = StorageStep(event=event(method))
    assert step.to_json() == {"event": event(method)}
    assert StorageStep.from_json(json.loads(json.dumps(step.to_json()))) == step
    assert StorageStep.model_validate_json(step.model_dump_json()) == step


def test_the_session_may_be_spelled_two_ways_and_is_written_one_way() -> None:
    for spelling in ("sessionId", "session_id"):
        step = StorageStep(event={"method": "part.listBySession", spelling: "s1"})
        assert step.to_json() == {"event": {"method": "part.listBySession", "sessionId": "s1"}}


async def test_a_handler_gets_the_session_under_its_own_spelling() -> None:
    async def camel(sessionId: str) -> str:
        return sessionId

    async def snake(session_id: str) -> str:
        return session_id

    async def any_way(**parameters: Any) -> str:
        return str(parameters["sessionId"])

    step = StorageStep(event={"method": "message.listBySession", "sessionId": "s1"})
    for handler in (camel, snake, any_way):
        assert await step.on({"message.listBySession": handler}) == "s1"
    own = store_handlers(InMemoryStore())["message.listBySession"]
    assert await own(sessionId="s1") == await own(session_id="s1") == []


# Specification: 004.5
async def test_a_handler_may_take_its_parameters_as_one_object_or_as_keywords() -> None:
    class Methods:
        async def get(self, p: dict[str, Any]) -> Any:
            return p

    async def one(p: dict[str, Any]) -> Any:
        return p

    async def with_default(params: dict[str, Any], retries: int = 3) -> Any:
        return params

    async def positional(id: dict[str, Any], /) -> Any:
        return id

    async def keywords(id: str, value: dict[str, Any]) -> Any:
        return {"id": id, "value": value}

    async def rest(**parameters: Any) -> Any:
        return parameters

    for handler in (one, Methods().get, with_default, positional, lambda p: p, keywords, rest):
        step = StorageStep(event={"method": "session.set", "id": "s", "value": {"a": 1}})
        assert await step.on({"session.set": handler}) == {"id": "s", "value": {"a": 1}}
    listing = StorageStep(event={"method": "part.listBySession", "session_id": "s"})
    assert await listing.on({"part.listBySession": one}) == {"sessionId": "s"}
    getting = StorageStep(event={"method": "session.get", "id": "s"})
    assert await getting.on({"session.get": lambda id: id}) == "s"


# Specification: 004.5
async def test_our_own_handlers_can_be_called_either_way(tmp_path: Path) -> None:
    for handlers in (local_storage(dir=tmp_path), store_handlers(InMemoryStore())):
        await handlers["setup.set"]({"id": "u", "value": {"n": 1}})
        assert await handlers["setup.get"]({"id": "u"}) == await handlers["setup.get"](id="u") == {"n": 1}
        with pytest.raises(InvalidStep):
            await handlers["setup.get"]({"id": "../u"})


TYPED: dict[type[StepRecord], dict[str, Any]] = {
    StepSession: {
        "id": "s1", "createdAt": 1, "updatedAt": 2.5, "model": "m", "system": None, "generation": {"temperature": 0},
        "lastMessageId": "m1", "activeTools": ["a"],
    },
    StepMessage: {
        "id": "m1", "sessionId": "s1", "role": "assistant", "createdAt": 3, "usage": {"input": 1}, "workflowRunId": "r",
    },
    StepPart: {"id": "p1", "sessionId": "s1", "messageId": "m1", "type": "text", "index": 0},
    StepSandbox: {"id": "b1", "createdAt": 1, "updatedAt": 1, "binding": "local", "metadata": {"k": [1]}},
    StepSetup: {"id": "u1"},
}  # fmt: skip


# Specification: 004.14, 004.15, 004.16, 004.17, 004.18
@pytest.mark.parametrize("kind", TYPED)
def test_a_typed_record_has_the_fields_of_the_contract_and_keeps_all_others(kind: type[StepRecord]) -> None:
    value = {**TYPED[kind], "extra": {"ü": [None]}, "created_at": "not the contract's field"}
    record = kind.from_json(value)
    assert record.to_json() == value
    assert record_of(kind.kind, value) == record
    assert {to_camel(name) for name in kind.model_fields} == TYPED[kind].keys()
    snake = {name: getattr(record, name) for name in kind.model_fields}
    assert kind(**snake).to_json() == TYPED[kind]
    with pytest.raises(ValidationError, match="frozen"):
        record.id = "other"  # type: ignore[misc]


def test_an_absent_field_stays_absent_and_null_stays_null() -> None:
    value = {"id": "s", "createdAt": 1, "updatedAt": 1, "model": "m", "system": None}
    session = StepSession.from_json(value)
    assert session.to_json() == value
    assert (session.system, session.last_message_id, session.created_at) == (None, None, 1)
    assert session.with_updates(model="n", active_tools=["a"]).to_json() == {
        **value,
        "model": "n",
        "activeTools": ["a"],
    }


# Specification: 004.15
@pytest.mark.parametrize(
    ("rule", "kind", "change"),
    [
        ("a role is one of two", StepMessage, {"role": "system"}),
        ("a time is a number", StepSession, {"createdAt": "2024-01-01"}),
        ("a time is not a boolean", StepSandbox, {"updatedAt": True}),
        ("an index is a number", StepPart, {"index": "0"}),
        ("an id is text", StepSetup, {"id": 1}),
        ("a model is required", StepSession, {"model": None}),
        ("tools are names", StepSession, {"activeTools": [1]}),
    ],
)
def test_an_invalid_typed_record_is_refused(rule: str, kind: type[StepRecord], change: dict[str, Any]) -> None:
    with pytest.raises(InvalidStepRecord, match=f"cannot make this {kind.kind} record") as caught:
        kind.from_json({**TYPED[kind], **change})
    assert caught.value.code == "E_INVALID_STORAGE_RECORD"
    assert next(iter(change)) in str(caught.value)


def test_a_typed_record_is_refused_if_it_is_not_an_object_or_of_no_known_kind() -> None:
    for wrong in (None, [1], "s"):
        with pytest.raises(InvalidStepRecord, match="not a JSON object"):
            StepSession.from_json(wrong)
    with pytest.raises(InvalidContent, match="session, message, part, sandbox, setup"):
        record_of("turn", {"id": "x"})
    with pytest.raises(InvalidStepRecord, match="no field colour"):
        StepSession.updates(colour="blue")


async def test_handlers_and_steps_work_with_typed_records() -> None:
    session = StepSession(id="s", created_at=1, updated_at=1, model="m")
    part = StepPart(id="p", session_id="s", message_id="m", type="text", index=0)
    store = store_handlers(InMemoryStore())
    await store(StorageStep(event={"method": "session.set", "id": "s", "value": session}))
    updates = StepSession.updates(updated_at=2)
    await store(StorageStep(event={"method": "session.update", "id": "s", "updates": updates}))
    stored = await store(StorageStep(event={"method": "session.get", "id": "s"}))
    assert StepSession.from_json(stored) == session.with_updates(updated_at=2)

    async def typed(p: dict[str, Any]) -> StepSession:
        return session

    assert await StorageStep(event={"method": "session.get", "id": "s"}).on({"session.get": typed}) == session.to_json()
    listing = StorageStep(event={"method": "part.listBySession", "sessionId": "s"})
    assert await listing.on({"part.listBySession": lambda sessionId: [part]}) == [part.to_json()]


async def test_a_handler_may_be_sync_and_a_missing_one_is_named() -> None:
    step = StorageStep(event=event("setup.get"))
    assert await step.on({"setup.get": lambda id: {"id": id}}) == {"id": "x"}
    with pytest.raises(Unsupported, match=r"no handler for setup\.get"):
        await step.on({"setup.set": lambda id, value: None})


# Specification: 004.10
@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("an operation is one of fifteen", {"method": "session.delete", "id": "x"}),
        ("an operation is named", {"id": "x"}),
        ("an id is required", {"method": "session.get"}),
        ("an id is not a path", {"method": "session.get", "id": "../../etc/passwd"}),
        ("an id is not hidden", {"method": "session.get", "id": ".lock"}),
        ("an id is not empty", {"method": "session.get", "id": ""}),
        ("an id is text", {"method": "session.get", "id": 7}),
        ("a value is required", {"method": "session.set", "id": "x"}),
        ("a value is an object", {"method": "session.set", "id": "x", "value": [1]}),
        ("a value is JSON", {"method": "session.set", "id": "x", "value": {"a": float("inf")}}),
        ("a value is text that UTF-8 can encode", {"method": "session.set", "id": "x", "value": {"a": "\ud800"}}),
        ("updates are required", {"method": "session.update", "id": "x"}),
        ("a session is named", {"method": "part.listBySession"}),
        ("no other field is allowed", {"method": "session.get", "id": "x", "force": True}),
        ("a part cannot be updated", {"method": "part.update", "id": "x", "updates": {}}),
    ],
)
async def test_an_invalid_step_is_rejected(rule: str, wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidStep, match="cannot make this storage step") as caught:
        StorageStep(event=wrong)
    assert caught.value.code == "E_INVALID_STORAGE_STEP"
    method = wrong.get("method")
    if method in FIFTEEN:
        for handlers in (local_storage(dir=tmp_path), store_handlers(InMemoryStore())):
            with pytest.raises(InvalidStep):
                await handlers[method](**{name: value for name, value in wrong.items() if name != "method"})
    assert list(tmp_path.iterdir()) == []


async def test_a_record_with_another_id_is_rejected(tmp_path: Path) -> None:
    for handlers in (local_storage(dir=tmp_path), store_handlers(InMemoryStore())):
        with pytest.raises(InvalidContent, match="another"):
            await handlers["session.set"](id="a", value={"id": "b"})
        await handlers["session.set"](id="a", value={"id": "a"})
        with pytest.raises(InvalidContent, match="another"):
            await handlers["session.update"](id="a", updates={"id": "b"})


def test_a_step_is_immutable() -> None:
    value = {"list": [1]}
    step = StorageStep(event={"method": "setup.set", "id": "x", "value": value})
    value["list"].append(2)
    assert step.to_json()["event"]["value"] == {"list": [1]}


# Specification: 004.8
async def test_updating_a_missing_record_is_an_error(tmp_path: Path) -> None:
    for storage in (local_storage(dir=tmp_path), store_handlers(InMemoryStore())):
        with pytest.raises(Absent, match="cannot update"):
            await storage(StorageStep(event=event("session.update")))


# Specification: 004.1, 004.11
async def test_replaying_a_log_of_steps_leaves_the_same_records(tmp_path: Path) -> None:
    log = [
        {"method": "session.set", "id": "s1", "value": SAMPLES["session"]},
        {"method": "message.set", "id": "m1", "value": SAMPLES["message"]},
        {"method": "session.update", "id": "s1", "updates": {"lastMessageId": "m1"}},
        {"method": "part.set", "id": "p1", "value": SAMPLES["part"]},
    ]
    lines = [StorageStep(event=one).model_dump_json() for one in log]
    storage = local_storage(dir=tmp_path)
    snapshots = []
    for _ in range(2):
        for line in lines:
            await storage(StorageStep.model_validate_json(line))
        snapshots.append({str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*.json")})
    assert snapshots[0] == snapshots[1]
    assert set(snapshots[0]) == {"session/s1.json", "message/m1.json", "part/p1.json"}


# Specification: 004.13
async def test_local_storage_is_plain_json_at_the_documented_paths(tmp_path: Path) -> None:
    storage = local_storage(dir=str(tmp_path / "data"))
    for kind, value in SAMPLES.items():
        await storage(StorageStep(event={"method": f"{kind}.set", "id": value["id"], "value": value}))
        assert json.loads((tmp_path / "data" / kind / f"{value['id']}.json").read_text()) == value
    assert [path.name for path in tmp_path.rglob("*draft*")] == []


# Specification: 004.12
def test_local_storage_is_in_a_hidden_directory_by_default(tmp_path: Path) -> None:
    program = (
        "import anyio; from memo.steps import StorageStep, local_storage\n"
        "anyio.run(local_storage(), StorageStep(event={'method': 'setup.set', 'id': 'x', 'value': {}}))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, check=True, timeout=60)
    assert (tmp_path / ".agent" / "setup" / "x.json").read_text() == "{}"


async def test_the_draft_of_a_killed_writer_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "session").mkdir()
    (tmp_path / "session" / ".draft").write_text("half a rec")
    storage = local_storage(dir=tmp_path)
    assert await storage(StorageStep(event=event("session.get"))) is None
    await storage(StorageStep(event=event("session.set")))
    assert sorted(path.name for path in (tmp_path / "session").iterdir()) == [".lock", "x.json"]


async def test_a_damaged_file_is_an_error_not_an_absent_record(tmp_path: Path) -> None:
    storage = local_storage(dir=tmp_path)
    await storage(StorageStep(event=event("session.set")))
    for damage in ("{", "[]", ""):
        (tmp_path / "session" / "x.json").write_text(damage)
        with pytest.raises(Corrupt, match="session x"):
            await storage(StorageStep(event=event("session.get")))


async def test_a_symlink_in_place_of_a_record_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"password": 1}')
    storage = local_storage(dir=tmp_path / "data")
    await storage(StorageStep(event=event("session.set")))
    record = tmp_path / "data" / "session" / "x.json"
    record.unlink()
    record.symlink_to(secret)
    with pytest.raises(Corrupt):
        await storage(StorageStep(event=event("session.get")))
    await storage(StorageStep(event=event("session.set")))
    assert secret.read_text() == '{"password": 1}'


async def test_no_update_from_another_process_is_lost(tmp_path: Path) -> None:
    storage = local_storage(dir=tmp_path)
    await storage(StorageStep(event={"method": "session.set", "id": "s", "value": {"id": "s"}}))
    program = (
        "import sys, anyio; from memo.steps import StorageStep, local_storage\n"
        "async def main():\n"
        "    storage = local_storage(dir=sys.argv[1])\n"
        "    for n in range(20):\n"
        "        updates = {f'{sys.argv[2]}.{n}': n}\n"
        "        await storage(StorageStep(event={'method': 'session.update', 'id': 's', 'updates': updates}))\n"
        "anyio.run(main)"
    )
    async with anyio.create_task_group() as tasks:
        for name in "ab":
            tasks.start_soon(anyio.run_process, [sys.executable, "-c", program, str(tmp_path), name])
    value = await storage(StorageStep(event={"method": "session.get", "id": "s"}))
    assert len(value) == 41


records = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
).filter(lambda value: "id" not in value)  # fmt: skip


@settings(max_examples=60, deadline=None, database=None)
@given(records, records)
def test_any_json_object_survives_the_round_trip(value: dict[str, Any], updates: dict[str, Any]) -> None:
    async def check() -> None:
        store = store_handlers(InMemoryStore())
        await store(StorageStep(event={"method": "session.set", "id": "x", "value": value}))
        assert await store(StorageStep(event={"method": "session.get", "id": "x"})) == value
        merged = await store(StorageStep(event={"method": "session.update", "id": "x", "updates": updates}))
        assert merged == {**value, **updates}

    anyio.run(check)

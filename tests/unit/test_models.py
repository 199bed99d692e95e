"""The wire models: tolerant where a client reads, strict where the daemon does, and the same after a round trip."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import to_json

import sandboxd.models
from memo.errors import InvalidKey
from memo.ids import UserId
from sandboxd.limits import Limits
from sandboxd.models.command import ExecBody, ExecResult
from sandboxd.models.consolidation import ConsolidationFailure, ConsolidationState
from sandboxd.models.event import Event
from sandboxd.models.message import ShortenedMessages
from sandboxd.models.process import Process, ProcessOutput
from sandboxd.models.sandbox import SandboxRequest, SandboxView
from sandboxd.models.wire import AnswerModel, BodyModel, Encoding, QueryModel

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROCESS = Process(id="p1", command="x", started_at=NOW, running=True, exit_code=None, output_bytes=3)
VIEW = SandboxView(
    tenant="t",
    session="s",
    user="u",
    agent=None,
    state="ready",
    engine="docker",
    container="c",
    created_at=NOW,
    from_pool=False,
    cause=None,
    image="i",
    limits=Limits(memory_mb=64).model_dump(),
)
STATE: dict[str, Any] = {
    "tenant": "t",
    "user": "u",
    "due": False,
    "why": "nothing new",
    "look_again_at": None,
    "changed_sessions": 0,
    "last_activity": None,
    "runs": 1,
    "last_run_at": NOW,
    "last_outcome": "written",
    "unfinished": False,
    "revision": 3,
    "held_by": None,
    "failure": None,
    "failed_sessions": {"s1": ConsolidationFailure(reason="too long", count=2, retry_at=NOW)},
    "background": True,
}


def models() -> list[type[AnswerModel | BodyModel | QueryModel]]:
    names = [found.name for found in pkgutil.iter_modules(sandboxd.models.__path__)]
    modules = [importlib.import_module(f"sandboxd.models.{name}") for name in names]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    bases = (AnswerModel, BodyModel, QueryModel)
    return [kind for kind in set(kinds) if issubclass(kind, bases) and kind not in bases]


def test_no_two_models_share_a_name_or_the_name_of_a_schema() -> None:
    names = Counter(kind.__name__ for kind in models())
    titles = Counter(kind.model_config.get("title") or kind.__name__ for kind in models())
    assert [name for name, count in [*names.items(), *titles.items()] if count > 1] == []


@pytest.mark.parametrize(
    "answer", [PROCESS, VIEW, ConsolidationState(**STATE)], ids=lambda answer: type(answer).__name__
)
def test_an_answer_is_the_same_after_a_round_trip_with_fields_of_a_newer_daemon(answer: AnswerModel) -> None:
    newer = to_json({**answer.model_dump(mode="json"), "added_later": [1]})
    assert type(answer).model_validate_json(newer) == answer


def test_an_answer_of_an_older_daemon_has_the_defaults_of_fields_added_since() -> None:
    older = VIEW.model_dump(mode="json", exclude={"created"})
    assert SandboxView.model_validate(older).created is False


@pytest.mark.parametrize("body", [{"user": "u", "add": 1}, {"user": "u", "limits": {"memory": 1}}, {"user": 5}])
def test_a_body_with_an_unknown_or_converted_field_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SandboxRequest.model_validate_json(to_json(body))


def test_limits_that_a_request_does_not_give_keep_their_defaults() -> None:
    defaults = Limits(memory_mb=64, pids=32)
    assert SandboxRequest(user=UserId("u")).limits_over(defaults) == defaults
    request = SandboxRequest.model_validate_json(b'{"user": "u", "limits": {"memory_mb": 512}}')
    assert request.limits_over(defaults) == Limits(memory_mb=512, pids=32)


def test_an_illegal_id_in_a_body_is_refused_as_a_key() -> None:
    with pytest.raises(InvalidKey):
        SandboxRequest.model_validate_json(b'{"user": "../u"}')


@pytest.mark.parametrize(("encoding", "data"), [("text", b"h\xc3\xa4"), ("base64", b"a\xff\x00")])
def test_output_of_a_process_is_the_same_bytes_after_a_round_trip(encoding: Encoding, data: bytes) -> None:
    output = ProcessOutput(process=PROCESS, offset=0, data=data, next_offset=len(data), encoding=encoding)
    assert ProcessOutput.model_validate_json(to_json(output)) == output


@pytest.mark.parametrize(
    ("stdout", "encoding", "text", "raw"),
    [
        ("hi", "text", "hi", None),
        ("aGk=", "base64", "hi", None),
        ("/2E=", "base64", "\ufffda", (b"\xffa", b"")),
    ],
)
def test_output_of_a_command_is_read_as_text_and_as_bytes(
    stdout: str, encoding: str, text: str, raw: tuple[bytes, bytes] | None
) -> None:
    outcome = {"exit_code": 0, "timed_out": False, "truncated": False, "duration_ms": 1.5, "limits_hit": ["pids"]}
    answer = {**outcome, "stdout": stdout, "stderr": "", "encoding": encoding}
    result = ExecResult.model_validate_json(to_json(answer))
    assert (result.stdout, result.raw, result.limits_hit) == (text, raw, ("pids",))
    assert result.stdout_bytes == (text.encode() if raw is None else raw[0])


def test_output_that_is_not_base64_is_refused() -> None:
    outcome = {"exit_code": 0, "timed_out": False, "truncated": False, "duration_ms": 1}
    with pytest.raises(ValidationError, match="stdout must be base64"):
        ExecResult.model_validate({**outcome, "stdout": "?", "stderr": "", "encoding": "base64"})


def test_failures_are_a_list_in_json_and_a_mapping_in_python() -> None:
    state = ConsolidationState(**STATE)
    listed = state.model_dump(mode="json")["failed_sessions"]
    assert listed == [{"reason": "too long", "count": 2, "retry_at": "2026-01-02T03:04:05Z", "session": "s1"}]


def test_an_event_is_flat_in_json() -> None:
    event = Event.model_validate_json(b'{"id": 1, "kind": "exec", "at": "2026-01-02T03:04:05Z", "exit_code": 3}')
    assert (event.fields, event.at) == ({"exit_code": 3}, NOW)
    assert to_json(event) == b'{"id":1,"kind":"exec","at":"2026-01-02T03:04:05Z","exit_code":3}'


def test_shortened_messages_are_items_in_json() -> None:
    found = ShortenedMessages.model_validate_json(b'{"items": [{"role": "user"}], "artifacts": ["a"]}')
    assert (found.messages, found.artifacts) == ([{"role": "user"}], ["a"])


def test_a_working_directory_is_absolute_and_normal() -> None:
    assert ExecBody(command="true", cwd="/workspace/./a/..").cwd == "/workspace"
    with pytest.raises(ValidationError, match="must be an absolute path"):
        ExecBody(command="true", cwd="a")

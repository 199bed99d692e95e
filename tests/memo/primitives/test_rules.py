"""Every rule of every primitive: required fields, rejected values, defaults. One line per rule."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from memo.primitives import (
    Identity,
    InvalidPrimitive,
    Media,
    Memory,
    Message,
    Retrievable,
    StashEntry,
    Thought,
    Tokenizable,
    ToolCall,
    tool_call_checksum,
)
from memo.spool import BytesReader, SpooledArtifact
from tests.memo.primitives.samples import ARGS, CODES, GOOD, NOW, artifact, picture

ASSISTANT = Identity(identifier="assistant", representation="assistant")
REQUIRED = [
    (kind, field)
    for kind, fields in {
        Identity: ("identifier", "representation"),
        Message: ("id", "role", "identity", "created_at", "updated_at"),
        Media: ("id", "kind", "mime_type", "filename", "reader", "trust_tier", "modality_hazard"),
        Memory: ("id", "content", "confidence", "importance", "created_at", "updated_at"),
        Retrievable: ("id", "content", "trust_tier", "created_at", "updated_at"),
        Thought: ("id", "content", "created_at", "updated_at"),
        ToolCall: (
            "id", "tool", "args", "results", "is_error", "checksum", "created_at", "updated_at", "completed_at",
        ),
    }.items()
    for field in fields
]  # fmt: skip

REJECTED: list[tuple[str, type[Any], dict[str, Any]]] = [
    ("an identifier is text or a number, not a boolean", Identity, {"identifier": True}),
    ("an identifier is not empty", Identity, {"identifier": ""}),
    ("there is no system role", Message, {"role": "system"}),
    ("there is no tool role", Message, {"role": "tool"}),
    ("a message needs content or attachments", Message, {"content": None}),
    ("an empty list of attachments does not count", Message, {"content": None, "attachments": []}),
    ("an attachment is media", Message, {"attachments": ["base64"]}),
    ("a time must have a time zone", Message, {"created_at": datetime(2024, 1, 1)}),
    ("an unknown field is rejected", Message, {"mood": "good"}),
    ("an id is not empty", Message, {"id": ""}),
    ("an id is text", Message, {"id": 7}),
    ("content must be text", Message, {"content": 7}),
    ("an invalid identity makes the message invalid", Message, {"identity": {"identifier": ""}}),
    ("media is one of four kinds", Media, {"kind": "smell"}),
    ("the trust tier of media is one of three", Media, {"trust_tier": "unknown"}),
    ("a hazard is one of three", Media, {"modality_hazard": "none"}),
    ("media needs a reader", Media, {"reader": b"bytes"}),
    ("a MIME type has two parts", Media, {"mime_type": "png"}),
    ("a stash entry declares its own tier", Media, {"stash": {"caption": {"value": "a cat"}}}),
    ("confidence is at most 1", Memory, {"confidence": 1.01}),
    ("confidence is at least 0", Memory, {"confidence": -0.01}),
    ("importance is at most 1", Memory, {"importance": 2}),
    ("importance is at least 0", Memory, {"importance": -1}),
    ("a score is a number", Memory, {"confidence": "0.5"}),
    ("a score is not a boolean", Memory, {"importance": True}),
    ("a score is not None", Memory, {"confidence": None}),
    ("a score is not NaN", Memory, {"confidence": float("nan")}),
    ("there is no unknown tier", Retrievable, {"trust_tier": "unknown"}),
    ("a tier is not inferred from the source", Retrievable, {"trust_tier": None, "source": "https://own.example"}),
    ("a payload needs the tag of its wire format", Thought, {"replay_compatibility": None}),
    ("a tag is not empty", Thought, {"replay_compatibility": ""}),
    ("a checksum of other arguments is rejected", ToolCall, {"checksum": tool_call_checksum("read", {})}),
    ("a checksum of another tool is rejected", ToolCall, {"checksum": tool_call_checksum("write", ARGS)}),
    ("an arbitrary checksum is rejected", ToolCall, {"checksum": "0" * 64}),
    ("arguments are an object", ToolCall, {"args": [1]}),
    ("arguments as text must be JSON", ToolCall, {"args": "{"}),
    ("arguments are JSON", ToolCall, {"args": {"f": object()}}),
    ("a tool call is complete", ToolCall, {"is_complete": False}),
    ("text results are a single text", ToolCall, {"results": ["a", "b"]}),
    ("results are of one kind, not two", ToolCall, {"results": [picture(), artifact()]}),
    ("results are not empty", ToolCall, {"results": []}),
    ("results are not missing", ToolCall, {"results": None}),
    ("a result is not raw bytes", ToolCall, {"results": b"raw"}),
    ("an artifact tool answers with text", ToolCall, {"from_artifact_tool": True, "results": artifact()}),
]


# Specification: 002.2, 002.17, 002.20, 002.25
@pytest.mark.parametrize(("kind", "field"), REQUIRED, ids=[f"{k.__name__}.{f}" for k, f in REQUIRED])
def test_a_required_field_has_no_default(kind: type[Any], field: str) -> None:
    given = {name: value for name, value in GOOD[kind].items() if name != field}
    with pytest.raises(InvalidPrimitive, match=field) as caught:
        kind(**given)
    assert caught.value.code == CODES[kind]


# Specification: 002.1, 002.15, 002.16, 002.17, 002.19, 002.20, 002.21, 002.23, 002.25, 002.26
# Specification: 002.27, 002.28
@pytest.mark.parametrize(("rule", "kind", "change"), REJECTED, ids=[rule for rule, _, _ in REJECTED])
def test_a_value_that_breaks_a_rule_is_rejected(rule: str, kind: type[Any], change: dict[str, Any]) -> None:
    kind(**GOOD[kind])
    with pytest.raises(InvalidPrimitive) as caught:
        kind(**GOOD[kind] | change)
    assert caught.value.code == CODES[kind]
    assert str(caught.value).startswith("cannot make this")


# Specification: 002.3
@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_every_invalid_field_is_named_at_once(kind: type[Any]) -> None:
    with pytest.raises(InvalidPrimitive) as caught:
        kind()
    assert all(field in str(caught.value) for other, field in REQUIRED if other is kind)


def test_an_error_never_repeats_the_rejected_text() -> None:
    with pytest.raises(InvalidPrimitive) as caught:
        Message(**GOOD[Message] | {"role": "secret-role-text", "content": 5})
    assert "secret-role-text" not in str(caught.value)


# Specification: 002.4
@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_an_instance_never_changes(kind: type[Any]) -> None:
    made = kind(**GOOD[kind])
    for field in GOOD[kind]:
        with pytest.raises(ValidationError):
            setattr(made, field, GOOD[kind][field])


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_equal_primitives_are_one_item_in_a_set(kind: type[Any]) -> None:
    assert len({kind(**GOOD[kind]), kind(**GOOD[kind])}) == 1


# Specification: 002.4
def test_a_changed_copy_is_validated() -> None:
    memory = Memory(**GOOD[Memory])
    assert memory.model_copy(update={"confidence": 0.75}).confidence == 0.75
    assert memory.confidence == 0.5
    with pytest.raises(InvalidPrimitive):
        memory.model_copy(update={"confidence": 7})


def test_changing_the_callers_arguments_does_not_change_the_primitive() -> None:
    args = {"list": [1]}
    call = ToolCall(**GOOD[ToolCall] | {"args": args, "checksum": tool_call_checksum("read", args)})
    args["list"].append(2)
    assert call.args == {"list": [1]}


# Specification: 002.5
@pytest.mark.parametrize(
    ("kind", "field"),
    [(Message, "content"), (Memory, "content"), (Retrievable, "content"), (Thought, "content"), (ToolCall, "results")],
)
def test_text_becomes_a_tokenizable(kind: type[Any], field: str) -> None:
    assert isinstance(getattr(kind(**GOOD[kind]), field), Tokenizable)
    assert isinstance(Identity(**GOOD[Identity]).representation, Tokenizable)


# Specification: 002.6
@pytest.mark.parametrize(
    ("what", "value"),
    [("a time", NOW), ("ISO text", NOW.isoformat()), ("ISO text in UTC", "2024-05-06T07:08:09.123456Z"),
     ("ISO text without a zone is UTC", "2024-05-06T07:08:09.123456"), ("offset", "2024-05-06T09:08:09.123456+02:00"),
     ("basic ISO text", "20240506T070809.123456Z"), ("a week date", "2024-W19-1T07:08:09.123456Z"),
     ("an ordinal date", "2024-127T07:08:09.123456Z"), ("SQL", "2024-05-06 07:08:09.123456"),
     ("SQL with an offset", "2024-05-06 09:08:09.123456 +02:00"), ("seconds", NOW.timestamp()),
     ("milliseconds", 1714979289123), ("milliseconds as text", "1714979289123"),
     ("units", {"year": 2024, "month": 5, "day": 6, "hour": 7, "minute": 8, "second": 9, "millisecond": 123}),
     ("units in the plural", {"years": 2024, "months": 5, "days": 6, "hours": 7, "minutes": 8, "seconds": 9,
                              "milliseconds": 123})],
)  # fmt: skip
def test_a_time_may_be_given_in_many_forms_and_keeps_its_zone(what: str, value: Any) -> None:
    at = Message(**GOOD[Message] | {"created_at": value}).created_at
    assert at.tzinfo is not None
    assert abs((at - NOW).total_seconds()) < 0.001


@pytest.mark.parametrize(
    ("value", "expected"),
    [("Mon, 06 May 2024 07:08:09 GMT", (2024, 5, 6, 7, 8, 9)), ("06 May 2024 09:08:09 +0200", (2024, 5, 6, 7, 8, 9)),
     (date(2024, 5, 6), (2024, 5, 6)), ("2024-05-06", (2024, 5, 6)), ("2024-127", (2024, 5, 6)),
     ("2024-05", (2024, 5, 1)), ("2024", (2024, 1, 1)), ({"year": 2024}, (2024, 1, 1)),
     ("2024-366", (2024, 12, 31)), (0, (1970, 1, 1))],
)  # fmt: skip
def test_a_less_exact_time_is_the_start_of_what_it_names_in_utc(value: Any, expected: tuple[int, ...]) -> None:
    at = Message(**GOOD[Message] | {"created_at": value}).created_at
    assert at.astimezone(UTC).timetuple()[:6] == (*expected, 0, 0, 0)[:6]


# Specification: 002.6
@pytest.mark.parametrize(
    "value",
    [None, True, float("nan"), float("inf"), "", "yesterday", "2023-366", "2024-000", "2024-13", "2024-05-06T25:00",
     [2024], datetime(2024, 1, 1), {"year": 2024, "zone": "UTC"}, {"month": 5}, {"year": 2024, "years": 2024},
     {"year": 2024.5},
     {"year": 2024, "millisecond": 1000}, {"year": 2024, 1: 1}, 10**400, "9" * 400],
)  # fmt: skip
def test_what_is_not_a_time_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPrimitive, match="created_at") as caught:
        Message(**GOOD[Message] | {"created_at": value})
    assert caught.value.code == "E_INVALID_INITIAL_MESSAGE_VALUE"


# Specification: 002.14
def test_a_bare_string_sets_both_views_of_a_speaker() -> None:
    identity = Message(**GOOD[Message]).identity
    assert (identity.identifier, str(identity.representation)) == ("ada", "ada")


# Specification: 002.13
def test_the_two_views_of_a_speaker_stay_separate() -> None:
    identity = Identity(identifier=7, representation="Ada")
    assert (identity.identifier, str(identity.representation)) == (7, "Ada")


# Specification: 002.16
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_both_roles_may_have_attachments_without_content(role: str) -> None:
    message = Message(**GOOD[Message] | {"role": role, "content": None, "attachments": [picture()]})
    assert message.attachments == (picture(),)


# Specification: 002.23, 002.27
@pytest.mark.parametrize(
    ("default", "kind", "field", "value"),
    [
        ("a thought is the assistant's", Thought, "identity", ASSISTANT),
        ("a tool call is shown inline", ToolCall, "inline", True),
        ("a tool call is not an artifact tool's", ToolCall, "from_artifact_tool", False),
        ("a tool call is complete", ToolCall, "is_complete", True),
        ("a message has no attachments", Message, "attachments", None),
        ("a thought without payload needs no tag", Thought, "payload", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_optional_fields_have_these_defaults(default: str, kind: type[Any], field: str, value: Any) -> None:
    left_out = {field} | ({"replay_compatibility"} if field == "payload" else set())
    made = kind(**{name: given for name, given in GOOD[kind].items() if name not in left_out})
    assert getattr(made, field) == value


def test_media_without_a_stash_has_an_empty_one() -> None:
    assert dict(Media(**{k: v for k, v in GOOD[Media].items() if k not in ("stash", "source")}).stash) == {}


# Specification: 002.19
def test_adding_to_a_stash_returns_new_media() -> None:
    before = picture()
    after = before.with_stash("ocr", StashEntry(value="text", trust_tier="third-party-private"))
    assert set(after.stash) == {"caption", "ocr"}
    assert set(before.stash) == {"caption"}
    with pytest.raises(TypeError):
        before.stash["ocr"] = after.stash["ocr"]  # type: ignore[index]


def test_media_from_a_tool_must_declare_its_trust() -> None:
    fields = {k: v for k, v in GOOD[Media].items() if k not in ("id", "source")}
    assert Media.tool_generated(tool="draw", **fields).source == "tool:draw"
    with pytest.raises(InvalidPrimitive, match="trust_tier"):
        Media.tool_generated(tool="draw", **{k: v for k, v in fields.items() if k != "trust_tier"})


# Specification: 002.26
@pytest.mark.parametrize(
    "results",
    ["text", artifact(), [artifact("a"), artifact("b")], picture(), [picture("p"), picture("q")]],
    ids=["text", "an artifact", "artifacts", "a picture", "pictures"],
)
def test_results_are_text_artifacts_or_media(results: Any) -> None:
    call = ToolCall(**GOOD[ToolCall] | {"results": results})
    kinds = {type(result) for result in (call.results if isinstance(call.results, tuple) else (call.results,))}
    assert len(kinds) == 1
    assert kinds <= {Tokenizable, SpooledArtifact, Media}


# Specification: 002.24
def test_arguments_may_be_given_as_a_json_string() -> None:
    assert ToolCall(**GOOD[ToolCall] | {"args": json.dumps(ARGS)}).args == ARGS


# Specification: 002.25
def test_a_checksum_does_not_depend_on_the_order_of_arguments() -> None:
    turned = dict(reversed(ARGS.items()))
    assert tool_call_checksum("read", turned) == tool_call_checksum("read", ARGS)
    assert tool_call_checksum("read", {"a": 1}) != tool_call_checksum("read", {"a": "1"})


# Specification: 002.30
@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_a_primitive_survives_json(kind: type[Any]) -> None:
    made = kind(**GOOD[kind])
    assert kind.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize("results", [artifact(), [artifact("a")], picture(), [picture("p")]])
def test_results_of_every_kind_survive_json(results: Any) -> None:
    call = ToolCall(**GOOD[ToolCall] | {"results": results})
    assert ToolCall.from_json(json.loads(json.dumps(call.to_json()))) == call


# Specification: 002.22
def test_an_artifact_may_be_the_content_of_a_retrievable() -> None:
    made = Retrievable(**GOOD[Retrievable] | {"content": artifact()})
    assert made.to_json()["content"] == {"spool": "log"}
    assert Retrievable.from_json(made.to_json()) == made


def test_media_cannot_be_constructed_from_json_without_a_reader() -> None:
    with pytest.raises(InvalidPrimitive, match="reader"):
        Media(**picture().to_json())
    with pytest.raises(InvalidPrimitive):
        ToolCall(**GOOD[ToolCall] | {"results": {"spool": "log"}})


# Specification: 000.26
def test_the_json_of_media_never_contains_its_bytes() -> None:
    made = Media(**GOOD[Media] | {"reader": BytesReader(b"SECRET")})
    assert "SECRET" not in json.dumps(made.to_json())
    assert "reader" not in made.to_json()

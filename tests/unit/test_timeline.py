"""The timeline of a session, as a pure function: order, times, titles and what hostile records become."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from sandboxd.inspector.timeline import MANY, build_timeline, details, event_id, page, plain
from sandboxd.models.event import Event
from sandboxd.models.inspector import EntryDetails, TimelineEntry

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: float) -> str:
    return (BEGAN + timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")


def ours(number: int, minutes: float, kind: str = "exec", **data: Any) -> dict[str, Any]:
    return {"id": str(number), "source": "sandboxd", "type": kind, "at": at(minutes), "data": data}


def said(*texts: str, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text, **more} for text in texts]


def shown(
    messages: list[Any], envelopes: list[Any], events: list[Event], began: datetime | None = BEGAN
) -> list[tuple[str, str | None]]:
    entries, _ = page(build_timeline(messages, envelopes, events, began), None, 20_000) or ([], None)
    return [(entry["id"], entry.get("at")) for entry in entries]


def test_messages_get_the_times_of_their_appends_counted_from_the_newest() -> None:
    appends = [ours(1, 5, "messages", what="appended", count=2), ours(2, 7, "messages", what="turn", count=1)]
    compacted = ours(3, 8, "messages", what="compacted", count=9)
    found = shown(said("old", "a", "b", "c"), [*appends, compacted], [])
    assert [one for one, _ in found] == ["m0", "m1", "m2", "e1", "m3", "e2", "e3"]
    times = dict(found)
    assert times["m1"] == times["m2"] == at(5).replace("Z", ".000Z")
    assert times["m3"] == at(7).replace("Z", ".000Z")


def test_a_message_with_a_time_of_its_own_keeps_it_and_the_next_one_follows() -> None:
    messages = [*said("a", timestamp=at(30)), *said("b"), *said("c", at=1_767_225_600_000 + 3_600_000)]
    found = shown(messages, [ours(1, 10), ours(2, 45)], [])
    assert [one for one, _ in found] == ["e1", "m0", "m1", "e2", "m2"]


def test_without_any_time_the_order_is_kept_where_the_session_began() -> None:
    assert [one for one, _ in shown(said("a", "b"), [{"type": "x"}, ours(1, 1)], [])] == ["m0", "m1", "t0", "e1"]
    assert shown(said("a", "b"), [], [], began=None) == [("m0", None), ("m1", None)]


def test_an_event_that_is_in_the_trace_already_is_shown_once() -> None:
    event = Event(id=7, kind="exec", at=BEGAN, command="ls", exit_code=0)
    newer = Event(id=8, kind="exec", at=BEGAN, command="ls", exit_code=0)
    assert [one for one, _ in shown([], [ours(7, 0)], [event, newer])] == ["e7", "e8"]


def test_an_entry_says_whether_it_went_well_how_long_it_took_and_what_it_cost() -> None:
    envelopes = [
        ours(1, 1, command="make", exit_code=2, duration_ms=5.5, actor="agent"),
        ours(2, 2, command="stress", exit_code=137, limits_hit=["memory"]),
        ours(3, 3, "tool", tool="Bash", ok=True, command="ls"),
        ours(4, 4, "egress", decision="denied", host="evil.example", port=443, reason="no rule", ms=3),
        ours(5, 5, "sandbox", state="gone", cause="oom"),
        ours(6, 6, "messages", what="turn", count=2, input_tokens=10, output_tokens=3, cache_read_tokens=5),
        ours(7, 7, "memo", what="written", name="NOTES.md", revision=3, actor="agent", reason="plan"),
    ]
    placed = build_timeline([], envelopes, [], BEGAN)
    entries = {entry["id"]: TimelineEntry.model_validate(entry) for entry in (page(placed, None, 100) or ([], None))[0]}
    assert [entries[f"e{n}"].ok for n in range(1, 8)] == [False, False, True, False, False, None, None]
    assert entries["e1"].title == "make → exit 2"
    assert (entries["e1"].duration_ms, entries["e1"].actor) == (5.5, "agent")
    assert entries["e2"].title == "stress → memory"
    assert "evil.example:443" in entries["e4"].title
    assert entries["e5"].title == "sandbox gone (oom)"
    assert (entries["e6"].tokens_in, entries["e6"].tokens_out) == (10, 3)
    assert entries["e7"].title == "NOTES.md written, revision 3: plan"
    assert {entry.lane for entry in entries.values()} == {"commands", "network", "sandbox", "memory"}


def test_pages_continue_after_an_entry_and_an_unknown_one_is_no_page() -> None:
    placed = build_timeline(said(*"abcde"), [], [], BEGAN)
    seen, after = [], None
    while True:
        found = page(placed, after, 2)
        assert found is not None
        seen += [entry["id"] for entry in found[0]]
        after = found[1]
        if after is None:
            break
    assert seen == ["m0", "m1", "m2", "m3", "m4"]
    assert page(placed, "m9", 2) is None


def test_a_title_is_one_line_of_printable_text() -> None:
    assert plain("a\r\n\tb\x00\x1b[31m\u202egpj.exe") == "a b\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31m" + (
        "\N{REPLACEMENT CHARACTER}gpj.exe"
    )
    (placed,) = build_timeline(said("x" * 1_000_000), [], [], BEGAN)
    (entry,) = (page([placed], None, 1) or ([], None))[0]
    assert len(entry["title"]) == 200
    assert entry["size"] == 1_000_000
    assert len(details(placed)["detail"]["message"]["content"]) == 1_000_000


def test_a_long_timeline_has_short_titles() -> None:
    placed = build_timeline(said(*["\\ü\U0001f980 " * 100] * (MANY + 1)), [], [], BEGAN)
    entries, _ = page(placed, None, 20_000) or ([], None)
    assert len(to_json(entries)) / len(entries) < 200


def test_an_agent_cannot_pass_its_envelope_off_as_an_event() -> None:
    for wrong in (None, 5, "", "x", "-1", "9" * 40, "\u0663"):
        assert event_id({"source": "sandboxd", "id": wrong}) == 0
    assert event_id({"source": "agent", "id": "5"}) == 0
    assert event_id({"source": "sandboxd", "id": "5"}) == 5


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
records = st.dictionaries(
    st.sampled_from(
        [
            "role",
            "content",
            "timestamp",
            "at",
            "type",
            "id",
            "source",
            "data",
            "event",
            "toolName",
            "name",
            "toolCalls",
            "isError",
            "kind",
            "text",
            "duration_ms",
            "actor",
            "limits_hit",
            "exit_code",
            "tokens",
            "count",
            "what",
            "state",
        ]
    ),
    json_values | st.sampled_from(["sandboxd", "exec", "messages", "12"]),
    max_size=8,
)


@given(st.lists(records, max_size=5), st.lists(records, max_size=5))
def test_records_of_any_shape_make_valid_entries(messages: list[Any], envelopes: list[Any]) -> None:
    placed = build_timeline(messages, envelopes, [], BEGAN)
    assert len(placed) == len(messages) + len(envelopes)
    entries, _ = page(placed, None, 20_000) or ([], None)
    for entry in entries:
        assert len(TimelineEntry.model_validate(entry).title) <= 200
    for one in placed:
        EntryDetails.model_validate(details(one))

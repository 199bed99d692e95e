"""The pure decisions about any log: what fits a budget and where to cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memo.compaction import cut_index
from memo.errors import Corrupt
from memo.messages import StoredMessage, call_ids, decode_object, newest_within, result_id, unanswered_before


@st.composite
def logs(draw: st.DrawFn) -> list[StoredMessage]:
    """Generate a log with calls answered late, twice or never, and results without a call."""
    messages = []
    message: dict[str, Any]
    for position in range(draw(st.integers(0, 14))):
        call = draw(st.sampled_from("abc"))
        message = draw(
            st.sampled_from(
                [
                    {"role": "user", "content": "hello"},
                    {"role": "assistant", "content": [{"type": "toolCall", "id": call, "name": "x", "arguments": {}}]},
                    {"role": "toolResult", "toolCallId": call, "content": "done"},
                ]
            )
        )
        messages.append(StoredMessage(position, message, draw(st.integers(1, 50))))
    return messages


def split_calls(log: list[StoredMessage], cut: int) -> set[str]:
    """Return the calls before the cut whose own result, the next one with their id, is after it."""
    pending: set[str] = set()
    for stored in log[:cut]:
        pending |= call_ids(stored.message)
    for stored in log[cut:]:
        answered = result_id(stored.message)
        if answered in pending:
            return {answered}
        pending -= call_ids(stored.message)
    return set()


@given(logs(), st.integers(0, 400))
def test_a_budget_keeps_a_tail_and_the_call_of_every_result_in_it(log: list[StoredMessage], budget: int) -> None:
    kept = newest_within(iter(reversed(log)), budget)
    assert kept == log[len(log) - len(kept) :]
    assert bool(kept) == bool(log)
    assert not split_calls(log, len(log) - len(kept))


@given(logs(), st.integers(0, 400))
def test_a_tail_over_the_budget_is_the_shortest_that_splits_nothing(log: list[StoredMessage], budget: int) -> None:
    kept = newest_within(iter(reversed(log)), budget)
    if sum(stored.tokens for stored in kept) > budget:
        cut = len(log) - len(kept)
        assert all(split_calls(log, later) for later in range(cut + 1, len(log)))


@given(logs())
def test_a_large_enough_budget_keeps_everything(log: list[StoredMessage]) -> None:
    assert newest_within(iter(reversed(log)), 10_000) == log


# Specification: 001.15
@given(logs(), st.floats(0.01, 1))
def test_a_cut_leaves_a_message_on_both_sides_and_splits_nothing(log: list[StoredMessage], fraction: float) -> None:
    cut = cut_index(log, fraction)
    assert 0 <= cut < max(len(log), 1)
    if cut:
        assert not split_calls(log, cut)
    else:
        assert all(split_calls(log, other) for other in range(1, len(log)))


@given(logs())
def test_the_open_calls_at_every_index_are_those_a_cut_would_split(log: list[StoredMessage]) -> None:
    open_at = unanswered_before([stored.message for stored in log])
    for cut in range(len(log)):
        if not open_at[cut]:
            assert not split_calls(log, cut)


# Specification: 001.15
def test_a_log_without_calls_is_cut_at_the_fraction() -> None:
    log = [StoredMessage(n, {"role": "user", "content": "x"}, 1) for n in range(9)]
    assert [cut_index(log, fraction) for fraction in (0.01, 0.5, 0.75, 1)] == [1, 4, 6, 8]


def test_a_lone_summary_is_not_summarised_again() -> None:
    summary = StoredMessage(5, {"role": "user", "content": "[Conversation summary]: x"}, 1, expands=1)
    assert cut_index([summary, StoredMessage(6, {"role": "user", "content": "x"}, 1)], 0.5) == 0


def test_calls_are_found_in_every_common_shape() -> None:
    assert call_ids({"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}) == {"a"}
    assert call_ids({"role": "assistant", "content": None, "tool_calls": [{"id": "b", "function": {}}]}) == {"b"}
    assert result_id({"role": "toolResult", "tool_call_id": "c"}) == "c"


@pytest.mark.parametrize("body", ["{", "[]", "3", b"\xff"])
def test_an_unreadable_row_is_named(body: str) -> None:
    with pytest.raises(Corrupt, match="cannot read message 7 of session t:s"):
        decode_object(body, "message 7 of session t:s")

"""The conformance kit catches every broken store and names the promise it breaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from memo.testing import (
    BrokenPromise,
    check_change_feed,
    check_orchestration,
    check_provider,
    check_session_store,
    check_trace_store,
)
from tests.memo import broken

pytestmark = pytest.mark.anyio

Check = Callable[[Any], Awaitable[None]]


async def check_provider_in_outage(make: Any) -> None:
    await check_provider(make, outage=lambda store: store.aclose())


CASES: list[tuple[Any, Check, str]] = [
    (broken.LosesAppends, check_provider, "concurrent appends are all kept"),
    (
        broken.IgnoresExpectedRevision,
        check_provider,
        "a stale write raises a conflict that holds the newer text",
    ),
    (broken.ComparesTooEarly, check_provider, "one of several concurrent creates wins"),
    (broken.FindsAnyRequest, check_provider, "a request is found by its id without a write"),
    (broken.TearsWrites, check_provider, "readers never see half a document"),
    (broken.SwallowsWriteErrors, check_provider, "invalid text raises and changes nothing"),
    (broken.SwallowsReadErrors, check_provider_in_outage, "an outage never looks like an empty document"),
    (broken.TakesEmptyForAbsent, check_provider, "a written document reads back exactly"),
    (broken.ForgetsTheTenant, check_provider, "tenants owners scopes and names are separate"),
    (broken.ForgetsDirectories, check_provider, "a name may have several segments"),
    (
        broken.DeletesByEmptying,
        check_provider,
        "a deleted document is absent keeps its history and can be restored",
    ),
    (broken.ForgetsRevisions, check_provider, "a deleted document is absent keeps its history and can be restored"),
    (broken.ResurrectsDocuments, check_provider, "a write based on a deleted revision conflicts"),
    (broken.DeletesWhateverIsThere, check_provider, "a stale deletion changes nothing"),
    (broken.DeletesTwice, check_provider, "a repeated deletion or move commits once"),
    (broken.AllowsClashes, check_provider, "a name is a document or a directory but not both"),
    (broken.MovesInTwoSteps, check_provider, "a repeated deletion or move commits once"),
    (broken.MovesOverDocuments, check_provider, "a move is refused if it is stale or its target exists"),
    (broken.HidesDeletions, check_change_feed, "deletions and moves are reported"),
    (broken.ReversesMessages, check_session_store, "messages come back in order and unchanged"),
    (broken.AppendsOneByOne, check_session_store, "concurrent batches are atomic"),
    (broken.SplitsPairs, check_session_store, "a budget never splits a call from its result"),
    (broken.LosesWhatItCompacts, check_session_store, "messages that compaction cut stay readable"),
    (broken.SkipsChanges, check_change_feed, "every change is reported once in order with key and revision"),
    (broken.RepeatsChanges, check_change_feed, "every change is reported once in order with key and revision"),
    (broken.SwapsChanges, check_change_feed, "every change is reported once in order with key and revision"),
    (broken.ReversedTraces, check_trace_store, "envelopes come back in order and unchanged"),
    (broken.trusting, check_orchestration, "an unknown checkpoint means replay from the first event"),
    (broken.dropping, check_orchestration, "a checkpoint without any event is the state"),
]


@pytest.mark.parametrize(("make", "check", "promise"), CASES, ids=[case[0].__name__ for case in CASES])
async def test_a_broken_store_fails_at_the_promise_it_breaks(make: Any, check: Check, promise: str) -> None:
    with pytest.raises(BrokenPromise) as caught:
        await check(make)
    assert caught.value.promise == promise

"""What a trace store promises.

The factory under test makes a trace store factory: session → trace store. The meaning of envelopes is not checked.
"""

from __future__ import annotations

from typing import Any

from memo.ids import SessionRef
from memo.testing.promises import Factory, Promise, expect_equal, fresh, keep, together


async def check_trace_store(make: Factory) -> None:
    await keep(make, TRACE_PROMISES)


def _ref() -> SessionRef:
    return SessionRef.of(fresh("t"), fresh("s"))


# Specification: 001.36, 001.37
async def envelopes_come_back_in_order_and_unchanged(factory: Any) -> None:
    traces = factory(_ref())
    expect_equal(await traces.load_envelopes(), [], "the envelopes of a new session")
    given = [
        {"sequence": number, "type": "tool", "deep": {"text": "日本 🜚", "list": [None, 1.5]}} for number in range(50)
    ]
    for envelope in given:
        await traces.append_envelope(envelope)
    expect_equal(await traces.load_envelopes(), given, "the envelopes")


async def envelopes_appended_together_come_back_in_order(factory: Any) -> None:
    traces = factory(_ref())
    if not hasattr(traces, "append_envelopes"):
        return  # appending several at once is optional
    await traces.append_envelope({"number": 0})
    await traces.append_envelopes([{"number": number} for number in range(1, 40)])
    await traces.append_envelopes([])
    expect_equal(await traces.load_envelopes(), [{"number": number} for number in range(40)], "the envelopes")


async def envelopes_of_other_sessions_are_invisible(factory: Any) -> None:
    ref = _ref()
    mine = factory(ref)
    await mine.append_envelope({"mine": True})
    for stranger in (SessionRef.of(ref.tenant, fresh("s")), SessionRef.of(fresh("t"), ref.session)):
        expect_equal(await factory(stranger).load_envelopes(), [], f"the envelopes of {stranger}")


async def concurrently_appended_envelopes_are_all_kept(factory: Any) -> None:
    traces = factory(_ref())
    await together(20, lambda number: traces.append_envelope({"number": number}))
    seen = sorted(envelope["number"] for envelope in await traces.load_envelopes())
    expect_equal(seen, list(range(20)), "the envelopes")


TRACE_PROMISES: tuple[Promise, ...] = (
    envelopes_come_back_in_order_and_unchanged,
    envelopes_appended_together_come_back_in_order,
    envelopes_of_other_sessions_are_invisible,
    concurrently_appended_envelopes_are_all_kept,
)

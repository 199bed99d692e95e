"""The conformance kit: what a backend must promise, as checks to run on your own backend.

    async def test_my_store():
        await check_provider(lambda: MyStore(dsn))

A factory returns a fresh, empty backend: the object, an awaitable of it, or an async context manager. All ids are
random, so a factory may also return one backend several times. A failure raises BrokenPromise, which names the promise.
"""

from memo.steps.conformance import check_handlers, check_journal
from memo.testing.change_feed import check_change_feed
from memo.testing.ledger import check_ledger
from memo.testing.orchestration import check_orchestration
from memo.testing.promises import BrokenPromise
from memo.testing.provider import check_provider
from memo.testing.sessions import check_session_store
from memo.testing.traces import check_trace_store
from memo.turn.conformance import check_callbacks

__all__ = [
    "BrokenPromise",
    "check_callbacks",
    "check_change_feed",
    "check_handlers",
    "check_journal",
    "check_ledger",
    "check_orchestration",
    "check_provider",
    "check_session_store",
    "check_trace_store",
]

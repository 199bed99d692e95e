"""The contract of a trace store: the envelopes of one session, in sequence.

A failed trace write must not stop an agent: `QuietTraceStore` wraps any trace store, logs failures and counts them.
Stores themselves always raise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from memo.ids import SessionRef

Envelope = dict[str, Any]

_log = logging.getLogger("memo.traces")


class SessionTraceStore(Protocol):
    async def append_envelope(self, envelope: Mapping[str, Any]) -> None:
        """Append one envelope, a JSON object, stored unchanged."""

    async def load_envelopes(self) -> list[Envelope]:
        """Return every envelope in the order in which it was appended."""


class BatchTraceStore(SessionTraceStore, Protocol):
    """A trace store that also takes several envelopes at once, for callers that have many."""

    async def append_envelopes(self, envelopes: Sequence[Mapping[str, Any]]) -> None:
        """Append the envelopes in this order. A refusal appends none; a crash may leave a first part of them."""


TraceStoreFactory = Callable[[SessionRef], SessionTraceStore]
"""Called at most once per session."""


class QuietTraceStore:
    """A trace store whose writes never raise. `failures` counts the lost envelopes."""

    def __init__(self, inner: SessionTraceStore, session: SessionRef) -> None:
        self._inner = inner
        self._session = session
        self.failures = 0

    async def append_envelope(self, envelope: Mapping[str, Any]) -> None:
        try:
            await self._inner.append_envelope(envelope)
        except Exception as error:  # noqa: BLE001  the contract: no failed trace write stops an agent
            self.failures += 1
            _log.warning("cannot write the trace of session %s (%d lost): %s", self._session, self.failures, error)

    async def load_envelopes(self) -> list[Envelope]:
        return await self._inner.load_envelopes()

"""AutoCompactor: compacts a conversation after the turn that made it long enough.

It never fails a turn, which is stored before: a compaction that fails is logged, and the next turn tries again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
import structlog

from memo.compaction import CompactionOptions
from memo.consolidation import conversation_summary, make_summariser
from memo.errors import MemoError
from memo.ids import SessionRef
from memo.messages import Message
from memo.outline import outline
from memo.sessions import Summarize
from sandboxd.compaction_settings import AutoCompactionOptions
from sandboxd.consolidation_settings import ConsolidationOptions
from sandboxd.errors import InvalidRequest, SandboxdError

_log = structlog.get_logger()


class Conversations(Protocol):
    """The part of `Memory` that compaction uses."""

    async def compact(
        self, ref: SessionRef, summarize: Summarize, options: CompactionOptions, summariser_s: float = 0
    ) -> bool: ...


class AutoCompactor:
    def __init__(self, options: AutoCompactionOptions, conversations: Conversations, summarise: Summarize) -> None:
        self._options = options
        self._conversations = conversations
        self._summarise = summarise

    async def after_turn(self, ref: SessionRef) -> bool:
        """Compact the session if it is due, and return whether it was."""
        options = self._options.compaction_options()
        try:
            return await self._conversations.compact(ref, self._summarise, options, self._options.timeout_s)
        except Exception as error:  # noqa: BLE001  # a store or a summariser may raise anything; the turn is stored
            # What a third party raises may quote the conversation.
            reason = str(error) if isinstance(error, MemoError | SandboxdError) else type(error).__name__
            _log.warning("cannot compact a conversation after its turn", session=str(ref), reason=reason)
            return False


@asynccontextmanager
async def open_compactor(
    options: AutoCompactionOptions, consolidation: ConsolidationOptions, conversations: Conversations | None
) -> AsyncIterator[AutoCompactor | None]:
    """Hold open what compacts after a turn; None if that is off, or without a store."""
    if not options.enabled or conversations is None:
        yield None
        return
    if options.summariser == "outline":
        yield AutoCompactor(options, conversations, outline)
        return
    try:
        summariser = make_summariser(consolidation.summariser_settings())
    except MemoError as error:
        raise InvalidRequest(f"cannot compact with the summariser of consolidation: {error}") from error
    try:
        yield AutoCompactor(options, conversations, _within(options.timeout_s, conversation_summary(summariser)))
    finally:
        await summariser.aclose()


def _within(timeout_s: float, summarise: Callable[[list[Message]], Awaitable[str]]) -> Summarize:
    async def bounded(messages: list[Message]) -> str:
        with anyio.fail_after(timeout_s):
            return await summarise(messages)

    return bounded

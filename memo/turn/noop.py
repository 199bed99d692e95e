"""The 27 callbacks that remember nothing: a baseline to lay one's own over. Bytes are the exception.

A conduit has to hand back a reader, so bytes are kept in memory, in one spool for each set of callbacks.
"""

from __future__ import annotations

from typing import Any

from memo.spool.contract import MediaReader, SpoolBytes, SpoolReader
from memo.spool.in_memory import InMemorySpool
from memo.turn.callbacks import CHANGE_CALLBACKS, FETCH_CALLBACKS


async def _fetch_nothing(ctx: Any) -> list[Any]:
    return []


async def _change_nothing(ctx: Any, value: Any) -> None:
    return None


def noop_callbacks() -> dict[str, Any]:
    media, retrievables = InMemorySpool(), InMemorySpool()

    async def store_media_bytes(ctx: Any, id: str, data: SpoolBytes) -> MediaReader:
        return await media.write(id, data)

    async def store_retrievable_bytes(ctx: Any, id: str, data: SpoolBytes) -> SpoolReader:
        return await retrievables.write(id, data)

    return {
        **dict.fromkeys(FETCH_CALLBACKS, _fetch_nothing),
        **dict.fromkeys(CHANGE_CALLBACKS, _change_nothing),
        "store_media_bytes_callback": store_media_bytes,
        "store_retrievable_bytes_callback": store_retrievable_bytes,
    }

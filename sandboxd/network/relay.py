"""Relay: copies bytes both ways between two streams until both have ended or either fails."""

from __future__ import annotations

import anyio

from sandboxd.network.byte_stream import ByteStream


async def relay(one: ByteStream, other: ByteStream) -> None:
    """Copy both ways, each end passed on as it comes. Raise the error of the stream that fails."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def copy(source: ByteStream, target: ByteStream) -> None:
            nonlocal failure
            try:
                while data := await source.receive():
                    await target.send(data)
                await target.send_eof()
            except Exception as error:  # noqa: BLE001  # raised below: a task group would wrap it
                failure = failure or error
                tasks.cancel_scope.cancel()

        tasks.start_soon(copy, one, other)
        tasks.start_soon(copy, other, one)
    if failure is not None:
        raise failure

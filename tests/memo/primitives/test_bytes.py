"""Bytes of media and artifacts: read on demand, and available again after loading."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest

from memo.errors import Absent
from memo.primitives import Media, Message, ToolCall
from memo.spool import BytesReader, MediaReader, SpoolReader
from tests.memo.primitives.samples import GOOD, artifact, picture

pytestmark = pytest.mark.anyio


class CountingReader:
    def __init__(self) -> None:
        self.opened = 0

    async def stream(self) -> AsyncIterator[bytes]:
        self.opened += 1
        yield b"ab"
        yield b"\x00\xff"


class Shelf:
    def media(self, id: str) -> MediaReader:
        return BytesReader(f"media {id}".encode())

    def spool(self, id: str) -> SpoolReader:
        return BytesReader(f"spool {id}".encode())


# Specification: 002.18
async def test_bytes_are_read_on_demand_and_any_number_of_times() -> None:
    reader = CountingReader()
    media = Media(**GOOD[Media] | {"reader": reader})
    media.to_json()
    assert reader.opened == 0
    assert await media.as_bytes() == b"ab\x00\xff"
    assert await media.as_base64() == base64.b64encode(b"ab\x00\xff").decode()
    assert [block async for block in media.stream()] == [b"ab", b"\x00\xff"]
    assert reader.opened == 3


# Specification: 000.27
async def test_a_reader_is_attached_when_json_is_loaded() -> None:
    message = Message(**GOOD[Message] | {"attachments": [picture("p1")]})
    loaded = Message.from_json(message.to_json(), Shelf())
    assert loaded.attachments is not None
    assert await loaded.attachments[0].as_bytes() == b"media p1"
    call = ToolCall.from_json(ToolCall(**GOOD[ToolCall] | {"results": artifact("s1")}).to_json(), Shelf())
    assert await call.artifacts[0].as_bytes() == b"spool s1"


async def test_loading_without_readers_fails_only_when_bytes_are_read() -> None:
    media = Media.from_json(picture().to_json())
    with pytest.raises(Absent, match="without readers"):
        await media.as_bytes()

"""Parser of server-sent events: chunks in, events out. It does no I/O."""

from __future__ import annotations

from collections.abc import Iterator

EVENT_STREAM = {"accept": "text/event-stream"}
"""The header that asks for a stream of events."""
MAX_EVENT_BYTES = 67_108_864


class EventReader:
    """Collects events from chunks that may split anywhere."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[str, str]]:
        """Yield kind and data of every event that is complete."""
        self._rest += piece
        while (end := self._rest.find(b"\n\n")) >= 0:
            block = bytes(self._rest[:end]).decode("utf-8")
            del self._rest[: end + 2]
            kind, lines = "message", []
            for line in block.split("\n"):
                name, _, value = line.partition(":")
                if name == "event":
                    kind = value.removeprefix(" ")
                elif name == "data":
                    lines.append(value.removeprefix(" "))
            if lines:
                yield kind, "\n".join(lines)
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError("cannot read the stream: an event is larger than 64 MiB")

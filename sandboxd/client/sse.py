"""Parser of server-sent events: chunks in, events out. It does no I/O."""

from __future__ import annotations

EVENT_STREAM = {"accept": "text/event-stream"}
"""The header that requests a stream of events."""
MAX_EVENT_BYTES = 67_108_864


class EventReader:
    """Collects events from chunks that may split anywhere."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[tuple[str, str]]:
        """Return the kind and the data of every event that this chunk completes."""
        events = []
        start = max(0, len(self._rest) - 1)  # what came before holds no end; a second search would take quadratic time
        self._rest += piece
        while (end := self._rest.find(b"\n\n", start)) >= 0:
            start = 0
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
                events.append((kind, "\n".join(lines)))
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError("cannot read the stream: an event is larger than 64 MiB")
        return events

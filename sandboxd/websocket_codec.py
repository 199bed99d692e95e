"""WebSocket messages to bytes and back, with a bound on each message. Pure: it never touches a socket.

The library parses and writes frames, answers pings and closes, and refuses what the RFC forbids. This class assembles
messages from fragments, in one buffer, so that a message of a million empty fragments takes no memory either.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side, State

_log = logging.getLogger("sandboxd.websocket")
_log.setLevel(logging.ERROR)  # the library logs every close

NORMAL = int(CloseCode.NORMAL_CLOSURE)
GOING_AWAY = int(CloseCode.GOING_AWAY)
INVALID_DATA = int(CloseCode.INVALID_DATA)
FAILED = int(CloseCode.INTERNAL_ERROR)
LOST = int(CloseCode.ABNORMAL_CLOSURE)
"""Never sent: the connection ended without a close frame."""

_MAX_REASON_BYTES = 123


@dataclass(frozen=True, slots=True)
class CloseFrame:
    code: int
    reason: str


class WebSocketCodec:
    """One side of an open WebSocket. Without a `protocol` of the library, it is a server after its handshake."""

    def __init__(self, protocol: Protocol | None = None, *, max_message_bytes: int) -> None:
        self._protocol = protocol or Protocol(Side.SERVER, state=State.OPEN, max_size=max_message_bytes, logger=_log)
        self._message = bytearray()
        self._is_text = False

    @property
    def is_open(self) -> bool:
        """Whether neither side has sent a close frame."""
        return self._protocol.state is State.OPEN

    @property
    def end(self) -> CloseFrame | None:
        """The other side's close frame, or ours if what it sent was refused; None while it may send more."""
        protocol = self._protocol
        close = protocol.close_rcvd or (protocol.close_sent if protocol.parser_exc is not None else None)
        return None if close is None else CloseFrame(close.code, close.reason)

    def receive(self, data: bytes) -> list[str | bytes]:
        """Return the messages that these bytes complete. `take_output` has the answers to send."""
        self._protocol.receive_data(data)
        messages: list[str | bytes] = []
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                message = self._assemble(event)
                if message is not None:
                    messages.append(message)
        return messages

    def _assemble(self, frame: Frame) -> str | bytes | None:
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        if frame.fin and not self._message:
            whole = bytes(frame.data)
        else:
            self._message += frame.data
            if not frame.fin:
                return None
            whole = bytes(self._message)
            self._message.clear()
        if not self._is_text:
            return whole
        try:
            return whole.decode()
        except UnicodeDecodeError as error:
            self._protocol.fail(INVALID_DATA, "a text message that is not UTF-8")
            self._protocol.parser_exc = error
            return None

    def take_output(self) -> bytes:
        """Return the bytes to send for everything since the last call."""
        return b"".join(self._protocol.data_to_send())

    def encode(self, message: str | bytes) -> bytes:
        """Return a message as bytes to send; nothing if a close frame has been sent."""
        try:
            if isinstance(message, str):
                self._protocol.send_text(message.encode())
            else:
                self._protocol.send_binary(message)
        except InvalidState:
            pass
        return self.take_output()

    def ping(self) -> bytes:
        if self.is_open:
            self._protocol.send_ping(b"")
        return self.take_output()

    def close(self, code: int, reason: str = "") -> bytes:
        """Return a close frame to send; nothing if one has been sent."""
        if self.is_open:
            self._protocol.send_close(code, _shortened(reason))
        return self.take_output()


def _shortened(reason: str) -> str:
    return reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")

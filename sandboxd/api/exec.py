"""Commands: run to their end, answered whole or as they go.

This is the hot path. One parse of the body, one call, one dump of the answer.
"""

from __future__ import annotations

import codecs

from starlette.requests import Request
from starlette.responses import Response

from memo.errors import MemoError
from memo.ids import SessionRef
from sandboxd.api import render
from sandboxd.api.budget import STREAM_BYTES, allotment
from sandboxd.api.models import Encoding, ExecAnswer, ExecBody, encode
from sandboxd.api.once import BEGUN
from sandboxd.api.problems import problem_of
from sandboxd.api.requests import MAX_STDIN_JSON_BYTES, read_json, session_ref, wants_events
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.streams import EVENTS_HEAD, Source, Streamed, sse
from sandboxd.errors import SandboxdError
from sandboxd.events import EventBus
from sandboxd.runner.calls import Exec, ExecResult


async def run_command(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    body = await read_json(request, ExecBody, MAX_STDIN_JSON_BYTES)
    call, encoding = body.call(), body.encoding
    del body  # its stdin is in the call
    memory = allotment(request)
    if wants_events(request):
        memory.take(STREAM_BYTES)
        return Streamed(_events(services, request, ref, call, encoding), services.watch)
    memory.take(2 * call.max_output_bytes)
    with services.manager.call(ref) as runner, services.watch.guard(request.receive):
        request.scope[BEGUN] = True
        result = await runner.exec(call)
    _announce(services.manager.events, ref, result)
    return render.exec_result(result, encoding, memory)


async def _events(services: Services, request: Request, ref: SessionRef, call: Exec, encoding: Encoding) -> Source:
    decoders = {name: _Decoder(encoding) for name in ("stdout", "stderr")}
    with services.manager.call(ref) as runner:
        request.scope[BEGUN] = True
        async with runner.stream(call) as items:
            yield EVENTS_HEAD
            try:
                async for item in items:
                    if isinstance(item, ExecResult):
                        for name, decoder in decoders.items():
                            if rest := decoder.finish():
                                yield sse(name, {"data": rest})
                        _announce(services.manager.events, ref, item)
                        yield sse("exit", render.outcome(item))
                    elif text := decoders[item.stream].feed(item.data):
                        yield sse(item.stream, {"data": text})
            except (SandboxdError, MemoError) as error:
                yield sse("error", problem_of(error))


class _Decoder:
    """Bytes of one stream as text. A character cut in two between pieces is put together again."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding: Encoding = encoding
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        return self._utf8.decode(piece) if self._encoding == "text" else encode(piece, self._encoding)

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True) if self._encoding == "text" else ""


def _announce(events: EventBus, ref: SessionRef, result: ExecResult) -> None:
    events.publish(
        "exec",
        tenant=ref.tenant,
        session=ref.session,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        duration_ms=round(result.duration_ms, 3),
    )


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{SESSION}/exec",
        run_command,
        "exec",
        Access.WRITE,
        "Run a command to its end. With `Accept: text/event-stream` its output comes as it is written: events "
        '`stdout` and `stderr` with data `{"data": …}`, then `exit` (the answer without its output) or `error` '
        "(a problem)",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=ExecBody,
        answers={200: ExecAnswer},
        repeatable=False,
    ),
)

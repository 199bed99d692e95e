"""Commands: run to completion, with stdin and output each sent whole or streamed.

This is the hot path: one parse of the body, one call, one dump of the answer.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from memo.errors import MemoError
from memo.ids import SessionRef
from sandboxd.api.answers import lossless, output_answer
from sandboxd.api.budget import STREAM_BYTES, allotment
from sandboxd.api.memory import ACTOR_HEADER, actor_of
from sandboxd.api.once import BEGUN
from sandboxd.api.problems import problem_of
from sandboxd.api.request_clock import PACED
from sandboxd.api.requests import (
    MAX_STDIN_JSON_BYTES,
    header,
    read_json,
    read_json_line,
    session_ref,
    wants_events,
)
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.streams import EVENTS_HEAD, Source, Streamed, sse
from sandboxd.errors import InvalidRequest, RequestError, SandboxdError
from sandboxd.events import Excerpt, Fields, OutputEnds
from sandboxd.models.command import ExecBody, ExecResult
from sandboxd.models.wire import OutputEncoding, encode
from sandboxd.runner.calls import CommandResult, Exec

WITH_STDIN = "application/vnd.sandboxd.exec"
"""The media type of a body that holds the call as one line of JSON, followed by the raw bytes of stdin."""
_OUTPUTS = ("stdout", "stderr")


async def run_command(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    memory = allotment(request)
    if header(request, b"content-type") == WITH_STDIN:
        call, encoding, receive = await _read_with_stdin(request)
        memory.take(STREAM_BYTES)
    else:
        body = await read_json(request, ExecBody, MAX_STDIN_JSON_BYTES)
        call, encoding, receive = _call(body, body.stdin_bytes()), body.encoding, request.receive
        del body  # stdin is part of the call
    if wants_events(request):
        memory.take(STREAM_BYTES)
        return Streamed(_events(services, request, ref, call, encoding), services.watch, receive)
    memory.take(2 * call.max_output_bytes)
    try:
        with await services.manager.call(ref) as runner, services.watch.guard(receive):
            request.scope[BEGUN] = True
            result = await runner.exec(call)
    except SandboxdError as error:
        if BEGUN in request.scope and not isinstance(error, RequestError):  # a refused command did not run
            _announce(services, request, ref, call, error)
        raise
    _announce(services, request, ref, call, result, Excerpt.of(result.stdout, result.stderr))
    return output_answer(result, _OUTPUTS, encoding, memory)


def _call(body: ExecBody, stdin: bytes | AsyncIterable[bytes]) -> Exec:
    command = body.command if isinstance(body.command, str) else tuple(body.command)
    return Exec(
        command, body.cwd, body.env, stdin, body.timeout_s, body.max_output_bytes, merge_stderr=body.merge_stderr
    )


async def _read_with_stdin(request: Request) -> tuple[Exec, OutputEncoding, Receive]:
    """Read the call; the rest of the body is its stdin, read only as fast as the command reads it."""
    if header(request, b"idempotency-key") is not None:
        raise InvalidRequest(
            "cannot use an Idempotency-Key with streamed stdin: how much of it is read depends on the command; "
            "send stdin in the JSON, or write it to a file first"
        )
    body, rest = await read_json_line(request, ExecBody, MAX_STDIN_JSON_BYTES)
    if body.stdin:
        raise InvalidRequest("cannot use stdin in the JSON: this body has it after the first line")
    if rest.is_empty:  # no stdin at all, which a command can tell from an empty one
        return _call(body, b""), body.encoding, request.receive
    request.scope[PACED] = True
    return _call(body, rest), body.encoding, rest.receive


async def _events(
    services: Services, request: Request, ref: SessionRef, call: Exec, encoding: OutputEncoding
) -> Source:
    decoders = {name: _Decoder(encoding) for name in ("stdout", "stderr")}
    seen = OutputEnds()
    with await services.manager.call(ref) as runner:
        request.scope[BEGUN] = True
        async with runner.stream(call) as items:
            yield EVENTS_HEAD
            try:
                async for item in items:
                    if isinstance(item, CommandResult):
                        for name, decoder in decoders.items():
                            if rest := decoder.finish():
                                yield sse(name, rest)
                        _announce(services, request, ref, call, item, seen.excerpt())
                        yield sse("exit", item.model_dump(exclude={*_OUTPUTS}))
                        continue
                    seen.add(item.data)
                    if event := decoders[item.stream].feed(item.data):
                        yield sse(item.stream, event)
            except (SandboxdError, MemoError) as error:
                _announce(services, request, ref, call, error)
                yield sse("error", problem_of(error))


class _Decoder:
    """Turns the bytes of one stream into events. In text, a character split between two pieces is rejoined."""

    def __init__(self, encoding: OutputEncoding) -> None:
        self._encoding: OutputEncoding = encoding
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> dict[str, str]:
        """Return the data of the next event; empty if there is none yet."""
        if self._encoding == "auto":
            chosen = lossless(piece)
            return {"data": encode(piece, chosen), "encoding": chosen}
        text = self._utf8.decode(piece) if self._encoding == "text" else encode(piece, self._encoding)
        return {"data": text} if text else {}

    def finish(self) -> dict[str, str]:
        text = self._utf8.decode(b"", final=True) if self._encoding == "text" else ""
        return {"data": text} if text else {}


def _announce(
    services: Services,
    request: Request,
    ref: SessionRef,
    call: Exec,
    outcome: CommandResult | SandboxdError | MemoError,
    output: Excerpt | None = None,
) -> None:
    """Publish how the command ended, or why that is not known: its sandbox may have died."""
    fields: Fields = {"tenant": ref.tenant, "session": ref.session, "actor": actor_of(request), "command": call.command}
    if isinstance(outcome, CommandResult):
        fields["exit_code"] = outcome.exit_code
        fields["timed_out"] = outcome.timed_out
        fields["limits_hit"] = outcome.limits_hit
        fields["duration_ms"] = outcome.duration_ms
    else:
        fields["error"] = outcome.code
    services.manager.events.publish("exec", output, **fields)


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{SESSION}/exec",
        run_command,
        "exec",
        Access.WRITE,
        "Run a command to its end. With `Accept: text/event-stream` its output comes as it is written: events "
        '`stdout` and `stderr` with data `{"data": …}`, then `exit` (the answer without its output) or `error` '
        f"(a problem). A body of type `{WITH_STDIN}` is the same JSON in one line, a line feed, and then the raw "
        "bytes of stdin, of any length: they are read as fast as the command reads them, and what it does not read "
        "is dropped",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=ExecBody,
        other_body=WITH_STDIN,
        answers={200: ExecResult},
        headers=(ACTOR_HEADER,),
        repeatable=False,
    ),
)

"""Contexts: code that keeps its variables between runs. Create, list, run, interrupt, restart, remove."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from memo.errors import MemoError
from memo.ids import SessionRef
from sandboxd.api.answers import json_answer
from sandboxd.api.budget import SMALL_BYTES, STREAM_BYTES, allotment
from sandboxd.api.once import BEGUN
from sandboxd.api.pieces import Pieces, string_pieces
from sandboxd.api.problems import problem_of
from sandboxd.api.requests import MAX_JSON_BYTES, read_json, read_optional_json, session_ref, wants_events
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.streams import EVENTS_HEAD, Source, Streamed, sse
from sandboxd.contexts import contexts
from sandboxd.errors import ContextNotFound, SandboxdError
from sandboxd.models.context import Context, ContextBody, ContextList, RunBody, RunOutcome, RunOutput, RunResult

MAX_RUN_JSON_BYTES = 6 * MAX_JSON_BYTES
"""Code of a million characters, escaped."""
_MAX_ID_CHARS = 64


def _context_id(request: Request) -> str:
    context: str = request.scope["path_params"]["context"]
    if len(context) > _MAX_ID_CHARS or not context.isascii() or not context.isprintable():
        raise ContextNotFound("cannot find this context")
    return context


async def create_context(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    body = await read_optional_json(request, ContextBody)
    with await services.manager.call(ref) as runner, services.watch.guard(request.receive):
        request.scope[BEGUN] = True
        context = await contexts.create_context(runner, body.name)
    services.manager.events.publish("context", tenant=ref.tenant, session=ref.session, context=context.id)
    return json_answer(context, 201)


async def list_contexts(services: Services, request: Request) -> Response:
    with await services.manager.call(session_ref(request)) as runner:
        return json_answer(ContextList(items=await contexts.list_contexts(runner)))


async def get_context(services: Services, request: Request) -> Response:
    with await services.manager.call(session_ref(request)) as runner:
        return json_answer(await contexts.get_context(runner, _context_id(request)))


async def run_code(services: Services, request: Request) -> Response:
    ref, name = session_ref(request), _context_id(request)
    body = await read_json(request, RunBody, MAX_RUN_JSON_BYTES)
    memory = allotment(request)
    if wants_events(request):
        memory.take(STREAM_BYTES + body.max_output_bytes)
        return Streamed(_events(services, request, ref, name, body), services.watch)
    memory.take(2 * body.max_output_bytes)
    with await services.manager.call(ref) as runner, services.watch.guard(request.receive):
        request.scope[BEGUN] = True
        result = await contexts.run_code(runner, name, body)
    _announce(services, ref, name, result)
    size = sum(_size(output) for output in result.outputs)
    if size <= SMALL_BYTES:
        return json_answer(result)
    memory.shrink(2 * size)
    return Pieces(_pieces(result), memory)


async def _events(services: Services, request: Request, ref: SessionRef, name: str, body: RunBody) -> Source:
    with await services.manager.call(ref) as runner:
        request.scope[BEGUN] = True
        async with contexts.stream_code(runner, name, body) as items:
            yield EVENTS_HEAD
            try:
                async for item in items:
                    yield _event(services, ref, name, item)
            except (SandboxdError, MemoError) as error:
                yield sse("error", problem_of(error))


def _event(services: Services, ref: SessionRef, name: str, item: RunOutput | RunOutcome) -> bytes:
    if isinstance(item, RunOutput):
        return sse("output", item)
    _announce(services, ref, name, item)
    return sse("end", item)


def _announce(services: Services, ref: SessionRef, name: str, outcome: RunOutcome) -> None:
    services.manager.events.publish(
        "run",
        tenant=ref.tenant,
        session=ref.session,
        context=name,
        ok=outcome.ok,
        timed_out=outcome.timed_out,
        state_lost=outcome.state_lost,
        duration_ms=outcome.duration_ms,
    )


def _size(output: RunOutput) -> int:
    return sum(len(value) for value in output.data.values() if isinstance(value, str))


def _pieces(result: RunResult) -> Iterator[bytes]:
    """Yield the answer with each long text in pieces."""
    yield to_json(result.model_dump(exclude={"outputs"}))[:-1] + b',"outputs":['
    for number, output in enumerate(result.outputs):
        short = {name: value for name, value in output.data.items() if not _is_long(value)}
        yield (b"," if number else b"") + to_json(output.model_dump(exclude={"data"}))[:-1] + b',"data":'
        start = to_json(short)[:-1]
        separator = b"," if short else b""
        for name in [name for name in output.data if name not in short]:
            yield start + separator + to_json(name) + b':"'
            yield from string_pieces(output.data[name], False)
            start, separator = b'"', b","
        yield start + b"}}"
    yield b"]}"


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > SMALL_BYTES


async def interrupt_context(services: Services, request: Request) -> Response:
    name = _context_id(request)
    with await services.manager.call(session_ref(request)) as runner:
        return json_answer(await contexts.interrupt_context(runner, name))


async def restart_context(services: Services, request: Request) -> Response:
    name = _context_id(request)
    with await services.manager.call(session_ref(request)) as runner:
        request.scope[BEGUN] = True
        return json_answer(await contexts.restart_context(runner, name))


async def remove_context(services: Services, request: Request) -> Response:
    name = _context_id(request)
    with await services.manager.call(session_ref(request)) as runner:
        request.scope[BEGUN] = True
        await contexts.remove_context(runner, name)
    return Response(status_code=204)


_CONTEXTS = f"{SESSION}/contexts"
_CONTEXT = f"{_CONTEXTS}/{{context}}"

ENDPOINTS = (
    Endpoint(
        "POST",
        f"{_CONTEXT}/run",
        run_code,
        "context",
        Access.WRITE,
        "Run code in a context. With `Accept: text/event-stream` its outputs come as they are made: events `output`, "
        "then `end` (the answer without its outputs) or `error` (a problem). A context runs one piece of code at a "
        "time: another request meanwhile is refused with `context.busy`. Disconnecting interrupts the code",
        body_limit=MAX_RUN_JSON_BYTES,
        body=RunBody,
        answers={200: RunResult},
        repeatable=False,
    ),
    Endpoint(
        "POST",
        _CONTEXTS,
        create_context,
        "context",
        Access.WRITE,
        "Start a context, a process that runs code and keeps its variables between runs",
        body_limit=MAX_JSON_BYTES,
        body=ContextBody,
        answers={201: Context},
        repeatable=False,
    ),
    Endpoint("GET", _CONTEXTS, list_contexts, "context", Access.READ, "Contexts", answers={200: ContextList}),
    Endpoint("GET", _CONTEXT, get_context, "context", Access.READ, "Return a context", answers={200: Context}),
    Endpoint(
        "POST",
        f"{_CONTEXT}/interrupt",
        interrupt_context,
        "context",
        Access.WRITE,
        "Interrupt the code that a context runs; its variables are kept",
        answers={200: Context},
        repeatable=False,
    ),
    Endpoint(
        "POST",
        f"{_CONTEXT}/restart",
        restart_context,
        "context",
        Access.WRITE,
        "Restart a context without its variables; everything that its code has started is ended",
        answers={200: Context},
        repeatable=False,
    ),
    Endpoint(
        "DELETE",
        _CONTEXT,
        remove_context,
        "context",
        Access.WRITE,
        "End a context and everything that its code has started",
        answers={204: None},
    ),
)

"""Tools: list them with their schemas, and call one. Every result has the same shape.

A model's mistake is a result with `ok: false`. What the calling program got wrong, and what fails in the daemon or the
sandbox, is an error like that of any other route.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from memo.ids import SessionRef
from sandboxd.api.answers import json_answer
from sandboxd.api.budget import allotment
from sandboxd.api.memory import ACTOR_HEADER, actor_of, remembers_requests, request_of
from sandboxd.api.once import BEGUN, REPEATED, UNSETTLED
from sandboxd.api.pieces import object_answer
from sandboxd.api.requests import (
    MAX_STDIN_JSON_BYTES,
    header,
    read_json_bytes,
    read_query,
    session_ref,
    wants_events,
)
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.tool_stream import stream_call
from sandboxd.errors import InvalidRequest, StoreUnavailable
from sandboxd.events import Excerpt, Field
from sandboxd.idempotency import OutcomeUnknown
from sandboxd.models.command import DEFAULT_OUTPUT_BYTES
from sandboxd.models.tool import FormattedToolList, ToolList, ToolResult, ToolsQuery
from sandboxd.tools import PreparedCall
from sandboxd.tools.context import ToolContext

TOOL_BYTES = 2 * DEFAULT_OUTPUT_BYTES
"""Memory that a tool may hold until its result is shortened for the model: the output of a command."""

_SHOWN_ARGUMENTS = {"command": "command", "code": "command", "file_path": "path", "path": "path"}
"""Arguments of tools that their events have, and under which name. Contents of files and documents are never there."""
_SHOWN_DETAILS = frozenset({"exit_code", "timed_out", "limits_hit", "process_id", "code"})


async def list_tools(services: Services, request: Request) -> Response:
    services.manager.get(session_ref(request))  # refuse a session of another tenant before naming tools
    format_ = read_query(request, ToolsQuery).format
    tools = services.toolbox.values()
    if format_ is None:
        return json_answer(ToolList(items=[tool.describe() for tool in tools]))
    return json_answer(FormattedToolList(items=[tool.render(format_) for tool in tools]))


async def call_tool(services: Services, request: Request) -> Response:
    if wants_events(request):
        return await stream_call(services, request, call_tool)
    ref = session_ref(request)
    call = await _read_call(services, request)
    if isinstance(call, ToolResult):
        services.manager.get(ref)  # a missing sandbox is an error, whatever the model's mistake
        _report(services, request, ref, None, call, 0.0)
        return json_answer(call)
    is_keyed = header(request, b"idempotency-key") is not None
    # The store gets the key with the write and recognises a retry even after a crash; other tools cannot do that.
    is_repeatable = is_keyed and call.writes_memory and remembers_requests(services)
    if request.scope.get(REPEATED) and not is_repeatable:
        raise OutcomeUnknown(
            "cannot tell the outcome: the first request with this Idempotency-Key was interrupted, "
            "and may or may not have been carried out"
        )
    name = None
    if is_repeatable:
        name = request_of(request, f"tool.{call.tool.name}", call.arguments.model_dump_json())
    memory = allotment(request)
    memory.take(TOOL_BYTES)
    started = time.perf_counter()
    with await services.manager.call(ref) as runner, services.watch.guard(request.receive):
        request.scope[BEGUN] = not is_repeatable
        result = await call.run(ToolContext(ref, runner, services.memory, services.manager, name))
    request.scope[UNSETTLED] = is_repeatable and result.details.get("code") == StoreUnavailable.code
    _report(services, request, ref, call, result, time.perf_counter() - started)
    memory.shrink(len(result.content))
    return object_answer(result.model_dump(exclude={"content"}), {"content": result.content}, memory)


async def _read_call(services: Services, request: Request) -> PreparedCall | ToolResult:
    """Read a model's call. A body that is not a JSON object is the calling program's mistake, and raises."""
    raw = await read_json_bytes(request, MAX_STDIN_JSON_BYTES)
    arguments = _parse(raw)
    if not isinstance(arguments, dict):
        raise InvalidRequest("cannot use this request: the body must be a JSON object, the tool's arguments")
    call = services.toolbox.prepare(request.scope["path_params"]["tool"], arguments)
    allotment(request).shrink(len(raw))  # what is not an argument is dropped now
    return call


def _parse(raw: bytes) -> Any:
    try:
        return from_json(raw)
    except ValueError as error:
        problem = str(error)
    if "surrogate" in problem or "hex escape" in problem:  # half of a character: a model's mistake, named later
        with suppress(ValueError, RecursionError):
            return json.loads(raw)
    raise InvalidRequest(f"cannot use this request: invalid JSON: {problem}")


def _report(
    services: Services,
    request: Request,
    ref: SessionRef,
    call: PreparedCall | None,
    result: ToolResult,
    duration_s: float,
) -> None:
    tool = request.scope["path_params"]["tool"]
    if tool not in services.toolbox:  # an unknown name is a model's text, which does not belong in an event
        return
    fields: dict[str, Field] = {"tool": tool, "ok": result.ok}
    if call is not None:
        found = [(name, getattr(call.arguments, argument, None)) for argument, name in _SHOWN_ARGUMENTS.items()]
        fields |= {name: value for name, value in found if isinstance(value, str)}
    for name in _SHOWN_DETAILS & result.details.keys():
        value = result.details[name]
        fields[name] = tuple(value) if isinstance(value, list) else value
    services.manager.events.publish(
        "tool",
        Excerpt.of(result.content.encode("utf-8", "replace")) if "command" in fields else None,
        tenant=ref.tenant,
        session=ref.session,
        actor=actor_of(request, "agent"),
        **fields,
        duration_ms=round(duration_s * 1000, 3),
    )


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{SESSION}/tools/{{tool}}",
        call_tool,
        "tool",
        Access.WRITE,
        "Call a tool; the body holds its arguments. With `Accept: text/event-stream` the newest output of its command "
        'comes while it runs: events `output` with data `{"data": …}`, then `result` or `error`',
        body_limit=MAX_STDIN_JSON_BYTES,
        body="application/json",
        answers={200: ToolResult},
        headers=(ACTOR_HEADER,),
        repeatable=False,
        judges_repeats=True,
        description="A model's mistake (an unknown tool, wrong arguments, a file that does not exist) is a result with "
        "`ok: false` and a sentence that says how to do it right. An error means that the request, the sandbox or the "
        "daemon is at fault.",
    ),
    Endpoint(
        "GET",
        f"{SESSION}/tools",
        list_tools,
        "tool",
        Access.READ,
        "List the tools with the JSON schemas of their arguments",
        query=ToolsQuery,
        answers={200: ToolList},
        description="With `format`, each item is an entry of the list of tools that the API of that name takes: "
        "`anthropic` (name, description, input_schema), `openai` (type, function) or `mcp` (name, title, description, "
        "inputSchema, annotations).",
    ),
)

"""Tools: list them with their schemas, and call one. Every result has the same shape."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api.answers import json_answer
from sandboxd.api.budget import allotment
from sandboxd.api.memory import remembers_requests, request_of
from sandboxd.api.once import BEGUN, REPEATED, UNSETTLED
from sandboxd.api.pieces import object_answer
from sandboxd.api.requests import MAX_STDIN_JSON_BYTES, header, read_json, session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.errors import StoreUnavailable, ToolNotFound
from sandboxd.idempotency import OutcomeUnknown
from sandboxd.models.command import DEFAULT_OUTPUT_BYTES
from sandboxd.models.tool import ToolList, ToolResult
from sandboxd.tools import run_tool
from sandboxd.tools.context import ToolContext

TOOL_BYTES = 2 * DEFAULT_OUTPUT_BYTES
"""Memory that a tool may hold until its result is shortened for the model: the output of a command."""


async def list_tools(services: Services, request: Request) -> Response:
    services.manager.get(session_ref(request))  # refuse a session of another tenant before naming tools
    return json_answer(ToolList(items=[tool.describe() for tool in services.toolbox.values()]))


async def call_tool(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    tool = services.toolbox.get(request.scope["path_params"]["tool"])
    if tool is None:
        raise ToolNotFound(f"cannot find this tool; choose one of {', '.join(services.toolbox)}")
    arguments = await read_json(request, tool.arguments, MAX_STDIN_JSON_BYTES)
    is_keyed = header(request, b"idempotency-key") is not None
    # The store gets the key with the write and recognises a retry even after a crash; other tools cannot do that.
    is_repeatable = is_keyed and tool.writes_memory(arguments) and remembers_requests(services)
    if request.scope.get(REPEATED) and not is_repeatable:
        raise OutcomeUnknown(
            "cannot tell the outcome: the first request with this Idempotency-Key was interrupted, "
            "and may or may not have been carried out"
        )
    name = request_of(request, f"tool.{tool.name}", arguments.model_dump_json()) if is_repeatable else None
    memory = allotment(request)
    memory.take(TOOL_BYTES)
    started = time.perf_counter()
    with await services.manager.call(ref) as runner, services.watch.guard(request.receive):
        request.scope[BEGUN] = not is_repeatable
        result = await run_tool(tool, ToolContext(ref, runner, services.memory, services.manager, name), arguments)
    request.scope[UNSETTLED] = is_repeatable and result.details.get("code") == StoreUnavailable.code
    services.manager.events.publish(
        "tool",
        tenant=ref.tenant,
        session=ref.session,
        tool=tool.name,
        ok=result.ok,
        duration_ms=round((time.perf_counter() - started) * 1000, 3),
    )
    memory.shrink(len(result.content))
    return object_answer(result.model_dump(exclude={"content"}), {"content": result.content}, memory)


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{SESSION}/tools/{{tool}}",
        call_tool,
        "tool",
        Access.WRITE,
        "Call a tool; the body holds its arguments",
        body_limit=MAX_STDIN_JSON_BYTES,
        body="application/json",
        answers={200: ToolResult},
        repeatable=False,
        judges_repeats=True,
    ),
    Endpoint(
        "GET",
        f"{SESSION}/tools",
        list_tools,
        "tool",
        Access.READ,
        "List the tools with the JSON schemas of their arguments",
        answers={200: ToolList},
    ),
)

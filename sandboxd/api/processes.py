"""Background processes: start, list, read output, write stdin, signal, and kill with all descendants."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api.answers import json_answer, output_answer
from sandboxd.api.budget import allotment
from sandboxd.api.memory import ACTOR_HEADER, actor_of
from sandboxd.api.once import BEGUN
from sandboxd.api.requests import MAX_JSON_BYTES, MAX_STDIN_JSON_BYTES, read_json, read_query, session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.errors import ProcessNotFound
from sandboxd.models.process import (
    KilledProcess,
    KillQuery,
    Process,
    ProcessBody,
    ProcessList,
    ProcessOutput,
    ProcessQuery,
    SignalBody,
    Signalled,
    SizeBody,
    StdinBody,
    StdinTaken,
)
from sandboxd.runner.calls import Exec, Terminal

_MAX_ID_CHARS = 64


def _process_id(request: Request) -> str:
    return check_process_id(request.scope["path_params"]["process"])


def check_process_id(process_id: str) -> str:
    if len(process_id) > _MAX_ID_CHARS or not process_id.isascii() or not process_id.isalnum():
        raise ProcessNotFound("cannot find this process")
    return process_id


async def start_process(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    body = await read_json(request, ProcessBody, MAX_STDIN_JSON_BYTES)
    with await services.manager.call(ref) as runner:
        request.scope[BEGUN] = True
        command = body.command if isinstance(body.command, str) else tuple(body.command)
        tty = Terminal(**body.terminal_options()) if body.tty else False
        process = await runner.start_process(Exec(command, body.cwd, body.env), tty=tty)
    services.manager.events.publish(
        "process",
        what="started",
        tenant=ref.tenant,
        session=ref.session,
        actor=actor_of(request),
        process=process.id,
        command=command,
    )
    return json_answer(process, 201)


async def list_processes(services: Services, request: Request) -> Response:
    with await services.manager.call(session_ref(request)) as runner:
        processes = await runner.list_processes()
    return json_answer(ProcessList(items=processes))


async def read_process(services: Services, request: Request) -> Response:
    query = read_query(request, ProcessQuery)
    process_id = _process_id(request)
    memory = allotment(request)
    memory.take(query.limit)
    with await services.manager.call(session_ref(request)) as runner, services.watch.guard(request.receive):
        output = await runner.read_process(process_id, query.offset, query.limit, query.wait_s)
    return output_answer(output, ("data",), query.encoding, memory)


async def write_process(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    process_id = _process_id(request)
    body = await read_json(request, StdinBody, MAX_STDIN_JSON_BYTES)
    with await services.manager.call(ref) as runner:
        request.scope[BEGUN] = True
        taken = await runner.write_process(process_id, body.content(), eof=body.eof)
    return json_answer(StdinTaken(taken_bytes=taken))


async def resize_process(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    process_id = _process_id(request)
    body = await read_json(request, SizeBody)
    with await services.manager.call(ref) as runner:
        request.scope[BEGUN] = True
        await runner.resize_process(process_id, body.rows, body.columns)
    return Response(status_code=204)


async def signal_process(services: Services, request: Request) -> Response:
    process_id = _process_id(request)
    body = await read_json(request, SignalBody)
    with await services.manager.call(session_ref(request)) as runner:
        request.scope[BEGUN] = True
        count = await runner.signal_process(process_id, body.signal, body.to)
    return json_answer(Signalled(signalled=count))


async def kill_process(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    process_id = _process_id(request)
    query = read_query(request, KillQuery)
    with await services.manager.call(ref) as runner:
        request.scope[BEGUN] = True
        process = await runner.kill_process(process_id, query.signal, query.grace_s)
    services.manager.events.publish(
        "process", what="killed", tenant=ref.tenant, session=ref.session, actor=actor_of(request), process=process_id
    )
    return json_answer(process)


_PROCESSES = f"{SESSION}/processes"
_PROCESS = f"{_PROCESSES}/{{process}}"

ENDPOINTS = (
    Endpoint(
        "POST",
        _PROCESSES,
        start_process,
        "process",
        Access.WRITE,
        "Start a command in the background",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=ProcessBody,
        answers={201: Process},
        headers=(ACTOR_HEADER,),
        repeatable=False,
    ),
    Endpoint(
        "GET",
        _PROCESSES,
        list_processes,
        "process",
        Access.READ,
        "Background processes",
        answers={200: ProcessList},
    ),
    Endpoint(
        "GET",
        _PROCESS,
        read_process,
        "process",
        Access.READ,
        "Return a process and its output from an offset",
        query=ProcessQuery,
        answers={200: ProcessOutput},
    ),
    Endpoint(
        "POST",
        f"{_PROCESS}/stdin",
        write_process,
        "process",
        Access.WRITE,
        "Write to a process's stdin; the answer says how much was taken",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=StdinBody,
        answers={200: StdinTaken},
        repeatable=False,
    ),
    Endpoint(
        "PUT",
        f"{_PROCESS}/size",
        resize_process,
        "process",
        Access.WRITE,
        "Resize the terminal of a process",
        body_limit=MAX_JSON_BYTES,
        body=SizeBody,
        answers={204: None},
    ),
    Endpoint(
        "POST",
        f"{_PROCESS}/signal",
        signal_process,
        "process",
        Access.WRITE,
        "Send a signal to a process, its terminal's foreground group or its descendants",
        body_limit=MAX_JSON_BYTES,
        body=SignalBody,
        answers={200: Signalled},
        repeatable=False,
    ),
    Endpoint(
        "DELETE",
        _PROCESS,
        kill_process,
        "process",
        Access.WRITE,
        "Kill a process and its descendants; with a signal, send that first and kill what is left",
        query=KillQuery,
        answers={200: KilledProcess},
    ),
)

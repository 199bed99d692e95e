"""Every call of the API, defined once for both clients: its request, and how to read its answer.

A call is a value; building one does no I/O.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote, urlencode

from memo.ids import SessionId, TenantId
from sandboxd.client.errors import rebuild
from sandboxd.client.results import (
    Event,
    ExecOutput,
    ExecResult,
    FileInfo,
    Process,
    ProcessOutput,
    Sandbox,
    ToolDescription,
    ToolResult,
)
from sandboxd.errors import InternalError

T = TypeVar("T")

SHORT_S = 30.0
CREATE_S = 180.0
GRACE_S = 30.0
"""How much longer than the work itself a client waits for an answer."""
DEFAULT_TIMEOUT_S = 120.0
DEFAULT_KILL_GRACE_S = 5.0
EVENTS = "text/event-stream"
RAW = "application/octet-stream"
EXEC_WITH_STDIN = "application/vnd.sandboxd.exec"


class Headers(Protocol):
    """Headers by name, in any case."""

    def get(self, name: str, /) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: Headers = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and how to read its answer. `timeout_s` is the longest silence of the daemon."""

    method: str
    target: str
    parse: Callable[[Answer], T]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = SHORT_S
    is_idempotent: bool = False
    """Whether the call is idempotent, whatever happens in between."""

    @property
    def is_safe(self) -> bool:
        """Whether the call may be sent again after its answer was lost."""
        return self.method == "GET" or self.is_idempotent or "idempotency-key" in self.headers


def read_answer(call: Call[T], answer: Answer) -> T:
    if answer.status >= 400:
        raise_problem(answer)
    return call.parse(answer)


def raise_problem(answer: Answer) -> None:
    try:
        problem = json.loads(answer.body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "code" not in problem:
        raise InternalError(f"cannot read the daemon's answer: status {answer.status} without a problem")
    raise rebuild(problem)


def tenant_path(tenant: str) -> str:
    """Return a session's path; ids are validated, because one with a slash would select another route."""
    return f"/v1/tenants/{quote(TenantId(tenant), safe='')}"


def session_path(tenant: str, session: str) -> str:
    return f"{tenant_path(tenant)}/sessions/{quote(SessionId(session), safe='')}"


def json_call(
    method: str,
    target: str,
    parse: Callable[[Answer], T],
    content: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    accept: str | None = None,
    timeout_s: float | None = SHORT_S,
    is_idempotent: bool = False,
) -> Call[T]:
    headers = {}
    body = None
    if content is not None:
        body = json.dumps(content, separators=(",", ":")).encode()
        headers["content-type"] = "application/json"
    if key is not None:
        headers["idempotency-key"] = key
    if accept is not None:
        headers["accept"] = accept
    return Call(method, target, parse, body, headers, timeout_s, is_idempotent)


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value; the daemon sets the defaults."""
    return {name: value for name, value in fields.items() if value is not None}


def _nothing(answer: Answer) -> None:
    return None


def parse_json(answer: Answer) -> Any:
    return json.loads(answer.body)


def parse_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def health() -> Call[Mapping[str, Any]]:
    return json_call("GET", "/healthz", parse_json)


def ready() -> Call[Mapping[str, Any]]:
    return json_call("GET", "/readyz", parse_json)


def metrics() -> Call[str]:
    return json_call("GET", "/metrics", lambda answer: answer.body.decode())


def ensure_sandbox(
    tenant: str,
    session: str,
    user: str,
    *,
    agent: str | None,
    image: str | None,
    env: Mapping[str, str] | None,
    limits: Mapping[str, float] | None,
    key: str | None,
) -> Call[Sandbox]:
    content = given(
        user=user,
        agent=agent,
        image=image,
        env=None if env is None else dict(env),
        limits=None if limits is None else dict(limits),
    )
    target = f"{session_path(tenant, session)}/sandbox"
    return json_call("PUT", target, _sandbox_answer, content, key=key, timeout_s=CREATE_S, is_idempotent=True)


def get_sandbox(tenant: str, session: str) -> Call[Sandbox]:
    return json_call("GET", f"{session_path(tenant, session)}/sandbox", _sandbox_answer)


def list_sandboxes(tenant: str) -> Call[list[Sandbox]]:
    return json_call(
        "GET",
        f"{tenant_path(tenant)}/sandboxes",
        lambda answer: [_sandbox(item) for item in parse_json(answer)["items"]],
    )


def destroy_sandbox(tenant: str, session: str, *, missing_ok: bool, key: str | None) -> Call[None]:
    target = f"{session_path(tenant, session)}/sandbox" + ("?missing_ok=true" if missing_ok else "")
    return json_call("DELETE", target, _nothing, key=key, timeout_s=CREATE_S, is_idempotent=missing_ok)


def stats(tenant: str, session: str) -> Call[Mapping[str, Any]]:
    return json_call("GET", f"{session_path(tenant, session)}/stats", parse_json)


def collect_garbage() -> Call[Mapping[str, Any]]:
    return json_call("POST", "/v1/gc", parse_json, timeout_s=CREATE_S)


def execute(
    tenant: str,
    session: str,
    command: str | Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    stdin: str | bytes | None,
    timeout_s: float | None,
    max_output_bytes: int | None,
    merge_stderr: bool,
    key: str | None,
    stream: bool = False,
    stdin_follows: bool = False,
) -> Call[ExecResult]:
    """Build a command. Its output returns as text if it is UTF-8, else as base64; streamed output always as base64.

    With `stdin_follows` the call's body is one line, followed by stdin.
    """
    content: dict[str, Any] = {"command": command if isinstance(command, str) else list(command)}
    if cwd is not None:
        content["cwd"] = cwd
    if env is not None:
        content["env"] = dict(env)
    if timeout_s is not None:
        content["timeout_s"] = timeout_s
    if max_output_bytes is not None:
        content["max_output_bytes"] = max_output_bytes
    if merge_stderr:
        content["merge_stderr"] = True
    is_binary = stream or isinstance(stdin, bytes)
    content["encoding"] = "base64" if is_binary else "auto"
    if stdin:
        raw = stdin if isinstance(stdin, bytes) else stdin.encode()
        content["stdin"] = base64.b64encode(raw).decode() if is_binary else stdin
    patience = (DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s) + GRACE_S
    call = json_call(
        "POST",
        f"{session_path(tenant, session)}/exec",
        _exec_result_base64 if is_binary else _exec_result,
        content,
        key=key,
        accept=EVENTS if stream else None,
        timeout_s=patience,
    )
    if not stdin_follows:
        return call
    return replace(call, body=(call.body or b"") + b"\n", headers={**call.headers, "content-type": EXEC_WITH_STDIN})


def start_process(
    tenant: str,
    session: str,
    command: str | Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    tty: bool,
    term: str | None,
    echo: bool | None,
    rows: int | None,
    columns: int | None,
    key: str | None,
) -> Call[Process]:
    content = given(
        command=command if isinstance(command, str) else list(command),
        cwd=cwd,
        env=None if env is None else dict(env),
        tty=tty or None,
        term=term,
        echo=echo,
        rows=rows,
        columns=columns,
    )
    return json_call(
        "POST",
        f"{session_path(tenant, session)}/processes",
        lambda answer: _process(parse_json(answer)),
        content,
        key=key,
    )


def list_processes(tenant: str, session: str) -> Call[list[Process]]:
    return json_call(
        "GET",
        f"{session_path(tenant, session)}/processes",
        lambda answer: [_process(item) for item in parse_json(answer)["items"]],
    )


def read_process(
    tenant: str, session: str, process: str, *, offset: int, limit: int | None, wait_s: float
) -> Call[ProcessOutput]:
    query = urlencode(given(offset=offset, limit=limit, wait_s=wait_s, encoding="base64"))
    return json_call(
        "GET", f"{_process_path(tenant, session, process)}?{query}", _process_output, timeout_s=wait_s + SHORT_S
    )


def write_process(tenant: str, session: str, process: str, data: bytes, *, eof: bool, key: str | None) -> Call[int]:
    content = {"data": base64.b64encode(data).decode(), "encoding": "base64", "eof": eof}
    target = f"{_process_path(tenant, session, process)}/stdin"
    return json_call("POST", target, lambda answer: int(parse_json(answer)["taken_bytes"]), content, key=key)


def resize_process(tenant: str, session: str, process: str, rows: int, columns: int) -> Call[None]:
    content = {"rows": rows, "columns": columns}
    return json_call("PUT", f"{_process_path(tenant, session, process)}/size", _nothing, content, is_idempotent=True)


def signal_process(
    tenant: str, session: str, process: str, signal: str, *, to: str | None, key: str | None
) -> Call[int]:
    target = f"{_process_path(tenant, session, process)}/signal"
    content = given(signal=signal, to=to)
    return json_call("POST", target, lambda answer: int(parse_json(answer)["signalled"]), content, key=key)


def kill_process(
    tenant: str, session: str, process: str, *, signal: str | None, grace_s: float | None
) -> Call[Process]:
    query = urlencode(given(signal=signal, grace_s=grace_s))
    target = _process_path(tenant, session, process) + (f"?{query}" if query else "")
    patience_s = SHORT_S + (DEFAULT_KILL_GRACE_S if grace_s is None else grace_s)
    return json_call("DELETE", target, lambda answer: _process(parse_json(answer)), timeout_s=patience_s)


def read_file(tenant: str, session: str, path: str) -> Call[bytes]:
    return json_call(
        "GET", f"{session_path(tenant, session)}/files?{urlencode({'path': path})}", lambda answer: answer.body
    )


def write_file(tenant: str, session: str, path: str, key: str | None) -> Call[FileInfo]:
    """Build the head of a write. The client takes its body separately, because it may be a stream."""
    headers = {"content-type": RAW} if key is None else {"content-type": RAW, "idempotency-key": key}
    target = f"{session_path(tenant, session)}/files?{urlencode({'path': path})}"
    return Call("PUT", target, _file_info, None, headers, CREATE_S)


def call_tool(tenant: str, session: str, name: str, arguments: Mapping[str, Any], key: str | None) -> Call[ToolResult]:
    asked = arguments.get("timeout")
    work_s = asked / 1000 if isinstance(asked, int | float) else DEFAULT_TIMEOUT_S
    target = f"{session_path(tenant, session)}/tools/{quote(name, safe='')}"
    return json_call("POST", target, _tool_result, arguments, key=key, timeout_s=work_s + GRACE_S)


def list_tools(tenant: str, session: str) -> Call[list[ToolDescription]]:
    return json_call("GET", f"{session_path(tenant, session)}/tools", _tool_descriptions)


def events(after: int | None, follow: bool) -> Call[None]:
    query = urlencode(given(after=after, follow=None if follow else "false"))
    target = f"/v1/events?{query}" if query else "/v1/events"
    return json_call("GET", target, _nothing, accept=EVENTS, timeout_s=60.0)


def _process_path(tenant: str, session: str, process: str) -> str:
    return f"{session_path(tenant, session)}/processes/{quote(process, safe='')}"


def _sandbox(fields: Mapping[str, Any], created: bool = False) -> Sandbox:
    return Sandbox(
        tenant=fields["tenant"],
        session=fields["session"],
        user=fields["user"],
        agent=fields.get("agent"),
        state=fields["state"],
        engine=fields["engine"],
        container=fields.get("container"),
        created_at=datetime.fromisoformat(fields["created_at"]),
        from_pool=fields["from_pool"],
        cause=fields.get("cause"),
        image=fields.get("image", ""),
        limits=fields.get("limits", {}),
        created=created,
    )


def _sandbox_answer(answer: Answer) -> Sandbox:
    return _sandbox(parse_json(answer), created=answer.status == 201)


def _exec_result(answer: Answer) -> ExecResult:
    fields = parse_json(answer)
    return _binary_outcome(fields) if fields.get("encoding") == "base64" else outcome(fields)


def _exec_result_base64(answer: Answer) -> ExecResult:
    return _binary_outcome(parse_json(answer))


def _binary_outcome(fields: Mapping[str, Any]) -> ExecResult:
    stdout, stderr = base64.b64decode(fields["stdout"]), base64.b64decode(fields["stderr"])
    try:
        return outcome({**fields, "stdout": stdout.decode(), "stderr": stderr.decode()})
    except UnicodeDecodeError:
        texts = {"stdout": stdout.decode("utf-8", "replace"), "stderr": stderr.decode("utf-8", "replace")}
        return outcome({**fields, **texts}, (stdout, stderr))


def outcome(fields: Mapping[str, Any], raw: tuple[bytes, bytes] | None = None) -> ExecResult:
    return ExecResult(
        fields["exit_code"],
        fields.get("stdout", ""),
        fields.get("stderr", ""),
        fields["timed_out"],
        fields["truncated"],
        fields["duration_ms"],
        tuple(fields.get("limits_hit", ())),
        raw,
    )


def _process(fields: Mapping[str, Any]) -> Process:
    return Process(
        fields["id"],
        fields["command"],
        parse_time(fields["started_at"]),
        fields["running"],
        fields["exit_code"],
        fields["output_bytes"],
        fields.get("ended_by"),
    )


def _process_output(answer: Answer) -> ProcessOutput:
    fields = parse_json(answer)
    return ProcessOutput(
        _process(fields["process"]), fields["offset"], base64.b64decode(fields["data"]), fields["next_offset"]
    )


def _file_info(answer: Answer) -> FileInfo:
    fields = parse_json(answer)
    return FileInfo(fields["path"], fields["size_bytes"], fields["mode"], parse_time(fields["modified_at"]))


def _tool_result(answer: Answer) -> ToolResult:
    fields = parse_json(answer)
    return ToolResult(fields["ok"], fields["content"], fields["details"])


def _tool_descriptions(answer: Answer) -> list[ToolDescription]:
    return [
        ToolDescription(item["name"], item["description"], item["input_schema"]) for item in parse_json(answer)["items"]
    ]


def exec_item(kind: str, data: str) -> ExecOutput | ExecResult | None:
    """Parse one event of a streamed command; None for kinds that are ignored."""
    fields = json.loads(data)
    if kind == "stdout" or kind == "stderr":
        return ExecOutput("stdout" if kind == "stdout" else "stderr", base64.b64decode(fields["data"]))
    if kind == "exit":
        return outcome(fields)
    if kind == "error":
        raise rebuild(fields)
    return None


def event_item(data: str) -> Event:
    fields = json.loads(data)
    rest = {name: value for name, value in fields.items() if name not in ("id", "kind", "at")}
    return Event(fields["id"], fields["kind"], datetime.fromisoformat(fields["at"]), rest)

"""Render the daemon's values as JSON answers: one `to_json` each, unless they are large."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from sandboxd.api.budget import SMALL_BYTES, Allotment
from sandboxd.api.models import Encoding, OutputEncoding, is_text
from sandboxd.api.pieces import object_answer
from sandboxd.runner.calls import ExecResult, FileStat, Process, ProcessOutput
from sandboxd.sandboxes.view import SandboxView


def json_answer(content: Any, status: int = 200) -> Response:
    return Response(to_json(content), status, media_type="application/json")


def sandbox(view: SandboxView) -> dict[str, Any]:
    return {
        "tenant": view.tenant,
        "session": view.session,
        "user": view.user,
        "agent": view.agent,
        "state": view.state,
        "engine": view.engine,
        "container": view.container,
        "created_at": view.created_at,
        "from_pool": view.from_pool,
        "cause": view.cause,
        "image": view.image,
        "limits": view.limits,
    }


def outcome(result: ExecResult) -> dict[str, Any]:
    """Return how a command ended, without its output."""
    return {
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "truncated": result.truncated,
        "duration_ms": round(result.duration_ms, 3),
        "limits_hit": result.limits_hit,
    }


def exec_result(result: ExecResult, encoding: OutputEncoding, memory: Allotment) -> Response:
    """Answer with a result whose memory is reserved; release at once what it does not need."""
    memory.shrink(len(result.stdout) + len(result.stderr))
    texts: dict[str, str | bytes] = {"stdout": result.stdout, "stderr": result.stderr}
    fields = outcome(result)
    if encoding == "auto":
        fields["encoding"] = encoding = lossless(result.stdout, result.stderr)
    return object_answer(fields, texts, memory, is_base64=encoding == "base64")


def lossless(*outputs: bytes) -> Encoding:
    """Return text for small UTF-8 outputs. A large one is not scanned: base64 is as fast to write."""
    return "text" if sum(map(len, outputs)) <= SMALL_BYTES and is_text(*outputs) else "base64"


def process(value: Process) -> dict[str, Any]:
    return {
        "id": value.id,
        "command": value.command,
        "started_at": moment(value.started_at),
        "running": value.running,
        "exit_code": value.exit_code,
        "output_bytes": value.output_bytes,
    }


def process_output(value: ProcessOutput, encoding: OutputEncoding, memory: Allotment) -> Response:
    fields = {"process": process(value.process), "offset": value.offset, "next_offset": value.next_offset}
    if encoding == "auto":
        fields["encoding"] = encoding = lossless(value.data)
    return object_answer(fields, {"data": value.data}, memory, is_base64=encoding == "base64")


def file_stat(stat: FileStat) -> dict[str, Any]:
    return {
        "path": stat.path,
        "size_bytes": stat.size_bytes,
        "mode": stat.mode,
        "modified_at": moment(stat.modified_at),
    }


def moment(seconds: float) -> datetime | None:
    """Return a file time from inside the container, where any process can set it to any value."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None

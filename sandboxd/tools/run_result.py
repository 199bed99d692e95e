"""The result of a run in a context as text for a model: what it printed and returned, and how it ended.

Pictures become files in the workspace, because a model reads text; their paths are part of the text.
"""

from __future__ import annotations

import base64
import binascii

from sandboxd.errors import FileError
from sandboxd.models.context import RunOutput, RunResult
from sandboxd.models.tool import ToolResult
from sandboxd.runner.inside.container_paths import WORKSPACE
from sandboxd.tools.context import ToolRunner, cut_for_model

FIGURES = f"{WORKSPACE}/figures"
MAX_FIGURES = 10
_PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}
_LOST = "[{why}: the variables of earlier runs are lost]"
_CAUSES = {
    "oom": "the interpreter ran out of memory",
    "killed": "the interpreter was killed",
    "exited": "the interpreter had exited",
    "stuck": "the interpreter did not react to the interrupt and was killed",
    "restarted": "the interpreter was restarted",
}


async def render_run(runner: ToolRunner, context: str, result: RunResult, timeout_s: float) -> ToolResult:
    parts: list[str] = []
    files: list[str] = []
    left_out = 0
    for output in result.outputs:
        if output.ename == "KernelDied":
            continue  # said below
        text, cut = cut_for_model(_text(output))
        left_out += cut
        if text:
            parts.append(text.removesuffix("\n"))
        if (picture := _picture(output)) is not None and len(files) < MAX_FIGURES:
            mime, image = picture
            path = f"{FIGURES}/{context}-{result.execution_count}-{len(files) + 1}.{_PICTURES[mime]}"
            parts.append(await _save(runner, path, image))
            files.append(path)
        parts.extend(f"[{mime} of {size} bytes omitted: too large]" for mime, size in output.omitted.items())
    if result.truncated:
        parts.append("[output exceeded the limit; the rest was discarded]")
    if result.timed_out:
        kept = "" if result.state_lost else "; its variables are kept"
        parts.append(f"[interrupted after {timeout_s:g} s{kept}]")
    if result.cause is not None:
        parts.append(_LOST.format(why=_CAUSES.get(result.cause, result.cause)))
    content, cut = cut_for_model("\n".join(parts))
    details = {
        "context": context,
        "execution_count": result.execution_count,
        "timed_out": result.timed_out,
        "truncated": result.truncated or left_out + cut > 0,
        "state_lost": result.state_lost,
        "cause": result.cause,
        "duration_ms": result.duration_ms,
        "files": files,
    }
    return ToolResult(ok=result.ok, content=content or "[no output]", details=details)


def _text(output: RunOutput) -> str:
    if output.type == "error":
        return output.traceback or ""
    if output.type == "display" and _picture(output) is not None:
        return ""  # its text only names the class of the picture
    text = output.data.get("text/plain", "")
    return text if isinstance(text, str) else ""


def _picture(output: RunOutput) -> tuple[str, bytes] | None:
    for mime in _PICTURES:
        value = output.data.get(mime)
        if isinstance(value, str):
            try:
                return mime, value.encode() if mime == "image/svg+xml" else base64.b64decode(value)
            except (binascii.Error, ValueError):
                return None
    return None


async def _save(runner: ToolRunner, path: str, content: bytes) -> str:
    try:
        await runner.write_file(path, content)
    except FileError as error:
        return f"[a figure of {len(content)} bytes could not be saved: {error}]"
    return f"[figure saved as {path}]"

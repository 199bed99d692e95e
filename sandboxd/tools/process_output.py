"""ProcessOutput: what a background process has printed, from an offset or at the end, and whether it still runs."""

from __future__ import annotations

import codecs

from pydantic import Field

from sandboxd.errors import InvalidRequest, ProcessNotFound
from sandboxd.models.process import ProcessOutput
from sandboxd.models.tool import ToolResult
from sandboxd.tools.arguments import ToolArguments, also
from sandboxd.tools.context import MODEL_CHARS, ToolContext
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.processes import details_of, refuse, state_of

name = "ProcessOutput"
description = (
    "Read the output of a background process (stdout and stderr together), and whether it still runs. Returns the last "
    "part of the output, or with offset the part from there on; the result names the offset to continue from. With "
    "timeout, waits for new output or the end of the process."
)

MAX_WAIT_MS = 600_000

hints = ToolHints(title="Read the output of a process", read_only=True)


class Arguments(ToolArguments):
    aliases = also(process="process_id id bash_id shell_id task_id pid")

    process: str = Field(min_length=1, max_length=64, description="The id of the process, such as p1.")
    offset: int | None = Field(
        default=None,
        ge=0,
        le=2**53,
        description="The byte to read from, as a previous result named it. The end of the output by default.",
    )
    timeout: int = Field(
        default=0,
        ge=0,
        le=MAX_WAIT_MS,
        description="Milliseconds to wait for output at offset, or without offset for new output. 0 does not wait.",
    )


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    try:
        read = await _read(context, arguments)
    except (ProcessNotFound, InvalidRequest) as error:
        return await refuse(context, error)
    return _render(read, arguments.offset)


async def _read(context: ToolContext, arguments: Arguments) -> ProcessOutput:
    runner, wait_s = context.runner, arguments.timeout / 1000
    # As many bytes as a model is shown characters: what does not fit is read with the next offset, never cut out.
    if arguments.offset is not None:
        return await runner.read_process(arguments.process, arguments.offset, MODEL_CHARS, wait_s)
    now = (await runner.read_process(arguments.process, 0, 0)).process
    end = now.output_bytes
    if now.running and wait_s:
        end = (await runner.read_process(arguments.process, end, 0, wait_s)).process.output_bytes
    return await runner.read_process(arguments.process, max(0, end - MODEL_CHARS), MODEL_CHARS)


def _render(read: ProcessOutput, offset: int | None) -> ToolResult:
    text, next_offset = _whole_characters(read)
    process = read.process
    is_behind = next_offset < process.output_bytes
    parts = []
    if offset is not None and read.offset > offset:
        parts.append(f"[{read.offset - offset} bytes before this were discarded]")
    elif offset is None and read.offset:
        parts.append(f"[{read.offset} earlier bytes are not shown]")
    parts.append(text.removesuffix("\n") or ("[no new output]" if process.output_bytes else "[no output]"))
    parts.append(
        f"[{process.id}: {state_of(process)}{', and there is more output' if is_behind else ''}; "
        f"next offset {next_offset}]"
    )
    details = {**details_of(process), "offset": read.offset, "next_offset": next_offset, "more": is_behind}
    return ToolResult(ok=True, content="\n".join(parts), details=details)


def _whole_characters(read: ProcessOutput) -> tuple[str, int]:
    """Return the text without half a character at its end, and the offset after it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(read.data)
    half, _ = decoder.getstate()
    if not text:  # so that every read makes progress
        return decoder.decode(b"", final=True), read.next_offset
    return text, read.next_offset - len(half)

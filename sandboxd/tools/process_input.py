"""ProcessInput: write to the stdin of a background process."""

from __future__ import annotations

from pydantic import Field, model_validator

from sandboxd.errors import Busy, InvalidRequest, ProcessNotFound
from sandboxd.models.command import MAX_STDIN_BYTES
from sandboxd.models.tool import ToolResult
from sandboxd.tools.arguments import ToolArguments, also
from sandboxd.tools.context import ToolContext
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.processes import refuse

name = "ProcessInput"
description = (
    "Write text to the stdin of a background process. The text is sent as it is: end a line with a line feed. Read "
    "what the process answers with ProcessOutput."
)

hints = ToolHints(title="Write to a process")


class Arguments(ToolArguments):
    aliases = also(process="process_id id bash_id shell_id task_id pid", input="text data stdin")

    process: str = Field(min_length=1, max_length=64, description="The id of the process, such as p1.")
    input: str = Field(default="", description="The text to write.")
    eof: bool = Field(default=False, description="Close stdin after the text.")

    @model_validator(mode="after")
    def _has_effect(self) -> Arguments:
        if not self.input and not self.eof:
            raise ValueError("input must not be empty unless eof is true")
        if len(self.input.encode("utf-8", "replace")) > MAX_STDIN_BYTES:
            raise ValueError(f"input must be at most {MAX_STDIN_BYTES} bytes long; write a file instead")
        return self


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    data = arguments.input.encode("utf-8", "replace")
    try:
        taken = await context.runner.write_process(arguments.process, data, eof=arguments.eof)
    except (ProcessNotFound, InvalidRequest) as error:
        return await refuse(context, error)
    except Busy as error:
        return ToolResult(ok=False, content=str(error), details={"code": error.code, "written_bytes": 0})
    details = {"process_id": arguments.process, "written_bytes": taken}
    if taken < len(data):
        content = f"{arguments.process} took {taken} of {len(data)} bytes and then stopped reading; send the rest later"
        return ToolResult(ok=False, content=content, details={"code": Busy.code, **details})
    closed = " and closed its stdin" if arguments.eof else ""
    return ToolResult(ok=True, content=f"Wrote {taken} bytes to {arguments.process}{closed}.", details=details)

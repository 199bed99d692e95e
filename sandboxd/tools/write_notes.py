"""write_notes: the session's NOTES.md, added to or replaced, in the store."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memo.documents import NOTES, DocumentKey
from memo.paths import path_of
from sandboxd.tools.context import CleanText, ToolArguments, ToolContext, ToolResult
from sandboxd.tools.memory import append_memo, commit, memory_of

name = "write_notes"
description = (
    "Keep notes for later in this session, in /workspace/memo/session/NOTES.md. They outlive the conversation's "
    "context and the sandbox. append adds to the end; replace writes the whole file anew, and if somebody else "
    "changed it meanwhile, nothing is written and the newer text is returned."
)


class Arguments(ToolArguments):
    content: CleanText = Field(min_length=1, description="The text, in Markdown.")
    mode: Literal["append", "replace"] = Field(default="append", description="Add to the notes, or replace them.")


def writes_memory(arguments: Arguments) -> bool:
    return True


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    key = DocumentKey.of_session(context.ref, NOTES)
    if arguments.mode == "replace":
        shown = await memory_of(context).shown(context.ref, str(path_of(key)))
        return await commit(context, key, arguments.content, shown, name)
    # The next note must begin a line of its own.
    text = arguments.content if arguments.content.endswith("\n") else arguments.content + "\n"
    return await append_memo(context, key, text, name)

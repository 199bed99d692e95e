"""write_notes: append to or replace the session's NOTES.md in the store."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memo.documents import NOTES, DocumentKey
from sandboxd.models.paths import CleanText
from sandboxd.models.tool import ToolResult
from sandboxd.tools.arguments import ToolArguments, also
from sandboxd.tools.context import ToolContext
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.memory import append_memo, write_document

name = "write_notes"
description = (
    "Keep notes for this session in /workspace/memo/session/NOTES.md. They outlive the conversation's context and the "
    "sandbox. append adds to the end; replace rewrites the whole file, so read it first. Changes that others made "
    "since then are merged; if they touch the same lines, nothing is written and the newer text is returned."
)

hints = ToolHints(title="Keep notes")


class Arguments(ToolArguments):
    aliases = also(content="contents text notes note")

    content: CleanText = Field(min_length=1, description="The text, in Markdown.")
    mode: Literal["append", "replace"] = Field(default="append", description="Append to the notes, or replace them.")


def writes_memory(arguments: Arguments) -> bool:
    return True


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    key = DocumentKey.of_session(context.ref, NOTES)
    if arguments.mode == "replace":
        return await write_document(context, key, arguments.content, name)
    # The next note must start on a new line.
    text = arguments.content if arguments.content.endswith("\n") else arguments.content + "\n"
    return await append_memo(context, key, text, name)

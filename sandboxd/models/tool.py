"""A tool that agents call: its description, and the result of a call."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from sandboxd.models.wire import AnswerModel


class ToolResult(AnswerModel):
    """The result of a tool call."""

    model_config = ConfigDict(title="ToolAnswer")

    ok: bool
    content: str = Field(description="The text for the model.")
    details: dict[str, Any] = Field(default_factory=dict, description="Values for the calling program.")


class ToolDescription(AnswerModel):
    name: str
    description: str
    input_schema: dict[str, Any]


class ToolList(AnswerModel):
    model_config = ConfigDict(title="ToolsAnswer")

    items: list[ToolDescription]

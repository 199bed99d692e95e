"""A tool that agents call: its description in several formats, and the result of a call."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from sandboxd.models.wire import AnswerModel, QueryModel

ToolFormat = Literal["anthropic", "openai", "mcp"]
"""The APIs whose form of a tool's description a caller can request."""


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


class ToolsQuery(QueryModel):
    format: ToolFormat | None = Field(
        default=None, description="Describe the tools as this API takes them: anthropic, openai or mcp."
    )


class FormattedToolList(AnswerModel):
    """Tools in the format of another API: entries of its own list of tools."""

    items: list[dict[str, Any]]

"""Tool descriptions in the formats that model APIs take: Anthropic's, OpenAI's and MCP's.

Schemas are self-contained: no references, no titles, and an optional field is left out rather than null. Unknown fields
are forbidden in every format, so that models do not invent any; see `arguments` for what happens if they do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from sandboxd.models.tool import ToolDescription, ToolFormat

_NOT_IN_OPENAI = frozenset({"default", "minLength", "maxLength", "minItems", "maxItems"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHints:
    """What a host may assume about a tool before it permits a call. The defaults assume the worst."""

    title: str | None = None
    read_only: bool = False
    """It changes nothing."""
    destructive: bool = True
    """It may change or remove what exists, not only add."""
    idempotent: bool = False
    """A second call with the same arguments changes nothing more."""
    open_world: bool = False
    """It may reach beyond the sandbox, if the sandbox has a network."""


def input_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments, for a model to read."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inline(schema, definitions)
    inlined.pop("description", None)  # a docstring, which is not for models
    inlined.setdefault("properties", {})
    return inlined


def render_tool(tool: ToolDescription, hints: ToolHints, format_: ToolFormat) -> dict[str, Any]:
    """Return a tool as an entry of the list that this API takes."""
    if format_ == "anthropic":
        return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
    if format_ == "openai":
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": _for_openai(tool.input_schema),
            # Strict mode makes every argument required, and arguments are checked here anyway.
            "strict": False,
        }
        return {"type": "function", "function": function}
    return {
        "name": tool.name,
        **({} if hints.title is None else {"title": hints.title}),
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "annotations": {
            "readOnlyHint": hints.read_only,
            "destructiveHint": hints.destructive and not hints.read_only,
            "idempotentHint": hints.idempotent or hints.read_only,
            "openWorldHint": hints.open_world,
        },
    }


def _inline(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema with its definitions in place, without titles and null."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        definition = {**definitions[node["$ref"].rpartition("/")[2]]}
        definition.pop("description", None)  # a docstring
        return _inline({**definition, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    kept = {key: value for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    if "anyOf" in kept:
        options = [option for option in kept.pop("anyOf") if option != {"type": "null"}]
        kept = {**(options[0] if len(options) == 1 else {"anyOf": options}), **kept}
    if kept.get("default", ...) is None:
        del kept["default"]
    properties = kept.pop("properties", None)
    inlined = {key: _inline(value, definitions) for key, value in kept.items() if key != "title"}
    if properties is not None:  # apart, because a property may have any name
        inlined["properties"] = {name: _inline(field, definitions) for name, field in properties.items()}
    return inlined


def _for_openai(node: Any) -> Any:
    """Return a schema in the subset that OpenAI documents; a default moves into the description."""
    if isinstance(node, list):
        return [_for_openai(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _for_openai(value) for key, value in node.items() if key not in _NOT_IN_OPENAI and key != "properties"}
    if "properties" in node:
        kept["properties"] = {name: _for_openai(field) for name, field in node["properties"].items()}
    if "default" in node and "description" in node:
        kept["description"] = f"{node['description']} Default: {json.dumps(node['default'])}."
    return kept

"""The tools in the formats of model APIs: the shape that each takes, and schemas that stand alone."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from sandboxd.client import AsyncClient
from sandboxd.errors import InvalidRequest, SandboxNotFound
from sandboxd.models.tool import ToolFormat
from sandboxd.tools import Toolbox
from tests.world.serving import ServedWorld, serving

TOOLBOX = Toolbox.discover()
SCHEMA_OF = {
    "anthropic": lambda tool: tool["input_schema"],
    "openai": lambda tool: tool["function"]["parameters"],
    "mcp": lambda tool: tool["inputSchema"],
}
OPENAI_KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "description", "enum", "items", "anyOf"),
    *("minimum", "maximum", "pattern"),
}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServedWorld]:
    async with serving(tmp_path) as world:
        yield world


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema inside a schema."""
    yield schema
    for inner in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
        yield from nodes(inner)
    if "items" in schema:
        yield from nodes(schema["items"])


@pytest.mark.parametrize("format_", get_args(ToolFormat))
def test_every_schema_stands_alone_and_describes_every_argument(format_: ToolFormat) -> None:
    for tool in TOOLBOX.values():
        rendered = tool.render(format_)
        schema = SCHEMA_OF[format_](rendered)
        assert schema["type"] == "object"
        text = json.dumps(rendered)
        assert not re.search(r'"\$ref"|"\$defs"|"title": "Arguments"|"null"', text), text
        for node in nodes(schema):
            if node.get("type") == "object":
                assert node["additionalProperties"] is False
                assert set(node.get("required", ())) <= set(node["properties"])
                assert all(len(field["description"]) > 10 for field in node["properties"].values())
        assert set(schema["properties"]) == set(tool.arguments.model_fields)


def test_each_format_has_the_shape_that_its_api_takes() -> None:
    read = TOOLBOX["Read"]
    assert set(read.render("anthropic")) == {"name", "description", "input_schema"}
    openai = read.render("openai")
    assert (set(openai), openai["type"]) == ({"type", "function"}, "function")
    assert set(openai["function"]) == {"name", "description", "parameters", "strict"}
    assert openai["function"]["strict"] is False  # optional arguments stay optional
    mcp = read.render("mcp")
    assert set(mcp) == {"name", "title", "description", "inputSchema", "annotations"}
    assert mcp["annotations"] == {
        "readOnlyHint": True,
        "destructiveHint": False,
        "idempotentHint": True,
        "openWorldHint": False,
    }
    for tool in TOOLBOX.values():
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name)
        assert len(tool.description) <= 1024


def test_openai_gets_only_keywords_that_it_documents() -> None:
    for tool in TOOLBOX.values():
        for node in nodes(tool.render("openai")["function"]["parameters"]):
            assert set(node) <= OPENAI_KEYWORDS, (tool.name, node)
    timeout = TOOLBOX["Bash"].render("openai")["function"]["parameters"]["properties"]["timeout"]
    assert timeout["description"].endswith("Default: 120000.")


def test_the_hints_say_which_tools_change_something() -> None:
    read_only = {name for name, tool in TOOLBOX.items() if tool.hints.read_only}
    assert read_only == {"Read", "Glob", "Grep", "ProcessList", "ProcessOutput"}
    assert {name for name, tool in TOOLBOX.items() if tool.hints.open_world} == {"Bash", "Python"}


@pytest.mark.anyio
async def test_the_client_gets_each_format(world: ServedWorld) -> None:
    async with AsyncClient(world.socket) as client:
        await client.ensure_sandbox("s1", "ann")
        described = await client.tools("s1")
        assert [tool.name for tool in described] == list(TOOLBOX)
        assert described[0].input_schema == TOOLBOX["Bash"].schema
        for format_ in get_args(ToolFormat):
            tools = await client.tools("s1", format=format_)
            assert tools == [tool.render(format_) for tool in TOOLBOX.values()]
        with pytest.raises(InvalidRequest, match="format"):
            await client.tools("s1", format="yaml")  # type: ignore[call-overload]
        with pytest.raises(SandboxNotFound):
            await client.tools("none", format="mcp")

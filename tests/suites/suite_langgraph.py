"""LangGraph: the tools of a sandbox in its own tool node, mistakes included."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from sandboxd.client import Client
from sandboxd.integrations.langgraph import sandbox_tools
from tests.model_mistakes import MISTAKES, Mistake, prepare


def call(client: Client, session: str, name: str, arguments: dict[str, Any]) -> ToolMessage:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(sandbox_tools(client, session)))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    asked = AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": "call-1"}])
    return graph.compile().invoke({"messages": [asked]})["messages"][-1]


def test_a_tool_runs_in_the_sandbox(client: Client, session: str) -> None:
    said = call(client, session, "Bash", {"command": "echo hello > greeting; cat greeting"})
    assert (said.status, said.content) == ("success", "hello")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.kind)
def test_a_model_is_told_what_to_do(client: Client, session: str, mistake: Mistake) -> None:
    prepare(client, session, "suites")
    said = call(client, session, mistake.tool, dict(mistake.arguments))
    assert said.status == "error"
    if mistake.code == "tool.not_found":  # answered by LangGraph, which does not know the tool either
        assert "is not a valid tool, try one of [Bash, Edit, Glob, Grep" in str(said.content)
    else:
        mistake.check(False, str(said.content))


@pytest.mark.parametrize("name", ["self", "config", "run_manager", "callbacks", "args", "a b", ""])
def test_an_argument_that_means_something_to_langchain_is_refused_like_any_other(
    client: Client, session: str, name: str
) -> None:
    said = call(client, session, "Bash", {"command": "true", name: "made up"})
    assert said.status == "error"
    assert f"'{name}' is not an argument" in str(said.content)


async def test_a_tool_runs_in_an_async_program(client: Client, session: str) -> None:
    [tool] = sandbox_tools(client, session, names={"Bash"})
    assert await tool.ainvoke({"command": "echo fine"}) == "fine"


def test_only_the_named_tools_are_offered(client: Client, session: str) -> None:
    [tool] = sandbox_tools(client, session, names={"Grep"})
    assert tool.name == "Grep"
    assert "pattern" in tool.args

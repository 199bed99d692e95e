"""LangGraph: the tools of a sandbox in its own tool node, mistakes included."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from sandboxd.client import Client
from sandboxd.integrations.langgraph import sandbox_tools


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


def test_a_model_s_mistake_is_told_to_the_model(client: Client, session: str) -> None:
    said = call(client, session, "Read", {"file_path": "/workspace/missing.txt"})
    assert said.status == "error"
    assert "missing.txt" in str(said.content)


def test_only_the_named_tools_are_offered(client: Client, session: str) -> None:
    [tool] = sandbox_tools(client, session, names={"Grep"})
    assert tool.name == "Grep"
    assert "pattern" in tool.args

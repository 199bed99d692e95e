"""LangGraph: a graph whose tool node works in a sandbox. A script plays the model, so no key is needed."""

from __future__ import annotations

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from sandboxd.client import Client
from sandboxd.integrations.langgraph import sandbox_tools


def play_model(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Ask for one command, then repeat its output. With a key: `chat_model.bind_tools(tools).invoke(…)`."""
    last = state["messages"][-1]
    if last.type == "human":
        command = {"name": "Bash", "args": {"command": "uname -s; id -un"}, "id": "call-1"}
        return {"messages": [AIMessage("", tool_calls=[command])]}
    return {"messages": [AIMessage(f"It said: {last.content.split()}")]}


with Client() as client:
    client.ensure_sandbox("graph", "ada")
    tools = sandbox_tools(client, "graph", names={"Bash", "Read", "Write", "Edit"})
    graph = StateGraph(MessagesState)
    graph.add_node("model", play_model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    state = graph.compile().invoke({"messages": [HumanMessage("Where are you?")]})
    print(state["messages"][-1].content)
    client.destroy_sandbox("graph")

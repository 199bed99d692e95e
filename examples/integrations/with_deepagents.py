"""Deep Agents: an agent with a sandbox, and memory that outlives it. A script plays the model, so no key is needed."""

from __future__ import annotations

from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from sandboxd.client import Client
from sandboxd.integrations.deepagents import SandboxdBackend
from sandboxd.integrations.deepagents_memory import DocumentBackend


class ScriptedModel(GenericFakeChatModel):
    """Plays the model. With a key, pass `model="anthropic:…"` or `"openai:…"` instead."""

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        return self


def call(number: int, tool: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call-{number}"}])


SCRIPT = [
    call(1, "execute", command="seq 10 | paste -sd+ | python3 -c 'print(eval(input()))'"),
    call(2, "edit_file", file_path="/memories/sums.md", old_string="to 9 is 45", new_string="to 10 is 55"),
    AIMessage("The sum is 55."),
]

with Client() as client:
    client.ensure_sandbox("deep", "ada")
    client.write_memo("ada", "sums.md", "The sum of 1 to 9 is 45.\n", scope="user")
    backend = CompositeBackend(
        default=SandboxdBackend(client, "deep"),
        routes={"/memories/": DocumentBackend(client, "ada")},
    )
    agent = create_deep_agent(model=ScriptedModel(messages=iter(SCRIPT)), backend=backend)
    state = agent.invoke({"messages": [{"role": "user", "content": "Add the numbers from 1 to 10."}]})
    print(state["messages"][-1].content)
    print(client.read_memo("ada", "sums.md", scope="user").text.strip())
    print([(one.actor, one.reason) for one in client.memo_history("ada", "sums.md", scope="user", limit=1)])
    client.destroy_sandbox("deep")

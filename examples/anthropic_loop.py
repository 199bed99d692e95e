"""A complete agent loop for the Anthropic API: the model works in a sandbox, and its memory is in the prompt.

`pip install "sandboxd[anthropic]"`, a running daemon, and ANTHROPIC_API_KEY. ANTHROPIC_BASE_URL may name another
endpoint. Usage: python anthropic_loop.py "What is in /etc/os-release?"
"""

from __future__ import annotations

import os
import sys
from typing import Any

import anthropic

from memo.errors import Absent
from sandboxd.client import Sandbox

MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-sonnet-4-5")
MAX_TURNS = 50
SYSTEM = """You work in a sandbox: your tools run there. /workspace keeps your files. /workspace/memo is your memory:
change it with Write and Edit, and it will be there the next time. This is what you remember of the user:

"""


def remembered(sandbox: Sandbox) -> str:
    try:
        return sandbox.memo.read("USER.md", scope="user").text
    except Absent:
        return "(nothing yet: write /workspace/memo/user/USER.md)"


def run(sandbox: Sandbox, question: str) -> str:
    """Let the model call tools until it answers."""
    client = anthropic.Anthropic()
    tools: list[Any] = sandbox.tools.schemas("anthropic")
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(MAX_TURNS):
        answer = client.messages.create(
            model=MODEL, max_tokens=4096, system=SYSTEM + remembered(sandbox), tools=tools, messages=messages
        )
        messages.append({"role": "assistant", "content": answer.content})
        if answer.stop_reason != "tool_use":
            return "".join(block.text for block in answer.content if block.type == "text")
        results = []
        for block in answer.content:
            if block.type == "tool_use":
                # A model's mistake is a result that tells it what to do, never an exception.
                result = sandbox.tools.call(block.name, block.input)
                print(f"{block.name}: {'ok' if result.ok else result.content}", file=sys.stderr)
                content = {"tool_use_id": block.id, "content": result.content, "is_error": not result.ok}
                results.append({"type": "tool_result", **content})
        messages.append({"role": "user", "content": results})
    return f"(no answer after {MAX_TURNS} turns)"


if __name__ == "__main__":
    with Sandbox.create("anthropic-loop", user="ada") as sandbox:
        print(run(sandbox, " ".join(sys.argv[1:]) or "Which Python is installed, and how many CPUs are there?"))

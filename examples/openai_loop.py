"""A complete agent loop for OpenAI's API: the model works in a sandbox, and its memory is in the prompt.

`pip install sandboxd openai`, a running daemon, and OPENAI_API_KEY. OPENAI_BASE_URL may name another endpoint that
speaks the same protocol. Usage: python openai_loop.py "What is in /etc/os-release?"
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import openai

from memo.errors import Absent
from sandboxd.client import Sandbox

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5")
MAX_TURNS = 50
SYSTEM = """You work in a sandbox: your tools run there. /workspace keeps your files. /workspace/memo is your memory:
change it with Write and Edit, and it will be there the next time. This is what you remember of the user:

"""


def remembered(sandbox: Sandbox) -> str:
    try:
        return sandbox.memo.read("USER.md", scope="user").text
    except Absent:
        return "(nothing yet: write /workspace/memo/user/USER.md)"


def call(sandbox: Sandbox, name: str, arguments: str) -> str:
    """Call a tool with the arguments that a model wrote. Its mistakes are results that tell it what to do."""
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError as error:
        return f"cannot read the arguments: {error}; send one JSON object"
    if not isinstance(parsed, dict):
        return "cannot use the arguments: send one JSON object"
    result = sandbox.tools.call(name, parsed)
    print(f"{name}: {'ok' if result.ok else result.content}", file=sys.stderr)
    return result.content


def run(sandbox: Sandbox, question: str) -> str:
    """Let the model call tools until it answers."""
    client = openai.OpenAI()
    tools: list[Any] = sandbox.tools.schemas("openai")
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM + remembered(sandbox)},
        {"role": "user", "content": question},
    ]
    for _ in range(MAX_TURNS):
        message = client.chat.completions.create(model=MODEL, tools=tools, messages=messages).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        for asked in message.tool_calls:
            content = call(sandbox, asked.function.name, asked.function.arguments)
            messages.append({"role": "tool", "tool_call_id": asked.id, "content": content})
    return f"(no answer after {MAX_TURNS} turns)"


if __name__ == "__main__":
    with Sandbox.create("openai-loop", user="ada") as sandbox:
        print(run(sandbox, " ".join(sys.argv[1:]) or "Which Python is installed, and how many CPUs are there?"))

"""Anthropic's memory tool over documents: what the model calls, what it is told, and how to undo it. Needs no key."""

from __future__ import annotations

import secrets

from sandboxd.client import Client
from sandboxd.integrations.anthropic_memory import SandboxdMemoryTool

user = f"ada-{secrets.token_hex(4)}"
with Client() as client:
    memory = SandboxdMemoryTool(client, user)

    # With a key, the SDK makes these calls:
    #   Anthropic().beta.messages.run_tools(tools=[memory], model=…, messages=…, max_tokens=…).until_done()
    path = "/memories/drinks.md"
    print(memory.call({"command": "create", "path": path, "file_text": "Ada drinks tea.\n"}))
    print(memory.call({"command": "str_replace", "path": path, "old_str": "tea", "new_str": "coffee"}))

    # A sandbox of the same user shows it as a file.
    client.ensure_sandbox(f"work-of-{user}", user)
    print(client.exec(f"work-of-{user}", "cat memo/user/drinks.md").stdout.strip())
    client.destroy_sandbox(f"work-of-{user}")

    # Every change names its writer, and can be undone.
    for revision in client.memo_history(user, "drinks.md", scope="user", limit=2):
        print(revision.actor, "|", revision.reason)
    client.restore_memo(user, "drinks.md", 1, scope="user", reason="it was tea after all")
    print(client.read_memo(user, "drinks.md", scope="user").text.strip())

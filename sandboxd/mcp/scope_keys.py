"""What the HTTP door tells the server about a request, as keys of its ASGI scope."""

from __future__ import annotations

BINDING = "sandboxd.mcp.binding"
"""The binding of the request."""
CALLS = "sandboxd.mcp.calls"
"""The cancel scopes of the tool calls that the request made; a client that disconnects cancels them."""

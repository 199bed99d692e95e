"""A relay for suites of other projects: they bring no token, and ask for tools and resources by names of their own.

It adds the token, and puts calls of ours in the place of theirs. Everything else passes unchanged, both ways.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
from aiohttp import web

STATIC, WATCHED, ARTIFACT = "static-text.md", "watched.md", "123"
_STEPS = "for step in 1 2 3; do echo $step; sleep 0.3; done"
_CALLS: dict[str, dict[str, Any]] = {
    "test_simple_text": {"name": "Bash", "arguments": {"command": "echo fine"}},
    "test_error_handling": {"name": "Bash", "arguments": {"command": "echo failed >&2; exit 1"}},
    "test_tool_with_progress": {"name": "Bash", "arguments": {"command": _STEPS}},
}
_RESOURCES = {
    "test://static-text": f"memo://session/{STATIC}",
    "test://watched-resource": f"memo://session/{WATCHED}",
    "test://template/123/data": f"memo://session/tool-results/{ARTIFACT}",
}
_PASSED = {"accept", "content-type", "last-event-id", "mcp-protocol-version", "mcp-session-id", "origin"}


@asynccontextmanager
async def relaying(address: str, token: str) -> AsyncIterator[str]:
    """Relay to the daemon at HOST:PORT; yield the relay's address."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:

        async def relay(request: web.Request) -> web.StreamResponse:
            headers = {name: value for name, value in request.headers.items() if name.lower() in _PASSED}
            headers["authorization"] = f"Bearer {token}"
            headers["host"] = address if request.host == relayed else request.host
            body = _ours(await request.read())
            target = f"http://{address}{request.rel_url}"
            async with http.request(request.method, target, data=body, headers=headers) as answer:
                known = ("content-type", "mcp-session-id")
                kept = {name: answer.headers[name] for name in known if name in answer.headers}
                response = web.StreamResponse(status=answer.status, headers=kept)
                with suppress(ConnectionResetError):  # the suite has left
                    await response.prepare(request)
                    async for piece in answer.content.iter_any():
                        await response.write(piece)
                return response

        app = web.Application()
        app.router.add_route("*", "/mcp", relay)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            relayed = "{}:{}".format(*runner.addresses[0][:2])
            yield relayed
        finally:
            await runner.cleanup()


def _ours(body: bytes) -> bytes:
    """Return the message with a call or resource of ours, if it asks for one of the suite's."""
    message = json.loads(body) if body else None
    params = message.get("params") if isinstance(message, dict) else None
    if message is None or not isinstance(params, dict):
        return body
    if message["method"] == "tools/call":
        params.update(_CALLS.get(params.get("name", ""), {}))
    elif "uri" in params:
        params["uri"] = _RESOURCES.get(params["uri"], params["uri"])
    return json.dumps(message).encode()

"""A real HTTP server that speaks both model protocols and misbehaves on request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from aiohttp import web

FACTS = {"facts": [{"section": "preferences", "text": "Prefers short answers", "messages": [1]}]}
PROFILE = {
    "summary": "Wants it short.",
    "bullets": [
        {"section": "preferences", "text": "Prefers short answers", "sources": [{"session": "s1", "message": 1}]}
    ],
}


class ModelServer:
    """`faults` are used one per request; after the last one the server answers correctly."""

    def __init__(self, *faults: Any) -> None:
        self.faults = list(faults)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.closing = anyio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        fault = self.faults.pop(0) if self.faults else None
        match fault:
            case "slow":
                await self.closing.wait()
                return web.Response(status=500)
            case "garbage":
                return web.Response(body=b"\x00\xff<html>not json", content_type="application/json")
            case "half":
                return await half_a_body(request)
            case "huge":
                return web.Response(body=b" " * 3_000_000, content_type="application/json")
            case "list":
                return web.json_response([1, 2, 3])
            case int(status):
                return web.Response(status=status, text="secret detail of the server")
            case (int(status), headers):
                return web.Response(status=status, headers=headers)
            case {"text": text}:
                return web.json_response(self.wrapped(request, text))
            case {"raw": raw}:
                return web.json_response(raw)
        is_profile = "`rejected`" in json.dumps(body["messages"])
        return web.json_response(self.wrapped(request, json.dumps(PROFILE if is_profile else FACTS)))

    def wrapped(self, request: web.Request, text: str) -> dict[str, Any]:
        if request.path.endswith("/chat/completions"):
            return {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": {"total_tokens": 123}}
        usage = {"input_tokens": 100, "output_tokens": 23}
        try:
            block: dict[str, Any] = {"type": "tool_use", "name": "record_answer", "input": json.loads(text)}
        except (ValueError, RecursionError):
            block = {"type": "text", "text": text}
        return {"type": "message", "content": [block], "usage": usage}


async def half_a_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_length = 1000
    await response.prepare(request)
    await response.write(b'{"choices": [{"mess')
    assert request.transport is not None
    request.transport.close()
    return response


@asynccontextmanager
async def serving(*faults: Any) -> AsyncIterator[ModelServer]:
    server = ModelServer(*faults)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", server.answer)
    app.router.add_post("/v1/messages", server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}"
        yield server
    finally:
        server.closing.set()
        await runner.cleanup()

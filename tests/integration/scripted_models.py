"""Two APIs of models on loopback, which play a script: they check what a program sends, and answer in turn."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Script:
    """The answers to give, and the requests that came."""

    def __init__(self, answers: Sequence[dict[str, Any]]) -> None:
        self._answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    def next(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        return self._answers.pop(0)


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """Serve the script, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps(script.next(body)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def anthropic_calls(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a message that calls tools."""
    blocks = [
        {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}
        for number, (name, arguments) in enumerate(calls)
    ]
    return _anthropic(blocks, "tool_use")


def anthropic_says(text: str) -> dict[str, Any]:
    return _anthropic([{"type": "text", "text": text}], "end_turn")


def _anthropic(content: list[dict[str, Any]], stop_reason: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def openai_calls(*calls: tuple[str, str]) -> dict[str, Any]:
    """Return a completion that calls tools, with arguments as the model wrote them."""
    asked = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return _openai({"role": "assistant", "content": None, "tool_calls": asked}, "tool_calls")


def openai_says(text: str) -> dict[str, Any]:
    return _openai({"role": "assistant", "content": text}, "stop")


def _openai(message: dict[str, Any], finish_reason: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
    }

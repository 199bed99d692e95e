"""Summarising with Anthropic's messages endpoint; the structured answer is the input of a tool it must use.

Knows the wire format and nothing else; what is asked is in `questions`, what counts as an answer in `answers`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from memo.consolidation.summarisers.endpoint import ApiKey, Endpoint, EndpointOptions
from memo.consolidation.summarisers.model import Completion, ModelSummariser, Turn
from memo.consolidation.summarisers.protocol import BadAnswer
from memo.consolidation.summarisers.questions import SYSTEM

DEFAULT_URL = "https://api.anthropic.com"
KEY_VARIABLE = "ANTHROPIC_API_KEY"
API_VERSION = "2023-06-01"
MOST_ANSWER_TOKENS = 8192
_TOOL = "record_answer"


class AnthropicSummariser(ModelSummariser):
    def __init__(
        self,
        model: str,
        *,
        base_url: str = DEFAULT_URL,
        key: ApiKey | None = None,
        options: EndpointOptions | None = None,
    ) -> None:
        self._model = model
        headers = {"anthropic-version": API_VERSION, **({} if key is None else {"x-api-key": key.value})}
        self._endpoint = Endpoint(f"{base_url.rstrip('/')}/v1/messages", headers, options)

    @property
    def name(self) -> str:
        return f"anthropic/{self._model}/1"

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    async def complete(self, turns: Sequence[Turn], schema: dict[str, Any]) -> Completion:
        body = {
            "model": self._model,
            "max_tokens": MOST_ANSWER_TOKENS,
            "temperature": 0,
            "system": SYSTEM,
            "messages": [{"role": turn.role, "content": turn.text} for turn in turns],
            "tools": [{"name": _TOOL, "description": "Take the answer.", "input_schema": schema}],
            "tool_choice": {"type": "tool", "name": _TOOL},
        }
        answer = await self._endpoint.post(body)
        blocks, usage = answer.get("content"), answer.get("usage")
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise BadAnswer("cannot use the answer: it is no message")
        used = [block.get("input") for block in blocks if block.get("type") == "tool_use"]
        texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
        return Completion(json.dumps(used[0]) if used else "\n".join(texts), _tokens(usage))


def _tokens(usage: object) -> int | None:
    if not isinstance(usage, dict):
        return None
    counts = [usage.get(name) for name in ("input_tokens", "output_tokens")]
    return sum(c for c in counts if isinstance(c, int)) if any(isinstance(c, int) for c in counts) else None

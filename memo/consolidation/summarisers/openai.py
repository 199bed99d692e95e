"""Summarising with any endpoint that speaks OpenAI's chat completions, with structured output.

Knows the wire format and nothing else; what is asked is in `questions`, what counts as an answer in `answers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memo.consolidation.summarisers.endpoint import ApiKey, Endpoint, EndpointOptions
from memo.consolidation.summarisers.model import Completion, ModelSummariser, Turn
from memo.consolidation.summarisers.protocol import BadAnswer
from memo.consolidation.summarisers.questions import SYSTEM

DEFAULT_URL = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"


class OpenAISummariser(ModelSummariser):
    """`strict` off leaves the schema to the prompt, for endpoints that know no `response_format`."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str = DEFAULT_URL,
        key: ApiKey | None = None,
        strict: bool = True,
        options: EndpointOptions | None = None,
    ) -> None:
        self._model = model
        self._strict = strict
        headers = {} if key is None else {"Authorization": f"Bearer {key.value}"}
        self._endpoint = Endpoint(f"{base_url.rstrip('/')}/chat/completions", headers, options)

    @property
    def name(self) -> str:
        return f"openai/{self._model}/1"

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    async def complete(self, turns: Sequence[Turn], schema: dict[str, Any]) -> Completion:
        messages = [{"role": "system", "content": SYSTEM}, *({"role": t.role, "content": t.text} for t in turns)]
        body: dict[str, Any] = {"model": self._model, "messages": messages, "temperature": 0}
        if self._strict:
            wanted = {"name": "answer", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": wanted}
        answer = await self._endpoint.post(body)
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"]
            usage = answer.get("usage") or {}
            tokens = usage.get("total_tokens")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise BadAnswer("cannot use the answer: it is no chat completion") from None
        if not isinstance(text, str):
            text = ""  # a refusal, or a call of a tool; the repair asks again
        return Completion(text, tokens if isinstance(tokens, int) else None)

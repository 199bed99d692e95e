"""JsonEndpoint: an HTTP endpoint for JSON, with bounded responses and retries that honour Retry-After.

Owns the connections and the key. The key goes into one header and never into an error, a log or a repr.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from memo.consolidation.summarisers.json_contract import MAX_ANSWER_BYTES
from memo.consolidation.summarisers.summariser import BadAnswer, SummariserUnavailable
from memo.errors import InvalidContent

_QUESTION_REJECTED = (400, 413, 422)
_RETRYABLE = (408, 409, 429, 500, 502, 503, 504, 529)


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    timeout_s: float = 120.0
    tries: int = 3
    first_pause_s: float = 1.0
    patience_s: float = 30.0
    """The longest Retry-After to wait for here; a longer one is passed to the caller."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    value: str = field(repr=False)

    @classmethod
    def load(cls, *, file: Path | None = None, variable: str | None = None) -> ApiKey | None:
        """Read the key from a file, or else from the environment; None if neither has one."""
        if file is not None:
            try:
                found = file.read_text().strip()
            except OSError as error:
                raise InvalidContent(f"cannot read the key file {file}: {error.strerror}") from error
        else:
            found = os.environ.get(variable or "", "").strip()
        if "\n" in found or "\r" in found or not found.isascii():
            raise InvalidContent("cannot use this API key: it must be one line of ASCII")
        return cls(found) if found else None


class JsonEndpoint:
    def __init__(self, url: str, headers: dict[str, str], options: EndpointOptions | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidContent("cannot use this endpoint: its URL must start with http:// or https://")
        self.url = url
        self._headers = headers
        self._options = options or EndpointOptions()
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON object in the response, retrying errors that may be temporary."""
        problem = SummariserUnavailable("cannot reach the summariser")
        for number in range(self._options.tries):
            try:
                return await self._try(body)
            except SummariserUnavailable as error:
                problem = error
                pause_s = max(error.retry_after_s or 0, self._options.first_pause_s * 2**number)
                if not error.retryable_now or pause_s > self._options.patience_s or number + 1 == self._options.tries:
                    break
                await anyio.sleep(pause_s)
        raise problem

    async def _try(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            async with self._open().post(self.url, json=body, allow_redirects=False) as response:
                if response.status != 200:
                    raise _refusal(response.status, response.headers.get("Retry-After"))
                content = await response.content.read(MAX_ANSWER_BYTES + 1)
                while not response.content.at_eof() and len(content) <= MAX_ANSWER_BYTES:
                    content += await response.content.read(MAX_ANSWER_BYTES + 1)
        except TimeoutError:
            raise _RetryableNow(
                f"cannot reach the summariser: no answer within {self._options.timeout_s:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise _RetryableNow(f"cannot reach the summariser: {type(error).__name__}") from None
        if len(content) > MAX_ANSWER_BYTES:
            raise BadAnswer(f"cannot use the answer: it is longer than {MAX_ANSWER_BYTES} bytes")
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            raise _RetryableNow("cannot use the answer: the endpoint did not send JSON") from None
        if not isinstance(value, dict):
            raise _RetryableNow("cannot use the answer: the endpoint did not send a JSON object")
        return value

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._options.timeout_s)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self._session


class _RetryableNow(SummariserUnavailable):
    """A failure that a quick retry may fix."""

    retryable_now = True


def _refusal(status: int, retry_after: str | None) -> SummariserUnavailable | BadAnswer:
    if status in _QUESTION_REJECTED:
        return BadAnswer(f"cannot summarise this session: the endpoint answered {status}")
    kind = _RetryableNow if status in _RETRYABLE else SummariserUnavailable
    return kind(f"cannot use the summariser: the endpoint answered {status}", retry_after_s=_retry_after_s(retry_after))


def _retry_after_s(retry_after: str | None) -> float | None:
    """Parse a Retry-After header, in seconds or as a date; None if it is neither."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None

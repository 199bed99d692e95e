"""An HTTP endpoint that takes JSON and answers JSON: one session, bounded answers, retries that listen to Retry-After.

Owns the connections and the key. The key goes into one header and nowhere else: not into errors, logs or a repr.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from memo.consolidation.summarisers.answers import MOST_ANSWER_BYTES
from memo.consolidation.summarisers.protocol import BadAnswer, SummariserUnavailable
from memo.errors import InvalidContent
from memo.stores.options import utc_now

_OF_THIS_QUESTION = (400, 413, 422)
_COME_BACK = (408, 409, 429, 500, 502, 503, 504, 529)


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    timeout_s: float = 120.0
    tries: int = 3
    first_pause_s: float = 1.0
    patience_s: float = 30.0
    """The longest Retry-After that is waited for here; a longer one is the caller's to plan with."""


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
            raise InvalidContent("cannot use this key: it must be one line of ASCII")
        return cls(found) if found else None


class Endpoint:
    def __init__(self, url: str, headers: dict[str, str], options: EndpointOptions | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidContent("cannot use this endpoint: its address must begin with http:// or https://")
        self.url = url
        self._headers = headers
        self._options = options or EndpointOptions()
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON object that is answered; try again what another try can help."""
        problem = SummariserUnavailable("cannot ask the summariser")
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
                content = await response.content.read(MOST_ANSWER_BYTES + 1)
                while not response.content.at_eof() and len(content) <= MOST_ANSWER_BYTES:
                    content += await response.content.read(MOST_ANSWER_BYTES + 1)
        except TimeoutError:
            raise _Again(f"cannot ask the summariser: no answer within {self._options.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _Again(f"cannot ask the summariser: {type(error).__name__}") from None
        if len(content) > MOST_ANSWER_BYTES:
            raise BadAnswer("cannot use the answer: it is too long")
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            raise _Again("cannot use the answer: the endpoint did not send JSON") from None
        if not isinstance(value, dict):
            raise _Again("cannot use the answer: the endpoint did not send a JSON object")
        return value

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._options.timeout_s)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self._session


class _Again(SummariserUnavailable):
    """Another try, soon, may help."""

    retryable_now = True


def _refusal(status: int, retry_after: str | None) -> SummariserUnavailable | BadAnswer:
    if status in _OF_THIS_QUESTION:
        return BadAnswer(f"cannot summarise this: the endpoint answered {status}")
    kind = _Again if status in _COME_BACK else SummariserUnavailable
    return kind(f"cannot ask the summariser: it answered {status}", retry_after_s=_seconds(retry_after))


def _seconds(retry_after: str | None) -> float | None:
    """Read a Retry-After header: seconds, or a date. What is neither says nothing."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - utc_now()).total_seconds())
    except (ValueError, TypeError):
        return None

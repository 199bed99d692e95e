"""HttpCarrier: one request to an origin and its answer back to the client, both streamed at the same time.

Headers about one connection stay behind, and an answer to a request with a secret is redacted. It opens and closes
nothing, and decides nothing about the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import h11

from sandboxd.network.http_connection import ClientGone, HttpClientConnection, HttpOriginConnection, OriginFailed
from sandboxd.network.http_head import Headers, HttpRefusal, OutgoingRequest, RequestHead, end_to_end, readable_echo
from sandboxd.network.redaction import Redactor

_WITHOUT_BODY: Final = frozenset({204, 304})


class AnswerCut(Exception):
    """An answer cannot be completed: the origin failed within it, or the client has gone."""

    def __init__(self, reason: str, status: int | None) -> None:
        super().__init__(reason)
        self.status = status


class HttpCarrier:
    """Carries one request to the origin while it carries the answer back."""

    def __init__(
        self,
        client: HttpClientConnection,
        origin: HttpOriginConnection,
        head: RequestHead,
        outgoing: OutgoingRequest,
        *,
        ends: bool = False,
    ) -> None:
        self._client, self._origin, self._head, self._outgoing = client, origin, head, outgoing
        self._redactor = Redactor(outgoing.forms)
        self._ends = ends
        self._status: int | None = None
        self._refusal: HttpRefusal | None = None

    async def run(self) -> int:
        """Return the answer's status once it is complete; raise OriginFailed if nothing of it reached the client."""
        await self._origin.send(_request_event(self._head, self._outgoing))
        try:
            async with beside(self._upload):
                return await self._relay()
        except (OriginFailed, h11.LocalProtocolError):  # h11 reads some answers that it does not write
            if not self._client.has_answered:
                raise OriginFailed from None
            raise AnswerCut("the host ended its answer too early", self._status) from None
        except ClientGone as error:
            raise AnswerCut(str(error), self._status) from None
        # the upload has stopped the relay
        if self._refusal is not None and not self._client.has_answered:
            raise self._refusal
        raise AnswerCut(str(ClientGone()), self._status)

    async def _upload(self, relaying: anyio.CancelScope) -> None:
        """Carry the request's body, and then stop the relay if the client closes the connection."""
        try:
            while part := await self._client.next_part():
                await self._origin.send(h11.Data(data=part))
            await self._origin.send(h11.EndOfMessage())
            if not await self._client.wait_gone():
                return
        except OriginFailed:
            return  # it may have answered early, which the relay sees
        except HttpRefusal as refusal:
            self._refusal = refusal
        except ClientGone:
            pass
        relaying.cancel()

    async def _relay(self) -> int:
        response = await self._response()
        self._check_encoding(response)
        headers = self._answer_headers(response)
        if self._ends or not self._client.has_sent_request:
            headers.append((b"Connection", b"close"))  # the rest of the body will not be read
        reason = self._redactor.redact(response.reason)
        await self._client.send(h11.Response(status_code=response.status_code, headers=headers, reason=reason))
        self._status = response.status_code
        while not isinstance(event := await self._origin.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise OriginFailed
            if data := self._redactor.feed(event.data):
                await self._client.send(h11.Data(data=data))
        if data := self._redactor.finish():
            await self._client.send(h11.Data(data=data))
        await self._client.send(h11.EndOfMessage())
        return response.status_code

    async def _response(self) -> h11.Response:
        """Pass on interim answers, such as 100, and return the final one."""
        while not isinstance(event := await self._origin.next_event(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise OriginFailed
            if not self._head.is_http_1_0:
                headers = self._answer_headers(event)
                await self._client.send(h11.InformationalResponse(status_code=event.status_code, headers=headers))
        return event

    def _check_encoding(self, response: h11.Response) -> None:
        """An echo of the secret could hide in a compressed answer."""
        if not self._outgoing.forms or self._head.method == "HEAD" or response.status_code in _WITHOUT_BODY:
            return
        codings = {value.strip().lower() for name, value in response.headers if name == b"content-encoding"}
        if codings - {b"", b"identity"}:
            reason = "its answer is compressed, although none was asked for, and cannot be searched for the credential"
            raise HttpRefusal(502, f"cannot pass on the answer of the host: {reason}")

    def _answer_headers(self, event: h11.Response | h11.InformationalResponse) -> Headers:
        clean = self._redactor.redact
        kept = end_to_end(event.headers.raw_items())
        return [(name, clean(value).strip()) for name, value in kept if clean(name) == name]


def _request_event(head: RequestHead, outgoing: OutgoingRequest) -> h11.Request:
    headers = end_to_end(outgoing.headers)
    if outgoing.forms:
        headers = readable_echo(headers)
    if head.has(b"transfer-encoding"):
        headers.append((b"Transfer-Encoding", b"chunked"))
    try:
        return h11.Request(method=head.method, target=outgoing.target, headers=headers)
    except h11.LocalProtocolError:  # its text has the header, and so the secret
        raise HttpRefusal(502, "cannot send the request: its target or a header is not valid") from None


@asynccontextmanager
async def beside(task: Callable[[anyio.CancelScope], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run a task beside the block, and cancel it when the block ends. The task may cancel the block: it then ends
    early and without an error. An error of the block is raised as it is, not in a group.
    """
    failure = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task, tasks.cancel_scope)
        try:
            yield
        except Exception as error:  # noqa: BLE001, raised below
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure

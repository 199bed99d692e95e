# Generated from sandboxd/client/_async/contexts.py by scripts/unasync.py; change that file and run `make client`.
"""Context calls; and the contexts of a `Sandbox`, which run code and keep its variables."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from sandboxd.client._sync.calls import Calls, SandboxPart
from sandboxd.client.errors import AnswerLost, malformed_answers, rebuild
from sandboxd.client.request import Request, given, json_request, timeout_for
from sandboxd.client.sse import EVENT_STREAM
from sandboxd.client.streams import Stream
from sandboxd.models.command import DEFAULT_TIMEOUT_S
from sandboxd.models.context import Context, ContextList, RunOutcome, RunOutput, RunResult

ListedContexts = list[Context]  # in a class with a method `list`, that name is the method

START_S = 120.0
"""How long a context may take to start, or to interrupt code and start again."""


class ContextCalls(Calls):
    def _context_path(self, session: str, context: str, tenant: str | None) -> str:
        return f"{self._session_path(session, tenant)}/contexts/{quote(context, safe='')}"

    def create_context(
        self,
        session: str,
        *,
        language: str | None = None,
        name: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Context:
        """Start a context, a process that runs code and keeps its variables between runs."""
        target = f"{self._session_path(session, tenant)}/contexts"
        content = given(language=language, name=name)
        request = json_request("POST", target, content, key=idempotency_key, timeout_s=timeout_for(START_S))
        return self._ask(Context, request)

    def list_contexts(self, session: str, *, tenant: str | None = None) -> list[Context]:
        request = json_request("GET", f"{self._session_path(session, tenant)}/contexts")
        return (self._ask(ContextList, request)).items

    def get_context(self, session: str, context: str, *, tenant: str | None = None) -> Context:
        return self._ask(Context, json_request("GET", self._context_path(session, context, tenant)))

    def run_code(
        self,
        session: str,
        context: str,
        code: str,
        *,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> RunResult:
        """Run code in a context and return its outputs. Code that raises is a result, not an error.

        Code that takes longer than `timeout_s` is interrupted; variables are kept unless `state_lost` says otherwise.
        """
        request = self._run_request(session, context, code, timeout_s, max_output_bytes, tenant, idempotency_key)
        return self._ask(RunResult, request)

    def run_code_stream(
        self,
        session: str,
        context: str,
        code: str,
        *,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        tenant: str | None = None,
    ) -> Stream[RunOutput | RunOutcome]:
        """Run code and yield its outputs as they come, then how it ended. Closing the iterator interrupts the code."""
        request = self._run_request(session, context, code, timeout_s, max_output_bytes, tenant, None, is_streamed=True)
        outcome = None
        with self._events(request) as events:
            for kind, data in events:
                item = _parse_item(kind, data)
                if item is not None:
                    outcome = item
                    yield item
        if not isinstance(outcome, RunOutcome):
            raise AnswerLost("cannot tell the outcome: the stream ended before the run did")

    def _run_request(
        self,
        session: str,
        context: str,
        code: str,
        timeout_s: float | None,
        max_output_bytes: int | None,
        tenant: str | None,
        key: str | None,
        *,
        is_streamed: bool = False,
    ) -> Request:
        content = given(code=code, timeout_s=timeout_s, max_output_bytes=max_output_bytes)
        return json_request(
            "POST",
            f"{self._context_path(session, context, tenant)}/run",
            content,
            key=key,
            headers=EVENT_STREAM if is_streamed else None,
            timeout_s=timeout_for((DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s) + START_S),
        )

    def interrupt_context(self, session: str, context: str, *, tenant: str | None = None) -> Context:
        """Interrupt the code that a context runs, as Ctrl-C does; its variables are kept."""
        target = f"{self._context_path(session, context, tenant)}/interrupt"
        return self._ask(Context, json_request("POST", target))

    def restart_context(self, session: str, context: str, *, tenant: str | None = None) -> Context:
        """Restart a context without its variables, and end everything that its code has started."""
        target = f"{self._context_path(session, context, tenant)}/restart"
        request = json_request("POST", target, timeout_s=timeout_for(START_S))
        return self._ask(Context, request)

    def remove_context(self, session: str, context: str, *, tenant: str | None = None) -> None:
        """End a context and everything that its code has started."""
        self._send(json_request("DELETE", self._context_path(session, context, tenant)))


def _parse_item(kind: str, data: str) -> RunOutput | RunOutcome | None:
    """Parse one event of a streamed run; None for kinds that are ignored."""
    with malformed_answers():
        fields: Any = json.loads(data)
        if kind == "output":
            return RunOutput.model_validate(fields)
        if kind == "end":
            return RunOutcome.model_validate(fields)
    if kind == "error":
        raise rebuild(fields if isinstance(fields, dict) else {})
    return None


class SandboxContexts(SandboxPart[ContextCalls]):
    """The contexts of a sandbox."""

    def create(self, name: str | None = None, *, language: str | None = None) -> Context:
        """Start a context. Its id is the name, or is chosen."""
        return self._calls.create_context(self._session, name=name, language=language, tenant=self._tenant)

    def run(
        self, context: str, code: str, *, timeout_s: float | None = None, max_output_bytes: int | None = None
    ) -> RunResult:
        """Run code in a context and return its outputs. Code that raises is a result, not an error."""
        return self._calls.run_code(
            self._session, context, code, timeout_s=timeout_s, max_output_bytes=max_output_bytes, tenant=self._tenant
        )

    def stream(
        self, context: str, code: str, *, timeout_s: float | None = None, max_output_bytes: int | None = None
    ) -> Stream[RunOutput | RunOutcome]:
        """Run code and yield its outputs as they come, then how it ended. Closing the iterator interrupts the code."""
        return self._calls.run_code_stream(
            self._session, context, code, timeout_s=timeout_s, max_output_bytes=max_output_bytes, tenant=self._tenant
        )

    def list(self) -> ListedContexts:
        return self._calls.list_contexts(self._session, tenant=self._tenant)

    def get(self, context: str) -> Context:
        return self._calls.get_context(self._session, context, tenant=self._tenant)

    def interrupt(self, context: str) -> Context:
        """Interrupt the code that a context runs; its variables are kept."""
        return self._calls.interrupt_context(self._session, context, tenant=self._tenant)

    def restart(self, context: str) -> Context:
        """Restart a context without its variables."""
        return self._calls.restart_context(self._session, context, tenant=self._tenant)

    def remove(self, context: str) -> None:
        """End a context and everything that its code has started."""
        self._calls.remove_context(self._session, context, tenant=self._tenant)

# Generated from sandboxd/client/_async/artifacts.py by scripts/unasync.py; change that file and run `make client`.
"""Artifact calls: stored tool results."""

from __future__ import annotations

from urllib.parse import quote

from memo.ids import ToolCallId
from sandboxd.client._sync.calls import Calls
from sandboxd.client.request import author_headers, json_request, text_request
from sandboxd.models.artifact import Artifact, ArtifactList
from sandboxd.models.document import Written

PLAIN_TEXT = "text/plain; charset=utf-8"


class ArtifactCalls(Calls):
    def _artifact_path(self, session: str, artifact: str, tenant: str | None) -> str:
        return f"{self._session_path(session, tenant)}/artifacts/{quote(ToolCallId(artifact), safe='')}"

    def list_artifacts(self, session: str, *, tenant: str | None = None) -> list[Artifact]:
        return (self._ask(ArtifactList, json_request("GET", f"{self._session_path(session, tenant)}/artifacts"))).items

    def read_artifact(self, session: str, artifact: str, *, tenant: str | None = None) -> str:
        return self._ask_text(json_request("GET", self._artifact_path(session, artifact, tenant)))

    def write_artifact(
        self,
        session: str,
        artifact: str,
        text: str,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Written:
        target = self._artifact_path(session, artifact, tenant)
        headers = author_headers(None, None, idempotency_key)
        return self._ask(Written, text_request("PUT", target, text, PLAIN_TEXT, headers))

# Generated from sandboxd/client/_async/mirrors.py by scripts/unasync.py; change that file and run `make client`.
"""Mirror calls: the documents that a sandbox shows as files, compared with the store."""

from __future__ import annotations

from sandboxd.client._sync.calls import Calls
from sandboxd.client.request import STORE_S, given, json_request, user_path
from sandboxd.models.mirror import MirrorFile, MirrorReport, Refreshed, RefusedWrite


class MirrorCalls(Calls):
    def refresh_memo_mirror(
        self, session: str, path: str | None = None, content: str | None = None, *, tenant: str | None = None
    ) -> int:
        """Refresh the session's mirror from the store; return how many files changed."""
        target = f"{self._session_path(session, tenant)}/mirror/refresh"
        request = json_request("POST", target, given(path=path, content=content), timeout_s=STORE_S)
        return (self._ask(Refreshed, request)).refreshed

    def refresh_user_memo_mirror_for_all_sessions(
        self, user: str, name: str, content: str | None = None, *, tenant: str | None = None
    ) -> int:
        """Refresh one document of a user in every live sandbox; return how many files changed."""
        target = f"{user_path(tenant or self.tenant, user)}/mirror/refresh"
        request = json_request("POST", target, given(name=name, content=content), timeout_s=STORE_S)
        return (self._ask(Refreshed, request)).refreshed

    def get_mirror(self, session: str, *, tenant: str | None = None) -> list[MirrorFile]:
        return (self._get_mirror(session, tenant)).items

    def list_refused_writes(self, session: str, *, tenant: str | None = None) -> list[RefusedWrite]:
        """Return queued writes to the session's memory that the store permanently rejected."""
        return (self._get_mirror(session, tenant)).refused

    def _get_mirror(self, session: str, tenant: str | None) -> MirrorReport:
        target = f"{self._session_path(session, tenant)}/mirror"
        return self._ask(MirrorReport, json_request("GET", target, timeout_s=STORE_S))

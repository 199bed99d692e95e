# Generated from sandboxd/client/_async/consolidation.py by scripts/unasync.py; change that file and run `make client`.
"""Consolidation calls: a user's sessions become `USER.md`."""

from __future__ import annotations

from sandboxd.client._sync.calls import Calls
from sandboxd.client.request import given, json_request, user_path
from sandboxd.models.consolidation import Consolidated, ConsolidationState, ConsolidationStateList

RUN_S = 1860.0
"""A run takes at most half an hour by default; the rest is for the network."""


class ConsolidationCalls(Calls):
    def consolidate(
        self,
        user: str,
        *,
        dry_run: bool = False,
        tenant: str | None = None,
        timeout_s: float = RUN_S,
        idempotency_key: str | None = None,
    ) -> Consolidated:
        """Update the user's USER.md from their sessions now; raise a `consolidation.…` error if that fails."""
        target = f"{user_path(tenant or self.tenant, user)}/consolidation"
        content = given(dry_run=dry_run or None)
        return self._ask(Consolidated, json_request("POST", target, content, key=idempotency_key, timeout_s=timeout_s))

    def get_consolidation(self, user: str, *, tenant: str | None = None) -> ConsolidationState:
        target = f"{user_path(tenant or self.tenant, user)}/consolidation"
        return self._ask(ConsolidationState, json_request("GET", target))

    def list_consolidations(self, *, tenant: str | None = None) -> list[ConsolidationState]:
        """Return the status of every user of the tenant with a past or pending run."""
        target = f"{self._tenant_path(tenant)}/consolidation"
        return (self._ask(ConsolidationStateList, json_request("GET", target))).items

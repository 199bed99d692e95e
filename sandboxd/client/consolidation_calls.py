"""The consolidation calls of the API; pure, like `calls`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from memo.ids import UserId
from sandboxd.client.calls import Answer, Call, given, json_call, parse_json, parse_time, tenant_path
from sandboxd.client.results import Consolidated, ConsolidationFailure, ConsolidationState

RUN_S = 1860.0
"""A run takes at most half an hour by default; the rest is for the network."""


def consolidate(tenant: str, user: str, *, dry_run: bool, timeout_s: float, key: str | None) -> Call[Consolidated]:
    content = given(dry_run=dry_run or None)
    return json_call("POST", _of_user(tenant, user), _consolidated, content, key=key, timeout_s=timeout_s)


def get_consolidation(tenant: str, user: str) -> Call[ConsolidationState]:
    return json_call("GET", _of_user(tenant, user), lambda answer: _state(parse_json(answer)))


def list_consolidations(tenant: str) -> Call[list[ConsolidationState]]:
    target = f"{tenant_path(tenant)}/consolidation"
    return json_call("GET", target, lambda answer: [_state(item) for item in parse_json(answer)["items"]])


def _of_user(tenant: str, user: str) -> str:
    return f"{tenant_path(tenant)}/users/{quote(UserId(user), safe='')}/consolidation"


def _consolidated(answer: Answer) -> Consolidated:
    fields = parse_json(answer)
    return Consolidated(
        fields["changed"],
        fields["revision"],
        fields["diff"],
        tuple(fields["sessions"]),
        fields["outcome"],
        fields["reason"],
        {item["session"]: item["reason"] for item in fields["failed"]},
        fields["dry_run"],
        fields["calls"],
        fields["tokens"],
    )


def _state(fields: Mapping[str, Any]) -> ConsolidationState:
    failure = fields["failure"]
    return ConsolidationState(
        fields["tenant"],
        fields["user"],
        fields["due"],
        fields["why"],
        parse_time(fields["look_again_at"]),
        fields["changed_sessions"],
        parse_time(fields["last_activity"]),
        fields["runs"],
        parse_time(fields["last_run_at"]),
        fields["last_outcome"],
        fields["unfinished"],
        fields["revision"],
        fields["held_by"],
        None if failure is None else _failure(failure),
        {item["session"]: _failure(item) for item in fields["failed_sessions"]},
        fields["background"],
    )


def _failure(fields: Mapping[str, Any]) -> ConsolidationFailure:
    return ConsolidationFailure(fields["reason"], fields["count"], datetime.fromisoformat(fields["retry_at"]))

"""Consolidation of a user's memory: run it now, and report the status of one user or of a tenant's users.

The consolidation service decides how a run ended; this module renders that as an answer.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from memo.consolidation import Failure, RunResult, UserState
from memo.ids import TenantId, UserRef
from sandboxd.api.answers import json_answer
from sandboxd.api.memory import foreign_answer, foreign_list, memory_of
from sandboxd.api.requests import MAX_JSON_BYTES, read_optional_json
from sandboxd.api.routes import USER, Access, Endpoint, Services
from sandboxd.consolidation.service import ConsolidationService
from sandboxd.errors import StoreUnavailable
from sandboxd.models.consolidation import (
    Consolidated,
    ConsolidationBody,
    ConsolidationFailure,
    ConsolidationState,
    ConsolidationStateList,
)

TENANT = "/v1/tenants/{tenant}"


def _consolidation(services: Services) -> ConsolidationService:
    memory_of(services)
    if services.consolidation is None:
        raise StoreUnavailable("cannot consolidate: this daemon has no store; serve with --store")
    return services.consolidation


def _user(request: Request) -> UserRef:
    params = request.scope["path_params"]
    return UserRef.of(params["tenant"], params["user"])


async def consolidate(services: Services, request: Request) -> Response:
    consolidation, user = _consolidation(services), _user(request)
    body = await read_optional_json(request, ConsolidationBody)
    with services.watch.guard(request.receive):
        result = await consolidation.run(user, dry_run=body.dry_run)
    return json_answer(_consolidated(result))


async def get_state(services: Services, request: Request) -> Response:
    consolidation, user = _consolidation(services), _user(request)
    state = await consolidation.state(user)
    return foreign_answer("how a user stands", lambda: _state(state, consolidation))


async def list_states(services: Services, request: Request) -> Response:
    consolidation = _consolidation(services)
    states = await consolidation.states(TenantId(request.scope["path_params"]["tenant"]))
    return await foreign_list(request, "how users stand", lambda: (_state(state, consolidation) for state in states))


def _consolidated(result: RunResult) -> Consolidated:
    return Consolidated(
        changed=result.is_changed,
        revision=result.revision or None,
        diff=result.diff,
        sessions=tuple(result.sessions),
        outcome=result.outcome.code,
        reason=result.reason,
        failed=dict(result.failed),
        dry_run=result.is_dry,
        calls=result.calls,
        tokens=result.tokens,
    )


def _state(state: UserState, consolidation: ConsolidationService) -> ConsolidationState:
    standing = state.standing
    return ConsolidationState(
        tenant=state.user.tenant,
        user=state.user.user,
        due=state.is_due,
        why=str(state.why),
        look_again_at=state.look_again_at,
        changed_sessions=state.changed,
        last_activity=state.last_activity,
        runs=standing.runs,
        last_run_at=standing.last_run_at,
        last_outcome=None if state.last_outcome is None else state.last_outcome.code,
        unfinished=standing.is_unfinished,
        revision=state.revision,
        held_by=state.holder,
        failure=None if standing.failure is None else _failure(standing.failure),
        failed_sessions={name: _failure(failure) for name, failure in standing.sessions.items()},
        background=consolidation.is_running,
    )


def _failure(failure: Failure) -> ConsolidationFailure:
    return ConsolidationFailure(reason=failure.reason, count=failure.count, retry_at=failure.retry_at)


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{USER}/consolidation",
        consolidate,
        "consolidation",
        Access.WRITE,
        "Make the user's USER.md from their sessions now; 409 `consolidation.held` while another run holds the user",
        body_limit=MAX_JSON_BYTES,
        body=ConsolidationBody,
        answers={200: Consolidated},
    ),
    Endpoint(
        "GET",
        f"{USER}/consolidation",
        get_state,
        "consolidation",
        Access.READ,
        "Return the user's status: whether and why a run is due, the last run, failures and the next retry",
        answers={200: ConsolidationState},
        operation_id="get_consolidation",
    ),
    Endpoint(
        "GET",
        f"{TENANT}/consolidation",
        list_states,
        "consolidation",
        Access.READ,
        "Return the status of every user of the tenant with a past or pending run",
        answers={200: ConsolidationStateList},
        operation_id="list_consolidations",
    ),
)

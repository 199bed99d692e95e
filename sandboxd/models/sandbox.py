"""A sandbox: the request for one, its record, its resource usage, and what garbage collection did."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer

from sandboxd.limits import Limits
from sandboxd.models.command import Argument, check_names
from sandboxd.models.ids import Agent, SessionName, Tenant, User
from sandboxd.models.wire import AnswerModel, BodyModel, QueryModel

MAX_ENV_CHARS = 262_144
"""The size limit of an environment that is kept with a sandbox."""


def _small(env: dict[str, str]) -> dict[str, str]:
    if sum(len(name) + len(value) for name, value in env.items()) > MAX_ENV_CHARS:
        raise ValueError(f"must be at most {MAX_ENV_CHARS} characters in total")
    return env


KeptEnvironment = Annotated[
    dict[Argument, Argument], Field(max_length=1000), AfterValidator(check_names), AfterValidator(_small)
]


class SandboxRequest(BodyModel):
    """The request for a session's sandbox. Repeating it returns the same sandbox."""

    model_config = ConfigDict(title="SandboxBody")

    user: User
    agent: Agent | None = None
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$")] | None = None
    env: KeptEnvironment = Field(default_factory=dict)
    limits: Limits | None = None
    network: Literal["none"] = "none"

    def limits_over(self, defaults: Limits) -> Limits:
        """Return the limits that the request sets, and defaults for the others."""
        given = {} if self.limits is None else self.limits.model_dump(exclude_unset=True)
        return defaults.model_copy(update=given)


class DestroyQuery(QueryModel):
    missing_ok: bool = Field(default=False, description="Whether a missing sandbox counts as removed.")


# A mapping, because a newer daemon may have limits that a client does not know.
LimitsByName = Annotated[
    dict[str, int | float], PlainSerializer(lambda limits: Limits.model_construct(**limits), return_type=Limits)
]


class SandboxView(AnswerModel):
    """The current state of a sandbox, as callers see it."""

    model_config = ConfigDict(title="SandboxAnswer")

    tenant: Tenant
    session: SessionName
    user: User
    agent: Agent | None
    state: str
    engine: str
    container: str | None
    created_at: datetime
    from_pool: bool
    cause: str | None = Field(description="Why its container is dead; null while it lives.")
    image: str
    limits: LimitsByName
    created: bool = Field(default=False, description="Whether this call created the sandbox.")


class SandboxList(AnswerModel):
    model_config = ConfigDict(title="SandboxesAnswer")

    items: list[SandboxView]


class Stats(AnswerModel):
    """The current resource usage of a sandbox's container."""

    model_config = ConfigDict(title="StatsAnswer")

    memory_bytes: int
    cpu_seconds: float
    pids: int


class GarbageReport(AnswerModel):
    """What garbage collection found and repaired."""

    model_config = ConfigDict(title="GarbageAnswer")

    containers: int
    directories: int
    sandboxes: int = Field(description="Sandboxes that were found dead, or whose removal was resumed.")
    unclaimed_workspaces: list[str] = Field(
        default_factory=list,
        description="Directories below DATA/workspaces whose record was lost. They are kept: remove them by hand.",
    )

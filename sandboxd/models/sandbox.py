"""A sandbox: the request for one, its record, its resource usage, and what garbage collection did."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, field_validator

from sandboxd.limits import Limits
from sandboxd.models.command import Argument, check_names
from sandboxd.models.ids import Agent, SessionName, Tenant, User
from sandboxd.models.network import Network, NetworkView
from sandboxd.models.paths import CleanText
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


Resume = Literal["auto", "manual"]
"""Whether the next call resumes a hibernated or paused sandbox, or only a request to resume it."""
MAX_LABELS = 64
MAX_AGE_S = 10 * 365 * 86_400
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
LabelValue = Annotated[CleanText, Field(max_length=256)]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=MAX_LABELS)]


class SandboxPatch(BodyModel):
    """What may change while a sandbox lives. A field that is left out stays as it is."""

    model_config = ConfigDict(title="SandboxPatchBody")

    idle_timeout_s: float | None = Field(
        default=None,
        ge=0,
        le=MAX_AGE_S,
        allow_inf_nan=False,
        description="Seconds without calls or running processes until it hibernates. 0 means never; null means the "
        "daemon's setting.",
    )
    ttl_s: float | None = Field(
        default=None,
        gt=0,
        le=MAX_AGE_S,
        allow_inf_nan=False,
        description="Seconds until it hibernates even if it is in use, counted from this request and from each resume. "
        "null means the daemon's setting.",
    )
    resume: Resume | None = Field(
        default=None,
        description="Whether the next call resumes it when it is hibernated or paused: `auto`, the default, or "
        "`manual`, which needs POST .../sandbox/resume.",
    )
    labels: Labels | None = Field(default=None, description="Labels to find it by. They replace all earlier ones.")
    network: Network | None = Field(
        default=None,
        description="What it may reach through the daemon: `none`, the default, or lists of hosts and credentials, "
        "which replace all earlier ones. Open connections that are no longer allowed are cut.",
    )


class SandboxRequest(SandboxPatch):
    """The request for a session's sandbox. Repeating it returns the same sandbox."""

    model_config = ConfigDict(title="SandboxBody")

    user: User
    agent: Agent | None = None
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$")] | None = None
    env: KeptEnvironment = Field(default_factory=dict)
    limits: Limits | None = None
    from_snapshot: Annotated[str, Field(max_length=64)] | None = Field(
        default=None,
        description="Begin with the files of this snapshot, which must be of the same tenant and user. The workspace "
        "has the snapshot's size, so leave `disk_mb` out. An existing sandbox is a conflict unless it began with the "
        "same snapshot; with `recreate` it is replaced together with its files.",
    )
    recreate: bool = Field(
        default=False,
        description="Replace the container of an existing sandbox, with this image, environment and these limits, and "
        "keep its workspace. Without it, an existing sandbox that differs is a conflict.",
    )

    def limits_over(self, defaults: Limits) -> Limits:
        """Return the limits that the request sets, and defaults for the others."""
        given = {} if self.limits is None else self.limits.model_dump(exclude_unset=True)
        return defaults.model_copy(update=given)


class SandboxesQuery(QueryModel):
    label: list[str] = Field(
        default_factory=list, description="Only sandboxes with this label, as `name=value`. May be given several times."
    )
    state: Literal["creating", "starting", "ready", "paused", "hibernated", "gone", "destroying"] | None = Field(
        default=None, description="Only sandboxes in this state."
    )

    @field_validator("label")
    @classmethod
    def _is_readable(cls, pairs: list[str]) -> list[str]:
        if not all("=" in pair for pair in pairs):
            raise ValueError("must be name=value")
        return pairs

    def matches(self, sandbox: SandboxView) -> bool:
        wanted = (pair.partition("=") for pair in self.label)
        has_labels = all(sandbox.labels.get(name) == value for name, _, value in wanted)
        return has_labels and self.state in (None, sandbox.state)


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
    cause: str | None = Field(
        description="Why it has no container: it died (`exited`, `oom`, `killed`, `engine`, `mirror`) or hibernates "
        "(`idle`, `lifetime`, `asked`, or `engine` if it could not be resumed). `asked` if it was paused on request."
    )
    image: str
    limits: LimitsByName
    labels: dict[str, str] = Field(default_factory=dict)
    idle_timeout_s: float = Field(
        default=0, description="Seconds without calls or running processes until it hibernates; 0 means never."
    )
    expires_at: datetime | None = Field(default=None, description="When it hibernates even if it is in use.")
    resume: Resume = Field(default="auto", description="Whether the next call resumes it, or only a request to do so.")
    resting_since: datetime | None = Field(default=None, description="When it lost its container.")
    network: Literal["none"] | NetworkView = Field(default="none", description="What it may reach.")
    parent: SessionName | None = Field(default=None, description="The session that it was forked from.")
    from_snapshot: str | None = Field(default=None, description="The snapshot that its files came from.")
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
    unclaimed_snapshots: list[str] = Field(
        default_factory=list,
        description="Files below DATA/snapshots whose record was lost. They are kept: remove them by hand.",
    )

"""The network of a sandbox: what it may reach, the record of what it reached, and the ports that it offers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from sandboxd.models.wire import AnswerModel, BodyModel, QueryModel

MAX_RULES = 256
MAX_RULE_CHARS = 300
MAX_CREDENTIALS = 32

HostPattern = Annotated[str, Field(min_length=1, max_length=MAX_RULE_CHARS)]
CredentialName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Port = Annotated[int, Field(ge=1, le=65_535)]


class AllowedHost(BodyModel):
    """A host that the sandbox may reach."""

    model_config = ConfigDict(title="AllowedHostBody")

    host: HostPattern = Field(description="A name, `*.` and a name for everything below it, or an IP address.")
    port: Port | None = Field(default=None, description="The port; every port if it is left out.")
    private: bool = Field(
        default=False, description="Whether the host may have an address that is loopback, link-local or private."
    )


class NetworkAccess(BodyModel):
    """What the sandbox may reach through the daemon. Everything else is refused."""

    model_config = ConfigDict(title="NetworkBody")

    allow: Annotated[list[HostPattern | AllowedHost], Field(max_length=MAX_RULES)] = Field(
        default_factory=list,
        description="Each item is `host[:port]`, `*.host[:port]`, `preset:NAME`, or an object.",
    )
    credentials: Annotated[list[CredentialName], Field(max_length=MAX_CREDENTIALS)] = Field(
        default_factory=list,
        description="The daemon's credentials that requests of the sandbox may use. Their hosts are allowed too.",
    )


Network = Literal["none"] | NetworkAccess


class NetworkView(AnswerModel):
    """What a sandbox may reach, as it was requested."""

    model_config = ConfigDict(title="NetworkAnswer")

    allow: list[str | dict[str, str | int | bool | None]]
    credentials: list[str] = Field(default_factory=list)


Decision = Literal["allowed", "denied", "failed"]
"""`failed`: the connection was allowed, and could not be made or was cut."""


class EgressRecord(AnswerModel):
    """One connection that the sandbox opened, or tried to open, through the daemon."""

    model_config = ConfigDict(title="EgressAnswer")

    id: int = Field(description="Its number in this sandbox; it grows until the daemon restarts.")
    at: datetime
    host: str
    port: int
    decision: Decision
    rule: str | None = Field(description="The rule that allowed it.")
    reason: str | None = Field(default=None, description="Why it was denied or failed.")
    credential: str | None = Field(default=None, description="The credential that was added.")
    method: str | None = Field(default=None, description="Known for plain HTTP, and where the daemon terminates TLS.")
    path: str | None = None
    status: int | None = Field(default=None, description="The status of the answer, where the request is known.")
    bytes_in: int = Field(default=0, description="Bytes that the sandbox received.")
    bytes_out: int = Field(default=0, description="Bytes that the sandbox sent.")
    ms: float = 0.0


class EgressList(AnswerModel):
    model_config = ConfigDict(title="EgressListAnswer")

    items: list[EgressRecord]
    dropped: int = Field(default=0, description="How many older records are no longer kept.")


class EgressQuery(QueryModel):
    since: int = Field(default=0, ge=0, description="Only records with a greater id.")


class ListeningPort(AnswerModel):
    """A TCP port on which a process in the sandbox listens."""

    model_config = ConfigDict(title="PortAnswer")

    port: int
    process: str | None = Field(description="The background process that it belongs to, if it is one.")
    pid: int | None = Field(default=None, description="The process id in the container, if it can be read.")
    command: str | None = Field(default=None, description="The name of the program.")


class TunnelEof(BodyModel):
    """From either side: nothing more follows from here. The other side may still send."""

    type: Literal["eof"] = "eof"


class TunnelFailure(AnswerModel):
    """From the daemon, last: why it cannot go on, as in a problem."""

    type: Literal["error"] = "error"
    code: str
    detail: str
    retryable: bool


class PortList(AnswerModel):
    model_config = ConfigDict(title="PortsAnswer")

    items: list[ListeningPort]


MAX_PREVIEW_S = 30 * 86_400


class PreviewRequest(BodyModel):
    model_config = ConfigDict(title="PreviewBody")

    ttl_s: float = Field(
        default=3600, gt=0, le=MAX_PREVIEW_S, allow_inf_nan=False, description="Seconds until the URL expires."
    )


class Preview(AnswerModel):
    """A URL that opens a port of the sandbox in a browser, without a token, until it expires."""

    model_config = ConfigDict(title="PreviewAnswer")

    url: str
    expires_at: datetime

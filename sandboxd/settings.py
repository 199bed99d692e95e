"""Settings of the daemon: an option, else `SANDBOXD_<NAME>`, else `sandboxd.toml`, else the default.

Every value is validated here, once, before anything starts. The docstring below a field becomes its line in
docs/settings.md (`scripts/settings_reference.py`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from memo.limits import StoreLimits
from sandboxd.compaction_settings import AutoCompactionOptions
from sandboxd.consolidation_settings import ConsolidationOptions
from sandboxd.errors import InvalidRequest
from sandboxd.history_settings import HistoryOptions
from sandboxd.limits import Limits
from sandboxd.models.command import DEFAULT_MAX_TIMEOUT_S, MAX_TIMEOUT_S
from sandboxd.network_settings import NetworkOptions
from sandboxd.places import default_data, default_socket
from sandboxd.settings_sources import PREFIX, Environment, SettingsFiles, describe
from sandboxd.wire_limits import WireLimits

AGENT_UID = 10001
CachePlace = Literal["auto", "memory", "disk"]
_TCP = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):(\d{1,5})")


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    data: Path = Field(default_factory=default_data)
    """The data directory. For an ordinary user it is `sandboxd` in `$XDG_DATA_HOME` or `~/.local/share`."""
    socket: Path = Field(default_factory=default_socket)
    """The unix socket to listen on. For an ordinary user it is in `$XDG_RUNTIME_DIR`, else in the data directory."""
    tcp: str | None = None
    """`HOST:PORT` to listen on as well; needs `token_file`."""
    token_file: Path | None = None
    """The file whose first line is the token of TCP clients."""
    tls_cert: Path | None = None
    """The certificate of the TCP listener, with its chain, as PEM: TCP then speaks TLS only."""
    tls_key: Path | None = None
    """The private key of `tls_cert`, as PEM and without a password."""
    engine: Literal["auto", "docker", "bubblewrap"] = "auto"
    """The container engine; `docker` includes Podman's compatible socket."""
    engine_fallback: bool = False
    """Whether `auto` may use bubblewrap when Docker is configured or present but does not answer. It always may when
    the host has no Docker or Podman socket."""
    store: str | None = None
    """Where memory is kept. The default is `sqlite:///<data>/memo.db`."""
    store_timeout_s: float = Field(default=10, gt=0)
    """The deadline of one call to the store, in seconds."""
    outbox: bool = False
    """Whether a write to memory while the store is unavailable is queued durably instead of refused."""
    cache: CachePlace = "auto"
    """Where mirrors and blobs are kept: in `memory` (a tmpfs), on `disk`, or with `auto` in memory if it has room."""
    blob_cache_mb: int = Field(default=1024, ge=0)
    """The most text, in MiB, that the blob cache keeps beyond what live mirrors show."""
    image: str | None = None
    """The image of sandboxes that do not name one: an image of the engine, or the variant `dev` or `interpreter`. The
    default is the image that `sandboxd image build` builds."""
    build_image: bool = False
    """Whether `sandboxd serve` builds this image if it is ours and the engine does not have it."""
    runtime: str | None = None
    """The OCI runtime of containers, by the engine's name for it: `runsc` for gVisor. None is the engine's default."""
    pool: int = Field(default=2, ge=0, le=1000)
    """How many sandboxes to keep warm for the next sessions; with 0 each is created on request."""
    pool_max: int = Field(default=8, ge=0, le=1000)
    """The most warm sandboxes under high demand, over all images and limits."""
    pool_shrink_s: float = Field(default=300, gt=0)
    """After this many seconds without a miss, the pool removes one sandbox that demand had added."""
    nice: int = Field(default=-10, ge=-20, le=0)
    """The niceness of the event loop's thread when the daemon runs as root; 0 leaves it unchanged."""
    tmp_exec: bool = False
    """Whether programs may run from /tmp in containers launched from now on. In /var/tmp they always may."""
    skills: Path | None = None
    """A directory to mount read-only at /skills in every container."""
    limits: Limits = Limits()
    """Default limits of a sandbox; a create request may set its own."""
    consolidation: ConsolidationOptions = ConsolidationOptions()
    """Consolidation, which makes a user's USER.md from their sessions in the background."""
    compaction: AutoCompactionOptions = AutoCompactionOptions()
    """Compaction of a conversation after a turn."""
    network: NetworkOptions = NetworkOptions()
    """What sandboxes may reach, and the credentials that the daemon adds for them."""
    history: HistoryOptions = HistoryOptions()
    """What the daemon keeps of its events, and for how long."""
    idle_timeout_s: float = Field(default=1800, ge=0)
    """A sandbox without calls or running processes for this many seconds hibernates: its container goes, its workspace
    stays, and the next call resumes it. 0 means never. A create request may set its own."""
    max_lifetime_s: float = Field(default=0, ge=0)
    """After this many seconds a sandbox hibernates even if it is in use; 0 means never. A create request may set a
    shorter time (`ttl_s`), and each resume starts it again."""
    workspace_retention_s: float = Field(default=30 * 86_400, ge=0)
    """The workspace of a sandbox that has had no container for this many seconds is removed; 0 means never."""
    workspaces_max_mb: int = Field(default=0, ge=0)
    """The most disk space, in MiB, of all workspaces together; 0 means no limit. Beyond it, workspaces without a
    container are removed, the least recently used first."""
    max_snapshots: int = Field(default=16, ge=0)
    """The most snapshots of one session."""
    snapshots_max_mb: int = Field(default=20_480, ge=0)
    """The most disk space, in MiB, of all snapshots together."""
    snapshot_freeze_s: float = Field(default=30, gt=0, le=600)
    """How long a running workspace may be frozen, in seconds, while it is copied for a snapshot or a fork."""
    start_timeout_s: float = Field(default=60, gt=0)
    """How long a container may take to start, in seconds."""
    drain_s: float = Field(default=10, ge=0)
    """How long calls in flight may continue after SIGTERM, in seconds."""
    loop_stall_s: float = Field(default=60, ge=0)
    """An event loop that stalls for this many seconds ends the process, which is safe to restart; 0 means never."""
    max_sandboxes: int = Field(default=500, ge=1)
    """The most sandboxes with a container, warm ones included."""
    max_timeout_s: float = Field(default=DEFAULT_MAX_TIMEOUT_S, gt=0, le=MAX_TIMEOUT_S)
    """The longest timeout, in seconds, that a command or tool call may set. A call counts against `max_calls` and holds
    memory for its output until it ends, so with a higher limit slow commands of one tenant hold both for longer."""
    max_document_bytes: int = Field(default=StoreLimits().document_bytes, ge=1_048_576, le=16_777_216)
    """The largest document, in bytes. Each write stores a whole revision and caches the text for mirrors; the cost of
    writing, showing and comparing grows with the size, and large texts are merged less often. A store made by a
    `python:` factory has its own limit as well. Do not set it below the size of a stored document, which could then be
    neither read nor shown."""
    max_documents: int = Field(default=StoreLimits().documents, ge=1, le=4_000)
    """The most documents that a session or a user may have. Deleted ones, `NOTES.md`, `TODO.md` and `USER.md` do not
    count. A store made by a `python:` factory has its own limit."""
    max_calls: int = Field(default=1024, ge=4)
    """The most requests in flight; one tenant may use three quarters of them."""
    wire: WireLimits = WireLimits()
    """Limits on connections, and on the time a request may take to arrive."""
    call_memory_mb: int = Field(default=1024, ge=64)
    """The most memory, in MiB, for bodies and answers of calls in flight; one tenant may use three quarters of it."""
    failpoint: str = ""
    config: Path | None = None
    """The only settings file to read, instead of the usual ones. It can only be set as a variable."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""

    @field_validator("data", "socket", "skills", "token_file", "tls_cert", "tls_key")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return path.expanduser().absolute() if path else None

    @field_validator("tcp")
    @classmethod
    def _host_and_port(cls, address: str | None) -> str | None:
        if address is None:
            return None
        found = _TCP.fullmatch(address)
        if found is None:
            raise ValueError("it must be HOST:PORT, for example 127.0.0.1:8080")
        if not 1 <= int(found[1]) <= 65_535:
            raise ValueError("the port must be a number from 1 to 65535")
        return address

    @field_validator("skills")
    @classmethod
    def _is_a_directory(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_dir():
            raise ValueError("it must be an existing directory; create it, or leave the setting out")
        return path

    @model_validator(mode="after")
    def _tcp_needs_a_token(self) -> Settings:
        if self.tcp and not self.token_file:
            raise ValueError(
                "cannot listen on TCP without a token: anyone who reaches it could run commands; give --token-file"
            )
        return self

    @model_validator(mode="after")
    def _tls_needs_a_pair_and_tcp(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("--tls-key", "--tls-cert") if self.tls_cert is None else ("--tls-cert", "--tls-key")
            raise ValueError(f"cannot use {given} alone: TLS needs a certificate and its key; give {missing} too")
        if self.tls_cert and not self.tcp:
            raise ValueError("cannot use --tls-cert without TCP: the unix socket has no TLS; give --tcp too")
        return self

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.data / 'memo.db'}"

    @property
    def store_limits(self) -> StoreLimits:
        return StoreLimits(document_bytes=self.max_document_bytes, documents=self.max_documents)

    @property
    def uid(self) -> int:
        """The uid of containers, never root: the daemon's own, or a fixed one for a daemon that runs as root."""
        return os.geteuid() or AGENT_UID

    @property
    def gid(self) -> int:
        """The gid of containers. As root it is fixed, whatever root's group: directories outlive the daemon."""
        return AGENT_UID if os.geteuid() == 0 else os.getegid() or AGENT_UID

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, Environment(settings_cls), SettingsFiles(settings_cls)


def read_settings(**options: Any) -> Settings:
    """Return the settings, these options first; raise InvalidRequest with one sentence if one is invalid."""
    try:
        return Settings(**options)
    except ValidationError as error:
        raise InvalidRequest(describe(error.errors(include_url=False)[0], options)) from None

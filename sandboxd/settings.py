"""Settings of the daemon: an option, else `SANDBOXD_<NAME>`, else `sandboxd.toml`, else the default.

Everything is checked here, once, before anything starts.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from memo.limits import StoreLimits
from sandboxd.consolidation_settings import ConsolidationOptions
from sandboxd.errors import InvalidRequest
from sandboxd.limits import Limits
from sandboxd.places import default_data, default_socket
from sandboxd.runner.calls import DEFAULT_MAX_TIMEOUT_S, MAX_TIMEOUT_S
from sandboxd.settings_sources import PREFIX, Environment, SettingsFiles, describe
from sandboxd.wire_limits import WireLimits

AGENT_UID = 10001
CachePlace = Literal["auto", "memory", "disk"]
_TCP = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):(\d{1,5})")


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    data: Path = Field(default_factory=default_data)
    socket: Path = Field(default_factory=default_socket)
    tcp: str | None = None
    token_file: Path | None = None
    tls_cert: Path | None = None
    """The certificate of the TCP listener, with its chain, as PEM: TCP then speaks TLS only."""
    tls_key: Path | None = None
    """The private key of `tls_cert`, as PEM and without a password."""
    engine: Literal["auto", "docker", "bubblewrap"] = "auto"
    engine_fallback: bool = False
    """Whether `auto` may use bubblewrap when Docker is configured or present but does not answer. Without a Docker
    or Podman socket on the host it always may."""
    store: str | None = None
    """Where memory is kept. The default is `sqlite:///<data>/memo.db`."""
    store_timeout_s: float = Field(default=10, gt=0)
    """How long one call to the store may take."""
    outbox: bool = False
    """Whether a write to memory while the store is down is kept and delivered later, instead of refused."""
    cache: CachePlace = "auto"
    """Where mirrors and blobs are: in `memory` (a tmpfs), on `disk`, or in memory if there is plenty of it."""
    blob_cache_mb: int = Field(default=1024, ge=0)
    """How much text the cache of mirrors may keep beyond what live mirrors show."""
    image: str | None = None
    """The image of a sandbox that names none. The default is the one that `sandboxd image build` builds."""
    build_image: bool = False
    """Whether `sandboxd serve` builds the default image if the engine does not have it."""
    runtime: str | None = None
    """The OCI runtime of containers, by the engine's name for it: `runsc` for gVisor. None is the engine's default."""
    pool: int = Field(default=2, ge=0, le=1000)
    """How many sandboxes are kept warm for whoever comes next; 0 means that every one is made when it is asked for."""
    pool_max: int = Field(default=8, ge=0, le=1000)
    """How many there may be when demand asks for more, of all images and limits together."""
    pool_shrink_s: float = Field(default=300, gt=0)
    """After so long without a miss the pool gives one sandbox back that demand had added."""
    nice: int = Field(default=-10, ge=-20, le=0)
    """How far the event loop goes before other processes of the host, as root; 0 is not at all."""
    tmp_exec: bool = False
    """Whether programs may run from /tmp, in containers launched from now on. From /var/tmp they always may."""
    skills: Path | None = None
    """A directory shown read-only at /skills in every container."""
    limits: Limits = Limits()
    consolidation: ConsolidationOptions = ConsolidationOptions()
    """What happened in a user's sessions becomes USER.md, in the background."""
    idle_timeout_s: float = Field(default=1800, ge=0)
    """A sandbox without a call and without running processes for so long gives up its container; 0 means never.

    It is `gone` with the cause `idle`. Its workspace is kept, and creating it again brings its files back.
    """
    start_timeout_s: float = Field(default=60, gt=0)
    drain_s: float = Field(default=10, ge=0)
    """How long calls may go on after SIGTERM."""
    loop_stall_s: float = Field(default=60, ge=0)
    """An event loop that does not turn for so long ends the process, which is safe to start again; 0 means never."""
    max_sandboxes: int = Field(default=500, ge=1)
    max_timeout_s: float = Field(default=DEFAULT_MAX_TIMEOUT_S, gt=0, le=MAX_TIMEOUT_S)
    """The longest timeout that a command or a tool may ask for. A call under way holds its place among `max_calls` and
    the memory of its output until it ends, so a longer one lets slow commands of one tenant hold more for longer."""
    max_document_bytes: int = Field(default=StoreLimits().document_bytes, ge=1_048_576, le=16_777_216)
    """The largest document of memory. Each write keeps a whole revision in the store and the text in the cache of
    mirrors; writing, showing and comparing take time and memory in proportion, and large texts are merged more rarely.
    A store made by a `python:` factory keeps its own limit beside this one. Do not lower it below what is stored: a
    larger document can then neither be read nor shown."""
    max_calls: int = Field(default=1024, ge=4)
    """Requests under way at once; one tenant may take three quarters of them."""
    wire: WireLimits = WireLimits()
    """Bounds on connections, and on the time a request may take to arrive."""
    call_memory_mb: int = Field(default=1024, ge=64)
    """Memory that bodies and answers of calls under way may take; one tenant may take three quarters of it."""
    failpoint: str = ""
    config: Path | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"

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
            raise ValueError("it must be a directory that exists; make it, or leave the setting out")
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
        return StoreLimits(document_bytes=self.max_document_bytes)

    @property
    def uid(self) -> int:
        """Who a container runs as: never root, and an ordinary user's daemon can only be itself."""
        return os.geteuid() or AGENT_UID

    @property
    def gid(self) -> int:
        """As root always the same, whatever group root was started with: directories outlive the daemon."""
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
    """Return the settings with these options in front. Raise InvalidRequest with one sentence if one is wrong."""
    try:
        return Settings(**options)
    except ValidationError as error:
        raise InvalidRequest(describe(error.errors(include_url=False)[0], options)) from None

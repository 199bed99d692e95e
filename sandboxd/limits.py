"""The resource limits of a sandbox: the default and the bounds of each resource."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """The resource limits of one sandbox; part of the create request, so it is validated as input."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    memory_mb: int = Field(default=512, ge=32, le=1_048_576)
    """Memory in MiB."""
    cpus: float = Field(default=1.0, ge=0.05, le=1024)
    """CPU time in cores; 0.5 is half a core."""
    pids: int = Field(default=256, ge=16, le=65_536)
    """Processes and threads."""
    disk_mb: int = Field(default=1024, ge=8, le=1_048_576)
    """Size of the workspace and /var/tmp together, in MiB."""

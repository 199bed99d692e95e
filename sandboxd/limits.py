"""What one sandbox may use. The defaults and the bounds of every resource, in one place."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """The resources of one sandbox; part of the create request, so it is checked as input."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_mb: int = Field(default=512, ge=32, le=1_048_576)
    cpus: float = Field(default=1.0, ge=0.05, le=1024)
    pids: int = Field(default=256, ge=16, le=65_536)
    disk_mb: int = Field(default=1024, ge=8, le=1_048_576)

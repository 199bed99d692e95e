"""What a request says about a sandbox that exists: which options change, and which properties differ. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sandboxd.image import is_same_image
from sandboxd.models.sandbox import SandboxPatch, SandboxRequest
from sandboxd.sandboxes.lifecycle import Options, Record


def options_of(patch: SandboxPatch) -> Options:
    """Return the options of a new sandbox."""
    return changed_options(Options(), patch)


def changed_options(options: Options, patch: SandboxPatch) -> Options:
    """Return the options with what the request sets. A time that is set to null is the daemon's again."""
    given = patch.model_fields_set
    changes: dict[str, Any] = {name: getattr(patch, name) for name in ("idle_timeout_s", "ttl_s") if name in given}
    changes |= {name: getattr(patch, name) for name in ("resume", "labels") if getattr(patch, name) is not None}
    if patch.network is not None:
        changes["network"] = None if patch.network == "none" else patch.network
    return replace(options, **changes)


def expiry(options: Options, max_lifetime_s: float, now: datetime) -> datetime | None:
    """Return when a container that starts now is as old as it may be; None if never."""
    lifetimes_s = [lifetime_s for lifetime_s in (options.ttl_s, max_lifetime_s) if lifetime_s]
    return now + timedelta(seconds=min(lifetimes_s)) if lifetimes_s else None


def differences(record: Record, request: SandboxRequest, image: str) -> dict[str, dict[str, Any]]:
    """Return every property that the request names and the sandbox has otherwise: what it is, and what was requested.

    `image` is the engine's name of the requested image. An environment may hold secrets, so only the names of its
    variables are returned.
    """
    found: dict[str, dict[str, Any]] = {}
    if request.image is not None and not is_same_image(image, record.shape.image):
        found["image"] = {"is": record.shape.image, "requested": image}
    if request.limits is not None:
        now = record.shape.limits.model_dump()
        wanted = request.limits.model_dump(exclude_unset=True)
        for name in [name for name in wanted if wanted[name] != now[name]]:
            found[f"limits.{name}"] = {"is": now[name], "requested": wanted[name]}
    env = record.owner.env if record.owner is not None else {}
    if "env" in request.model_fields_set and dict(env) != request.env:
        names = env.keys() | request.env.keys()
        found["env"] = {"names": sorted(name for name in names if env.get(name) != request.env.get(name))}
    return found

"""New records, and the sandboxes of records: what a request and the settings say about them. It changes nothing."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from sandboxd.image import resolve_image
from sandboxd.limits import Limits
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.sandboxes.lifecycle import Options, Origin, Owner, Record, Shape
from sandboxd.sandboxes.options import expiry
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.settings import Settings


class RecordFactory:
    """`fittings` is the digest of what this daemon mounts and runs in every container."""

    def __init__(self, settings: Settings, engine: str, fittings: str) -> None:
        self._settings = settings
        self._engine = engine
        self._fittings = fittings

    def create(
        self, shape: Shape, owner: Owner | None, options: Options | None = None, origin: Origin | None = None
    ) -> Record:
        return Record(
            id=secrets.token_hex(8),
            shape=shape,
            engine=self._engine,
            secret=secrets.token_hex(32),
            created_at=datetime.now(UTC),
            owner=owner,
            options=options or Options(),
            origin=origin or Origin(),
        )

    def renew(self, record: Record) -> Record:
        """Return a new record for the same request."""
        return self.create(record.shape, record.owner, record.options)

    def sandbox(self, record: Record) -> Sandbox:
        """Return a sandbox with this record, new or loaded."""
        return Sandbox(record, self._settings.idle_timeout_s)

    def limits(self, request: SandboxRequest) -> Limits:
        """Return the limits of a new sandbox."""
        return request.limits_over(self._settings.limits)

    def image(self, name: str | None) -> str:
        """Return the engine's name of the image that a request names."""
        return resolve_image(name or self._settings.image, self._engine)

    def shape(self, image: str | None, limits: Limits) -> Shape:
        return Shape(self.image(image), limits, self._fittings)

    def reshape(self, shape: Shape, image: str | None, limits: Limits) -> Shape:
        """Return the shape of a container that replaces one of this shape."""
        return Shape(shape.image if image is None else self.image(image), limits, self._fittings)

    def expiry(self, options: Options) -> datetime | None:
        """Return when a container that starts now is as old as it may be; None if never."""
        return expiry(options, self._settings.max_lifetime_s, datetime.now(UTC))

"""A client for one command: opened, closed, and its errors turned into a sentence and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxd.cli.output import fail
from sandboxd.client.errors import KNOWN_ERRORS, DaemonUnreachable
from sandboxd.client.synchronous import Client


@contextmanager
def connected(socket: Path | None, tenant: str, as_json: bool, failure_code: int | None = None) -> Iterator[Client]:
    with Client(socket, tenant=tenant) as client:
        try:
            yield client
        except DaemonUnreachable as error:
            fail(error, as_json)
        except KNOWN_ERRORS as error:
            fail(error, as_json, failure_code)

"""Lists the agent images in a Docker or Podman engine and builds those that this version uses.

With a registry it builds the Dockerfile; without one it makes the same contents from Debian packages alone. It blocks,
and shows its progress on stdout. It changes only the engine's images and, as root, installs the build tool on the host.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import docker
import requests
from docker.errors import DockerException, ImageNotFound

from sandboxd import debian
from sandboxd.engine.address import find_address
from sandboxd.errors import EngineUnavailable
from sandboxd.image import (
    HASH_LABEL,
    INPUTS,
    REPOSITORY,
    build_command,
    default_image,
    image_name,
    inputs_hash,
    variant_image,
    variants,
)
from sandboxd.progress import SetupError, run_step, say

BASE = "debian:bookworm-slim"
BUILD_TIMEOUT_S = 600
Source = Literal["auto", "registry", "packages"]
# An import carries no Dockerfile: these are the lines of images/Dockerfile that say how to run the image, not what it
# contains.
_RUN_LINE = re.compile(r"^(ENV|WORKDIR|USER|CMD)\s")
_NETWORK_OPTION = re.compile(r'^(Acquire::(http|https|Languages)\b\S*) "(.+)";$')


@dataclass(frozen=True, slots=True)
class BuiltImage:
    name: str
    """`default`, or the name of a variant."""
    tag: str
    size_mb: int
    created_at: datetime
    is_current: bool
    """Whether this version creates sandboxes from it."""


def run_lines(dockerfile: str) -> list[str]:
    """Return the Dockerfile's lines that say how the image runs."""
    return [line for line in dockerfile.splitlines() if _RUN_LINE.match(line)]


class ImageBuilder:
    """Owns a connection to one engine; made by `open_builder`."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    def images(self) -> list[BuiltImage]:
        """Return every agent image that the engine has, newest first."""
        current = {default_image(), *map(variant_image, variants())}
        found = [
            BuiltImage(
                image_name(tag) or "",
                tag.removeprefix("localhost/"),  # Podman's prefix for images that it built itself
                int(image.attrs["Size"]) // 1_000_000,
                datetime.fromisoformat(image.attrs["Created"]).astimezone(UTC),
                tag.removeprefix("localhost/") in current,
            )
            for image in self._client.images.list(name=REPOSITORY)
            for tag in image.tags
        ]
        return sorted(found, key=lambda image: image.created_at, reverse=True)

    def ensure(self, variant: str | None = None, source: Source = "auto", *, rebuild: bool = False) -> str:
        """Return the tag of the default image or of a variant; build it if the engine lacks it or `rebuild` is set."""
        tag = default_image() if variant is None else variant_image(variant)
        if (size_mb := self._size_mb(tag)) is not None and not rebuild:
            say(f"image: {tag} ({size_mb} MB) exists")
            return tag
        started = time.monotonic()
        if self._wants_registry(source):
            self._build_from_registry(tag, variant)
        else:
            self._build_from_packages(tag, variant)
        say(f"image: {tag} ({self._size_mb(tag)} MB) built in {time.monotonic() - started:.0f} s")
        return tag

    def _size_mb(self, tag: str) -> int | None:
        try:
            return int(self._client.images.get(tag).attrs["Size"]) // 1_000_000
        except ImageNotFound:
            return None

    def _wants_registry(self, source: Source) -> bool:
        """A registry request can hang behind a firewall, so make one only on request or if the base image is local."""
        if source != "auto":
            return source == "registry"
        return self._size_mb(BASE) is not None or not _can_bootstrap()

    def _build_from_registry(self, tag: str, variant: str | None) -> None:
        say(f"building {tag} on {BASE}")
        started = time.monotonic()
        advice = "let the engine reach a registry that has the base image, or build from Debian packages: "
        advice += f"`{build_command(tag)} --from packages`{'' if _can_bootstrap() else ' as root on Debian or Ubuntu'}"
        labels = {HASH_LABEL: inputs_hash(variant=variant)}
        choice = {"VARIANT": variant} if variant else {}
        try:
            for event in self._client.api.build(
                path=str(INPUTS.resolve()),
                tag=tag,
                labels=labels,
                buildargs=choice,
                rm=True,
                forcerm=True,
                decode=True,
            ):
                if "error" in event:
                    raise SetupError(f"cannot build {tag}: {event['error'].strip()}", advice)
                line = event.get("stream", "").strip()
                if line.startswith("Step "):
                    print(f"    {time.monotonic() - started:.0f} s: {line[:90]}", flush=True)
        except DockerException as error:
            raise SetupError(f"cannot build {tag}: {error}", advice) from error

    def _build_from_packages(self, tag: str, variant: str | None) -> None:
        if not _can_bootstrap():
            raise SetupError(
                f"cannot build {tag} from packages: this needs mmdebstrap, or root on Debian or Ubuntu to install it",
                f"run it as root, or `{build_command(tag)} --from registry`",
            )
        if shutil.which("mmdebstrap") is None:
            debian.install(["mmdebstrap"])
        with tempfile.TemporaryDirectory(prefix="sandboxd-image-") as name:
            work = Path(name)
            (work / "sources.list").write_text(_host_sources())
            (work / "apt.conf").write_text(_host_network_options())
            run_step(
                f"building {tag} from packages (about a minute)",
                [
                    "sh",
                    str(INPUTS.resolve() / "bootstrap.sh"),
                    debian.release().get("VERSION_CODENAME", "stable"),
                    str(work / "sources.list"),
                    str(work / "apt.conf"),
                    str(work / "root.tar"),
                    *([variant] if variant else []),
                ],
                cannot="cannot build the root file system",
                advice="read the output above; apt's sources must be reachable",
            )
            label = f"LABEL {HASH_LABEL}={inputs_hash(variant=variant)}"
            changes = [*run_lines((INPUTS / "Dockerfile").read_text()), label]
            # From a finished file, not a pipe: an interrupted build must not become an image.
            repository, _, version = tag.partition(":")
            archive = str(work / "root.tar")
            try:
                self._client.api.import_image_from_file(archive, repository=repository, tag=version, changes=changes)
            except DockerException as error:
                raise SetupError(f"cannot import {tag}: {error}", "read the engine's log") from error


@contextmanager
def open_builder() -> Iterator[ImageBuilder]:
    """Connect to this host's engine. Raise EngineUnavailable, with the next step, if none answers."""
    address = find_address()
    if address is None:
        raise EngineUnavailable(
            "cannot build the agent image: this host has no Docker or Podman socket; install and start one of them, "
            "or serve with --engine bubblewrap, which needs no image"
        )
    try:
        environment = {**os.environ, "DOCKER_HOST": address.url}
        client = docker.from_env(environment=environment, timeout=BUILD_TIMEOUT_S)
        try:
            yield ImageBuilder(client)
        finally:
            client.close()
    except (DockerException, requests.exceptions.RequestException) as error:
        raise EngineUnavailable(
            f"cannot use the engine at {address}: {_reason(error)}; start it, or correct DOCKER_HOST"
        ) from error


def _reason(error: Exception) -> str:
    """Return the innermost cause: the SDK wraps a refused connection four times."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    system = next((c for c in reversed(causes) if isinstance(c, OSError) and c.strerror), None)
    return str(system.strerror if system is not None else error)


def _can_bootstrap() -> bool:
    return debian.is_debian() and (debian.is_root() or shutil.which("mmdebstrap") is not None)


def _host_sources() -> str:
    """Return this host's Debian or Ubuntu package sources as a sources.list, without third-party sources."""
    fields = "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)"
    command = ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]
    entries = _lines(command)
    if not entries and debian.is_root():
        debian.update()
        entries = _lines(command)
    sources: dict[str, None] = {}
    for origin, uri, suite, component in (entry.split("|") for entry in entries):
        keyring = Path(f"/usr/share/keyrings/{origin.lower()}-archive-keyring.gpg")
        if origin in {"Debian", "Ubuntu"}:
            trust = f"[signed-by={keyring}] " if keyring.exists() else ""
            sources[f"deb {trust}{uri} {suite} {component}"] = None
    if not sources:
        raise SetupError(
            "cannot find this host's package sources: apt lists none for Debian or Ubuntu", "apt-get update"
        )
    return "".join(f"{line}\n" for line in sources)


def _host_network_options() -> str:
    """Return the host's apt options for proxies and certificates: the bootstrap has its own apt configuration."""
    options = [line for line in _lines(["apt-config", "dump"]) if _NETWORK_OPTION.match(line)]
    return "".join(f"{line}\n" for line in options)


def _lines(command: Sequence[str]) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

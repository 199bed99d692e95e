"""The agent image in the engine: build it once per change of its inputs.

With a registry the Dockerfile is built; without one, the same contents come from Debian packages alone. Runs inside
the environment; never changes anything but the engine's images and, as root, the host's build tool.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import docker
from docker.errors import DockerException, ImageNotFound

from sandboxd.image import HASH_LABEL, INPUTS, REPOSITORY, default_image, inputs_hash
from scripts import debian, engine
from scripts.progress import SetupError, main, run_step, say

BASE = "debian:bookworm-slim"
# An import carries no Dockerfile: these are the lines of images/Dockerfile that are about running, not contents.
_RUN_LINE = re.compile(r"^(ENV|WORKDIR|USER|CMD)\s")
_NETWORK_OPTION = re.compile(r'^(Acquire::(http|https|Languages)\b\S*) "(.+)";$')


def run_lines(dockerfile: str) -> list[str]:
    """Return the Dockerfile's lines that say how the image runs."""
    return [line for line in dockerfile.splitlines() if _RUN_LINE.match(line)]


def _ensure(client: docker.DockerClient) -> str:
    tag = default_image()
    if (size_mb := _size_mb(client, tag)) is not None:
        say(f"image: {tag} ({size_mb} MB) is there")
        return tag
    started = time.monotonic()
    if _wants_registry(is_base_there=_size_mb(client, BASE) is not None) or not _can_bootstrap():
        _build_from_registry(client, tag)
    else:
        _build_from_packages(client, tag)
    say(f"image: {tag} ({_size_mb(client, tag)} MB) built in {time.monotonic() - started:.0f} s")
    return tag


def _size_mb(client: docker.DockerClient, tag: str) -> int | None:
    try:
        return int(client.images.get(tag).attrs["Size"]) // 1_000_000
    except ImageNotFound:
        return None


def _wants_registry(is_base_there: bool) -> bool:
    """Asking a registry can hang behind a firewall: do it when told to, or when the base needs no download."""
    told = os.environ.get("SANDBOXD_IMAGE_FROM_REGISTRY", "")
    return told == "1" or (told != "0" and is_base_there)


def _can_bootstrap() -> bool:
    return debian.is_debian() and (debian.is_root() or shutil.which("mmdebstrap") is not None)


def _build_from_registry(client: docker.DockerClient, tag: str) -> None:
    say(f"building {tag} on {BASE}")
    started = time.monotonic()
    if _can_bootstrap():
        advice = "without a registry: make image SANDBOXD_IMAGE_FROM_REGISTRY=0"
    else:
        advice = f"let the engine reach a registry that has {BASE}, or run `make image` as root on Debian or Ubuntu"
    try:
        for event in client.api.build(
            path=str(INPUTS.resolve()), tag=tag, labels={HASH_LABEL: inputs_hash()}, rm=True, forcerm=True, decode=True
        ):
            if "error" in event:
                raise SetupError(f"cannot build {tag}: {event['error'].strip()}", advice)
            line = event.get("stream", "").strip()
            if line.startswith("Step "):
                print(f"    {time.monotonic() - started:.0f} s: {line[:90]}", flush=True)
    except DockerException as error:
        raise SetupError(f"cannot build {tag}: {error}", advice) from error


def _build_from_packages(client: docker.DockerClient, tag: str) -> None:
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
            ],
            cannot="cannot build the root file system",
            advice="look at the lines above; apt's sources must be reachable",
        )
        changes = [*run_lines((INPUTS / "Dockerfile").read_text()), f"LABEL {HASH_LABEL}={inputs_hash()}"]
        # From a finished file, not a pipe: a build that breaks off must not become an image.
        repository, _, version = tag.partition(":")
        client.api.import_image_from_file(str(work / "root.tar"), repository=repository, tag=version, changes=changes)


def _host_sources() -> str:
    """Return the distribution's own sources of this host as a sources.list; third parties are left out."""
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
            "cannot find this host's package sources: apt lists none of Debian or Ubuntu", "apt-get update"
        )
    return "".join(f"{line}\n" for line in sources)


def _host_network_options() -> str:
    """Return the host's apt options on proxies and certificates: the bootstrap has an apt configuration of its own."""
    options = [line for line in _lines(["apt-config", "dump"]) if _NETWORK_OPTION.match(line)]
    return "".join(f"{line}\n" for line in options)


def _lines(command: Sequence[str]) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def ensure_in(found: engine.FoundEngine) -> str:
    """Return the default image's tag in this engine; build the image if the engine does not have it."""
    try:
        client = docker.from_env(environment={**os.environ, "DOCKER_HOST": found.address}, timeout=600)
        try:
            return _ensure(client)
        finally:
            client.close()
    except DockerException as error:
        raise SetupError(f"cannot build {REPOSITORY}: {error}", "look at the engine's log") from error


def _verb(_: Sequence[str]) -> int:
    found = engine.find()
    if found is None:
        raise SetupError(f"cannot build {REPOSITORY}: no container engine answers", "make engine")
    ensure_in(found)
    return 0


if __name__ == "__main__":
    main(_verb)

"""The plan of a bubblewrap container's file tree: where a mount goes in an image."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from sandboxd.engine.bubblewrap.rootfs import plan_rootfs
from sandboxd.engine.protocol import ContainerSpec, Mount
from sandboxd.limits import Limits


@pytest.fixture
def spec(tmp_path: Path) -> ContainerSpec:
    image, source = tmp_path / "image", tmp_path / "source"
    for directory in (image / "usr", image / "var" / "lib", source):
        directory.mkdir(parents=True)
    return ContainerSpec(
        name="one",
        image=str(image),
        command=("true",),
        uid=10001,
        gid=10001,
        labels={},
        mounts=(Mount(source, "/workspace", False), Mount(source, "/var/tmp", False)),
        limits=Limits(),
    )


def shown(spec: ContainerSpec) -> list[str]:
    """The entries of the image's top directory that the container sees."""
    arguments = plan_rootfs(spec, ready_fd=6).arguments
    return [target for source, target in pairwise(arguments) if source.startswith("/sandbox/image")]


def test_an_image_keeps_its_var_if_it_has_the_mount_point(spec: ContainerSpec) -> None:
    Path(spec.image, "var", "tmp").mkdir()
    assert shown(spec) == ["/usr", "/var"]


@pytest.mark.parametrize("place", ["missing", "link"])
def test_a_mount_never_goes_through_a_link_of_the_image_or_to_a_missing_directory(
    spec: ContainerSpec, place: str
) -> None:
    if place == "link":
        Path(spec.image, "var", "tmp").symlink_to("/etc")
    assert shown(spec) == ["/usr"]


def test_only_tmp_becomes_executable_on_request(spec: ContainerSpec) -> None:
    def temporary(spec: ContainerSpec) -> dict[str, str]:
        return {path: verb for verb, _, path in plan_rootfs(spec, ready_fd=6).steps if "tmpfs" in verb}

    assert temporary(spec) == {"sandbox/tmp": "tmpfs", "sandbox/shm": "tmpfs"}
    assert temporary(replace(spec, tmp_exec=True)) == {"sandbox/tmp": "exec_tmpfs", "sandbox/shm": "tmpfs"}

"""The default image's name follows its inputs, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sandboxd.engine.docker.answers import missing_part
from sandboxd.engine.protocol import ContainerSpec
from sandboxd.errors import InvalidRequest
from sandboxd.image import (
    INPUTS,
    build_command,
    default_image,
    image_name,
    inputs_hash,
    is_same_image,
    resolve_image,
    variant_image,
    variants,
)
from sandboxd.limits import Limits


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(INPUTS, tmp_path / "images"))


def test_name_is_the_hash_of_the_inputs() -> None:
    assert default_image() == f"sandboxd-agent:{inputs_hash()[:12]}"


def test_a_copy_of_the_inputs_has_the_same_hash(inputs: Path) -> None:
    assert inputs_hash(inputs) == inputs_hash()


def test_a_changed_byte_in_any_input_changes_the_hash(inputs: Path) -> None:
    seen = {inputs_hash(inputs)}
    names = sorted(path.name for path in inputs.iterdir() if path.is_file())
    for name in names:
        path = inputs / name
        path.write_bytes(path.read_bytes() + b"#")
        seen.add(inputs_hash(inputs))
    assert len(seen) == len(names) + 1


def test_times_and_modes_and_hidden_files_do_not_change_the_hash(inputs: Path) -> None:
    before = inputs_hash(inputs)
    os.utime(inputs / "Dockerfile", (0, 0))
    (inputs / "finish.sh").chmod(0o600)
    (inputs / ".packages.txt.swp").write_text("an editor was here")
    assert inputs_hash(inputs) == before


def test_a_line_moved_to_the_next_file_changes_the_hash(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory, a, b in ((one, "xy", "z"), (other, "x", "yz")):
        directory.mkdir()
        (directory / "a").write_text(a)
        (directory / "b").write_text(b)
    assert inputs_hash(one) != inputs_hash(other)


def test_a_directory_without_inputs_is_an_error_not_a_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot name the agent image"):
        inputs_hash(tmp_path)


def test_a_variant_has_a_name_of_its_own_that_follows_its_list_too(inputs: Path) -> None:
    before = {name: inputs_hash(inputs, name) for name in (None, *variants(inputs))}
    assert len(set(before.values())) == 3
    with (inputs / "variants" / "dev.txt").open("a") as packages:
        packages.write("cowsay\n")
    after = {name: inputs_hash(inputs, name) for name in before}
    assert {name for name in before if before[name] != after[name]} == {"dev"}


def test_a_package_of_the_default_image_is_in_every_variant(inputs: Path) -> None:
    before = {name: inputs_hash(inputs, name) for name in (None, *variants(inputs))}
    with (inputs / "packages.txt").open("a") as packages:
        packages.write("cowsay\n")
    assert not before.items() & {name: inputs_hash(inputs, name) for name in before}.items()


def test_a_request_names_a_variant_or_an_image_of_the_engine() -> None:
    assert variants() == ("dev", "interpreter")
    assert resolve_image(None, "docker") == default_image()
    assert (
        resolve_image("interpreter", "docker")
        == f"sandboxd-agent:interpreter-{inputs_hash(INPUTS, 'interpreter')[:12]}"
    )
    assert resolve_image("python:3.12", "docker") == "python:3.12"
    assert resolve_image("host", "bubblewrap") == "host"
    assert resolve_image(None, "bubblewrap") == "host"


def test_bubblewrap_explains_that_the_host_s_packages_count() -> None:
    with pytest.raises(InvalidRequest, match=r"the host's own programs: install the packages of .*interpreter\.txt"):
        resolve_image("interpreter", "bubblewrap")


def test_a_tag_says_which_image_it_is_whatever_its_version() -> None:
    assert image_name(default_image()) == "default"
    assert image_name(f"localhost/{variant_image('dev')}") == "dev"
    assert image_name("python:3.12") is None
    assert is_same_image(variant_image("dev"), "sandboxd-agent:dev-000000000000")
    assert not is_same_image(variant_image("dev"), variant_image("interpreter"))
    assert not is_same_image(default_image(), "sandboxd-agent:000000000000")


@pytest.mark.parametrize("variant", [None, *variants()])
def test_an_image_that_is_not_built_yet_is_refused_with_the_command_that_builds_it(variant: str | None) -> None:
    tag = resolve_image(variant, "docker")
    command = " ".join(filter(None, ("sandboxd image build", variant)))
    assert build_command(tag) == command
    spec = ContainerSpec("c", tag, ("python3",), 1, 1, {}, (), Limits())
    refusal = missing_part(spec, 404, f"No such image: {tag}")
    assert str(refusal) == f"cannot launch: image {tag} is not in the engine; build it with `{command}`"
    assert build_command("sandboxd-agent:dev-000000000000") is None

"""Automatic set-up: the scripts behind the Makefile and the image they build, as a new user runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from sandboxd import debian
from sandboxd.engine.docker.image_builder import run_lines
from sandboxd.image import HASH_LABEL, INPUTS, inputs_hash
from sandboxd.progress import SetupError
from scripts import engine, tools

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
STRANGER = 10002
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)


def run_as_stranger(verb: str) -> subprocess.CompletedProcess[str]:
    """Run a target as an unprivileged user, dropping rights after its imports: only root may read the checkout."""
    code = (
        "import os; from sandboxd import debian; from scripts import engine, verb; "
        f"os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER}); verb.main({verb})"
    )
    env = {name: value for name, value in os.environ.items() if name not in {"DOCKER_HOST", "XDG_RUNTIME_DIR"}}
    return run(sys.executable, "-c", code, env=env)


def assert_stops(done: subprocess.CompletedProcess[str], sentence: str, advice: str) -> None:
    """Check that it failed with one sentence and one next step, and nothing else on stderr."""
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith(f"error: {sentence}")
    assert lines[1].startswith(f"  next: {advice}")


@pytest.fixture
def in_image(docker_client: docker.DockerClient, agent_image: str) -> Iterator[Container]:
    """An idle hardened container of the agent image, for inspection."""
    container = docker_client.containers.run(
        agent_image,
        ["sleep", "infinity"],
        detach=True,
        init=True,
        network_mode="none",
        cap_drop=["ALL"],
        read_only=True,
        tmpfs={"/workspace": "uid=10001,gid=10001,mode=0755", "/tmp": "mode=1777"},
    )
    yield container
    container.remove(force=True)


def inside(container: Container, script: str, user: str = "") -> str:
    code, output = container.exec_run(["bash", "-c", script], user=user)
    assert isinstance(output, bytes)
    assert code == 0, output.decode()
    return output.decode().strip()


def test_help_lists_every_target() -> None:
    text = run("make").stdout
    for verb in ["help", "run", "demo", "engine", "image", "check", "test", "lint", "type", "bench", "clean"]:
        assert f"make {verb} " in text


def test_engine_verb_changes_nothing_when_an_engine_answers(
    engine_socket: str, docker_client: docker.DockerClient
) -> None:
    before = docker_client.info()["ID"], _engine_pid()
    done = run("make", "engine")
    assert done.returncode == 0, done.stderr
    assert engine_socket in done.stdout
    assert (docker_client.info()["ID"], _engine_pid()) == before


def _engine_pid() -> str | None:
    path = Path("/var/run/docker.pid")
    return path.read_text() if path.exists() else None


def test_image_verb_builds_nothing_when_the_image_exists(agent_image: str, docker_client: docker.DockerClient) -> None:
    before = docker_client.images.get(agent_image).id
    done = run(sys.executable, "-m", "sandboxd", "image", "build")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{agent_image}\n"
    assert "exists" in done.stderr
    assert docker_client.images.get(agent_image).id == before


def test_a_changed_input_needs_another_image_and_an_equal_copy_does_not(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(INPUTS, tmp_path / "images"))
    assert inputs_hash(copy) == inputs_hash()
    with (copy / "packages.txt").open("a") as packages:
        packages.write("cowsay\n")
    assert inputs_hash(copy) != inputs_hash()


def test_without_a_recent_python_one_sentence_names_the_next_step(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = run("/bin/sh", ROOT / "scripts" / "with-python", "-c", "pass", env={"PATH": str(tmp_path)})
    assert_stops(done, "cannot find Python 3.11 or newer", "install it")


def test_the_first_recent_enough_python_runs(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to("/bin/false")
    (tmp_path / "python3.11").symlink_to(Path(sys.executable).resolve())
    done = run("/bin/sh", ROOT / "scripts" / "with-python", "-c", "print('ran')", env={"PATH": str(tmp_path)})
    assert done.stdout == "ran\n"


@needs_root
def test_an_unprivileged_user_cannot_use_the_engine_and_sees_why(engine_socket: str) -> None:
    if engine_socket != "unix:///var/run/docker.sock":
        pytest.skip("the engine is not at the place a stranger would look first")
    done = run_as_stranger("engine._verb")
    assert_stops(done, "cannot use the engine at /var/run/docker.sock: permission denied", "sudo usermod")


@needs_root
def test_an_unprivileged_user_cannot_install_packages_and_sees_the_command() -> None:
    done = run_as_stranger("lambda _: debian.install(['bubblewrap'])")
    assert_stops(done, "cannot install bubblewrap", "sudo apt-get install --no-install-recommends bubblewrap")


@needs_root
def test_an_unprivileged_user_cannot_install_from_backports_either() -> None:
    done = run_as_stranger("lambda _: debian.install_from_backports('runsc')")
    assert_stops(done, "cannot install runsc", "sudo apt-get install --no-install-recommends runsc")


@pytest.mark.skipif(not debian.is_debian(), reason="only Debian and Ubuntu have backports")
def test_backports_come_from_the_same_source_as_the_release() -> None:
    codename = debian.release()["VERSION_CODENAME"]
    known = run("apt-get", "indextargets", "--format", "$(REPO_URI)", f"Release: {codename}").stdout.split()
    if not known:
        pytest.skip("apt has no package lists yet")
    lines = debian.backports().splitlines()
    assert lines
    assert {line.split()[-2] for line in lines} == {f"{codename}-backports"}
    assert {line.split()[-3] for line in lines} <= set(known)


def test_a_program_of_an_optional_engine_may_be_missing(tmp_path: Path) -> None:
    def refuse() -> None:
        raise SetupError("cannot install this")

    assert [reason for _, reason in tools.install_optional({"no-such-program": refuse})] == ["cannot install this"]


def test_an_unreachable_engine_in_docker_host_is_not_replaced_by_another(tmp_path: Path) -> None:
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    done = run(sys.executable, "-m", "scripts.engine", env=env)
    assert_stops(done, "cannot reach the engine that DOCKER_HOST names", "start it, or unset DOCKER_HOST")


def test_a_socket_without_a_listener_is_not_an_engine(tmp_path: Path) -> None:
    (tmp_path / "docker.sock").touch()
    assert engine.ask(f"unix://{tmp_path}/docker.sock") is None


def test_a_failed_step_shows_its_output_and_one_sentence() -> None:
    code = (
        "from sandboxd.progress import run_step; from scripts.verb import main\n"
        "main(lambda _: run_step('a step', ['sh', '-c', 'echo the reason; exit 3'], cannot='cannot step'))"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["    the reason", "error: cannot step: sh exited with 3"]


def test_requirements_pin_versions_and_contain_no_local_path() -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        lines = (ROOT / name).read_text().splitlines()
        assert lines
        assert [line for line in lines if "==" not in line or "/" in line or " " in line] == []
    runtime = set((ROOT / "requirements.txt").read_text().splitlines())
    assert runtime <= set((ROOT / "requirements-dev.txt").read_text().splitlines())


def test_the_image_has_every_tool_of_the_list(in_image: Container) -> None:
    tools = [
        "bash",
        "python",
        "python3",
        "git",
        "rg",
        "jq",
        "curl",
        "ps",
        "less",
        "patch",
        "unzip",
        "zip",
        "find",
        "grep",
        "sed",
        "gawk",
        "tar",
        "gzip",
        "xz",
        "bzip2",
        "diff",
        "file",
        "tree",
        "nano",
        "pip",
    ]
    assert inside(in_image, f"for t in {' '.join(tools)}; do command -v $t >/dev/null || echo $t; done") == ""


def test_a_virtual_environment_with_pip_is_made_offline(agent_image: str, docker_client: docker.DockerClient) -> None:
    output = docker_client.containers.run(
        agent_image,
        ["bash", "-lc", "python3 -m venv venv && venv/bin/pip --version"],
        network_mode="none",
        read_only=True,
        tmpfs={"/workspace": "uid=10001,exec", "/tmp": ""},
        remove=True,
    )
    assert b"from /workspace/venv/" in output


def test_no_file_in_the_image_gains_privileges_when_executed(in_image: Container) -> None:
    assert inside(in_image, "find / -xdev -perm /6000", user="0") == ""
    capabilities = (
        "import os\n"
        "for d, _, names in os.walk('/usr'):\n"
        "    for p in (os.path.join(d, n) for n in names):\n"
        "        if 'security.capability' in os.listxattr(p, follow_symlinks=False): print(p)"
    )
    assert inside(in_image, f'python3 -I -c "{capabilities}"', user="0") == ""


def test_the_image_runs_as_the_agent(in_image: Container) -> None:
    assert inside(in_image, "id -un; id -u; id -g; echo $HOME; pwd").split() == [
        "agent",
        "10001",
        "10001",
        "/workspace",
        "/workspace",
    ]


def test_a_login_shell_starts_no_extra_process(in_image: Container) -> None:
    # Pids are assigned in order: three shells with no process between them have consecutive pids.
    script = "for i in 1 2 3; do bash -lc 'echo $$'; done"
    first, second, third = map(int, inside(in_image, script).split())
    assert (second - first, third - second) == (1, 1)


def test_git_commits_in_the_workspace_without_a_configured_identity(
    in_image: Container,
) -> None:
    script = "git init -q r && cd r && echo a > a && git add a && git commit -qm one && git log --format=%an:%s"
    assert inside(in_image, script) == "agent:one"


def test_python_starts_isolated_and_finds_its_library_compiled(in_image: Container) -> None:
    code = "import json, os; print(os.path.exists(json.__cached__))"
    assert inside(in_image, f'python3 -I -S -c "{code}"') == "True"


def test_the_image_contains_nothing_of_the_machine_that_built_it(in_image: Container) -> None:
    assert inside(in_image, "cat /etc/machine-id; ls -d /etc/apt /var/lib/apt 2>/dev/null || true") == ""


def test_the_image_carries_the_hash_of_its_inputs(agent_image: str, docker_client: docker.DockerClient) -> None:
    assert docker_client.images.get(agent_image).labels[HASH_LABEL] == inputs_hash()


def test_a_variant_has_everything_of_the_default_image_and_its_own_packages(
    interpreter_image: str, docker_client: docker.DockerClient
) -> None:
    assert docker_client.images.get(interpreter_image).labels[HASH_LABEL] == inputs_hash(variant="interpreter")
    script = "command -v rg && python3 -c 'import ipykernel, matplotlib.pyplot, numpy, pandas' && id -un"
    output = docker_client.containers.run(
        interpreter_image, ["bash", "-lc", script], network_mode="none", read_only=True, tmpfs={"/tmp": ""}, remove=True
    )
    assert output.decode().split() == ["/usr/bin/rg", "agent"]


def test_an_import_runs_as_the_dockerfile_says() -> None:
    lines = run_lines((INPUTS / "Dockerfile").read_text())
    assert [line.split()[0] for line in lines] == ["ENV", "WORKDIR", "USER", "CMD"]

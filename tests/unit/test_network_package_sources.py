"""The package sources of a host: what its tools answer, with no secret left in what a container gets."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from sandboxd.network.package_sources import PackageSources, SourceLogin, read_package_sources
from sandboxd.network.rules import EgressRule

pytestmark = pytest.mark.anyio

DEFAULTS = "https://default.example/simple default.example files.example"
SECRET = "hunter2"


class Tools:
    """A PATH with scripts as tools, each of which answers by its arguments."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, name: str, script: str) -> None:
        path = self._directory / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def add_pip(self, *lines: str, defaults: str = DEFAULTS) -> None:
        self.add(
            "python3",
            f'[ "$1" = -c ] && echo {shlex.quote(defaults)} && exit\n'
            f'[ "$*" = "-m pip config list" ] || exit 64\n{_printing(*lines)}',
        )

    def add_npm(self, settings: Mapping[str, object]) -> None:
        self.add("npm", f'[ "$1 $2" = "config ls" ] || exit 64\n{_printing(json.dumps(settings))}')

    def add_apt(self, *urls: str, options: str = "") -> None:
        self.add("apt-get", f'[ "$1" = indextargets ] || exit 64\n{_printing(*urls)}')
        self.add("apt-config", f'[ "$1" = dump ] || exit 64\n{_printing(options)}')

    async def read(self, deadline_s: float = 60, **env: str) -> PackageSources:
        return await read_package_sources(
            {"PATH": str(self._directory), **env}, interpreters=("python3",), deadline_s=deadline_s
        )


def _printing(*lines: str) -> str:
    return f"while IFS= read -r line; do printf '%s\\n' \"$line\"; done <<'END'\n{chr(10).join(lines)}\nEND"


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    directory = tmp_path / "bin"
    directory.mkdir()
    return Tools(directory)


def allowed(sources: PackageSources) -> list[str]:
    return [rule.text for rule in sources.rules]


async def test_a_host_without_tools_has_no_sources(tools: Tools) -> None:
    sources = await tools.read()
    assert (sources.rules, dict(sources.env), sources.problems) == ((), {}, ())


async def test_an_interpreter_without_pip_is_skipped(tools: Tools) -> None:
    tools.add_pip(defaults="")
    assert await tools.read() == PackageSources(env={})


async def test_pip_that_is_set_to_nothing_uses_its_own_default_and_the_host_of_its_files(tools: Tools) -> None:
    tools.add_pip()
    sources = await tools.read()
    assert sources.rules == (
        EgressRule("default.example", 443, private=True),
        EgressRule("files.example", 443, private=True),
    )
    assert sources.env == {"PIP_INDEX_URL": "https://default.example/simple"}
    assert sources.problems == ()


async def test_a_mirror_replaces_the_default(tools: Tools) -> None:
    tools.add_pip(
        "global.index-url='http://mirror.corp.example:8081/simple'",
        "global.extra-index-url='\\nhttps://more.corp.example/a/\\nhttps://more.corp.example/b/'",
        "global.trusted-host='Mirror.corp.example elsewhere.example'",
        "global.cert='/etc/corp/ca.pem'",
    )
    sources = await tools.read()
    assert allowed(sources) == ["mirror.corp.example:8081", "more.corp.example:443"]
    assert all(rule.private for rule in sources.rules)
    assert sources.env == {
        "PIP_INDEX_URL": "http://mirror.corp.example:8081/simple",
        "PIP_EXTRA_INDEX_URL": "https://more.corp.example/a/ https://more.corp.example/b/",
        "PIP_TRUSTED_HOST": "Mirror.corp.example",
    }
    assert sources.ca_files == (Path("/etc/corp/ca.pem"),)


async def test_the_environment_wins_over_the_section_install_and_that_over_global(tools: Tools) -> None:
    lines = [
        "install.index-url='https://install.example/simple'",
        "global.index-url='https://global.example/simple'",
        "download.index-url='https://download.example/simple'",
        "WARNING: something = else",
    ]
    tools.add_pip(*lines)
    assert allowed(await tools.read()) == ["install.example:443"]
    tools.add_pip(":env:.index-url='https://env.example/simple'", *lines)
    assert allowed(await tools.read()) == ["env.example:443"]


async def test_local_indexes_are_left_out(tools: Tools) -> None:
    tools.add_pip(
        "global.index-url='file:///srv/simple'",
        "global.extra-index-url='/srv/more https://extra.example/simple'",
        "global.find-links='/opt/wheels https://links.example/wheels/'",
    )
    sources = await tools.read()
    assert allowed(sources) == ["extra.example:443", "links.example:443"]
    assert sources.env == {
        "PIP_INDEX_URL": "https://extra.example/simple",
        "PIP_FIND_LINKS": "https://links.example/wheels/",
    }
    assert sources.problems == ()


async def test_a_pip_without_an_index_uses_only_its_links(tools: Tools) -> None:
    tools.add_pip("global.no-index='true'", "global.find-links='https://links.example/wheels/'")
    sources = await tools.read()
    assert allowed(sources) == ["links.example:443"]
    assert sources.env == {"PIP_FIND_LINKS": "https://links.example/wheels/", "PIP_NO_INDEX": "1"}


async def test_a_pip_that_does_not_tell_its_default_is_a_problem_unless_an_index_is_set(tools: Tools) -> None:
    tools.add_pip(defaults="unknown")
    sources = await tools.read()
    assert sources.rules == ()
    assert ["default index" in problem for problem in sources.problems] == [True]
    tools.add_pip("global.index-url='https://mirror.example/simple'", defaults="unknown")
    sources = await tools.read()
    assert (allowed(sources), sources.problems) == (["mirror.example:443"], ())


async def test_npm_tells_its_registry_and_those_of_scopes(tools: Tools) -> None:
    tools.add_npm(
        {
            "registry": "https://npm.example/repo/",
            "@acme:registry": "http://npm.acme.example:4873/",
            "cafile": "/etc/corp/npm.pem",
            "ca": None,
            "omit-lockfile-registry-resolved": False,
        }
    )
    sources = await tools.read()
    assert allowed(sources) == ["npm.example:443", "npm.acme.example:4873"]
    assert sources.env == {
        "NPM_CONFIG_REGISTRY": "https://npm.example/repo/",
        "npm_config_@acme:registry": "http://npm.acme.example:4873/",
    }
    assert sources.ca_files == (Path("/etc/corp/npm.pem"),)


async def test_a_registry_that_npm_hides_is_a_problem(tools: Tools) -> None:
    tools.add_npm({"cafile": None})
    (problem,) = (await tools.read()).problems
    assert "npm" in problem
    assert "password" in problem


@pytest.mark.parametrize("answer", ["not JSON", "[]", "[" * 100_000])
async def test_an_answer_of_npm_that_is_not_an_object_is_a_problem(tools: Tools, answer: str) -> None:
    tools.add("npm", _printing(answer))
    assert (await tools.read()).problems == ("cannot ask npm for its registries: it did not print a JSON object",)


async def test_apt_tells_its_sources(tools: Tools) -> None:
    tools.add_apt(
        "http://deb.example/debian/",
        "http://deb.example/debian-security/",
        "https://apt.corp.example:8443/stable/",
        "file:/srv/apt/",
        "cdrom:[Debian]/",
        options="Acquire::https::CaInfo=/etc/corp/apt.pem\nAcquire::https::Verify-Peer=true",
    )
    sources = await tools.read()
    assert allowed(sources) == ["deb.example:80", "apt.corp.example:8443"]
    assert dict(sources.env) == {}
    assert sources.ca_files == (Path("/etc/corp/apt.pem"),)


async def test_secrets_in_urls_are_returned_apart_and_shown_nowhere(tools: Tools) -> None:
    tools.add_pip(
        f"global.index-url='https://us%40er:{SECRET}%21@pip.example/simple?token={SECRET}#{SECRET}'",
        f"global.extra-index-url='https://{SECRET}@[2001:db8::1]:8443/simple'",
        f"global.find-links='https://u:{SECRET}@bad..host/ http://u:{SECRET}@links.example:8081/'",
    )
    tools.add_npm(
        {
            "registry": f"https://u:{SECRET}@npm.example/",
            f"//npm.example/:_authToken={SECRET}": SECRET,
            "//npm.example/:_authToken": SECRET,
            "_auth": SECRET,
        }
    )
    tools.add_apt(f"https://u:{SECRET}@apt.example/debian/", f"https://u:{SECRET}@apt.example:port/debian/")
    sources = await tools.read()
    assert sources.env == {
        "PIP_INDEX_URL": "https://pip.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://[2001:db8::1]:8443/simple",
        "PIP_FIND_LINKS": "http://links.example:8081/",
        "NPM_CONFIG_REGISTRY": "https://npm.example/",
    }
    assert sources.logins == (
        SourceLogin("pip.example", 443, "us@er", f"{SECRET}!"),
        SourceLogin("2001:db8::1", 8443, SECRET, ""),
        SourceLogin("links.example", 8081, "u", SECRET, is_tls=False),
        SourceLogin("npm.example", 443, "u", SECRET),
        SourceLogin("apt.example", 443, "u", SECRET),
    )
    assert [problem.split(":")[0] for problem in sources.problems] == [
        "cannot allow a package source of pip",
        "cannot allow a package source of apt",
    ]
    assert SECRET not in repr(sources)


async def test_a_tool_that_fails_is_a_problem_and_the_others_count(tools: Tools) -> None:
    tools.add_pip()
    tools.add("npm", f"echo {SECRET}; echo {SECRET} >&2; exit 3")
    tools.add_apt("http://deb.example/debian/")
    sources = await tools.read()
    assert sources.problems == ("cannot ask npm for its registries: it ended with 3",)
    assert allowed(sources) == ["default.example:443", "files.example:443", "deb.example:80"]


async def test_a_tool_that_cannot_be_started_is_a_problem(tools: Tools, tmp_path: Path) -> None:
    tools.add("npm", "")
    (tmp_path / "bin/npm").write_text("#!/does/not/exist\n")
    (problem,) = (await tools.read()).problems
    assert problem.startswith("cannot ask npm for its registries: it cannot be started")


async def test_a_tool_that_prints_without_end_is_stopped(tools: Tools) -> None:
    tools.add("npm", "while :; do echo 'a line without an end and without a meaning'; done")
    (problem,) = (await tools.read()).problems
    assert problem == "cannot ask npm for its registries: it printed more than 1048576 bytes"


async def test_a_tool_that_hangs_is_a_problem(tools: Tools) -> None:
    tools.add("npm", "exec /bin/sleep 1000")
    (problem,) = (await tools.read(deadline_s=0.2)).problems
    assert problem == "cannot ask npm for its registries: it did not end within 0.2 s"


async def test_a_tool_ends_with_its_children_when_nobody_waits_for_it(tools: Tools, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    tools.add("npm", f"/bin/sleep 1000 &\necho $$ $! > {pids}\nwait")
    async with anyio.create_task_group() as caller:
        caller.start_soon(tools.read)
        written = await anyio.to_thread.run_sync(pids.read_text)
        ends = [os.pidfd_open(int(pid)) for pid in written.split()]
        caller.cancel_scope.cancel()
    assert len(ends) == 2
    for end in ends:
        with anyio.fail_after(60):
            await anyio.wait_readable(end)
        os.close(end)


async def test_the_real_tools_of_this_machine_answer_in_the_expected_shape() -> None:
    sources = await read_package_sources(deadline_s=60)
    assert all(rule.port and rule.private and "*" not in rule.host for rule in sources.rules)
    hosts = {rule.host for rule in sources.rules}
    for name, value in sources.env.items():
        assert name.lower().startswith(("pip_", "npm_config_"))
        assert "@" not in value
        if name == "PIP_INDEX_URL":
            assert any(host in value for host in hosts)
    assert all(path.is_absolute() for path in sources.ca_files)
    assert not any("\n" in problem for problem in sources.problems)


async def test_a_real_pip_is_asked_with_its_own_configuration(tmp_path: Path) -> None:
    configuration = tmp_path / "pip.conf"
    configuration.write_text("[global]\nindex-url = https://user:pass@index.corp.example/simple\n")
    env = {"PATH": "", "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(configuration)}
    sources = await read_package_sources(env, interpreters=(sys.executable,), deadline_s=60)
    assert EgressRule("index.corp.example", 443, private=True) in sources.rules
    assert sources.env["PIP_INDEX_URL"] == "https://index.corp.example/simple"
    assert SourceLogin("index.corp.example", 443, "user", "pass") in sources.logins

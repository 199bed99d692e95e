"""The how-to on the network, run against a daemon exactly as written, with a package index on loopback."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.network.access import check_options
from sandboxd.network_settings import NetworkOptions
from tests.origin_servers import OriginServers
from tests.running import RunningDaemon
from tests.tour import console_steps, run_step

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "network.md"


@pytest.fixture
def daemon(tmp_path: Path, engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    with OriginServers(tmp_path, "pypi.test") as origin:
        running = RunningDaemon(image=agent_image, network=json.dumps({"hosts": {"pypi.test": ["127.0.0.1"]}}))
        environment = {
            "SSL_CERT_FILE": str(origin.ca_file),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"https://pypi.test:{origin.port}/simple/",
        }
        try:
            yield running.start(environment=environment)
        finally:
            running.stop()


@pytest.mark.engine
def test_the_commands_of_the_page_print_what_the_page_shows(daemon: RunningDaemon) -> None:
    steps = console_steps(PAGE.read_text())
    assert len(steps) == 4
    for command, shown in steps:
        assert run_step(command, daemon) == shown, command


def test_the_settings_of_the_page_are_valid_together() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    options = NetworkOptions.model_validate(tomllib.loads("\n".join(blocks))["network"])
    check_options(options)
    assert set(options.credentials) == {"github", "github-clone"}

"""langchain-tests: its standard suite for a sandbox of Deep Agents."""

from __future__ import annotations

import pytest
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_tests.integration_tests import SandboxIntegrationTests

from sandboxd.client import Client
from tests.suites.adapters.deepagents_sandbox import SandboxdBackend


class TestSandboxdBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, client: Client, session: str) -> SandboxBackendProtocol:
        return SandboxdBackend(client, session)

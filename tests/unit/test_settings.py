"""Settings: an unknown name is refused, an invalid value names its source, and the help lists all settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxd.cli.serve import serve
from sandboxd.errors import InvalidRequest
from sandboxd.settings import Settings, read_settings
from sandboxd.settings_sources import OTHER_VARIABLES, setting_names


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither variables nor files of this machine: one file that a test may write."""
    for name in os.environ:
        if name.upper().startswith("SANDBOXD_"):
            monkeypatch.delenv(name)
    path = tmp_path / "sandboxd.toml"
    path.touch()
    monkeypatch.setenv("SANDBOXD_CONFIG", str(path))
    return path


def refusal(**options: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_settings(**options)
    return str(caught.value)


def test_an_option_wins_over_a_variable_over_a_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('pool = 3\ndrain_s = 4\nlog_level = "debug"\n[limits]\nmemory_mb = 64\n')
    monkeypatch.setenv("SANDBOXD_POOL", "5")
    monkeypatch.setenv("sandboxd_drain_s", "6")
    settings = read_settings(pool=7)
    assert (settings.pool, settings.drain_s, settings.log_level, settings.limits.memory_mb) == (7, 6, "debug", 64)


@pytest.mark.parametrize(
    ("variable", "suggested"),
    [
        ("SANDBOXD_POL", "SANDBOXD_POOL"),
        ("SANDBOXD_LIMIT__MEMORY_MB", "SANDBOXD_LIMITS__MEMORY_MB"),
        ("SANDBOXD_LIMITS__MEMRY_MB", "SANDBOXD_LIMITS__MEMORY_MB"),
        ("SANDBOXD_MEMORY_MB", "SANDBOXD_LIMITS__MEMORY_MB"),
        ("SANDBOXD_CONSOLIDATION__IDLE", "SANDBOXD_CONSOLIDATION__IDLE_S"),
        ("SANDBOXD_POOL__SIZE", "SANDBOXD_POOL"),
    ],
)
def test_a_variable_that_is_not_a_setting_suggests_one(
    variable: str, suggested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    assert refusal() == f"cannot use {variable}: there is no such setting; did you mean {suggested}?"


def test_a_name_without_a_near_match_points_to_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXD_CONSOLIDATION__XYZZY", "1")
    assert refusal().endswith("there is no such setting; `sandboxd serve --help` lists the settings")


def test_variables_of_clients_runners_and_tests_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (*OTHER_VARIABLES, "SANDBOXD_TEST_ANYTHING"):
        monkeypatch.setenv(variable, "1")
    assert read_settings().pool == Settings.model_fields["pool"].default


@pytest.mark.parametrize(
    ("text", "name", "suggested"),
    [
        ("pol = 3", "pol", "pool"),
        ("POOL = 3", "POOL", "pool"),
        ("[limits]\nmemry_mb = 3", "limits.memry_mb", "limits.memory_mb"),
        ("[limit]\nmemory_mb = 3", "limit", "limits"),
        ("memory_mb = 3", "memory_mb", "limits.memory_mb"),
    ],
)
def test_a_key_that_is_not_a_setting_suggests_one(config: Path, text: str, name: str, suggested: str) -> None:
    config.write_text(text)
    assert refusal() == f"cannot use {name} in {config}: there is no such setting; did you mean {suggested}?"


def test_an_invalid_value_names_its_source(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("[limits]\nmemory_mb = 1\n")
    assert refusal() == f"cannot use limits.memory_mb in {config}: it must be greater than or equal to 32"
    config.write_text("limits = 3\n")
    assert refusal() == f"cannot use limits in {config}: it must be a table of settings"
    monkeypatch.setenv("SANDBOXD_POOL", "many")
    monkeypatch.setenv("SANDBOXD_LIMITS", '{"cpus": "all"}')
    assert refusal() == "cannot use SANDBOXD_POOL='many': it must be a valid integer"
    assert refusal(pool=1) == """cannot use SANDBOXD_LIMITS='{"cpus": "all"}': it must be a valid number"""
    assert refusal(pool=-1) == "cannot use --pool -1: it must be greater than or equal to 0"


@pytest.mark.parametrize("raw", [b"pool = = 3", b"\xff"])
def test_a_file_that_cannot_be_read_is_named(config: Path, raw: bytes) -> None:
    config.write_bytes(raw)
    assert refusal().startswith(f"cannot read the settings file {config}: ")


def test_the_help_of_serve_names_every_setting() -> None:
    options = {name for name in serve.__annotations__ if name != "json"}
    hidden = {"config", "failpoint"}  # one is set by SANDBOXD_CONFIG, the other is for tests
    top = {name for name in setting_names(Settings) if "." not in name}
    assert serve.__doc__ is not None
    words = set(serve.__doc__.replace(",", " ").split())
    assert top - options - hidden - words == set()
    assert "postgresql" not in str(serve.__annotations__["store"])


def test_tokens_name_a_model_or_an_encoding(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    settings = read_settings(data=tmp_path, tokens="openai/gpt-4o", token_tables=tables, token_download=False)
    assert settings.make_counter().encoding == "o200k_base"
    assert read_settings(data=tmp_path).make_counter().encoding == "estimate"
    with pytest.raises(InvalidRequest, match="cannot count tokens of my-model"):
        read_settings(data=tmp_path, tokens="my-model")

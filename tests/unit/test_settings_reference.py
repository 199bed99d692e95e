"""docs/settings.md is what the settings model says, and every setting is described."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from sandboxd.consolidation_settings import ConsolidationOptions
from sandboxd.history_settings import HistoryOptions
from sandboxd.limits import Limits
from sandboxd.settings import Settings
from sandboxd.wire_limits import WireLimits
from scripts.settings_reference import HIDDEN, TARGET, describe_fields, render


def test_the_settings_reference_matches_the_settings_model() -> None:
    assert TARGET.read_text(encoding="utf-8") == render(), "run `.venv/bin/python -m scripts.settings_reference`"


@pytest.mark.parametrize("model", [Settings, Limits, WireLimits, ConsolidationOptions, HistoryOptions])
def test_every_setting_has_a_description(model: type[BaseModel]) -> None:
    assert [name for name, text in describe_fields(model).items() if not text and name not in HIDDEN] == []


def test_the_reference_names_every_setting_in_a_table_by_its_variable() -> None:
    page = render()
    assert "`SANDBOXD_LIMITS__MEMORY_MB`" in page
    assert "`SANDBOXD_WIRE__KEEP_ALIVE_S`" in page
    assert "`SANDBOXD_CONSOLIDATION__SUMMARISER`" in page

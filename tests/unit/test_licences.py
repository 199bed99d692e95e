"""The licence check finds copyleft and missing licences in any field that packages use, and nothing else."""

from __future__ import annotations

from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from scripts.licences import REVIEWED, missing, problems


def installed(place: Path, **metadata_by_name: str) -> list[Distribution]:
    """Write made-up packages the way pip installs them, and read them back."""
    for name, metadata in metadata_by_name.items():
        directory = place / f"{name}-1.0.dist-info"
        directory.mkdir()
        (directory / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{metadata}\n")
    return list(distributions(path=[str(place)]))


@pytest.mark.parametrize(
    "metadata",
    [
        "License-Expression: GPL-2.0-or-later",
        "License-Expression: MIT AND LGPL-3.0-only",
        "License-Expression: AGPL-3.0-only",
        "License: GNU General Public Licence v3",
        "License: LGPLv2+",
        "Classifier: License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)",
        "Classifier: License :: OSI Approved :: GNU Affero General Public License v3",
        "License: MIT\nClassifier: License :: OSI Approved :: GNU General Public License v2 (GPLv2)",
        "License-Expression: SSPL-1.0",
        "License-Expression: EUPL-1.2",
        "License-Expression: CC-BY-NC-SA-4.0",
        "License: A licence of our own\n        that includes the\n        GNU GPL version 2",
    ],
)
def test_a_copyleft_licence_in_any_field_is_found(metadata: str, tmp_path: Path) -> None:
    (problem,) = problems(installed(tmp_path, viral=metadata))
    assert problem.startswith("viral 1.0 declares a copyleft licence: ")


@pytest.mark.parametrize("metadata", ["", "License: UNKNOWN", "License:", "Classifier: License :: OSI Approved"])
def test_a_package_that_declares_no_licence_is_found(metadata: str, tmp_path: Path) -> None:
    assert problems(installed(tmp_path, silent=metadata)) == ["silent 1.0 declares no licence"]


@pytest.mark.parametrize(
    "metadata",
    [
        "License-Expression: Apache-2.0 OR BSD-2-Clause",
        "License: MPL-2.0",
        "License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License",
        "Classifier: License :: OSI Approved :: ISC License (ISCL)",
        "License: BSD-3-Clause\nSummary: reads GPL files",
    ],
)
def test_a_permissive_licence_passes(metadata: str, tmp_path: Path) -> None:
    assert problems(installed(tmp_path, free=metadata)) == []


def test_a_choice_that_includes_copyleft_needs_a_review(tmp_path: Path) -> None:
    packages = installed(tmp_path, Dual_Licensed="License-Expression: MIT OR GPL-2.0-only")
    assert len(problems(packages)) == 1
    assert problems(packages, reviewed={"dual-licensed": "we take MIT"}) == []


def test_a_pinned_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    packages = installed(tmp_path, there="License: MIT")
    assert missing("There==1.0\nnot-there==2.0\n", packages) == ["not-there"]


def test_every_reviewed_package_is_installed_and_needs_its_entry() -> None:
    found = " ".join(problems(distributions(), reviewed={}))
    assert [name for name in REVIEWED if name not in found] == []

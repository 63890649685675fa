"""Everything is computed as it was recorded, to the bit: decodings, generated text, trainings, studies and ``unmask verify``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from golden.golden import GROUPS, RECORD, computed, probe

pytestmark = pytest.mark.usefixtures("unchecked")
STORED: dict[str, Any] = json.loads(RECORD.read_text())


@pytest.fixture(scope="module", autouse=True)
def same_arithmetic() -> None:
    if probe() != STORED["probe"]:
        pytest.skip(
            f"floating point differs from the machine of the record ({STORED['recorded with']}): record anew on the commit that "
            "is trusted, with make golden, and compare with that"
        )


def test_every_group_is_recorded() -> None:
    assert list(STORED["groups"]) == list(GROUPS)


PARTLY = 5
"""Every so many entries of a group are computed where not all are: prime to the lengths of most lists that are crossed."""


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_has_changed_in_a_part(group: str, tmp_path: Path) -> None:
    found, expected = computed(group, tmp_path, PARTLY), STORED["groups"][group]
    wrong = [name for name in found if found[name] != expected.get(name)]
    assert found and not wrong, f"{group}: {len(wrong)} of {len(found)} entries differ\n" + "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_nothing_has_changed(group: str, tmp_path: Path) -> None:
    found, expected = computed(group, tmp_path), STORED["groups"][group]
    changed = [name for name in expected if name in found and found[name] != expected[name]]
    lost, new = [name for name in expected if name not in found], [name for name in found if name not in expected]
    differences = [
        f"{kind}: {name}" for kind, names in (("changed", changed), ("lost", lost), ("new", new)) for name in names
    ]
    assert not differences, f"{group}: {len(differences)} of {len(expected)} entries differ\n" + "\n".join(differences)

"""Everything is computed as it was recorded, to the bit: decodings, generated text, trainings, studies and ``unmask verify``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from golden.golden import GROUPS, RECORD, Entries, Records, computed, probe, record

STORED: Records = json.loads(RECORD.read_text())


@pytest.fixture(scope="module")
def groups(unchecked: None) -> dict[str, Entries]:
    """The entries of each group on a processor of this kind."""
    here = probe()
    if here not in STORED:
        known = "; ".join(stored["recorded with"] for stored in STORED.values())
        pytest.skip(
            f"floating point differs from the machines of the records ({known}; this one: probe {here}): record anew on the commit "
            "that is trusted, with make golden, and compare with that"
        )
    return STORED[here]["groups"]


def test_every_group_is_recorded_for_every_processor() -> None:
    for stored in STORED.values():
        assert list(stored["groups"]) == list(GROUPS)


def test_entries_that_change_leave_the_records_of_other_processors() -> None:
    records = {name: {"groups": {"boards": {"a": f"{name} 1", "b": f"{name} 2"}}} for name in ("here", "there")}
    record(records, "here", "boards", {"a": "here 1", "b": "here 3", "c": "here 4"})
    assert records["here"]["groups"]["boards"] == {"a": "here 1", "b": "here 3", "c": "here 4"}
    assert records["there"]["groups"]["boards"] == {"a": "there 1"}


def compare(group: str, found: Entries, expected: Entries) -> list[str]:
    """What differs. An entry that this processor's record lacks must be in that of another, where it was recorded last."""
    elsewhere = {name for stored in STORED.values() for name in stored["groups"][group]}
    changed = [f"changed: {name}" for name in found if name in expected and found[name] != expected[name]]
    return changed + [f"new: {name}" for name in found if name not in elsewhere]


PARTLY = 5
"""Every so many entries of a group are computed where not all are: prime to the lengths of most lists that are crossed."""


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_has_changed_in_a_part(group: str, groups: dict[str, Entries], tmp_path: Path) -> None:
    found = computed(group, tmp_path, PARTLY)
    wrong = compare(group, found, groups[group])
    assert found and not wrong, f"{group}: {len(wrong)} of {len(found)} entries differ\n" + "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_nothing_has_changed(group: str, groups: dict[str, Entries], tmp_path: Path) -> None:
    found, expected = computed(group, tmp_path), groups[group]
    wrong = compare(group, found, expected) + [f"lost: {name}" for name in expected if name not in found]
    assert not wrong, f"{group}: {len(wrong)} of {len(expected)} entries differ\n" + "\n".join(wrong)

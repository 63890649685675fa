"""The environment that is set before torch loads, and what is not overwritten."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from unmask.runs.threads import SPINS


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_spins_are_bounded_unless_the_environment_sets_them(given: dict[str, str], spins: str | None) -> None:
    """The variable is there before torch is loaded: later, OpenMP would not read it."""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    script = (
        "import os, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            print(os.environ.get('GOMP_SPINCOUNT'))\n"
        "            raise SystemExit\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import unmask\n"
        "unmask.unmask\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=clean | given, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str(spins)

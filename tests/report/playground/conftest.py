from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.playground import serving
from unmask.report.playground.server import Playground


@pytest.fixture
def server() -> Iterator[Playground]:
    with serving() as running:
        yield running

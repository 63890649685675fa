"""Presets that differ in a few values, as the rows of one TOML file.

    [[group]]
    description = "GSM8K, 5-shot"
    task = "gsm8k"
    rows = [{ name = "gsm8k-256-64", description = "256 tokens, blocks of 64", answers = { length = 256, decoding.block = 64 } }]

Each row is a preset with the values of its group; where both have a table, the row changes only the keys it names. The two
descriptions are joined.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

Table = dict[str, Any]


def read_preset_rows(path: Path, merge: Callable[[Table, Table], Table]) -> list[tuple[str, str, Table]]:
    """(name, description, values) of each row; none where the file is a single preset. ``merge`` lays a table over another."""
    if b"\n[[group]]" not in path.read_bytes():
        return []
    found = []
    for group in tomllib.loads(path.read_text("utf-8"))["group"]:
        shared = {key: value for key, value in group.items() if key not in ("rows", "description")}
        for row in group["rows"]:
            values = {key: value for key, value in row.items() if key not in ("name", "description")}
            found.append((row["name"], f"{group['description']}, {row['description']}", merge(shared, values)))
    return found

"""What a learned order costs in decoding (tab:inference_cost): the parts of a step, timed in turns, and their arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unmask_studies.bench.policy_cost import PAPER, PolicyCost, policy_cost
from unmask_studies.study import Cell, Findings, Piece, Table

PIECE = "what a policy adds to a step"
SHORT = {"weights of the policy over the backbone's": "weights"}
"""What the figure says for it."""


@dataclass(frozen=True)
class Cost:
    """The policy beside ``backbones`` of LLaDA's block, measured; beside LLaDA-8B itself, computed."""

    minutes: float = 0.0
    backbones: PolicyCost = field(default_factory=PolicyCost)
    seed: int = 0

    def pieces(self, folder: Path) -> list[Piece]:
        return [Piece(PIECE, lambda: {"found": [asdict(one) for one in policy_cost(self.backbones)]})]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        found = [one for one in results[PIECE]["found"] if not one["what"].startswith("the paper")]
        rows: list[list[Cell | str]] = []
        panels: dict[str, list[drawing.Point]] = {}
        for one in found:
            what, _, backbone = str(one["what"]).rpartition(": ")
            low, high = (one["value"] if one[key] is None else one[key] for key in ("low", "high"))
            spread = "" if one["low"] is None else f" [{low:.2f}, {high:.2f}]"
            llada = backbone == "LLaDA-8B" and "any order" in what
            rows.append([one["what"], f"{one['value']:.2f}{spread}", str(one["n"]), f"{PAPER}" if llada else ""])
            point = drawing.Point(SHORT.get(what, what), one["value"], low, high, paper=PAPER if llada else None)
            panels.setdefault(backbone.replace(", ", ",\n"), []).append(point)
        note = (
            "Medians and spread of interleaved rounds of CPU time; what is computed from FLOPs has one. The paper: whole decodings "
            "of GSM8K, 128 tokens, LLaDA-8B."
        )
        shape = self.backbones
        title = f"What a policy adds to a decoding step: {shape.prompt} given and {shape.length} generated tokens, %"
        table = Table(title, ["part", "added, %", "rounds", "paper"], rows, note)
        return Findings([table], {"cost": drawing.intervals(panels, "a policy adds, %")})

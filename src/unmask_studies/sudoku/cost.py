"""What a learned policy costs in decoding (tab:inference_cost): the parts of a step, timed alternately, and their FLOPs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from unmask.report import figures
from unmask_studies.bench.policy_cost import PAPER, PolicyCost, measure_policy_cost
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Table, TableRow

SHORT = {"weights of the policy over the backbone's": "weights"}
"""Its name in the figure."""


@dataclass(frozen=True)
class Cost(GridStudy):
    """The policy beside ``backbones`` of LLaDA's block, measured; beside LLaDA-8B itself, computed."""

    backbones: PolicyCost = field(default_factory=PolicyCost)
    seed: int = 0

    def axes(self) -> Axes:
        return (["policy cost"],)

    def measure(self, key: Key, folder: Path) -> Result:
        return {"found": [asdict(one) for one in measure_policy_cost(self.backbones)]}

    def findings(self, results: Results) -> Findings:
        rows: list[TableRow] = []
        panels: dict[str, list[figures.Point]] = {}
        for one in results["policy cost",]["found"]:
            if one["what"].startswith("the paper"):
                continue
            what, _, backbone = str(one["what"]).rpartition(": ")
            low, high = (one["value"] if one[key] is None else one[key] for key in ("low", "high"))
            spread = "" if one["low"] is None else f" [{low:.2f}, {high:.2f}]"
            paper = PAPER if backbone == "LLaDA-8B" and "any order" in what else None
            rows.append(
                {
                    "part": one["what"],
                    "added, %": f"{one['value']:.2f}{spread}",
                    "rounds": str(one["n"]),
                    "paper": "" if paper is None else f"{paper}",
                }
            )
            point = figures.Point(SHORT.get(what, what), one["value"], low, high, paper=paper)
            panels.setdefault(backbone.replace(", ", ",\n"), []).append(point)
        note = (
            "Medians and spread of interleaved rounds of CPU time; numbers computed from FLOPs have one. The paper: whole "
            "decodings of GSM8K, 128 tokens, LLaDA-8B."
        )
        shape = f"{self.backbones.prompt} given and {self.backbones.length} generated tokens"
        table = Table.of(f"What a policy adds to a decoding step: {shape}, %", rows, note)
        return Findings([table], {"cost": figures.intervals(panels, "a policy adds, %")})

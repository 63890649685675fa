"""The reward of a policy (fig:reward_comparison_bar): its own likelihood, a correct answer, or both.

The trainings of the first three differ in the reward alone: the same policy, problems, groups of orders and steps. A step costs as
many denoiser calls with each of them, but for equal states, which share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.decoding.options import Decoding
from unmask.report import figures
from unmask.report.numbers import percent
from unmask_studies.reports import join_reports
from unmask_studies.study import Axes, Findings, Key, Result, Results
from unmask_studies.tables import Table, TableRow, against, count_limits, solved
from unmask_studies.text.study import Models, TaskStudy
from unmask_studies.training_runs import read_curve


@dataclass(frozen=True)
class Rewards(TaskStudy):
    """``policies`` of different rewards, compared with the first.

    The last of them is the policy of the other studies: the same reward, relative and for every candidate. Its curve has its calls.
    """

    schedulers: tuple[str, ...] = ("left_to_right", "confidence")
    policies: tuple[str, ...] = ("reward-self-aware", "reward-terminal", "reward-hybrid", "sas-arithmetic")
    names: tuple[str, ...] = ("self-aware", "terminal 0/1", "hybrid", "self-aware, relative, all-action")

    def axes(self) -> Axes:
        return ["solved"], self.rows

    def grid(self) -> list[Key]:
        return super().grid() + [("curve", policy) for policy in self.policies]

    def measure_with(self, models: Models, *key: Any) -> Result:
        what, name = key
        if what == "curve":
            return {"curve": read_curve(models.policy(name))}
        return models.evaluate(self.task, name, Decoding())

    def findings(self, results: Results) -> Findings:
        report = join_reports([results["solved", row] for row in self.rows], self.policies[0])
        rows: list[TableRow] = []
        for row in report.rows:
            history = results.get(("policy", row.scheduler), {})
            first = row.scheduler == self.policies[0]
            rows.append(
                {
                    "reward": self.label(row.scheduler),
                    "solved %": solved(row),
                    f"against {self.names[0]}, paired": "" if first else against(row, report.row(self.policies[0])),
                    "training calls": f"{history['calls']:,}" if history else "",
                    "best validation, %": percent(history["validation"]) if history else "",
                    "training seed": str(history.get("seed", "")),
                    "calls": f"{row.denoiser_calls:.1f}",
                }
            )
        note = (
            "Training calls: canvases through the denoiser in one training, validation not counted. The policy that validated best "
            "is tested. Bold: the paired 95 % interval excludes 0. The paper's bars have no numbers."
        )
        title = f"{self.task}: the reward of a policy, n = {report.n:,}, seed {report.seed}"
        series = {}
        for policy, name in zip(self.policies, self.names, strict=True):
            n = results["policy", policy]["validated"]
            curve = results["curve", policy]["curve"]
            series[name] = [(float(c), figures.share("", count_limits(round(share * n), n))) for c, share in curve]
        figure = figures.curves(series, "denoiser calls in training", "held-out problems solved, %")
        return Findings([Table.of(title, rows, note)], {"rewards": figure}, [report])

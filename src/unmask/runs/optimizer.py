"""An optimizer's state as a checkpoint holds it: named tensors and JSON data."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unmask.runs.jsonable import to_jsonable


def dump_optimizer(
    optimizer: torch.optim.Optimizer, prefix: str = "optimizer."
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors and JSON data, for `Run.save`; `load_optimizer` inverts it.

    The tensors are the live ones, not copies: save them before the next step.
    """
    stored = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}

    def rest(place: str, values: Mapping[str, Any]) -> dict[str, Any]:
        tensors.update({f"{prefix}{place}.{k}": v for k, v in values.items() if isinstance(v, Tensor)})
        return to_jsonable({k: v for k, v in values.items() if not isinstance(v, Tensor)})

    return tensors, {
        "state": {str(i): rest(f"state.{i}", values) for i, values in stored["state"].items()},
        "groups": [rest(f"groups.{i}", group) for i, group in enumerate(stored["param_groups"])],
    }


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    prefix: str = "optimizer.",
) -> None:
    """Restore what `dump_optimizer` returned, bit for bit; only names that begin with `prefix` are read."""
    entries = {int(index): dict(values) for index, values in state["state"].items()}
    groups = _load_groups(optimizer, state["groups"])
    shapes = [tuple(parameter.shape) for group in optimizer.param_groups for parameter in group["params"]]
    for name in (name for name in tensors if name.startswith(prefix)):
        place, index, key = name.removeprefix(prefix).split(".", 2)
        expected, got = shapes[int(index)], tuple(tensors[name].shape)
        if place == "state" and "exp_avg" in key and expected != got:
            raise ValueError(f"expected {name} of shape {expected}, got {got}; is it another model's state?")
        # A copy: the optimizer works in place and must not change the checkpoint.
        (entries if place == "state" else groups)[int(index)][key] = tensors[name].clone()
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _load_groups(optimizer: torch.optim.Optimizer, stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    current = optimizer.state_dict()["param_groups"]
    expected, got = [[len(group["params"]) for group in groups] for groups in (current, stored)]
    if expected != got:
        raise ValueError(f"expected parameter groups of sizes {expected}, got {got}; another model's state?")
    # JSON has no tuples: AdamW's betas come back as a list.
    return [
        group | {key: tuple(value) for key, value in group.items() if isinstance(template.get(key), tuple)}
        for group, template in zip(stored, current, strict=True)
    ]

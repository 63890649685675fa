"""Presets: what is read, and the errors, which must name the place and the remedy."""

import tomllib
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from unmask.runs import presets
from unmask.runs.presets import Preset, list_presets, load_preset


class Reward(Enum):
    SELF_AWARE = "self-aware"
    TERMINAL = "terminal"


@dataclass(frozen=True)
class Policy:
    width: int = 64
    depth: int = 2
    kind: Literal["mlp", "transformer"] = "mlp"

    def __post_init__(self) -> None:
        if self.width % 8:
            raise ValueError(f"expected a width divisible by 8, got {self.width}")


@dataclass(frozen=True)
class Config:
    steps: int
    rate: float = 1e-3
    cosine: bool = True
    name: str = "run"
    folder: Path = Path("runs")
    reward: Reward = Reward.SELF_AWARE
    betas: tuple[float, float] = (0.9, 0.95)
    sizes: tuple[int, ...] = ()
    tags: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    limit: int | None = None
    threshold: int | float | str = 0
    policy: Policy = Policy(width=32)
    second: Policy | None = None
    anything: Any = None


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(presets, "PRESET_FILES", tmp_path)

    def write(text: str, name: str = "train/small") -> Path:
        path = tmp_path / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


EVERYTHING = """# Everything at once
steps = 10
rate = 1
cosine = false
name = "größer"
folder = "here/there"
reward = "terminal"
betas = [0, 0.5]
sizes = [1, 2, 3]
tags = ["a", "b"]
limit = 5
threshold = 1
anything = [1, "x"]
weights = { a = 1, b = 0.5 }
second = { depth = 9 }

[policy]
depth = 4
"""


def test_every_type(write) -> None:
    write(EVERYTHING)
    config = load_preset("small", Config)
    assert config == Config(
        steps=10,
        rate=1.0,
        cosine=False,
        name="größer",
        folder=Path("here/there"),
        reward=Reward.TERMINAL,
        betas=(0.0, 0.5),
        sizes=(1, 2, 3),
        tags=["a", "b"],
        weights={"a": 1.0, "b": 0.5},
        limit=5,
        threshold=1,
        policy=Policy(width=32, depth=4),  # the width is Config's default for it, not Policy's own
        second=Policy(width=64, depth=9),
        anything=[1, "x"],
    )
    assert type(config.rate) is float
    assert type(config.betas[0]) is float
    assert type(config.threshold) is int


def test_defaults_stay(write) -> None:
    write("steps = 3")
    assert load_preset("small", Config) == Config(steps=3)


def test_names_kinds_and_paths(write) -> None:
    path = write("# A small run\nsteps = 3")
    assert load_preset("small", Config).steps == 3
    assert load_preset("train/small", Config).steps == 3
    assert load_preset("small", Config, kind="train").steps == 3
    assert load_preset(path, Config).steps == 3
    assert load_preset(str(path), Config).steps == 3
    write("steps = 4", "pretrain/small")
    assert load_preset("small", Config, kind="pretrain").steps == 4
    with pytest.raises(ValueError, match="several kinds; say which: pretrain/small, train/small"):
        load_preset("small", Config)


def test_listing(write) -> None:
    path = write("# A small run\nsteps = 3")
    write("steps = 3", "train/big")
    write("#   Learn digits  \n", "pretrain/digits")
    assert list_presets("train")[1] == Preset("train", "small", "A small run", path)
    assert [(preset.name, preset.description) for preset in list_presets()] == [
        ("digits", "Learn digits"),
        ("big", ""),
        ("small", "A small run"),
    ]
    assert list_presets("nothing") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3", r"unknown key 'stepz' at the top; did you mean 'steps'\?; known keys: steps, rate"),
        ("steps = 3\n[policy]\nwidht = 8", r"unknown key 'widht' in \[policy\]; did you mean 'width'\?"),
        ("steps = 3\n[second]\nwidht = 8", r"unknown key 'widht' in \[second\]; did you mean 'width'\?"),
        ("steps = 3\nqqqqq = 1", r"unknown key 'qqqqq' at the top; known keys"),
        ("rate = 0.5", "at the top: missing steps"),
        ("steps = '3'", "steps: expected int, got str '3'"),
        ("steps = 3.0", "steps: expected int, got float 3.0"),
        ("steps = true", "steps: expected int, got bool True"),
        ("steps = 3\nrate = true", "rate: expected float, got bool True"),
        ("steps = 3\ncosine = 1", "cosine: expected bool, got int 1"),
        ("steps = 3\nfolder = 1", "folder: expected Path, got int 1"),
        ("steps = 3\nlimit = 'x'", "limit: expected int or None, got str 'x'"),
        ("steps = 3\nthreshold = [1]", "threshold: expected int or float or str, got list"),
        ("steps = 3\nbetas = [0.5]", r"betas: expected 2 items \(tuple\[float, float\]\), got list"),
        ("steps = 3\nsizes = [1, 'x']", r"sizes\[1\]: expected int, got str 'x'"),
        ("steps = 3\nsizes = 1", r"sizes: expected tuple\[int, \.\.\.\], got int 1"),
        ("steps = 3\ntags = { a = 1 }", r"tags: expected list\[str\], got dict"),
        ("steps = 3\nweights = [1]", r"weights: expected dict\[str, float\], got list"),
        ("steps = 3\nweights = { a = 'x' }", r"weights\.a: expected float, got str 'x'"),
        ("steps = 3\npolicy = 1", r"policy: expected a table \(Policy\), got int 1"),
        ("steps = 3\nreward = 'terminol'", r"reward: expected one of 'self-aware', 'terminal', .* mean 'terminal'"),
        ("steps = 3\n[policy]\nkind = 'mpl'", r"policy\.kind: expected one of 'mlp', 'transformer', .* mean 'mlp'"),
        ("steps = 3\n[policy]\nwidth = 9", r"in \[policy\]: expected a width divisible by 8, got 9"),
        ("steps = 3\nsteps = 4", "expected TOML, got: Cannot overwrite"),
        ("steps = ", "expected TOML, got: Invalid value"),
    ],
)
def test_mistakes(write, text: str, message: str) -> None:
    write(text)
    with pytest.raises(ValueError, match=f"^preset small: {message}"):
        load_preset("small", Config)


def test_unknown_presets(write, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown preset 'small'; available: none"):
        load_preset("small", Config)
    write("steps = 3")
    write("steps = 3", "pretrain/digits")
    unknown = r"unknown preset 'smal'; did you mean 'small'\?; available: pretrain/digits, train/small"
    with pytest.raises(ValueError, match=unknown):
        load_preset("smal", Config)
    with pytest.raises(ValueError, match=r"unknown train preset 'digits'; available: small"):
        load_preset("digits", Config, kind="train")
    with pytest.raises(ValueError, match="there is none"):
        load_preset("absent.toml", Config)
    with pytest.raises(ValueError, match="got a folder"):
        load_preset(tmp_path, Config)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="expected TOML"):
        load_preset(tmp_path / "binary.toml", Config)
    with pytest.raises(ValueError, match="expected a dataclass"):
        load_preset("small", dict)


def test_packaged_presets_are_described_toml() -> None:
    for preset in list_presets():
        assert preset.description, f"{preset.path} must begin with a comment that describes it"
        tomllib.loads(preset.path.read_text(encoding="utf-8"))

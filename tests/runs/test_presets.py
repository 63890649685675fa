"""Presets: what is read, and the errors, which must name the place and the remedy."""

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from unmask.runs import presets
from unmask.runs.config import Count, Positive, config
from unmask.runs.presets import Preset, list_presets, load_preset


@config
class Policy:
    width: int = 64
    depth: int = 2
    kind: Literal["mlp", "transformer"] = "mlp"

    def __post_init__(self) -> None:
        if self.width % 8:
            raise ValueError(f"expected a width divisible by 8, got {self.width}")


@dataclass(frozen=True)
class Boards:
    size: int = 9
    kind: Literal["boards"] = "boards"


@dataclass(frozen=True)
class Text:
    file: str = ""
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class Config:
    steps: int
    rate: Positive = 1e-3
    cosine: bool = True
    name: str = "run"
    folder: Path = Path("runs")
    betas: tuple[float, float] = (0.9, 0.95)
    sizes: tuple[int, ...] = ()
    tags: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    limit: int | None = None
    threshold: int | float | str = 0
    policy: Policy = field(default_factory=lambda: Policy(width=32))
    second: Policy | None = None
    data: Annotated[Boards | Text, Field(discriminator="kind")] = field(default_factory=Boards)
    anything: Any = None


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(presets, "PRESET_FILES", tmp_path)
    monkeypatch.setattr(presets, "PRESET_FOLDERS", {})

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
betas = [0, 0.5]
sizes = [1, 2, 3]
tags = ["a", "b"]
limit = 5
threshold = 1
anything = [1, "x"]
weights = { a = 1, b = 0.5 }
second = { depth = 9 }
data = { size = 4 }

[policy]
depth = 4
kind = "transformer"
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
        betas=(0.0, 0.5),
        sizes=(1, 2, 3),
        tags=["a", "b"],
        weights={"a": 1.0, "b": 0.5},
        limit=5,
        threshold=1,
        policy=Policy(width=32, depth=4, kind="transformer"),  # the width is Config's default for it, not Policy's own
        second=Policy(width=64, depth=9),
        data=Boards(4),
        anything=[1, "x"],
    )
    assert type(config.rate) is float
    assert type(config.betas[0]) is float
    assert type(config.threshold) is int


def test_a_config_checks_what_python_gives_it() -> None:
    @config
    class Small:
        count: Count = 1
        word: Literal["one", "two"] = "one"
        rate: float = 0.5

    assert Small(rate=1) == Small(1, "one", 1.0) and replace(Small(), count=3).count == 3
    for wrong, message in [
        ({"count": 0}, "count: expected a number greater than or equal to 1, got int 0"),
        ({"count": True}, "count: expected a valid integer, got bool True"),
        ({"word": "tow"}, "word: expected 'one' or 'two', got str 'tow'; did you mean 'two'?"),
        ({"cuont": 1}, "unknown key 'cuont' at the top; did you mean 'count'?; known keys: count, word, rate"),
    ]:
        with pytest.raises(ValueError) as error:
            Small(**wrong)
        assert str(error.value) == message
    with pytest.raises(ValueError, match="count"):
        replace(Small(), count=-1)


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
        ("steps = '3'", "steps: expected a valid integer, got str '3'"),
        ("steps = 3.0", "steps: expected a valid integer, got float 3.0"),
        ("steps = true", "steps: expected a valid integer, got bool True"),
        ("steps = 3\nrate = true", "rate: expected a valid number, got bool True"),
        ("steps = 3\nrate = -1", "rate: expected a number greater than 0, got int -1"),
        ("steps = 3\ncosine = 1", "cosine: expected a valid boolean, got int 1"),
        ("steps = 3\nfolder = 1", "folder: expected a valid string, got int 1"),
        ("steps = 3\nlimit = 'x'", "limit: expected a valid integer, got str 'x'"),
        (
            "steps = 3\nthreshold = [1]",
            "threshold: expected a valid integer or a valid number or a valid string, got list",
        ),
        ("steps = 3\nbetas = [0.5]", r"betas\[1\]: expected another item, got list \[0.5\]"),
        ("steps = 3\nsizes = [1, 'x']", r"sizes\[1\]: expected a valid integer, got str 'x'"),
        ("steps = 3\nsizes = 1", "sizes: expected a valid array, got int 1"),
        ("steps = 3\nweights = { a = 'x' }", r"weights\.a: expected a valid number, got str 'x'"),
        ("steps = 3\npolicy = 1", "policy: expected an object, got int 1"),
        ("steps = 3\n[policy]\nkind = 'mpl'", r"policy\.kind: expected 'mlp' or 'transformer', .* mean 'mlp'"),
        (
            "steps = 3\ndata = { kind = 'txt' }",
            r"data.kind: expected one of 'boards', 'text', got str 'txt'; .* mean 'text'",
        ),
        ("steps = 3\ndata = { kind = 'text', fil = 'x' }", r"unknown key 'fil' in \[data\]; did you mean 'file'"),
        ("steps = 3\ndata = { sise = 4 }", r"unknown key 'sise' in \[data\]; did you mean 'size'"),
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

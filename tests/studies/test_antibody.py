"""Antibodies: CDRs against published annotations, splits that no likeness crosses, and the models out of their wheels."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.denoisers.loading import load_denoiser
from unmask.generation.text_canvas import load_tokenizer
from unmask_studies.antibody.models import antiberty, sapiens_vh
from unmask_studies.antibody.task import (
    LINKED,
    AntibodyData,
    AntibodyProblems,
    Chain,
    cluster_chains,
    locate,
    read_chains,
)
from unmask_studies.installer import Wheel, convert_model, install_model

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "antibody"
KNOWN = {
    # Variable domains with the CDRs that IMGT gives for them.
    "trastuzumab H": (
        "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
        "SRWGGDGFYAMDYWGQGTLVTVSS",
        ("GFNIKDTY", "IYPTNGYT", "SRWGGDGFYAMDY"),
    ),
    "trastuzumab L": (
        "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
        ("QDVNTA", "SAS", "QQHYTTPPT"),
    ),
    "adalimumab H": (
        "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYC"
        "AKVSYLSTASSLDYWGQGTLVTVSS",
        ("GFTFDDYA", "ITWNSGHI", "AKVSYLSTASSLDY"),
    ),
    "adalimumab L": (
        "DIQMTQSPSSLSASVGDRVTITCRASQGIRNYLAWYQQKPGKAPKLLIYAASTLQSGVPSRFSGSGSGTDFTLTISSLQPEDVATYYCQRYNRAPYTFGQGTKVEIK",
        ("QGIRNY", "AAS", "QRYNRAPYT"),
    ),
    "rituximab L": (
        "QIVLSQSPAILSASPGEKVTMTCRASSSVSYIHWFQQKPGSSPKPWIYATSNLASGVPVRFSGSGSGTSYSLTISRVEAEDAATYYCQQWTSNPPTFGGGTKLEIK",
        ("SSVSY", "ATS", "QQWTSNPPT"),
    ),
    "avelumab L": (
        "QSALTQPASVSGSPGQSITISCTGTSSDVGGYNYVSWYQQHPGKAPKLMIYDVSNRPSGVSNRFSGSKSGNTASLTISGLQAEDEADYYCSSYTSSSTRV"
        "FGTGTKVTVL",
        ("SSDVGGYNY", "DVS", "SSYTSSSTRV"),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_loops_agree_with_imgt(name: str) -> None:
    sequence, cdrs = KNOWN[name]
    chain = locate(sequence)
    assert chain is not None
    assert (chain.kind, chain.cdrs) == (name[-1], cdrs)


def test_locate_rejects_other_sequences() -> None:
    heavy = KNOWN["trastuzumab H"][0]
    assert locate(heavy[:90]) is None
    assert locate(heavy.replace("C", "S")) is None
    assert locate("A" * 120) is None


def chain_of(cdrs: tuple[str, str, str], name: str = "") -> Chain:
    """Trastuzumab's heavy chain with other loops."""
    sequence = KNOWN["trastuzumab H"][0]
    for old, new in zip(KNOWN["trastuzumab H"][1], cdrs, strict=True):
        sequence = sequence.replace(old, new)
    found = locate(sequence, name)
    assert found is not None and found.cdrs == cdrs
    return found


def random_chains(count: int, letters: str = "ADEGKLNPQRSTVY") -> list[Chain]:
    drawn = torch.randint(len(letters), (count, 26), generator=torch.Generator().manual_seed(3)).tolist()
    texts = ["".join(letters[n] for n in row) for row in drawn]
    return [chain_of((t[:8], t[8:16], t[16:]), f"a{n}") for n, t in enumerate(texts)]


def likeness(one: Chain, other: Chain) -> float:
    if tuple(map(len, one.cdrs)) != tuple(map(len, other.cdrs)):
        return 0.0
    a, b = "".join(one.cdrs), "".join(other.cdrs)
    return sum(x == y for x, y in zip(a, b, strict=True)) / len(a)


def test_clusters_never_cross_a_split() -> None:
    chains = random_chains(40)
    # A row of relatives, each like the next: first and last are not alike, but belong together.
    row = [chains[0]]
    for step in range(6):
        c1, c2, c3 = row[-1].cdrs
        loops = list(c1 + c2 + c3)
        for place in range(4 * step, 4 * step + 4):
            loops[place % 26] = "W"
        text = "".join(loops)
        row.append(chain_of((text[:8], text[8:16], text[16:]), f"r{step}"))
    all_chains = [*chains, *row[1:]]
    assert likeness(row[0], row[-1]) < LINKED <= likeness(row[0], row[1])
    numbers = cluster_chains(all_chains)
    assert len({numbers[0], *numbers[40:]}) == 1
    assert len(set(numbers)) == 40
    for seed in range(5):
        sides = AntibodyData(file="x", seed=seed).split(all_chains)
        assert sum(map(len, sides.values())) == len(all_chains)
        for one, other in (("train", "test"), ("train", "validation"), ("validation", "test")):
            assert all(likeness(a, b) < LINKED for a in sides[one] for b in sides[other])
    # A side is a function of the antibody: others that come or go do not move it.
    data = AntibodyData(file="x")
    whole, half = data.split(chains), data.split(chains[::2])
    assert {c.sequence for c in half["test"]} <= {c.sequence for c in whole["test"]}


def test_malformed_antibody_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    for content, reason in (
        ("name,heavy\nx,AAA\n", "has no column sequence"),
        ("name,sequence\nx,EVQLX\n", "line 2: expected a sequence of the twenty residues, got 'X'"),
        ("name,sequence\nx,\n", "line 2: expected a sequence"),
        ("name,sequence\nx,AAAA\n", "no chain whose CDRs are found"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=reason):
            read_chains(file)
    file.write_bytes(b"name,sequence\nx,\xff\n")
    with pytest.raises(ValueError, match="is not a CSV file in UTF-8"):
        read_chains(file)
    with pytest.raises(ValueError, match="cannot read the antibodies"):
        read_chains(tmp_path / "absent.csv")
    with pytest.raises(ValueError, match="cdrs must be one of"):
        AntibodyData(cdrs="4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sapiens' layout with a tiny width, pickled into a wheel as fairseq pickled it, and converted."""
    import argparse

    torch.manual_seed(0)
    width, layers = 16, 1
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in {
        "embed_tokens.weight": (25, width),
        "embed_positions.weight": (146, width),
        "emb_layer_norm.weight": (width,),
        "emb_layer_norm.bias": (width,),
        **{f"layers.0.self_attn.{p}_proj.weight": (width, width) for p in ("q", "k", "v", "out")},
        **{f"layers.0.self_attn.{p}_proj.bias": (width,) for p in ("q", "k", "v", "out")},
        **{f"layers.0.self_attn_layer_norm.{kind}": (width,) for kind in ("weight", "bias")},
        **{f"layers.0.final_layer_norm.{kind}": (width,) for kind in ("weight", "bias")},
        "layers.0.fc1.weight": (24, width),
        "layers.0.fc1.bias": (24,),
        "layers.0.fc2.weight": (width, 24),
        "layers.0.fc2.bias": (width,),
    }.items():  # fmt: skip
        tensors[f"decoder.sentence_encoder.{name}"] = torch.randn(shape)
    for name, shape in {"weight": (25, width), "bias": (25,), "dense.weight": (width, width), "dense.bias": (width,),
                        "layer_norm.weight": (width,), "layer_norm.bias": (width,)}.items():  # fmt: skip
        tensors[f"decoder.lm_head.{name}"] = torch.randn(shape)
    pickled = io.BytesIO()
    torch.save({"args": argparse.Namespace(arch="roberta"), "model": tensors}, pickled)
    place = tmp_path_factory.mktemp("wheel")
    wheel = place / "tiny.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(sapiens_vh.member, pickled.getvalue())
    config = {**sapiens_vh.config, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 2,
              "intermediate_size": 24}  # fmt: skip
    tiny = replace(sapiens_vh, config=config)
    return convert_model(tiny, wheel, place / "model")


def problems(model: Path, tmp_path: Path, **options: Any) -> AntibodyProblems:
    file = tmp_path / "a.csv"
    rows = [f"{chain.name},{chain.sequence}" for chain in random_chains(40)]
    file.write_text("name,sequence\n" + "\n".join(rows) + "\n")
    return AntibodyData(file=str(file), **options).problems(load_denoiser(model), str(model))


def test_the_framework_is_given_and_the_loops_are_hidden(model: Path, tmp_path: Path) -> None:
    for cdrs, count in (("3", 10), ("all", 26), ("1", 8)):
        made = problems(model, tmp_path, cdrs=cdrs)
        task = made.held_out(5)
        canvas = task.canvas(range(len(task)))
        assert canvas.region is not None
        assert torch.equal(canvas.tokens == task.denoiser.mask_id, canvas.region)
        assert canvas.region.sum(1).tolist() == [count] * len(task)
        assert torch.equal(canvas.tokens[~canvas.region], canvas.truth[~canvas.region])
        chain = task.chains[0]
        hidden = load_tokenizer(model).decode(canvas.truth[0][canvas.region[0]].tolist())
        assert hidden == "".join(chain.cdrs if cdrs == "all" else [chain.cdrs[int(cdrs) - 1]])
    assert task.draw(0, canvas.truth[0]) == chain.sequence.replace(chain.cdrs[0], chain.cdrs[0].lower())
    tokens = canvas.truth.clone()
    tokens[0, canvas.region[0].int().argmax()] = int(tokens[0, 3]) % 20 + 4
    verdict = task.verify(range(len(task)), tokens)
    assert verdict.exact.tolist()[1:] == [True] * (len(task) - 1)
    assert float(verdict.share[0]) in (0.875, 1.0)
    names = [{c.name for c in made.held_out(99, side).chains} for side in ("train", "validation", "test")]
    assert not names[0] & names[1] and not names[0] & names[2] and not names[1] & names[2]
    with pytest.raises(ValueError, match="must be one of train, validation, test"):
        made.held_out(3, "tset")


def test_a_wheel_becomes_a_folder_without_pickles(model: Path) -> None:
    assert {path.suffix for path in model.iterdir()} == {".json", ".safetensors"}
    denoiser, tokenizer = load_denoiser(model), load_tokenizer(model)
    assert (denoiser.mask_id, denoiser.pad_id, denoiser.config.max_length) == (24, 1, 144)
    assert set(denoiser.forbidden_ids) == {0, 1, 2, 3, 24}
    assert tokenizer.encode("ACY") == [0, 4, 5, 23, 2]
    assert tokenizer.decode([4, 5, 23]) == "ACY"


def test_wheels_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sapiens-1.0.5-py3-none-any.whl").write_bytes(b"something else")
    with pytest.raises(ValueError, match="is not the expected release: its SHA-256 is"):
        install_model("sapiens-vh", tmp_path / "out", tmp_path)
    with pytest.raises(ValueError, match=r"expected the wheel .*antiberty-0\.1\.3"):
        install_model("antiberty", tmp_path / "out", tmp_path)
    with pytest.raises(ValueError, match=r"no published model 'sapien': expected one of .*did you mean 'sapiens"):
        install_model("sapien", tmp_path / "out", tmp_path)

    class Malicious:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "ran").write_text, ("x",))

    pickled = io.BytesIO()
    torch.save({"model": Malicious()}, pickled)
    with zipfile.ZipFile(tmp_path / "evil.whl", "w") as archive:
        archive.writestr(sapiens_vh.member, pickled.getvalue())
    with pytest.raises(ValueError, match=r"evil\.whl.* holds more than weights"):
        convert_model(sapiens_vh, tmp_path / "evil.whl", tmp_path / "out")
    assert not (tmp_path / "ran").exists()
    assert antiberty.wheel == Wheel("antiberty==0.1.3", antiberty.wheel.sha256)


def test_nearly_all_real_antibodies_are_located() -> None:
    if not DATA.exists():
        pytest.skip("the therapeutic antibodies are not here")
    for letter in "HL":
        file = DATA / f"thera_{letter}.csv"
        chains = read_chains(file)
        assert len(chains) > 0.98 * (len(file.read_text().splitlines()) - 1)
        assert {chain.kind for chain in chains} == {letter}
        sides = AntibodyData(file=str(file)).split(chains)
        assert 0.1 < len(sides["validation"]) / len(chains) < 0.25
        assert all(likeness(a, b) < LINKED for a in sides["train"] for b in sides["test"][:40])


def test_errors_of_the_antibody_study(tmp_path: Path) -> None:
    from unmask_studies.antibody.study import Antibodies

    with pytest.raises(ValueError, match="antiberty needs heavy chains"):
        Antibodies().grid()
    file = tmp_path / "h.csv"
    file.write_text(f"name,sequence\nx,{KNOWN['trastuzumab H'][0]}\n")
    with pytest.raises(ValueError, match=r"run unmask models sapiens-vh --out .*none/sapiens-vh first"):
        Antibodies(data=(file,), models=("sapiens-vh",), denoiser=str(tmp_path / "none")).grid()
    nll = {name: {"nll": [2.0, 3.0, 4.0], "recovery": [0.5, 0.5, 1.0]} for name in Antibodies().schedulers}
    learned = {"nll": [1.5, 2.4, 3.6], "recovery": [0.5, 0.6, 1.0]}
    results: Any = {("sapiens-vh", name): value for name, value in {**nll, "learned": learned}.items()}
    table = Antibodies(models=("sapiens-vh",)).findings(results).tables[0]
    assert (table.rows[0][0], table.rows[-1][-1]) == ("random", "")
    first: Any = table.rows[0][-1]
    assert first.strong and first.text.startswith("−0.50 [−0.60, ")


def test_a_random_order_is_drawn_several_times(model: Path, tmp_path: Path) -> None:
    from unmask.schedulers.heuristics import confidence, random
    from unmask_studies.antibody.study import measure_antibodies

    task = problems(model, tmp_path, cdrs="3").held_out(3)
    one, two = (measure_antibodies(task, random, seed) for seed in (5, 6))
    assert one["nll"] != two["nll"]
    both = measure_antibodies(task, random, 5, draws=2)
    assert both["nll"] == pytest.approx([(a + b) / 2 for a, b in zip(one["nll"], two["nll"], strict=True)])
    assert both["recovery"] == one["recovery"]
    assert measure_antibodies(task, confidence, 5) == measure_antibodies(task, confidence, 6)


def test_the_default_recipe_selects_by_likelihood_and_keeps_what_is_best(model: Path, tmp_path: Path) -> None:
    """No whole antibody is ever recovered, so that accuracy could select nothing."""
    from unmask.runs.run import Run
    from unmask_studies.recipes import RECIPE, REFERENCE, Recipes

    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "sapiens-vh").symlink_to(model)
    problems(model, tmp_path)
    study = Recipes(
        ("antibodies-heavy",),
        heavy=tmp_path / "a.csv",
        models=tmp_path / "models",
        limit=4,
        steps=1,
        prompts=2,
        validate=2,
    )
    before = study.measure(("antibodies-heavy", REFERENCE), tmp_path)
    after = study.measure(("antibodies-heavy", RECIPE), tmp_path)
    assert len(before["nll"]) == len(after["nll"]) == 4
    first = Run(tmp_path / "runs" / "recipe-antibody-sapiens-vh").metrics()[0]
    assert "start_nll" in first and "race_uncertainty" in first
    assert set(after["history"]["tried"]) == {"general", "opinion"}

"""What RDKit knows of molecules: validity, canonical equality, conserved atoms, fragments, drawings. Needs the extra ``chem``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from unmask_studies.reactions.smiles import ARROW


@cache
def _rdkit() -> Any:
    try:
        from rdkit import Chem, RDLogger  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("reactions need RDKit: pip install unmask[chem]") from error
    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]  # what cannot be parsed is an answer here, not a warning
    return Chem


def parse_molecule(smiles: str) -> Any | None:
    """RDKit's molecule; None where the SMILES is no valid molecule."""
    return _rdkit().MolFromSmiles(smiles) if smiles else None


def canonicalize(smiles: str) -> str | None:
    """The one way to write a molecule (or several, joined by dots); None where it is not valid."""
    molecule = parse_molecule(smiles)
    return None if molecule is None else _rdkit().MolToSmiles(molecule)


def require_molecule(smiles: str) -> None:
    """Refuse what is written in the letters of SMILES but is no molecule: an open ring, an impossible valence."""
    if canonicalize(smiles) is None:
        # Molecules joined by dots may share the digit of a ring: only one that is wrong by itself is named.
        wrong = [one for one in smiles.split(".") if canonicalize(one) is None]
        named = wrong[0] if len(wrong) == 1 else smiles
        raise ValueError(f"not a valid molecule: {named[:80]!r}")


def same_molecule(first: str, second: str) -> bool:
    """Whether both SMILES are valid and write the same molecule."""
    canonical = canonicalize(first)
    return canonical is not None and canonical == canonicalize(second)


def count_atoms(smiles: str) -> Counter[str] | None:
    """Heavy atoms by element; None where the SMILES is not valid."""
    molecule = parse_molecule(smiles)
    return None if molecule is None else Counter(atom.GetSymbol() for atom in molecule.GetAtoms())


def conserves_atoms(reactants: str, product: str) -> bool:
    """Whether every heavy atom of the product can come from the reactants."""
    before, after = count_atoms(reactants), count_atoms(product)
    return before is not None and after is not None and not after - before


def judge_reaction(reaction: str) -> dict[str, bool]:
    """Whether both sides are molecules, and whether every atom of the product can come from the reactants."""
    reactants, _, product = reaction.partition(ARROW)
    return {
        "valid": None not in (canonicalize(reactants), canonicalize(product)),
        "conserved": conserves_atoms(reactants, product),
    }


def describe_judgement(valid: bool, conserved: bool) -> str:
    """:func:`judge_reaction` in words."""
    if not valid:
        return "not a valid molecule"
    return f"valid molecules, {'atoms conserved' if conserved else 'atoms that the reactants do not have'}"


def find_fragments(smiles: str) -> list[frozenset[int]]:
    """Sets of atom indices that a chemist would leave open: each ring system, and each substituent of a ring."""
    require_molecule(smiles)
    molecule = parse_molecule(smiles)
    return [*_ring_systems(molecule), *_substituents(molecule)]


def _ring_systems(molecule: Any) -> list[frozenset[int]]:
    systems: list[set[int]] = []
    for ring in map(set, molecule.GetRingInfo().AtomRings()):
        fused = [system for system in systems if system & ring]
        systems = [system for system in systems if not system & ring]
        systems.append(ring.union(*fused))
    return [frozenset(system) for system in systems]


def _substituents(molecule: Any) -> list[frozenset[int]]:
    """Of every bond that links a ring atom to an atom outside rings: the atoms on the outer side, if no more than half of all."""
    found: set[frozenset[int]] = set()
    half = molecule.GetNumAtoms() // 2
    for bond in molecule.GetBonds():
        ends = (bond.GetBeginAtom(), bond.GetEndAtom())
        if bond.IsInRing() or ends[0].IsInRing() == ends[1].IsInRing():
            continue
        inner, outer = sorted(ends, key=lambda atom: not atom.IsInRing())
        side = _reachable(molecule, outer.GetIdx(), inner.GetIdx())
        if len(side) <= half:
            found.add(frozenset(side))
    return sorted(found, key=sorted)


def _reachable(molecule: Any, start: int, barrier: int) -> set[int]:
    seen, front = {start}, [start]
    while front:
        for neighbour in molecule.GetAtomWithIdx(front.pop()).GetNeighbors():
            index = neighbour.GetIdx()
            if index != barrier and index not in seen:
                seen.add(index)
                front.append(index)
    return seen


def draw_molecule(
    smiles: str, colours: Mapping[int, tuple[float, float, float]], size: tuple[int, int] = (360, 260)
) -> str:
    """An SVG drawing, atoms filled with the given colours (index → red, green, blue in 0 … 1); elements have none."""
    from rdkit.Chem.Draw import rdMolDraw2D  # pyright: ignore[reportMissingImports]

    require_molecule(smiles)
    molecule = parse_molecule(smiles)
    drawer = rdMolDraw2D.MolDraw2DSVG(*size)
    drawer.drawOptions().clearBackground = False
    drawer.drawOptions().useBWAtomPalette()
    rdMolDraw2D.PrepareAndDrawMolecule(
        drawer, molecule, highlightAtoms=list(colours), highlightAtomColors=dict(colours), highlightBonds=[]
    )
    drawer.FinishDrawing()
    return drawer.GetDrawingText()


def atom_places(tokens: Sequence[str]) -> list[int | None]:
    """The atom index that each token writes, in RDKit's numbering (order of appearance); None where it writes no atom."""
    places: list[int | None] = []
    count = 0
    for token in tokens:
        is_atom = token[0].isalpha() or token.startswith("[") or token == "*"
        places.append(count if is_atom else None)
        count += is_atom
    return places

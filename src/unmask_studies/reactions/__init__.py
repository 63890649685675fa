"""Chemical reactions as SMILES: complete a product, a fragment or a reactant with a masked language model of reactions."""

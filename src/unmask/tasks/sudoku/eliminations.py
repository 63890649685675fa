"""Deductions that remove pencil marks, each as `(cand, ...) -> bool`: was any removed?

`cand [C]` int64: the candidates of each blank cell, digit d as bit d - 1; 0 for a filled cell.
An instance counts only if it removes at least one candidate. Instances are tried with their cells in
row-major order, and one instance is carried out per call, so that easier deductions get their turn in
between. `related [C, C]` bool: the two cells differ and share a unit. `home`, `units`: see `solver`.
"""

from numba import njit

from unmask.tasks.sudoku.solver import bit_count


@njit(cache=True, nogil=True)
def _strip(cand, units, unit, mask, a, b, c):
    """Remove `mask` from every cell of the unit but a, b and c."""
    removed = False
    for k in range(units.shape[1]):
        cell = units[unit, k]
        if cell != a and cell != b and cell != c and cand[cell] & mask:
            cand[cell] &= ~mask
            removed = True
    return removed


@njit(cache=True, nogil=True)
def _strip_shared(cand, home, units, mask, a, b, c):
    """Remove `mask` from the other cells of every unit that a, b and c share."""
    removed = False
    for h in range(3):
        if home[a, h] == home[b, h] and home[a, h] == home[c, h]:
            removed |= _strip(cand, units, home[a, h], mask, a, b, c)
    return removed


@njit(cache=True, nogil=True)
def naked_pair(cand, home, units, related):
    """Two cells of a unit hold two candidates between them: no other cell of the unit does.

    A cell with one candidate may be part, here and in the triple, so that what can be removed does not depend
    on the order in which it is.
    """
    for a in range(cand.size):
        if cand[a] == 0 or bit_count(cand[a]) > 2:
            continue
        for b in range(a + 1, cand.size):
            mask = cand[a] | cand[b]
            if cand[b] == 0 or not related[a, b] or bit_count(mask) != 2:
                continue
            if _strip_shared(cand, home, units, mask, a, b, b):
                return True
    return False


@njit(cache=True, nogil=True)
def naked_triple(cand, home, units, related):
    """Three cells of a unit hold three candidates between them: no other cell of the unit does."""
    for a in range(cand.size):
        if cand[a] == 0 or bit_count(cand[a]) > 3:
            continue
        for b in range(a + 1, cand.size):
            if cand[b] == 0 or not related[a, b] or bit_count(cand[a] | cand[b]) > 3:
                continue
            for c in range(b + 1, cand.size):
                mask = cand[a] | cand[b] | cand[c]
                if cand[c] == 0 or not related[a, c] or bit_count(mask) != 3:
                    continue
                if _strip_shared(cand, home, units, mask, a, b, c):
                    return True
    return False


@njit(cache=True, nogil=True)
def _confined(cand, home, units, source, h, target, bit):
    """Where all places of the digit in `source` lie in `target` (of kind h): none elsewhere in `target`."""
    for k in range(units.shape[1]):
        cell = units[source, k]
        if cand[cell] & bit and home[cell, h] != target:
            return False
    kind = source // units.shape[1]
    removed = False
    for k in range(units.shape[1]):
        cell = units[target, k]
        if cand[cell] & bit and home[cell, kind] != source:
            cand[cell] &= ~bit
            removed = True
    return removed


@njit(cache=True, nogil=True)
def locked_candidate(cand, home, units, related):
    """A digit's places in a box lie in one line (pointing), or those in a line lie in one box (claiming)."""
    for cell in range(cand.size):
        rest = cand[cell]
        while rest:
            bit = rest & -rest
            rest ^= bit
            row, column, box = home[cell, 0], home[cell, 1], home[cell, 2]
            if (
                _confined(cand, home, units, box, 0, row, bit)
                or _confined(cand, home, units, box, 1, column, bit)
                or _confined(cand, home, units, row, 2, box, bit)
                or _confined(cand, home, units, column, 2, box, bit)
            ):
                return True
    return False


@njit(cache=True, nogil=True)
def xy_wing(cand, home, units, related):
    """Pivot xy sees wings xz and yz: one wing is z, so no cell that sees both wings is z."""
    for pivot in range(cand.size):
        if bit_count(cand[pivot]) != 2:
            continue
        for a in range(cand.size):
            if not related[pivot, a] or bit_count(cand[a]) != 2 or bit_count(cand[a] & cand[pivot]) != 1:
                continue
            for b in range(a + 1, cand.size):
                # The wings share exactly z, and the pivot's other digit is in the second wing.
                if not related[pivot, b] or cand[b] != cand[a] ^ cand[pivot]:
                    continue
                z = cand[a] & cand[b]
                removed = False
                for cell in range(cand.size):
                    if cand[cell] & z and related[a, cell] and related[b, cell]:
                        cand[cell] &= ~z
                        removed = True
                if removed:
                    return True
    return False


@njit(cache=True, nogil=True)
def unique_rectangle(cand, home, units, related):
    """Type 1: three corners of a rectangle in two boxes hold xy alone; the fourth cannot be x or y.

    Else x and y could be exchanged around the rectangle and the puzzle would have two solutions.
    """
    n = units.shape[1]
    for r in range(n):
        for c in range(n):
            for s in range(r + 1, n):
                for d in range(c + 1, n):
                    p, q, u, v = r * n + c, r * n + d, s * n + c, s * n + d
                    if (home[p, 2] == home[q, 2]) == (home[p, 2] == home[u, 2]):  # one box, or four
                        continue
                    pair = cand[p] & cand[q] & cand[u] & cand[v]
                    if bit_count(pair) != 2:
                        continue
                    exact, corner = 0, -1
                    for cell in (p, q, u, v):
                        if cand[cell] == pair:
                            exact += 1
                        else:
                            corner = cell
                    if exact == 3:
                        cand[corner] &= ~pair
                        return True
    return False

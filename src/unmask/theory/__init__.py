"""Exact quantities on enumerable models: all orders of a canvas, whole laws over sequences, and the paper's theorems as numbers.

========================  ==========================================================================================
``states``                the states of one canvas, shown to schedulers as the decoding loop shows them
``lattice``               the 2^n teacher-forced states of a canvas, priced; a scheduler's policy on them
``orders``                sums, extremes and gradients over all n! orders, by subsets
``beam``                  good and bad orders where there are too many subsets
``enumerable``            tables for V tokens at n positions: laws, divergences, total correlation
``claim``, ``tables``, ``claims``  the theorems, checked
========================  ==========================================================================================
"""

from unmask.theory.beam import beam_order
from unmask.theory.claim import Claim
from unmask.theory.claims import claims
from unmask.theory.claims_on_tables import table_claims
from unmask.theory.lattice import Lattice, lattice, scheduler_logv, tabular, uniform_logv
from unmask.theory.orders import (
    best_order,
    expected_return,
    importance_bound,
    log_p_seq,
    order_entropy,
    policy_gradient,
    return_variance,
    worst_order,
)
from unmask.theory.states import choice_logp

__all__ = [
    "Claim",
    "Lattice",
    "beam_order",
    "best_order",
    "choice_logp",
    "claims",
    "expected_return",
    "importance_bound",
    "lattice",
    "log_p_seq",
    "order_entropy",
    "policy_gradient",
    "return_variance",
    "scheduler_logv",
    "table_claims",
    "tabular",
    "uniform_logv",
    "worst_order",
]

"""Exact quantities on enumerable models: all orders of a canvas, whole laws over sequences, and the paper's theorems as numbers.

==========================  ==========================================================================================
``states``                  the states of one canvas, shown to schedulers as the decoding loop shows them
``lattice``                 the 2^n teacher-forced states of a canvas, priced; a scheduler's policy on them
``orders``                  sums, extremes and gradients over all n! orders, by subsets
``beam``, ``oracles``       good and bad orders where there are too many subsets; the best and the worst as schedulers
``enumerable``              tables for V tokens at n positions: laws, divergences, total correlation
``claims_on_tables``, ``claims``  the theorems, checked
==========================  ==========================================================================================
"""

"""Threads that do not spin for long: imported before torch, whose OpenMP reads the environment once, when it is loaded.

A step of a small denoiser is a hundred short parallel regions. At the end of each a thread of GNU's OpenMP waits in a loop for some
milliseconds. On a machine that has other work, the thread that it waits for is not running meanwhile: two threads then can take a
hundred times as long as one. Ten thousand turns of the loop, a fraction of a millisecond, cost little on an idle machine and bound
the loss on a busy one. The results do not change.
"""

import os

SPINS = "10000"

if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = SPINS

"""Running programs that nobody has read.

    Sandbox (one a reward worker) ── Cell: no network, no files, no processes of this machine
                                       └─ zygote: a warm interpreter
                                            └─ init, of new pid and mount namespaces: one a run
                                                 ├─ program: the answer
                                                 └─ examiner: the tests, out of the answer's reach

`inside/` runs in the cell, everything else outside it.
"""

"""Running programs that nobody has read.

    Sandbox (one a reward worker) ── Container: no network, no files, no processes of this machine
                                       └─ forkserver: a warm interpreter
                                            └─ init, of new pid and mount namespaces: one a run
                                                 ├─ program: the answer
                                                 └─ examiner: the tests, out of the answer's reach

`inside/` runs in the container, everything else outside it.
"""

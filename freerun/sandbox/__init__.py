"""Runs programs that nobody has reviewed.

    Sandbox (one per reward worker) ── Container: no network, no files, no processes of this machine
                                         └─ forkserver: a warm interpreter
                                              └─ init, process 1 of new pid and mount namespaces: one per run
                                                   ├─ the program: a script, or functions that tests call
                                                   └─ the test runner: the tests, out of the program's reach

A *run* is one execution of a program. The code in `inside/` runs in the container, everything else outside it.
"""

"""A container by bubblewrap."""

from pathlib import Path

from freerun.sandbox.view import DEVICES, FOLDERS, forkserver, view

CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")
FOLDER_BYTES = 64 << 20
"""The size of a folder where there are no namespaces and folders serve one run; with them, each run mounts its own."""


def command(bwrap: str, control: int, run_as: int | None, *, nested: bool) -> list[str]:
    """As root (`run_as` given) without a user namespace, else in one. `nested` lets the forkserver make namespaces."""
    argv = [bwrap, "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--hostname", "container"]
    if run_as is None:
        argv += ["--unshare-user", "--uid", "0", "--gid", "0"]
    argv += ["--cap-drop", "ALL"]
    for capability in (*CAPABILITIES, *(("CAP_SYS_ADMIN",) if nested else ())):
        argv += ["--cap-add", capability]
    seen = view()
    places = [place for _, place in seen.binds] + [*DEVICES, *FOLDERS]
    for folder in sorted({str(parent) for place in places for parent in Path(place).parents if parent.name}):
        argv += ["--perms", "0755", "--dir", folder]  # on its own it makes them for its user only
    for source, place in seen.binds:
        argv += ["--ro-bind", source, place]
    for device in DEVICES:
        argv += ["--dev-bind", device, device]
    for target, name in seen.links:
        argv += ["--symlink", target, name]
    for folder in FOLDERS:
        argv += ["--perms", "1777", "--size", str(FOLDER_BYTES), "--tmpfs", folder]
    return [*argv, "--remount-ro", "/", "--chdir", "/", "--", *forkserver(control, run_as)]

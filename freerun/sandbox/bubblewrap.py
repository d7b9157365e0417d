"""The command that starts a container with bubblewrap."""

from pathlib import Path

from freerun.sandbox.filesystem import DEVICES, FOLDERS, view
from freerun.sandbox.launch import forkserver_command

CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")
FOLDER_BYTES = 64 << 20
"""The size of a writable folder where runs cannot mount their own, and a container serves a single run."""


def command(bwrap: str, control: int, run_as: int | None, *, nested: bool) -> list[str]:
    """Build the command line. As root (`run_as` is given) it uses no user namespace, otherwise it does.

    `nested` keeps the capability that the forkserver needs to create namespaces of its own.
    """
    argv = [bwrap, "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--hostname", "container"]
    if run_as is None:
        argv += ["--unshare-user", "--uid", "0", "--gid", "0"]
    argv += ["--cap-drop", "ALL"]
    for capability in (*CAPABILITIES, *(("CAP_SYS_ADMIN",) if nested else ())):
        argv += ["--cap-add", capability]
    shown = view()
    places = [place for _, place in shown.binds] + [*DEVICES, *FOLDERS]
    for folder in sorted({str(parent) for place in places for parent in Path(place).parents if parent.name}):
        argv += ["--perms", "0755", "--dir", folder]  # bubblewrap itself would make them readable by its user only
    for source, place in shown.binds:
        argv += ["--ro-bind", source, place]
    for device in DEVICES:
        argv += ["--dev-bind", device, device]
    for target, name in shown.links:
        argv += ["--symlink", target, name]
    for folder in FOLDERS:
        argv += ["--perms", "1777", "--size", str(FOLDER_BYTES), "--tmpfs", folder]
    return [*argv, "--remount-ro", "/", "--chdir", "/", "--", *forkserver_command(control, run_as)]

"""A cell by bubblewrap."""

from pathlib import Path

from freerun.rewards.sandbox.view import DEVICES, FOLDERS, view, zygote

CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")
FOLDER_BYTES = 64 << 20
"""Of a cell without namespaces of its own, whose folders serve one run. Where it has them, each run mounts others."""


def command(bwrap: str, control: int, run_as: int | None, *, nested: bool) -> list[str]:
    """As root (`run_as` given) without a user namespace, else in one. `nested` lets the zygote make namespaces."""
    argv = [bwrap, "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--hostname", "cell"]
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
    return [*argv, "--remount-ro", "/", "--chdir", "/", "--", *zygote(control, run_as)]

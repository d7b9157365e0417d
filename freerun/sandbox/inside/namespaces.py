"""A container without bubblewrap: `enter(plan)` isolates this process and executes the forkserver.

The process and its children then see no network, no other processes, and no file system except a read-only view of what
an interpreter needs. Requires Linux 5.14, and root or permission to create user namespaces. Nothing is written to disk,
and the container disappears when its last process ends.
"""

import json
import os
import signal
import stat
import sys
from typing import Any, NoReturn

from freerun.sandbox.inside import syscalls
from freerun.sandbox.inside.lockdown import KEPT_CAPABILITIES

ROOT = "/tmp"
"""Where the new root is assembled: any existing folder, covered by a mount that no other process sees."""


def enter(plan: dict[str, Any]) -> NoReturn:
    """The plan: `binds` ([from, to], read-only), `devices`, `links` ([target, name]), `folders`, `user_namespace`,
    `control` and `argv`."""
    os.umask(0o022)
    _unshare(plan["user_namespace"])
    trees = [(_open_tree(source), place) for source, place in plan["binds"]]
    trees += [(_open_tree(device, devices=True), device) for device in plan["devices"]]
    syscalls.mount("tmpfs", ROOT, syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=1m,mode=755")
    for tree, place in trees:
        _attach(tree, ROOT + place)
    for target, name in plan["links"]:
        os.symlink(target, ROOT + name)
    for folder in plan["folders"]:
        os.makedirs(ROOT + folder, exist_ok=True)
    _change_root()
    _execute(plan["argv"], plan["control"])


def _unshare(user_namespace: bool) -> None:
    user, group = os.getuid(), os.getgid()
    flags = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC
    flags |= syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWCGROUP
    syscalls.syscall("unshare", flags | (syscalls.CLONE_NEWUSER if user_namespace else 0))
    if user_namespace:
        for name, line in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    syscalls.mount("none", "/", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.syscall("sethostname", b"container", len(b"container"))


def _open_tree(source: str, *, devices: bool = False) -> int:
    flags = syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC | syscalls.AT_RECURSIVE
    tree = syscalls.syscall("open_tree", syscalls.AT_FDCWD, source.encode(), flags)
    syscalls.make_read_only(tree, devices=devices)
    return tree


def _attach(tree: int, place: str) -> None:
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o444))
    syscalls.syscall("move_mount", tree, b"", syscalls.AT_FDCWD, place.encode(), syscalls.MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)


def _change_root() -> None:
    """pivot_root(".", ".") mounts the old root over the new one; then the old root is unmounted."""
    os.chdir(ROOT)
    syscalls.syscall("pivot_root", b".", b".")
    syscalls.syscall("umount2", b".", syscalls.MNT_DETACH)
    os.chdir("/")
    root = os.open("/", os.O_PATH)
    syscalls.make_read_only(root, below=False)
    os.close(root)


def _execute(argv: list[str], control: int) -> NoReturn:
    """Execute the forkserver in a child, process 1 of its namespace. We wait for it, and it does not outlive us."""
    child = os.fork()
    if child == 0:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        syscalls.keep_in_bounding_set(KEPT_CAPABILITIES)
        os.execve(argv[0], argv, dict(os.environ))
    os.close(control)
    _, status = os.waitpid(child, 0)
    os._exit(min(abs(os.waitstatus_to_exitcode(status)), 255))


def main() -> None:
    try:
        enter(json.loads(sys.argv[1]))
    except OSError as error:
        sys.exit(error.strerror or str(error))

"""Which parts of this machine's file system a container shows, all of them read-only."""

import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from freerun.sandbox.inside.lockdown import INPUT

HERE = Path(__file__).resolve().parent
MOUNT_POINT = "/freerun"
"""The folder in a container that holds `inside` and the packages."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
FOLDERS = ("/tmp", "/dev/shm", INPUT)
"""Folders that are empty at the start of every run."""
PACKAGES = ("numpy",)
"""What programs and tests may import besides the standard library, as installed on this machine."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_LOADER = ("/etc/ld.so.cache", "/etc/alternatives")


@dataclass(frozen=True)
class View:
    binds: list[tuple[str, str]]
    """Paths on this machine, and where the container shows each."""
    links: list[tuple[str, str]]
    """Symbolic links: target, and name."""


@cache
def view() -> View:
    binds: list[tuple[str, str]] = []
    links = [(f"{INPUT}/in", "/dev/stdin")]
    for path in (*_SYSTEM, *_LOADER):
        if os.path.islink(path):
            links.append((os.readlink(path), path))
        elif os.path.exists(path):
            binds.append((path, path))
    for path in _interpreter_paths():
        if not any(Path(path).is_relative_to(shown) for shown, _ in binds):
            binds.append((path, path))
    return View([*binds, (str(HERE / "inside"), f"{MOUNT_POINT}/inside"), *_packages()], links)


def root_entries() -> set[str]:
    """The names in a container's root folder."""
    shown = view()
    places = [*(place for _, place in shown.binds), *(name for _, name in shown.links), *DEVICES, *FOLDERS]
    return {Path(place).parts[1] for place in places}


def python() -> str:
    """The base interpreter, not a virtual environment's: a container does not have the environment's packages."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _interpreter_paths() -> list[str]:
    libraries = [os.path.join(sys.base_prefix, name) for name in ("lib", "lib64")]
    return [python(), *(os.path.realpath(path) for path in libraries if os.path.isdir(path))]


def _packages() -> list[tuple[str, str]]:
    """The packages' folders, and the `.libs` folders beside them where wheels keep their shared libraries."""
    found = []
    for name in PACKAGES:
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            shown = (folder, f"{folder}.libs")
            found += [(path, f"{MOUNT_POINT}/packages/{Path(path).name}") for path in shown if os.path.isdir(path)]
    return found

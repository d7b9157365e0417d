"""What of this machine's file system a container shows, read-only, and how its forkserver is started."""

import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from freerun.sandbox.inside.lockdown import INPUT

HERE = Path(__file__).resolve().parent
PLACE = "/freerun"
"""Where a container has the folder `inside`."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
FOLDERS = ("/tmp", "/dev/shm", INPUT)
"""What every run gets empty."""
PACKAGES = ("numpy",)
"""What programs and tests may import besides the standard library, as it is installed here."""
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # the same everywhere: a program that goes by the order of a set gets the same verdict
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Of the forkserver, and so of the tests."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_LOADER = ("/etc/ld.so.cache", "/etc/alternatives")

# Only the folder `inside` is there, not the packages that it lies in: they are made up, and nothing else imported.
_BOOT = """
import sys, types
name, folder = "", sys.argv.pop(1)
for part in ("freerun", "sandbox"):
    name += part
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [folder] if part == "sandbox" else []
    name += "."
from freerun.sandbox.inside.{module} import main
main()
"""


@dataclass(frozen=True)
class View:
    binds: list[tuple[str, str]]
    """From here, to there."""
    links: list[tuple[str, str]]
    """Target, and name."""


@cache
def view() -> View:
    binds: list[tuple[str, str]] = []
    links = [(f"{INPUT}/in", "/dev/stdin")]
    for path in (*_SYSTEM, *_LOADER):
        if os.path.islink(path):
            links.append((os.readlink(path), path))
        elif os.path.exists(path):
            binds.append((path, path))
    for path in _interpreter():
        if not any(Path(path).is_relative_to(shown) for shown, _ in binds):
            binds.append((path, path))
    return View([*binds, (str(HERE / "inside"), f"{PLACE}/inside"), *_packages()], links)


def roots() -> set[str]:
    """What there is in the root folder of a container."""
    seen = view()
    places = [*(place for _, place in seen.binds), *(name for _, name in seen.links), *DEVICES, *FOLDERS]
    return {Path(place).parts[1] for place in places}


def python() -> str:
    """The interpreter itself, not that of a virtual environment, whose packages a container does not have."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def boot(module: str, folder: str, *arguments: str) -> list[str]:
    """A command that runs `main` of a module of `inside`, where the folder that holds `inside` is `folder`."""
    return [python(), "-s", "-S", "-P", "-c", _BOOT.format(module=module), folder, *arguments]


def forkserver(control: int, run_as: int | None) -> list[str]:
    return boot("forkserver", PLACE, str(control), "-" if run_as is None else str(run_as), f"{PLACE}/packages")


def _interpreter() -> list[str]:
    libraries = [os.path.join(sys.base_prefix, name) for name in ("lib", "lib64")]
    return [python(), *(os.path.realpath(path) for path in libraries if os.path.isdir(path))]


def _packages() -> list[tuple[str, str]]:
    """Their folders, and those of the libraries that wheels bring along, which they look for beside themselves."""
    found = []
    for name in PACKAGES:
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            shown = (folder, f"{folder}.libs")
            found += [(path, f"{PLACE}/packages/{Path(path).name}") for path in shown if os.path.isdir(path)]
    return found

"""The commands that start a module of `inside/` in an interpreter that has nothing else of Freerun."""

from freerun.sandbox.filesystem import MOUNT_POINT, python

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # the same everywhere: a program that depends on the order of a set gets the same verdict
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The environment of the forkserver, and therefore of the test runner."""

# A container has the folder `inside` but not its parent packages, so those are created here, empty.
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


def boot_command(module: str, folder: str, *arguments: str) -> list[str]:
    """A command that runs `main` of `inside/MODULE.py`. `folder` is the folder that contains `inside`."""
    return [python(), "-s", "-S", "-P", "-c", _BOOT.format(module=module), folder, *arguments]


def forkserver_command(control: int, run_as: int | None) -> list[str]:
    user, packages = "-" if run_as is None else str(run_as), f"{MOUNT_POINT}/packages"
    return boot_command("forkserver", MOUNT_POINT, str(control), user, packages)

"""The wheel has every file of the package, and works from a bare environment, far from the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import freerun

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that what an earlier build left in the repository cannot get into it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    shutil.copytree(ROOT / "freerun", source / "freerun", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*build, "--wheel-dir", folder, source], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `freerun` of an environment that has the wheel, and otherwise what this one has."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(install, check=True, env=bare())
    (packages,) = (venv / "lib").glob("python*/site-packages")
    (packages / "theirs.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # after its own, without their .pth
    return venv / "bin" / "freerun"


def bare() -> dict[str, str]:
    """The environment, without what would bring the repository back."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def from_it(program: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, env=bare())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_every_file(wheel: Path) -> None:
    tree = {str(file.relative_to(ROOT)) for file in (ROOT / "freerun").rglob("*") if file.is_file()}
    packed = zipfile.ZipFile(wheel).namelist()
    assert {file for file in packed if ".dist-info/" not in file} == {
        file for file in tree if "__pycache__" not in file
    }
    assert any(file.endswith("LICENSE") for file in packed)
    assert "freerun/py.typed" in packed


def test_it_works_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    assert from_it(installed, tmp_path, "--version") == f"freerun {freerun.__version__}\n"
    assert "train.lr" in from_it(installed, tmp_path, "config")
    python = installed.parent / "python"
    assert str(installed.parents[1]) in from_it(python, tmp_path, "-c", "import freerun; print(freerun.__file__)")


def test_the_demo_runs_from_it(installed: Path, tmp_path: Path) -> None:
    assert "demo: reward" in from_it(installed, tmp_path, "demo", "--steps", "1")
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 10_000

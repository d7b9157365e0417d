"""The one resolver: files, modules, built-in names and what installed packages bring."""

import sys
from pathlib import Path

import pytest

from freerun.core import ConfigError
from freerun.core.options import with_options
from freerun.core.resolve import Kind, ScriptReached, is_loading, reference_to
from freerun.data.sources import SOURCES
from freerun.observe.loggers.known import OBSERVERS
from freerun.rewards.judges import JUDGES
from freerun.rollouts.config import ROLLOUTS

THINGS = Kind("thing", "Class", "freerun.things", {"dict": "builtins:dict", "ordered": "collections:OrderedDict"})


def message_of(name: str, kind: Kind = THINGS) -> str:
    with pytest.raises(ConfigError) as caught:
        kind.find(name).definition()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def install(folder: Path, package: str, entry_points: str) -> None:
    """As pip leaves it: a package and its dist-info, with entry points."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text("")
    (folder / package / "parts.py").write_text(
        "class Thing:\n    pass\n\ndef reward(task, text):\n    return len(text)\n"
    )
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_built_in_names() -> None:
    assert THINGS.find("dict").load() is dict
    assert THINGS.find("dict").is_built_in
    assert THINGS.knows("dict")
    listed = "use one of dict, ordered, or FILE.py:Class or package.module:Class"
    assert message_of("dikt") == f'there is no thing "dikt": {listed}; did you mean dict?'


def test_a_file_is_loaded_once_from_its_own_folder_and_again_when_it_has_changed(tmp_path: Path) -> None:
    (tmp_path / "sibling.py").write_text("N = 1\n")
    file = tmp_path / "mine.py"
    file.write_text("import sibling\nclass A:\n    n = sibling.N\n    class B: pass\nclass C: pass\n")
    a, c = THINGS.find(f"{file}:A").load(), THINGS.find(f"{file}:C").load()
    assert a.n == 1
    assert sys.modules[a.__module__] is sys.modules[c.__module__], "one import for both"
    assert THINGS.find(f"{file}:A.B").load() is a.B
    assert reference_to(a) == f"{file}:A"
    file.write_text("class A:\n    n = 2\n")
    assert THINGS.find(f"{file}:A").load().n == 2


def test_a_relative_file_and_a_module_start_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("class A: pass\n")
    (tmp_path / "package_here").mkdir()
    (tmp_path / "package_here" / "inner.py").write_text("class A: pass\n")
    for name in ("beside.py:A", "beside:A", "package_here.inner:A"):
        THINGS.find(name).definition()
        assert THINGS.find(name).load().__name__ == "A"
    assert reference_to(THINGS.find("package_here.inner:A").load()) == "package_here.inner:A"


def test_checking_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "explosive").mkdir()
    (tmp_path / "explosive" / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "explosive" / "inner.py").write_text("raise SystemExit\nclass A: pass\n")
    THINGS.find("explosive.inner:A").definition()
    assert "explosive" not in sys.modules
    assert "inner.py has no class Bee" in message_of("explosive.inner:Bee")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no/file.py:A", "there is no file no/file.py (from "),
        ("no_module.at_all:A", "there is no module no_module.at_all for the thing no_module.at_all:A"),
        ("json.nothing:A", "there is no module json.nothing"),
        ("json:lods", "has no class lods; did you mean loads?"),
        ("my-file:A", 'the thing "my-file:A" must be FILE.py:Class or package.module:Class'),
        ("file.py:1", "must be FILE.py:Class"),
        ("file.py:", "must be FILE.py:Class"),
        ("", 'there is no thing ""'),
    ],
)
def test_mistakes_are_one_line(name: str, says: str) -> None:
    assert says in message_of(name)


def test_what_a_file_raises_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for source, says in (
        ("import json\n\njson.loads('{')\nclass A: pass\n", f"{file}:3: json.decoder.JSONDecodeError: "),
        ("import nothing_of_the_kind\nclass A: pass\n", f"{file}:1: ModuleNotFoundError: "),
        ("raise SystemExit(3)\nclass A: pass\n", f"{file}:1: SystemExit: 3"),
        ("if False:\n    class A: pass\n", f"{file} has no class A"),
    ):
        file.write_text(source)
        with pytest.raises(ConfigError) as caught:
            THINGS.find(f"{file}:A").load()
        assert str(caught.value).startswith(says)


@pytest.mark.parametrize("kind", [JUDGES, ROLLOUTS, SOURCES, OBSERVERS])
def test_an_installed_package_brings_its_own(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = f"brings_{kind.group.replace('.', '_')}"
    install(tmp_path, package, f"[{kind.group}]\nmine = {package}.parts:Thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = kind.find("mine")
    found.definition()
    assert found.load().__name__ == "Thing"
    assert kind.knows("mine")
    assert "mine, " in message_of("min", kind) or "one of mine" in message_of("min", kind)
    install(tmp_path / "other", f"{package}_too", f"[{kind.group}]\nmine = {package}_too.parts:Thing\n")
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    assert f"{package}.parts:Thing ({package})" in message_of("mine", kind)
    assert "write which one you mean" in message_of("mine", kind)


def test_a_script_is_imported_as_far_as_its_call_of_train(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "import freerun\ndef mine(task, text): return 1\nfreerun.train('no-such-file.yaml')\nraise SystemExit\n"
    )
    assert THINGS.find(f"{file}:mine").load()(None, "") == 1
    assert not is_loading()
    assert not issubclass(ScriptReached, Exception), "a script's own `except Exception` does not stop it"


def test_what_has_no_name_elsewhere() -> None:
    def inner() -> None: ...

    assert reference_to(inner) is None
    assert reference_to(lambda: 0) is None
    assert reference_to(install) == f"{__name__}:install"
    assert reference_to(Kind.find) == "freerun.core.resolve:Kind.find"


def test_options() -> None:
    assert with_options(Kind, {"noun": "a", "form": "b", "group": "c"}, "it") == Kind("a", "b", "c")
    for target, options, says in (
        (Kind, {"nuon": 1}, 'it has no option "nuon"; did you mean noun?'),
        (Kind, {"noun": 1, "form": "", "group": ""}, "it: noun: Expected str, got int"),
        (install, {"packag": ""}, 'it has no option "packag"; did you mean package?'),
    ):
        with pytest.raises(ConfigError) as caught:
            with_options(target, options, "it")
        assert str(caught.value) == says
    assert with_options(sorted, {"reverse": True}, "it")([1, 2]) == [2, 1]

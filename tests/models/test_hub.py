"""`model.path: ORG/NAME`: from a real cache, from a hub over HTTP, and what is said where it is in neither."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from freerun.models.hub import HubName
from tests.models.hub_server import COMMIT, cache, serving
from tests.tiny import tiny_folder

NAME = "acme/Tiny-0.1B"
FIND = """
import json, sys
from freerun.core import ConfigError
from freerun.models.hub import bytes_to_download, cached_model, find_model
for path in sys.argv[1:]:
    try:
        found = find_model(path)
        print(json.dumps([str(found.folder), found.name, sorted(file.name for file in found.folder.iterdir())]))
    except ConfigError as error:
        print(json.dumps(str(error)))
"""


def found(*paths: object, home: Path, folder: Path, **environment: str) -> list[Any]:
    """In a process of its own, for huggingface_hub reads the environment when it is imported."""
    here = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", FIND, *map(str, paths)],
        env=here | {"HF_HOME": str(home)} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_names() -> None:
    assert HubName.of("Qwen/Qwen3-0.6B") == HubName("Qwen/Qwen3-0.6B", None)
    assert HubName.of("Qwen/Qwen3-0.6B@main") == HubName("Qwen/Qwen3-0.6B", "main")
    for path in ("model", "./a/b", "../a/b", "/a/b", "a/b/c", "~/b", "a/", ""):
        assert HubName.of(path) is None


def test_the_cache_serves_offline_and_a_folder_of_that_name_wins(tmp_path: Path) -> None:
    model, home, here = tiny_folder(tmp_path / "model"), tmp_path / "home", tmp_path / "here"
    here.mkdir()
    snapshot = cache(model, NAME, home)
    partial = cache(model, "acme/Partial", home)
    (partial / "model.safetensors").unlink()
    asked = (NAME, f"{NAME}@{COMMIT}", f"{NAME}@main", "acme/Partial", "acme/Other")
    one, same, main, half, none = found(*asked, home=home, folder=here, HF_HUB_OFFLINE="1")
    assert one[:2] == same[:2] == main[:2] == [str(snapshot), f"{NAME}@{COMMIT}"]
    for line in (half, none):
        assert isinstance(line, str)
        assert "is not in the Hugging Face cache" in line
        assert "run `hf download acme/" in line
    (here / NAME).mkdir(parents=True)
    ((local, name, _),) = found(NAME, home=home, folder=here, HF_HUB_OFFLINE="1")
    assert (local, name) == (NAME, NAME)


def test_it_is_downloaded_once(tmp_path: Path) -> None:
    models, home = tmp_path / "models", tmp_path / "home"
    model = tiny_folder(models / NAME)
    (model / "pytorch_model.bin").write_bytes(b"the same in another format")
    with serving(models) as (url, asked):
        first, nothing = found(NAME, "acme/None", home=home, folder=tmp_path, HF_ENDPOINT=url)
        assert first[1] == f"{NAME}@{COMMIT}"
        assert set(first[2]) == {file.name for file in model.iterdir()} - {"pytorch_model.bin"}
        assert isinstance(nothing, str)
        assert "has no model of that name" in nothing
        before = len(asked)
        assert found(NAME, home=home, folder=tmp_path, HF_ENDPOINT=url) == [first]
        assert not [one for one in asked[before:] if NAME in one], "the second time it is in the cache"
    (down,) = found("acme/Other", home=home, folder=tmp_path, HF_ENDPOINT=url)
    assert isinstance(down, str)
    assert f"{url} cannot be asked for it" in down
    assert "\n" not in down


@pytest.mark.parametrize("name", ["acme/Tiny@nothing"])
def test_an_unknown_revision_offline(tmp_path: Path, name: str) -> None:
    cache(tiny_folder(tmp_path / "model"), "acme/Tiny", tmp_path / "home")
    (line,) = found(name, home=tmp_path / "home", folder=tmp_path, HF_HUB_OFFLINE="1")
    assert isinstance(line, str)
    assert "hf download acme/Tiny --revision nothing" in line

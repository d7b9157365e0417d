"""A model by its name on the Hugging Face hub: from the cache, or downloaded into it. The only file that imports
huggingface_hub.

Promises a folder on this disk, or a ConfigError of one line that says what to do. A folder of that name wins over the
hub. Where the cache is, which hub is asked and whether at all is huggingface_hub's to say: HF_HOME, HF_ENDPOINT,
HF_HUB_OFFLINE.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from freerun.core import ConfigError
from freerun.models.tokenizer import has_tokenizer
from freerun.models.weight_files import shard_names

_NAME = re.compile(r"(?P<repo>\w[\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py"]
"""What a run reads of a model: not its weights in other formats. Code is run with model.trust_remote_code alone."""
_BELOW = ["*/*"]
"""Sub-folders hold other formats, or other models."""


@dataclass(frozen=True)
class HubName:
    """`ORG/NAME`, or `ORG/NAME@REVISION`."""

    repo: str
    revision: str | None

    @classmethod
    def of(cls, path: str) -> "HubName | None":
        """None for what cannot be a name on the hub."""
        found = _NAME.fullmatch(path)
        return cls(found["repo"], found["revision"]) if found else None

    @property
    def downloaded(self) -> str:
        """The command that gets it where there is a network."""
        return f"hf download {self.repo}" + (f" --revision {self.revision}" if self.revision else "")


@dataclass(frozen=True)
class ModelFolder:
    folder: Path
    name: str
    """What finds the same files again: the path, or a name on the hub with the commit."""
    is_of_hub: bool = False


def find_model(path: str) -> ModelFolder:
    """The folder of `model.path`. A model of the hub is downloaded unless the cache has it."""
    if (name := name_on_hub(path)) is None:
        return ModelFolder(Path(path).expanduser(), path)
    return _snapshot(name, _cached(name) or _download(name))


def cached_model(path: str) -> ModelFolder | None:
    """As `find_model`, but nothing is downloaded: None for a model of the hub that is not in the cache."""
    if (name := name_on_hub(path)) is None:
        return find_model(path)
    folder = _cached(name)
    return _snapshot(name, folder) if folder else None


def name_on_hub(path: str) -> HubName | None:
    """None for a folder that exists, and for what can be no name."""
    if "\0" in path:
        raise ConfigError("model.path holds a character of code 0, which no path may: remove it")
    return None if Path(path).expanduser().is_dir() else HubName.of(path)


def config_on_hub(path: str) -> Path:
    """The folder with the model's `config.json` and nothing else, from the cache or downloaded: a few kilobytes."""
    name = name_on_hub(path)
    assert name is not None, path
    from huggingface_hub import hf_hub_download

    return Path(_asked(name, lambda: hf_hub_download(name.repo, "config.json", revision=name.revision))).parent


def _snapshot(name: HubName, folder: Path) -> ModelFolder:
    """The cache has a folder for each commit."""
    return ModelFolder(folder, f"{name.repo}@{folder.name}", is_of_hub=True)


def bytes_to_download(path: str) -> int:
    """How large the files are that `find_model` would download. A ConfigError where it could not."""
    name = HubName.of(path)
    assert name is not None, path
    from huggingface_hub import HfApi

    info = _asked(name, lambda: HfApi().model_info(name.repo, revision=name.revision, files_metadata=True))
    files = [one for one in info.siblings or [] if "/" not in one.rfilename]
    return sum(one.size or 0 for one in files if any(fnmatch(one.rfilename, pattern) for pattern in FILES))


def _cached(name: HubName) -> Path | None:
    """Its snapshot, if that has all that a run needs, whoever put it there: an interrupted download has not."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name.repo, "config.json", revision=name.revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    files = shard_names(folder)
    is_whole = bool(files) and has_tokenizer(folder) and all((folder / file).is_file() for file in files)
    return folder if is_whole else None


def _download(name: HubName) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        _asked(
            name,
            lambda: snapshot_download(name.repo, revision=name.revision, allow_patterns=FILES, ignore_patterns=_BELOW),
        )
    )


def _asked(name: HubName, question: Callable[[], Any]) -> Any:
    """What the hub answers; its refusal, or that it cannot be reached, in one line."""
    from huggingface_hub import constants, errors

    here = f"model.path: there is no folder {name.repo}, and"
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(
            f"{here} it is not in the Hugging Face cache ({constants.HF_HUB_CACHE}), while HF_HUB_OFFLINE forbids to "
            f"download it: unset that, or run `{name.downloaded}` where there is a network"
        )
    try:
        return question()
    except errors.GatedRepoError:
        raise ConfigError(
            f"model.path: {name.repo} wants you to accept its terms on the hub, then `hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"model.path: {name.repo} has no revision {name.revision} on the Hugging Face hub") from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"{here} the Hugging Face hub has no model of that name that you may read: check it, or run `hf auth login`"
        ) from None
    except Exception as error:  # whatever its HTTP client, or the disk, has to say
        said = " ".join(str(error).split()).partition(". ")[0][:160] or type(error).__name__
        raise ConfigError(
            f"{here} {constants.ENDPOINT} cannot be asked for it ({said}): check the network, or copy the model here"
        ) from None

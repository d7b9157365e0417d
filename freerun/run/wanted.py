"""How many engines a run is to have: `resources.engines` in the config.yaml of its folder, which may be changed while
it goes on, by hand or by `freerun engines`. A run that goes on looks at the file every second.

Which engine is to leave is no setting. Where somebody names it, that is part of where the number came from, which the
file has behind it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from freerun.config.load import load_dumped
from freerun.config.text import dump
from freerun.config.tree import RunConfig
from freerun.core import FreerunError
from freerun.core.files import write_atomically
from freerun.observe.folder import RunFolder, writing

KEY = "resources.engines"
_LOOK_S = 1.0
_BY = "freerun engines"
_WITHOUT = f"{_BY}: without "


@dataclass(frozen=True)
class WantedEngines:
    number: int
    without: str = ""
    """The name of the one that is to leave first, if that matters."""

    def leave(self, there: Sequence[str]) -> list[str]:
        """Those that are too many: the last ones, unless one is named."""
        too_many = max(len(there) - self.number, 0)
        named = [name for name in there if name == self.without]
        others = [name for name in reversed(there) if name != self.without]
        return [*named, *others][:too_many]


def want_engines(folder: RunFolder, wanted: WantedEngines) -> None:
    """Write it into the run's config.yaml."""
    config, origins = load_dumped(folder.config, [f"{KEY}={wanted.number}"])
    origins[KEY] = f"{_WITHOUT}{wanted.without}" if wanted.without else _BY
    with writing(folder.config):
        write_atomically(folder.config, dump(config, origins))


def with_wanted(config: RunConfig, folder: RunFolder) -> RunConfig:
    """The same, with as many engines as the folder says by now."""
    with suppress(FreerunError):
        wanted = load_dumped(folder.config)[0].resources.engines
        return config.model_copy(update={"resources": config.resources.model_copy(update={"engines": wanted})})
    return config


async def engines_wanted(
    folder: RunFolder, begins: RunConfig, note: Callable[[str], None]
) -> AsyncIterator[WantedEngines]:
    """The number, each time that it changes from what the run begins with. A file that cannot be read is noted, and
    changes nothing."""
    number, seen, before = begins.resources.engines, (0, 0, 0), None
    while True:
        if (stamp := _stamp(folder)) != seen:
            seen = stamp
            try:
                config, origins = await asyncio.to_thread(load_dumped, folder.config)
            except FreerunError as error:
                note(f"{folder.config} has changed, and is not taken: {error}")
            else:
                if _rest(config) != (before or _rest(config)):
                    note(f"of {folder.config} only {KEY} is taken while the run goes on, the rest when it is resumed")
                before, wanted = _rest(config), config.resources.engines
                if wanted is not None and wanted != number:
                    yield WantedEngines(wanted, origins.get(KEY, "").partition(_WITHOUT)[2])
                number = wanted
        await asyncio.sleep(_LOOK_S)


def _rest(config: RunConfig) -> dict[str, object]:
    """All but that number."""
    whole = config.model_dump()
    del whole["resources"]["engines"]
    return whole


def _stamp(folder: RunFolder) -> tuple[int, int, int]:
    """Differs when the file was written."""
    try:
        found = folder.config.stat()
    except OSError:  # it is being put in its place
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino

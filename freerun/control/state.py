"""Reading `control.json` of a checkpoint."""

from pathlib import Path

import msgspec

from freerun.core import ConfigError
from freerun.core.state import RunState


def read_state(file: Path) -> RunState:
    try:
        return RunState.from_json(file.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): resume with the Freerun that wrote it") from None

"""The key that the machines of a cluster share, and those that are made of it. None of them ever travels."""

import hmac
import os
from pathlib import Path

from freerun.core import ConfigError

KEY = "FREERUN_KEY"
"""The environment variable that holds it, where no file does."""
_LEAST = 16


def cluster_key(file: str | None) -> bytes:
    """The key in that file, or in the environment."""
    if file is not None:
        try:
            key = Path(file).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the key file {file} cannot be read: {error}") from None
        said = f"the key in {file}"
    else:
        key, said = os.environ.get(KEY, "").strip(), KEY
    if not key:
        where = f"{file} is empty" if file else f"{KEY} is not set, and no key file is given"
        raise ConfigError(f"{where}: make a key by `openssl rand -hex 32`, and give every machine the same")
    if len(key) < _LEAST:
        raise ConfigError(f"{said} has {len(key)} characters; take at least {_LEAST}: `openssl rand -hex 32` makes one")
    return key.encode()


def run_key(cluster: bytes, run: str) -> str:
    """What the processes of one run show each other."""
    return hmac.digest(cluster, b"run|" + run.encode(), "sha256").hex()

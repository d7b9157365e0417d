"""`freerun watch` as a process of its own, for tests that ask it over HTTP or look at it in a browser."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit


@contextmanager
def watching(runs: Path, *options: str) -> Iterator[str]:
    """The address that it prints, as long as the block lasts. It must end by SIGINT within five seconds."""
    words = [sys.executable, "-m", "freerun.cli.main", "watch", str(runs), "--port", "0", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        said = process.stdout.readline()
        yield next(word for word in said.split() if word.startswith("http"))
    finally:
        process.send_signal(2)
        assert process.wait(5) == 0
        process.stdout.close()


def base(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"

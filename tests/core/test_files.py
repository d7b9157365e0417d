"""What is written appears complete or not at all, also when its writer is killed."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from freerun.core.files import (
    atomic_file,
    atomic_folder,
    begin_folder,
    complete_folder,
    unfinished_of,
    write_atomically,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write_atomically(path, "old")
    with suppress(ValueError), atomic_file(path) as file:
        file.write(b"ne")
        raise ValueError("half-way")
    assert path.read_text() == "old"
    write_atomically(path, "η", durable=True)
    assert path.read_bytes() == "η".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_folder_leaves_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with atomic_folder(folder) as unfinished:
        (unfinished / "a").write_text("old")
        assert not folder.exists()
    with suppress(ValueError), atomic_folder(folder) as unfinished:
        (unfinished / "b").write_text("new")
        raise ValueError("half-way")
    assert [file.name for file in folder.iterdir()] == ["a"]
    with atomic_folder(folder, durable=True) as unfinished:
        (unfinished / "b").write_text("new")
    assert [file.name for file in folder.iterdir()] == ["b"], "nothing of the old one is left among the new"
    assert list(tmp_path.iterdir()) == [folder]


def test_what_an_earlier_attempt_left_is_not_mixed_in(tmp_path: Path) -> None:
    (begin_folder(tmp_path / "step-1") / "left").write_text("")
    (begin_folder(tmp_path / "step-1") / "new").write_text("")
    complete_folder(tmp_path / "step-1", durable=True)
    assert [file.name for file in (tmp_path / "step-1").iterdir()] == ["new"]


WRITER = """
import sys, time
from pathlib import Path
from freerun.core.files import atomic_file
with atomic_file(Path(sys.argv[1])) as file:
    file.write(b"new" * 100_000)
    file.flush()
    print("half-way", flush=True)
    time.sleep(1000)
"""


def test_a_writer_killed_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_atomically(path, "old")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"half-way\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert path.read_text() == "old"
    assert unfinished_of(path).stat().st_size > 0
    write_atomically(path, "next")
    assert path.read_text() == "next"
    assert list(tmp_path.iterdir()) == [path]

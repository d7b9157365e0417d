"""When a sandbox is refused, and how it ends. `test_hostile.py` has what programs try against it."""

import ast
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from freerun.commands import doctor
from freerun.core import ConfigError
from freerun.machine.descendants import descendants
from freerun.rewards.judges import check
from freerun.sandbox import sandbox as sandboxes
from freerun.sandbox.container import ContainerError
from freerun.sandbox.filesystem import HERE
from freerun.sandbox.inside import escape_check
from freerun.sandbox.sandbox import Sandbox
from tests.rewards.processes import wait_until_ended


@pytest.mark.skipif(sys.platform != "linux", reason="there is none elsewhere")
def test_a_machine_without_namespaces_is_refused() -> None:
    """Really: with our own filter on, no process of ours can make a namespace, by bubblewrap or without."""
    program = """
        from freerun.core import ConfigError
        from freerun.sandbox.inside import seccomp, syscalls
        from freerun.sandbox.sandbox import Sandbox
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install()
        try:
            Sandbox().run_script(["print('unprotected')"])
        except ConfigError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("judging code needs")
    assert "unprotected" not in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_refusal_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sandboxes, "_checked_container", lambda *_: (_ for _ in ()).throw(ContainerError("no namespaces"))
    )
    monkeypatch.setattr(shutil, "which", lambda _: None)
    line = "judging code needs bubblewrap (without it: namespaces: no namespaces): apt install bubblewrap"
    with pytest.raises(ConfigError) as refusal:
        check(["exact", "code"])  # before a run starts
    assert (str(refusal.value), refusal.value.detail) == (line, "")
    assert doctor._isolation() == doctor.Finding(False, line)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/bwrap")
    with pytest.raises(ConfigError, match=r"none works here \(bubblewrap: no namespaces; namespaces: .*\): \S+"):
        Sandbox().open()
    monkeypatch.setattr(sandboxes, "python", lambda: "/tmp/mine/bin/python3")
    with pytest.raises(ConfigError, match="needs a Python outside /tmp, which is empty in the sandbox: not /tmp/mine"):
        Sandbox().open()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="needs Linux"):
        Sandbox().open()


def test_an_unsafe_container_is_refused(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text("print('a file')\nprint('a socket')")
    monkeypatch.setattr(escape_check, "__file__", str(tmp_path / "check.py"))
    before = set(descendants(os.getpid()))
    with pytest.raises(ConfigError) as refusal:
        Sandbox().open()
    assert "it is not safe: a file; a socket" in str(refusal.value)
    assert set(descendants(os.getpid())) <= before


def test_doctor_reports_the_backend(sandbox: Sandbox) -> None:
    assert doctor._isolation().what.startswith(f"judging code, isolated by {sandbox.backend}")


def test_a_run_dies_with_its_judge(any_sandbox: Sandbox) -> None:
    program = f"""
        import sys
        from freerun.sandbox.base import Backend, Limits
        from freerun.sandbox.sandbox import Sandbox
        with Sandbox(Backend("{any_sandbox.backend}")) as sandbox:
            print("ready", flush=True)
            sandbox.run_script(["while True: pass"], limits=Limits(cpu_s=100, wall_s=100))
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as judge:
        assert judge.stdout is not None
        assert judge.stdout.readline() == b"ready\n"
        while len(inside := list(descendants(judge.pid))) < 4:  # bubblewrap or us, forkserver, init, program
            pass
        pidfds = [os.pidfd_open(pid) for pid in inside]
        judge.send_signal(signal.SIGKILL)
        for pidfd in pidfds:
            wait_until_ended(pidfd)


def test_closing_leaves_nothing(sandbox: Sandbox) -> None:
    before = set(descendants(os.getpid()))
    other = Sandbox(sandbox.backend)
    other.run_script(["print(1)"])
    other.close()
    other.close()
    assert set(descendants(os.getpid())) <= before
    assert other.run_script(["print(1)"]).stdout == b"1\n"  # and it opens again
    other.close()


def test_code_inside_imports_only_the_standard_library() -> None:
    for file in (HERE / "inside").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                ours = name.startswith("freerun.sandbox.inside")
                assert ours or name.split(".")[0] in sys.stdlib_module_names, f"{file.name} imports {name}"

"""The process that runs a program as a script, with its own input and output.

From the program's first line on, nothing in this process can be trusted, including this file.
"""

import atexit
import gc
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any, NoReturn

from freerun.sandbox.inside.source import ENVIRONMENT, Unreadable, choose, prepare_interpreter

CANNOT_START = 127
FLUSH_FAILED = 120
"""The exit code of an interpreter that cannot flush its output."""


def run_script(program: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> NoReturn:
    """Run it as `python main.py` would, or write it to a file and run a command."""
    prepare_interpreter()
    if program["command"]:
        _execute_command(program)
    try:
        code = choose(program)
    except Unreadable as error:
        report({"unreadable": str(error)})
        os._exit(1)
    _close_all_but_standard_streams()
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os._exit(_run_as_main(code))


def _execute_command(program: dict[str, Any]) -> NoReturn:
    _close_all_but_standard_streams()
    with open(program["file"], "w", encoding="utf-8", errors="replace") as file:
        file.write(program["sources"][0])
    try:
        os.execvpe(program["command"][0], program["command"], ENVIRONMENT)
    except OSError as error:
        os.write(2, f"{program['command'][0]}: {error.strerror}\n".encode())
        os._exit(CANNOT_START)


def _run_as_main(code: CodeType) -> int:
    """Run it, its exit handlers and its threads, and return its exit code, as the interpreter would."""
    main = ModuleType("__main__")
    main.__file__ = code.co_filename
    sys.modules["__main__"] = main
    sys.argv = [code.co_filename]
    status = 0
    try:
        try:
            exec(code, vars(main))
        finally:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
    except SystemExit as leaving:
        status = _exit_code(leaving.code)
    except BaseException as error:
        traceback.print_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        status = 1
    return _clear_module(main) or status


def _clear_module(main: ModuleType) -> int:
    """Drop all that the module holds and flush open files, as the interpreter does at exit."""
    objects = gc.get_objects()
    for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):  # one in a cycle might never be flushed
        for file in [file for file in objects if type(file) is kind]:
            with suppress(OSError, ValueError):
                file.flush()
    del objects
    names = vars(main)
    for private in (True, False):
        for name in [name for name in names if name != "__builtins__" and private == _is_private(name)]:
            names[name] = None
    gc.collect()
    status = 0
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            status = FLUSH_FAILED
        except Exception:  # an object that the program put in its place
            traceback.print_exc()
    return status


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _close_all_but_standard_streams() -> None:
    os.closerange(3, 1 << 16)

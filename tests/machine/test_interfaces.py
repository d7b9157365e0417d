"""An address is found on its interface, or the error says which addresses there are."""

import subprocess
import sys

import pytest

from freerun.core import ConfigError
from freerun.machine.interfaces import interface_of


def test_loopback_is_found_by_address_and_by_name() -> None:
    name = "lo" if sys.platform == "linux" else "lo0"
    assert interface_of("127.0.0.1") == interface_of("localhost") == name


def test_every_address_of_every_interface_is_known() -> None:
    """Against what `ip` says, where there is one."""
    try:
        lines = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout.splitlines()
    except FileNotFoundError:
        pytest.skip("there is no `ip` to compare with")
    pairs = [(parts[1].split("@")[0], parts[3].split("/")[0]) for parts in map(str.split, lines)]
    for name, address in pairs:
        if not address.startswith("fe80"):  # the same on several interfaces
            assert interface_of(address) == name


def test_an_address_of_nobody_here_is_refused_in_a_line() -> None:
    with pytest.raises(ConfigError, match=r"no network interface here has the address 192\.0\.2\.1.*127\.0\.0\.1"):
        interface_of("192.0.2.1")

"""Which network interface has an address: libraries that open their own connections ask for its name.

By the C library's `getifaddrs`, which knows every address of every interface, of either family.
"""

import ctypes
import socket
import sys
from collections.abc import Iterator

from freerun.core import ConfigError


class _Interface(ctypes.Structure):
    """The head of `struct ifaddrs`; nothing behind the address is read."""


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]
_IPV4_AT, _IPV6_AT = 4, 8
"""Where the address is in a `sockaddr_in` and in a `sockaddr_in6`."""


def interface_of(host: str) -> str:
    """The name of this machine's interface with that address; a name is looked up first."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise ConfigError(f"the address {host} cannot be resolved ({error}): give this machine's IP address") from None
    known = list(_addresses())
    for name, address in known:
        if address in found:
            return name
    here = ", ".join(f"{address} ({name})" for name, address in known)
    raise ConfigError(f"no network interface here has the address {host}: join with one of {here}")


def _addresses() -> Iterator[tuple[str, str]]:
    """The name of an interface and one of its addresses, for all of them."""
    c = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Interface)()
    if c.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "getifaddrs failed")
    try:
        at = first
        while at:
            if at.contents.address and (address := _text(at.contents.address)):
                yield at.contents.name.decode(), address
            at = at.contents.next
    finally:
        c.freeifaddrs(first)


def _text(at: int) -> str | None:
    """The address in a `sockaddr` as text; None for one that is not of the internet."""
    head = ctypes.string_at(at, 2)
    family = int.from_bytes(head, sys.byteorder) if sys.platform == "linux" else head[1]
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, ctypes.string_at(at + _IPV4_AT, 4))
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, ctypes.string_at(at + _IPV6_AT, 16))
    return None

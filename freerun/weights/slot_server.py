"""Serves the slots of one publisher to other machines, beside whatever else its process does.

Consumes connections; produces ranges of slots' bytes; waits for its peers, none of them longer than `PATIENCE_S`
without progress. Its threads end with the process, or with `close`. Slots are sent from a mapping: sendfile hands
memory of this kind over by pages of 4 KiB, and took half as much time again.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread

from freerun.core import Version, WeightsError
from freerun.weights.peer import Kind, Peer, Status, prove_as_server
from freerun.weights.slot import NONE, MappedSlots, SlotReader

_MOST = 1 << 20
"""Bytes a call: a slow peer shows progress at least so often."""

Find = Callable[[Kind, Version, Callable[[], None]], Path | None]
"""The slot that holds that, if any does. The function is to be called now and then while it is being made."""


class SlotServer:
    def __init__(self, host: str, key: str, find: Find) -> None:
        self._key, self._find = key, find
        self._reading: dict[Peer, Version] = {}
        """Which version each peer is in the middle of."""
        self._changed = Condition()
        self._slots = MappedSlots()
        self.sent_bytes = 0
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            self._listening = socket.socket(family, kind, protocol)
            self._listening.bind(address)
        except OSError as error:
            raise WeightsError(f"cannot serve weights at {host}: {error.strerror or error}") from None
        self._listening.listen(256)
        port = self._listening.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        Thread(target=self._accept, name="weights", daemon=True).start()

    def wait_until_unread(self, version: Version) -> None:
        """Until nobody is in the middle of that version. A peer that hangs is given up meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: version not in self._reading.values())

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._changed:
            peers = list(self._reading)
        for peer in peers:
            peer.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return  # closed
            Thread(target=self._serve, args=(Peer(connection),), name="weights", daemon=True).start()

    def _serve(self, peer: Peer) -> None:
        """Until the peer has had enough, breaks off or hangs: that is its problem, and noticed there."""
        with peer:
            try:
                if prove_as_server(peer, self._key):
                    while True:
                        self._answer(peer, *peer.asked())
            except (WeightsError, OSError, ValueError):
                return
            finally:
                self._is_reading(peer, None)

    def _is_reading(self, peer: Peer, version: Version | None) -> None:
        with self._changed:
            if version is None:
                self._reading.pop(peer, None)
            else:
                self._reading[peer] = version
            self._changed.notify_all()

    def _answer(self, peer: Peer, what: Kind, version: Version, offset: int, length: int) -> None:
        self._is_reading(peer, version)
        path = self._find(what, version, lambda: peer.reply(Status.WAIT, version))
        held = SlotReader(path).header().version if path else NONE
        if path is None or held != version:
            self._is_reading(peer, None)
            peer.reply(Status.GONE, held)
            return
        content = self._slots.room(path)[offset : offset + length]
        if len(content) < length:
            raise WeightsError("the slot is shorter than what is asked for")
        with self._changed:
            self.sent_bytes += length
        peer.reply(Status.SENT, held)
        for at in range(0, length, _MOST):
            peer.send(content[at : at + _MOST])

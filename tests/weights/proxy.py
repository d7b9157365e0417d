"""A network that does what networks do: it cuts, turns bits and stalls."""

import socket
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Literal

Trouble = Literal["none", "cut", "flip", "stall", "hold"]
"""`stall` for ever, `hold` until told to go on."""


class Proxy:
    """Between a client and the server at `address`. After so many bytes from the server, over all connections, the
    trouble comes."""

    def __init__(self, address: str, trouble: Trouble = "none", after: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self._server = (host, int(port))
        self._trouble, self._after = trouble, after
        self._lock = Lock()
        self.carried = 0
        """Bytes from the server."""
        self.troubled, self.go_on = Event(), Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open = [self._listening]
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                for pump in (lambda c=client, s=server: self._up(c, s), lambda c=client, s=server: self._down(s, c)):
                    Thread(target=pump, daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while content := client.recv(1 << 16):
                server.sendall(content)
            server.shutdown(socket.SHUT_RDWR)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while content := bytearray(server.recv(1 << 16)):
                with self._lock:
                    at, self.carried = self._after - self.carried, self.carried + len(content)
                if self._trouble != "none" and at < len(content):
                    if self._trouble == "flip" and at < 0:
                        client.sendall(content)
                        continue
                    self.troubled.set()
                    if self._trouble == "flip":
                        content[at] ^= 4
                    elif self._trouble == "hold":
                        self.go_on.wait(10)
                    elif self._trouble == "stall":
                        return
                    else:
                        client.sendall(content[: max(at, 0)])
                        break
                client.sendall(content)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

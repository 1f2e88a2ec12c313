"""How ranks, sentinels and the hub find and hear each other."""

import contextlib
import fcntl
import os
import socket
import struct

CONNECT_SECONDS = 2.0
SIOCGIFADDR = 0x8915
WELCOME = b"welcome\n"


def connect(addresses: list[str], hello: str) -> socket.socket | None:
    """The first of the addresses that answers, or None. Hosts may own the same private address: hence `hello`."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, int(port)), CONNECT_SECONDS)
            connection.sendall(hello.encode() + b"\n")
            if connection.recv(len(WELCOME)) == WELCOME:
                connection.settimeout(None)
                return connection
            connection.close()
    return None


def own_addresses(port: int) -> list[str]:
    """Every IPv4 address of this host: that of its name first, loopback last; the others try them in this order."""
    found, named = [], []
    with contextlib.suppress(OSError):
        named = socket.gethostbyname_ex(socket.gethostname())[2]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24]))
    found.sort(key=lambda address: (address.startswith("127."), address not in named))
    return [f"{address}:{port}" for address in found]


def send(connection: socket.socket, line: str) -> None:
    """To somebody who may be gone."""
    with contextlib.suppress(OSError):
        connection.sendall(line.encode() + b"\n")


class Lines:
    """Whole lines from a descriptor, as they come."""

    def __init__(self, fd: int):
        self.fd, self._rest = fd, b""

    def read(self) -> list[str] | None:
        """The lines that are complete; None at the end of file."""
        try:
            data = os.read(self.fd, 4096)
        except OSError:  # a reset is an end too
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

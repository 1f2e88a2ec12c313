"""How ranks, sentinels and the hub find and hear each other."""

import contextlib
import fcntl
import os
import socket
import struct

CONNECT_SECONDS = 2.0
# How long ranks and sentinels try to reach the hub, and the pause between two tries: the hub's host may refuse some of
# thousands that come at once.
JOIN_SECONDS, JOIN_PAUSE = 20.0, 0.2
SIOCGIFADDR = 0x8915
WELCOME, HERE = b"welcome\n", b"here\n"
MOST_BYTES = 64 << 10  # of a line from somebody who knows the token; engine sends none as long


def connect(addresses: list[str], hello: str) -> socket.socket | None:
    """Returns a connection to the first of the addresses where the hub answers, or None.

    Two hosts may have the same private address, so the hub is known by its answer to `hello`. The hub may answer when
    this side has given the connection up already; HERE tells it that the answer has come.

    Args:
        addresses: HOST:PORT each.
        hello: the line to begin with; see __init__.py.
    """
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, int(port)), CONNECT_SECONDS)
            connection.sendall(hello.encode() + b"\n")
            if connection.recv(len(WELCOME)) == WELCOME:
                connection.sendall(HERE)
                connection.settimeout(None)
                return connection
            connection.close()
    return None


def addresses_for(reach: str) -> list[str]:
    """Returns the IPv4 addresses of this host that the ranks use.

    Args:
        reach: "host" where all ranks are on this host: loopback. Else "network": the interface or address that
            ENGINE_WATCHDOG_INTERFACE names; without it the address of the host's name, and where that is loopback or
            none of this host, every address but loopback.
    """
    if reach == "host":
        return ["127.0.0.1"]
    own, named = _own_addresses(), []
    wanted = os.environ.get("ENGINE_WATCHDOG_INTERFACE")
    if wanted:
        return [address for name, address in own if wanted in (name, address)]
    with contextlib.suppress(OSError):
        named = socket.gethostbyname_ex(socket.gethostname())[2]
    others = [address for _, address in own if not address.startswith("127.")]
    return [address for address in others if address in named] or others


def network() -> str:
    """Returns a name of the network of this process: processes with the same name reach each other by loopback."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"


def _own_addresses() -> list[tuple[str, str]]:
    """Returns the name and the IPv4 address of every interface."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found.append((name, socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])))
    return found


def send(connection: socket.socket, line: str) -> None:
    """Sends a line; does nothing if the other side is gone."""
    with contextlib.suppress(OSError):
        connection.sendall(line.encode() + b"\n")


class Lines:
    """Reads whole lines, each of at most `most` bytes, from a descriptor."""

    def __init__(self, fd: int, most: int = MOST_BYTES):
        self.fd, self.most, self._rest = fd, most, bytearray()

    def read(self) -> list[str] | None:
        """Reads what has come, which waits if nothing has. Returns the lines that are complete now; None at the end of
        file, and after a line that is too long."""
        try:
            data = os.read(self.fd, 4096)
        except OSError:  # a reset is an end too
            data = b""
        if not data:
            return None
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0], self._rest = bytes(self._rest + lines[0]), bytearray()
        self._rest += rest
        if any(len(line) > self.most for line in (*lines, self._rest)):
            return None
        return [line.decode(errors="replace") for line in lines]

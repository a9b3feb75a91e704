"""Messages between the tool and its workers: a 4-byte big-endian length, then that many bytes of JSON.

Both ends use this file, so it knows neither. Bulk data does not travel here: it goes to ``.npy`` files in the scratch
folder and only their names are sent.
"""

import json
import os
import socket
import struct
from typing import Any, Dict, List, Optional

LIMIT = 64 * 1024 * 1024  # bytes of one message
_HEADER = struct.Struct(">I")


class WireError(Exception):
    """The stream holds something that is no message of ours; it cannot be read any further."""


def _plain(value: Any) -> Any:
    for name in ("tolist", "item"):  # NumPy scalars and arrays, zero-dimensional tensors
        method = getattr(value, name, None)
        if callable(method):
            return method()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value)


def encode(message: Dict[str, Any]) -> bytes:
    """One message as bytes. Raises :class:`WireError` when it exceeds :data:`LIMIT`."""
    text = json.dumps(message, ensure_ascii=False, default=_plain, separators=(",", ":"))
    body = text.encode("utf-8", "replace")  # a lone surrogate, as in undecodable file names, becomes "?"
    if len(body) > LIMIT:
        raise WireError("a message of %d bytes is larger than the limit of %d" % (len(body), LIMIT))
    return _HEADER.pack(len(body)) + body


class Decoder:
    """Bytes in, messages out, however the stream is cut.

    >>> d = Decoder()
    >>> d.feed(encode({"a": 1}))
    [{'a': 1}]
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def partial(self) -> bool:
        """Whether the stream stopped in the middle of a message."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> List[Dict[str, Any]]:
        """The messages completed by ``data``. Raises :class:`WireError` for what is no message."""
        self._buffer += data
        out: List[Dict[str, Any]] = []
        while len(self._buffer) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer)
            if size > self._limit:
                raise WireError("a message announces %d bytes, more than the limit of %d" % (size, self._limit))
            end = _HEADER.size + size
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            try:
                message = json.loads(body.decode("utf-8"))
            except (ValueError, RecursionError) as why:
                raise WireError("a message is no JSON: %s" % why) from None
            if not isinstance(message, dict):
                raise WireError("a message is no JSON object")
            out.append(message)
        return out


class Channel:
    """A replica's end of its message socket: blocking, and mute in any process that the user's code forks."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = Decoder()
        self._ready: List[Dict[str, Any]] = []
        self._owner = os.getpid()

    def at_home(self) -> bool:
        """Whether this is still the process that the channel was made in."""
        return os.getpid() == self._owner

    def send(self, message: Dict[str, Any]) -> None:
        if not self.at_home():
            os._exit(0)  # a copy of us that ran on after os.fork: it must not speak for the replica
        self._sock.sendall(encode(message))

    def receive(self) -> Optional[Dict[str, Any]]:
        """The next message, or ``None`` at the end of the stream."""
        while not self._ready:
            data = self._sock.recv(1 << 16)
            if not data:
                return None
            self._ready = self._decoder.feed(data)
        return self._ready.pop(0)

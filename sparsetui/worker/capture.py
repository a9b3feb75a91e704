"""Captured output, bounded: the first and the last bytes of a stream that may be endless."""

from __future__ import annotations

HEAD = 32 * 1024
TAIL = 64 * 1024


class Capture:
    """Keeps the first :data:`HEAD` and the last :data:`TAIL` bytes that were fed, and counts the rest."""

    def __init__(self, head: int = HEAD, tail: int = TAIL) -> None:
        self._head_room = head
        self._tail_room = tail
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, data: memoryview | bytes) -> None:
        self.total += len(data)
        free = self._head_room - len(self._head)
        if free > 0:
            self._head += data[:free]
            data = data[free:]
        if len(data) >= self._tail_room:
            self._tail[:] = data[-self._tail_room :]
        elif data:
            self._tail += data
            if len(self._tail) > 2 * self._tail_room:
                del self._tail[: -self._tail_room]

    def text(self) -> str:
        """What was kept, as text; a gap is named with its size."""
        tail = self._tail[-self._tail_room :]
        dropped = self.total - len(self._head) - len(tail)
        if dropped > 0:
            return f"{_decode(self._head)}\n[… {dropped} bytes not kept …]\n{_decode(tail)}"
        return _decode(self._head + tail)

    def tail(self, limit: int = 4096) -> str:
        """The last ``limit`` bytes."""
        kept = self._tail[-self._tail_room :]
        if len(kept) < limit:
            kept = self._head + kept if self.total == len(self._head) + len(kept) else kept
        return _decode(kept[-limit:])


def _decode(data: bytearray) -> str:
    return data.decode("utf-8", "replace")

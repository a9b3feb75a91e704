"""A process that decodes blocks of events for another one.

Blocks and tables pass through memory that both map; over a socket goes only which slot holds what. This process imports no
more than it takes to decode, and ends when the socket is closed, whoever closes it and for whatever reason.
"""

from __future__ import annotations

import mmap
import signal
import socket
import struct

from sparsetui.ingest.events.reader import decode_within, last
from sparsetui.ingest.events.table import Tabling, pack

SLOTS = 3  # blocks under way: one that is decoded, one that waits, one whose table is fetched
INTO, OUT = 12 << 20, 48 << 20  # most bytes of a block and of its table; pages that are never touched take no memory
SLOT = INTO + OUT
MESSAGE = struct.Struct("<ii")  # slot, bytes in it; UNSOUND in place of bytes where the block is no sound JSON
UNSOUND = -1


def serve(memory: int) -> None:
    """Decode what the socket at standard input tells of, into the tables of one :class:`Tabling`.

    ``memory`` is the descriptor of :data:`SLOTS` slots: a block, from its second byte on, and behind :data:`INTO` its table.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tabling = Tabling()
    with socket.socket(fileno=0) as told, memoryview(mmap.mmap(memory, SLOTS * SLOT)) as view:
        while message := told.recv(MESSAGE.size):
            slot, size = MESSAGE.unpack(message)
            start = slot * SLOT
            events = decode_within(view, start + 1, start + 1 + size)
            if events is None:
                told.send(MESSAGE.pack(slot, UNSOUND))
                continue
            table = pack(len(events), last(events), tabling.table(events))
            if len(table) > OUT:
                return  # what it numbered would be missing from all further tables
            view[start + INTO : start + INTO + len(table)] = table
            told.send(MESSAGE.pack(slot, len(table)))

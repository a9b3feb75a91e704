"""Symbols of a foreign process: its memory map, and the function tables of the files mapped there.

A sampler that delivers bare addresses is named here. The tables of one file are read once (libtorch_cpu: 380,000
functions in about half a second), so that a live view can ask again and again.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import platform
import re
import struct
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

_SYM = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")])
_SYMTAB, _DYNSYM, _LOAD, _FUNC, _IFUNC = 2, 11, 1, 2, 10


class Region(msgspec.Struct, frozen=True):
    """One executable mapping of a process."""

    start: int
    end: int
    offset: int  # of the mapping in its file
    path: str  # as the process names it; "" for anonymous memory (code made at run time)


class Functions:
    """The functions of one ELF file, by file address. Empty when the file is no 64-bit little-endian ELF."""

    def __init__(self, path: str) -> None:
        self._starts: Any = np.zeros(0, np.uint64)
        self._sizes: Any = np.zeros(0, np.uint64)
        self._names: Any = np.zeros(0, np.uint32)
        self._file: mmap.mmap | None = None
        self._table = 0  # where its names begin in the file
        self._segments: list[tuple[int, int, int]] = []  # file offset, size in file, address
        try:
            with open(path, "rb") as f:
                m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
            self._read(m)
            self._file = m  # names are read from it one by one: libtorch's fill 100 MB
        except (OSError, ValueError, struct.error, IndexError):
            pass

    def _read(self, m: mmap.mmap) -> None:
        if m[:6] != b"\x7fELF\x02\x01":
            return
        phoff, shoff = struct.unpack_from("<QQ", m, 0x20)
        phsize, phnum, shsize, shnum = struct.unpack_from("<HHHH", m, 0x36)
        for i in range(phnum):
            kind, _, offset, vaddr, _, size = struct.unpack_from("<IIQQQQ", m, phoff + i * phsize)
            if kind == _LOAD:
                self._segments.append((offset, size, vaddr))
        sections = [struct.unpack_from("<IIQQQQIIQQ", m, shoff + i * shsize) for i in range(shnum)]
        tables = {s[1]: s for s in sections if s[1] in (_SYMTAB, _DYNSYM)}
        section = tables.get(_SYMTAB) or tables.get(_DYNSYM)
        if section is None:
            return
        offset, size, link = section[4], section[5], section[6]
        symbols = np.frombuffer(m[offset : offset + size - size % 24], dtype=_SYM)  # a copy: the map can be closed
        kind_of = symbols["info"] & 15
        found = symbols[((kind_of == _FUNC) | (kind_of == _IFUNC)) & (symbols["value"] > 0)]
        found = found[np.argsort(found["value"], kind="stable")]
        self._starts, self._sizes = found["value"].copy(), found["size"].copy()
        self._names = found["name"].copy()
        self._table = sections[link][4]

    def __len__(self) -> int:
        return len(self._starts)

    def bytes_before(self, offset: int, n: int) -> bytes:
        """The ``n`` bytes of code that end at a file offset."""
        return self._file[max(0, offset - n) : offset] if self._file is not None else b""

    def at(self, offset: int) -> str | None:
        """The (mangled) function at a file offset; ``None`` between functions and in a stripped file."""
        address = next(
            (vaddr + offset - off for off, size, vaddr in self._segments if off <= offset < off + size), None
        )
        if address is None or self._file is None or not len(self._starts):
            return None
        i = int(np.searchsorted(self._starts, np.uint64(address), side="right")) - 1
        if i < 0:
            return None
        size = int(self._sizes[i])
        beyond = address - int(self._starts[i])
        if beyond >= (size or 4096):  # hand-written assembly has no size; do not let it swallow what follows
            return None
        begin = self._table + int(self._names[i])
        end = self._file.find(b"\0", begin)
        return self._file[begin : end if end >= 0 else begin].decode("utf-8", "replace") or None


@lru_cache(maxsize=64)
def _functions(path: str, inode: int, mtime_ns: int) -> Functions:
    return Functions(path)


class Symbols:
    """Names addresses of process ``pid``; reads the map again when an address lies outside what it knows."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._regions: list[Region] = []
        self._starts: list[int] = []
        self._misses = 0
        self.ranges: Any = np.zeros((2, 0), np.uint64)  # starts and ends of the code of files, ascending
        self._returns: dict[int, tuple[str, str] | None] = {}

    def refresh(self) -> None:
        regions = []
        try:
            with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="replace") as f:
                for line in f:
                    parts = line.rstrip("\n").split(None, 5)
                    if len(parts) < 5 or "x" not in parts[1]:
                        continue
                    start, _, end = parts[0].partition("-")
                    path = parts[5] if len(parts) > 5 else ""
                    regions.append(Region(int(start, 16), int(end, 16), int(parts[2], 16), path))
        except (OSError, ValueError):
            return
        self._regions = regions
        self._starts = [r.start for r in regions]
        files = [r for r in regions if r.path.startswith("/")]
        self.ranges = np.array([[r.start for r in files], [r.end for r in files]], np.uint64).reshape(2, -1)
        self._returns.clear()

    def code_words(self, stack: bytes, most: int = 160) -> tuple[int, ...]:
        """The words of a piece of stack that point into code, from the innermost; stale ones are among them."""
        words = np.frombuffer(stack[: len(stack) & ~7], "<u8")
        starts, ends = self.ranges
        if not len(starts) or not len(words):
            return ()
        i = np.searchsorted(starts, words, side="right") - 1
        hit = (i >= 0) & (words < ends[np.maximum(i, 0)])
        return tuple(int(w) for w in words[hit][:most])

    def caller(self, address: int) -> tuple[str, str] | None:
        """The function that ``address`` returns into; ``None`` unless the code before it is a call."""
        if address not in self._returns:
            if len(self._returns) > 200_000:
                self._returns.clear()
            region = self._find(address)
            found = None
            if region is not None and region.path.startswith("/"):
                code = self._table(region.path).bytes_before(address - region.start + region.offset, 7)
                if _ends_in_call(code):
                    found = self.name(address - 1)
            self._returns[address] = found
        return self._returns[address]

    def name(self, address: int) -> tuple[str, str]:
        """(symbol, base name of the shared object) at ``address``; a bare ``0x…`` when no table names it."""
        region = self._find(address)
        if region is None and self._misses < 16:
            self._misses += 1
            self.refresh()
            region = self._find(address)
        if region is None:
            return f"0x{address:x}", ""
        if not region.path.startswith("/"):
            return f"0x{address:x}", region.path.strip("[]") or "jit"
        found = self._table(region.path).at(address - region.start + region.offset)
        module = os.path.basename(region.path.removesuffix(" (deleted)"))
        return (demangle(found) if found else f"0x{address:x}"), module

    def _find(self, address: int) -> Region | None:
        i = bisect.bisect_right(self._starts, address) - 1
        return self._regions[i] if i >= 0 and address < self._regions[i].end else None

    def _table(self, path: str) -> Functions:
        # through the process's own root, so that a container's files are found; our own root when that is closed to us
        for candidate in (f"/proc/{self.pid}/root{path}", path):
            try:
                s = os.stat(candidate)
            except OSError:
                continue
            shared = candidate if candidate == path or not _same(path, s) else os.path.realpath(path)
            return _functions(shared, s.st_ino, s.st_mtime_ns)
        return _functions("", 0, 0)


_ARM = platform.machine() == "aarch64"


def _ends_in_call(code: bytes) -> bool:
    """Whether machine code ends in a call: x86-64's E8 rel32 and FF /2, AArch64's BL and BLR."""
    if len(code) < 7:
        return False
    if _ARM:
        word = int.from_bytes(code[-4:], "little")
        return word >> 26 == 0x25 or word & 0xFFFFFC1F == 0xD63F0000
    if code[-5] == 0xE8:
        return True
    # FF /2 with register, memory, disp8 (with or without SIB) and disp32 operands
    return any(code[-n] == 0xFF and code[-n + 1] >> 3 & 7 == 2 for n in (2, 3, 4, 6, 7))


def _same(path: str, s: os.stat_result) -> bool:
    """Whether ``path`` in our own root is the very file ``s``: then its table is shared between processes."""
    try:
        here = os.stat(path)
    except OSError:
        return False
    return (here.st_ino, here.st_dev) == (s.st_ino, s.st_dev)


@lru_cache(maxsize=1)
def _demangler() -> Any:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        f = library.__cxa_demangle
        f.restype = ctypes.c_void_p
        f.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return f, free


@lru_cache(maxsize=65536)
def demangle(symbol: str) -> str:
    """A C++ name as people write it, by the host's own libstdc++; without one, its nested names only."""
    if not symbol.startswith("_Z"):
        return symbol
    tool = _demangler()
    if tool is not None:
        f, free = tool
        status = ctypes.c_int()
        raw = f(symbol.encode(), None, None, ctypes.byref(status))
        if raw:
            text = ctypes.string_at(raw).decode("utf-8", "replace")
            free(raw)
            return text
    return _nested(symbol)


def _nested(symbol: str) -> str:
    """``a::b::c`` of a mangled nested name: the length-prefixed parts at its head."""
    rest = symbol[2:].lstrip("NLrVK")
    rest = "std::" + rest[2:] if rest.startswith("St") else rest
    prefix, rest = ("std::", rest[5:]) if rest.startswith("std::") else ("", rest)
    parts: list[str] = []
    while m := re.match(r"L?(\d+)", rest):
        size = int(m[1])
        part = rest[m.end() : m.end() + size]
        if len(part) < size:
            break
        parts.append("(anonymous namespace)" if part.startswith("_GLOBAL__N") else part)
        rest = rest[m.end() + size :]
    return prefix + "::".join(parts) if parts else symbol

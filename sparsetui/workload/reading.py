"""From the bytes of a workload file to a checked :class:`~sparsetui.workload.spec.Workload`."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from sparsetui.flow import OWNERS
from sparsetui.workload import spec
from sparsetui.workload.entry import SYNTAX, Entry, EntryProblem, parse_entry
from sparsetui.workload.errors import WorkloadError, describe, nearest, printable, shown

LARGEST = 1024 * 1024
MOST_THREADS = 4096
MOST_ELEMENTS = 2**32

KNOWN: dict[str, tuple[str, ...]] = {
    "workload": ("name", "change"),
    "failing": ("entry", "python", "threads", "env"),
    "comparator": ("entry", "python", "threads", "env"),
    "inputs": ("entry", "shape", "dtype", "seed"),
    "declared": ("sparsity", "layout", "pattern", "targets", "speedup"),
    "quality": ("entry", "max_drift"),
    "sla": ("p50_ms", "p95_ms", "p99_ms"),
    "replay": ("log", "speed"),
    "owners": tuple(OWNERS.values()),
    "energy": ("watts_per_core",),
}
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)\s*$")


def read_text(path: str | Path) -> tuple[str, bytes, Path]:
    """The text and bytes of the file, and its absolute path (links in it are left as they are)."""
    given = str(path)
    try:
        where = Path(given).expanduser().absolute()
    except (RuntimeError, OSError, ValueError) as why:
        raise WorkloadError(given, str(why), accepted="the path of a workload file (TOML)") from None
    if trouble := describe(where):
        raise WorkloadError(given, trouble, accepted="the path of a workload file (TOML)")
    try:
        with where.open("rb") as stream:
            raw = stream.read(LARGEST + 1)
    except OSError as why:
        raise WorkloadError(given, why.strerror or str(why), accepted="a readable workload file (TOML)") from None
    if len(raw) > LARGEST:
        raise WorkloadError(given, "is larger than 1 MiB", accepted="a workload file (TOML, a few KiB)")
    if not raw.strip():
        raise WorkloadError(given, "is empty", accepted="TOML with [failing], [comparator] and [inputs]")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise WorkloadError(given, "is UTF-16 text", accepted="TOML in UTF-8")
    if b"\0" in raw:
        raise WorkloadError(given, f"is binary (a NUL at byte {raw.index(0)})", accepted="TOML in UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as why:
        line = raw[: why.start].count(b"\n") + 1
        raise WorkloadError(
            given, f"is no UTF-8 text (byte {why.start})", line=line, accepted="TOML in UTF-8"
        ) from None
    return text, raw, where


class Document:
    """A parsed file that can say where a key stands and fail with one line."""

    def __init__(self, given: str | Path, where: Path, text: str) -> None:
        self.given = str(given)
        self.where = where
        self.text = text
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as why:
            message = str(why)
            place = _PLACE.search(message)
            line = column = None
            if place:
                message = message[: place.start()]
                if place[1]:
                    line, column = int(place[1]), int(place[2])
                else:
                    line = text.count("\n") + (0 if text.endswith("\n") else 1)
            raise WorkloadError(
                given, f"is no TOML: {printable(message, 160)}", line=line, column=column, accepted="TOML"
            ) from None
        except (RecursionError, ValueError) as why:
            said = "nested too deeply" if isinstance(why, RecursionError) else printable(str(why), 120)
            raise WorkloadError(given, f"is no usable TOML: {said}", accepted="TOML") from None

    def fail(self, key: tuple[str, ...], wrong: str, accepted: str = "") -> NoReturn:
        dotted = ".".join(k if re.fullmatch(r"[\w-]+", k) else f'"{k}"' for k in key)
        raise WorkloadError(self.given, wrong, key=dotted, line=self.line_of(key), accepted=accepted)

    def line_of(self, key: tuple[str, ...]) -> int | None:
        """The 1-based line of ``key``, or of the nearest table around it; ``None`` when it cannot be found."""
        best: tuple[int, int] | None = None
        table: tuple[str, ...] = ()
        for number, line in enumerate(self.text.splitlines(), 1):
            stripped = line.strip()
            if header := re.match(r"\[{1,2}(.*?)\]", stripped):
                table = full = _dotted(header[1])
            else:
                left, equals, _ = _split_assignment(stripped)
                if not equals:
                    continue
                full = table + _dotted(left)
            depth = len(full)
            if depth and full == key[:depth] and (best is None or depth > best[0]):
                best = (depth, number)
        return best[1] if best else None


def _split_assignment(line: str) -> tuple[str, bool, str]:
    quote = ""
    for at, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char == "#":
            return line, False, ""
        elif char == "=":
            return line[:at], True, line[at + 1 :]
    return line, False, ""


def _dotted(text: str) -> tuple[str, ...]:
    parts = re.findall(r'"([^"]*)"|\'([^\']*)\'|([\w-]+)', text)
    return tuple(a or b or c for a, b, c in parts)


class Table:
    """One table of the file; each getter takes a key, checks it and says what is wrong with it."""

    def __init__(self, doc: Document, name: str) -> None:
        self.doc = doc
        self.name = name
        value = doc.data.get(name)
        self.present = value is not None
        if self.present and not isinstance(value, dict):
            doc.fail((name,), f"{shown(value)} is no table", f"a table [{name}]")
        self.data: dict[str, Any] = value or {}
        known = KNOWN[name]
        for key in self.data:
            if key not in known:
                kind = "unknown role" if name == "owners" else "unknown key"
                doc.fail((name, key), kind + _hint(key, known), ", ".join(known))

    def fail(self, key: str, wrong: str, accepted: str = "") -> NoReturn:
        self.doc.fail((self.name, key), wrong, accepted)

    def text(self, key: str, accepted: str = "a text", longest: int = 4096) -> str | None:
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.fail(key, f"{shown(value)} is no text", accepted)
        if not value.strip():
            self.fail(key, "is empty", accepted)
        if len(value) > longest:
            self.fail(key, f"is longer than {longest} characters", accepted)
        if "\0" in value:
            self.fail(key, "holds a NUL character", accepted)
        return value

    def choice(self, key: str, options: tuple[str, ...]) -> str | None:
        value = self.text(key, ", ".join(options))
        if value is not None and value not in options:
            self.fail(key, f"{shown(value)} is not known{_hint(value, options)}", ", ".join(options))
        return value

    def integer(self, key: str, low: int, high: int) -> int | None:
        value = self.data.get(key)
        if value is None:
            return None
        accepted = f"a whole number from {low} to {high}"
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"{shown(value)} is no whole number", accepted)
        if not low <= value <= high:
            self.fail(key, f"{shown(value)} is out of range", accepted)
        return int(value)

    def number(self, key: str, fits: Callable[[float], bool], accepted: str) -> float | None:
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, f"{shown(value)} is no number", accepted)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or not fits(number):
            self.fail(key, f"{shown(value)} is out of range", accepted)
        return number

    def texts(self, key: str, accepted: str) -> tuple[str, ...]:
        value = self.data.get(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.fail(key, f"{shown(value)} is no list", accepted)
        for item in value:
            if not isinstance(item, str) or not item.strip() or len(item) > 400:
                self.fail(key, f"{shown(item)} is not accepted in the list", accepted)
        return tuple(value)

    def entry(self, key: str = "entry", *, check_source: bool = True) -> Entry | None:
        value = self.text(key, SYNTAX)
        if value is None:
            return None
        try:
            return parse_entry(value, self.doc.where.parent, check_source=check_source)
        except EntryProblem as why:
            self.fail(key, why.wrong, why.accepted)


def _hint(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def build(doc: Document, sha256: str) -> spec.Workload:
    for key, value in doc.data.items():
        if key not in KNOWN:
            kind = "table" if isinstance(value, dict) else "key"
            doc.fail((key,), f"unknown {kind}{_hint(key, KNOWN)}", ", ".join(KNOWN))
    tables = {name: Table(doc, name) for name in KNOWN}
    head = tables["workload"]
    failing, comparator = _variants(tables["failing"], tables["comparator"])
    return spec.Workload(
        path=doc.where,
        name=head.text("name", "a short text", longest=80) or doc.where.stem,
        sha256=sha256,
        failing=failing,
        comparator=comparator,
        inputs=_inputs(tables["inputs"], check_source=not (failing.python or comparator.python)),
        change=_change(head),
        declared=_declared(tables["declared"]),
        quality=_quality(tables["quality"], check_source=not (failing.python or comparator.python)),
        sla=_sla(tables["sla"]),
        replay=_replay(tables["replay"]),
        owners=_owners(tables["owners"]),
        energy=_energy(tables["energy"]),
    )


def _change(head: Table) -> tuple[str, ...]:
    tags = head.texts("change", "a list of " + ", ".join(spec.CHANGE_TAGS))
    for tag in tags:
        if tag not in spec.CHANGE_TAGS:
            head.fail("change", f"{shown(tag)} is no tag{_hint(tag, spec.CHANGE_TAGS)}", ", ".join(spec.CHANGE_TAGS))
    return tuple(dict.fromkeys(tags)) if "change" in head.data else spec.DEFAULT_CHANGE


def _variants(failing: Table, comparator: Table) -> tuple[spec.VariantSpec, spec.VariantSpec]:
    given = [t for t in (failing, comparator) if t.present]
    if not given:
        failing.doc.fail((), "has neither [failing] nor [comparator]", "both, or one of them to derive the other from")
    made = {t.name: _variant(t) for t in given}
    if len(made) == 2:
        return made["failing"], made["comparator"]
    (only,) = made.values()
    twin = spec.VariantSpec(only.entry, only.python, only.threads, only.env, derived=True)
    return (only, twin) if "failing" in made else (twin, only)


def _variant(table: Table) -> spec.VariantSpec:
    python = _python(table)
    entry = table.entry(check_source=python is None)
    if entry is None:
        table.doc.fail((table.name,), "has no entry", SYNTAX)
    return spec.VariantSpec(
        entry=entry,
        python=python,
        threads=table.integer("threads", 1, MOST_THREADS),
        env=_env(table),
    )


def _python(table: Table) -> str | None:
    """An absolute path. Links stay unresolved: that a path leads through a venv is what makes it that venv's."""
    accepted = "the path of a Python interpreter, or its name on PATH"
    value = table.text("python", accepted)
    if value is None:
        return None
    if "/" not in value:
        found = shutil.which(value)
        if found is None:
            table.fail("python", f"{shown(value)} is not on PATH", accepted)
        return os.path.abspath(found)
    path = os.path.abspath(table.doc.where.parent / os.path.expanduser(value))
    if trouble := describe(Path(path)):
        table.fail("python", f"{printable(path, 160)} {trouble}", accepted)
    if not os.access(path, os.X_OK):
        table.fail("python", f"{printable(path, 160)} is not executable", accepted)
    return path


def _env(table: Table) -> dict[str, str]:
    accepted = 'a table of texts, as in { OMP_NUM_THREADS = "2" }'
    value = table.data.get("env")
    if value is None:
        return {}
    if not isinstance(value, dict):
        table.fail("env", f"{shown(value)} is no table", accepted)
    for name, text in value.items():
        key = (table.name, "env", name)
        if not name or "=" in name or "\0" in name:
            table.doc.fail(key, f"{shown(name)} is no name of an environment variable", accepted)
        if not isinstance(text, str):
            number = isinstance(text, int | float) and not isinstance(text, bool)
            hint = f'; write "{shown(text)}"' if number else ""
            table.doc.fail(key, f"{'a number' if number else shown(text)} is no text{hint}", accepted)
        if "\0" in text:
            table.doc.fail(key, "holds a NUL character", accepted)
    return dict(value)


def _inputs(table: Table, *, check_source: bool) -> spec.Inputs:
    accepted = 'entry = "path.py:callable", or shape = [8, 512] with dtype and seed'
    if not table.present:
        table.doc.fail((), "has no [inputs]", accepted)
    entry = table.entry(check_source=check_source)
    generated = [k for k in ("shape", "dtype", "seed") if k in table.data]
    if entry is not None and generated:
        table.fail(generated[0], "stands beside entry", "either entry, or shape with dtype and seed")
    if entry is not None:
        return spec.Inputs(entry=entry)
    value = table.data.get("shape")
    if value is None:
        table.doc.fail(("inputs",), "has neither entry nor shape", accepted)
    sizes = "a list of 1 to 8 whole numbers from 1 on, as in [8, 512]"
    if not isinstance(value, list) or not 1 <= len(value) <= 8:
        table.fail("shape", f"{shown(value)} is no shape", sizes)
    for size in value:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            table.fail("shape", f"{shown(size)} is no size", sizes)
    if math.prod(value) > MOST_ELEMENTS:
        table.fail("shape", f"has more than {MOST_ELEMENTS} elements", sizes)
    return spec.Inputs(
        shape=tuple(value),
        dtype=table.choice("dtype", spec.DTYPES) or "float32",
        seed=table.integer("seed", 0, 2**63 - 1) or 0,
    )


def _declared(table: Table) -> spec.Declared:
    pattern = None
    text = table.text("pattern", 'n:m, as in "2:4"')
    if text is not None:
        match = re.fullmatch(r"([1-9]\d{0,2}):([1-9]\d{0,2})", text)
        if not match or int(match[1]) >= int(match[2]):
            table.fail("pattern", f"{shown(text)} is no pattern", 'n:m with 1 ≤ n < m < 1000, as in "2:4"')
        pattern = (int(match[1]), int(match[2]))
    return spec.Declared(
        sparsity=table.number("sparsity", lambda v: 0 <= v < 1, "a zero fraction from 0 up to, not including, 1"),
        layout=table.choice("layout", spec.LAYOUTS),
        pattern=pattern,
        targets=table.texts("targets", 'a list of module name globs, as in ["layers.*.linear1"]'),
        speedup=table.number("speedup", lambda v: 0 < v <= 1e6, "a ratio above 0 (1.5 means 1.5 times as fast)"),
    )


def _quality(table: Table, *, check_source: bool) -> spec.QualityGate | None:
    if not table.present:
        return None
    return spec.QualityGate(
        entry=table.entry(check_source=check_source),
        max_drift=table.number("max_drift", lambda v: v >= 0, "a number from 0 on"),
    )


def _sla(table: Table) -> spec.Sla | None:
    if not table.present:
        return None
    limits = {k: table.number(k, lambda v: v > 0, "milliseconds above 0") for k in KNOWN["sla"]}
    set_ones = [(k, v) for k, v in limits.items() if v is not None]
    if not set_ones:
        table.doc.fail(("sla",), "is empty", ", ".join(KNOWN["sla"]))
    for (low, a), (high, b) in itertools.pairwise(set_ones):
        if a > b:
            table.fail(high, f"{b:g} is below {low} = {a:g}", "a percentile no smaller than the one before it")
    return spec.Sla(**limits)


def _replay(table: Table) -> spec.Replay | None:
    if not table.present:
        return None
    accepted = "the path of a CSV or JSONL file, relative to this file"
    log = table.text("log", accepted)
    if log is None:
        table.doc.fail(("replay",), "has no log", accepted)
    path = os.path.abspath(table.doc.where.parent / os.path.expanduser(log))
    if trouble := describe(Path(path)):
        table.fail("log", f"{printable(path, 160)} {trouble}", accepted)
    speed = table.number("speed", lambda v: 0 < v <= 1e6, "a factor above 0 (1.0 is real time)")
    return spec.Replay(log=path, speed=1.0 if speed is None else speed)


def _owners(table: Table) -> dict[str, str]:
    return {role: table.text(role, "a name, team or handle", longest=200) or "" for role in table.data}


def _energy(table: Table) -> spec.Energy | None:
    if not table.present:
        return None
    accepted = "watts of one busy core, above 0 and at most 1000"
    watts = table.number("watts_per_core", lambda v: 0 < v <= 1000, accepted)
    if watts is None:
        table.doc.fail(("energy",), "has no watts_per_core", accepted)
    return spec.Energy(watts_per_core=watts)

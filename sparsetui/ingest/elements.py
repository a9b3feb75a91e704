"""Element types of checkpoints, without torch: which bits mean zero, which mean not a finite number."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt


class Element(msgspec.Struct, frozen=True):
    """How elements of one type lie in memory. ``storage`` is the NumPy type they are viewed as."""

    bits: int
    storage: str
    magnitude: int = 0  # bits other than the sign; 0: compare with zero as a number
    exponent: int = 0  # all of these set: infinite or not a number
    number: bool = True  # False: packed or opaque, its zeros mean nothing


# The names of safetensors' format; torch's own names map onto them below.
ELEMENTS: dict[str, Element] = {
    "BOOL": Element(8, "u1"),
    "U8": Element(8, "u1"),
    "I8": Element(8, "i1"),
    "U16": Element(16, "<u2"),
    "I16": Element(16, "<i2"),
    "U32": Element(32, "<u4"),
    "I32": Element(32, "<i4"),
    "U64": Element(64, "<u8"),
    "I64": Element(64, "<i8"),
    "F16": Element(16, "<u2", 0x7FFF, 0x7C00),
    "BF16": Element(16, "<u2", 0x7FFF, 0x7F80),
    "F32": Element(32, "<u4", 0x7FFFFFFF, 0x7F800000),
    "F64": Element(64, "<u8", 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
    "C64": Element(64, "<c8"),
    "C128": Element(128, "<c16"),
    "F8_E4M3": Element(8, "u1", 0x7F, 0x7F),  # no infinity; only S1111111 is not a number
    "F8_E5M2": Element(8, "u1", 0x7F, 0x7C),
    "F8_E4M3FNUZ": Element(8, "u1", 0xFF, 0),  # one zero only: 0x80 is not a number
    "F8_E5M2FNUZ": Element(8, "u1", 0xFF, 0),
    "F8_E8M0": Element(8, "u1", number=False),  # a scale: powers of two, it has no zero
    "F4": Element(4, "u1", number=False),
    "F6_E2M3": Element(6, "u1", number=False),
    "F6_E3M2": Element(6, "u1", number=False),
}

TORCH_NAMES = {
    "torch.bool": "BOOL", "torch.uint8": "U8", "torch.int8": "I8", "torch.int16": "I16", "torch.int32": "I32",
    "torch.int64": "I64", "torch.uint16": "U16", "torch.uint32": "U32", "torch.uint64": "U64",
    "torch.float16": "F16", "torch.bfloat16": "BF16", "torch.float32": "F32", "torch.float64": "F64",
    "torch.complex64": "C64", "torch.complex128": "C128", "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2", "torch.float8_e4m3fnuz": "F8_E4M3FNUZ", "torch.float8_e5m2fnuz": "F8_E5M2FNUZ",
    "torch.float8_e8m0fnu": "F8_E8M0", "torch.qint8": "I8", "torch.quint8": "U8", "torch.qint32": "I32",
}  # fmt: skip


def nonzero(raw: npt.NDArray[Any], element: Element) -> npt.NDArray[np.bool_]:
    """Where the elements (viewed as ``element.storage``) are not zero; a negative zero is zero."""
    if element.magnitude:
        return np.asarray((raw & raw.dtype.type(element.magnitude)) != 0)
    return np.asarray(raw != 0)


def nonfinite(raw: npt.NDArray[Any], element: Element) -> int:
    """How many elements are infinite or not a number."""
    if element.storage.startswith("<c"):
        return int(np.count_nonzero(~np.isfinite(raw)))
    if element.magnitude == 0xFF:  # the FNUZ types
        return int(np.count_nonzero(raw == 0x80))
    if not element.exponent:
        return 0
    bits = raw.dtype.type(element.exponent)
    return int(np.count_nonzero((raw & bits) == bits))

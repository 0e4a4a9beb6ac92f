"""Messages between the grader and a child process: a JSON header and raw ``.npy`` bytes.

    4 bytes  length of the rest
    4 bytes  length of the header
    header   JSON; ``{"array": i}`` stands for the i-th array
    arrays   one after the other, each as ``.npy`` of kind bool, int, unsigned or float

No pickles: what arrives can only be numbers, text, tuples and dictionaries of these.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib import format as npy

LIMIT = 64 * 2**20  # bytes of one message
HEAD = struct.Struct(">II")
KINDS = "biuf"

# Bound here, so that in a child process a changed `numpy.lib.format` or `json` changes nothing.
to_json, from_json = json.dumps, json.loads
write_array, read_magic = npy.write_array, npy.read_magic
read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class BadFrame(ValueError):
    """What arrived is not a message."""


def encode(message: dict[str, Any]) -> bytes:
    """A message as bytes. Raises BadFrame when it holds something else, or too much."""
    arrays: list[np.ndarray] = []
    header = to_json(lowered(message, arrays)).encode()
    size = len(header) + sum(x.nbytes for x in arrays)
    if size > LIMIT:
        raise BadFrame(f"expected at most {LIMIT >> 20} MiB, got {size >> 20} MiB")
    out = io.BytesIO()
    for array in arrays:
        write_array(out, array, allow_pickle=False)
    body = header + out.getvalue()
    return HEAD.pack(len(body) + 4, len(header)) + body


def lowered(value: Any, arrays: list[np.ndarray]) -> Any:
    """The value in terms of JSON, with its arrays put aside."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in KINDS:
            raise BadFrame(f"expected numbers, got an array of {value.dtype}")
        arrays.append(np.ascontiguousarray(value) if value.ndim else value)
        return {"array": len(arrays) - 1}
    if isinstance(value, tuple):
        return {"tuple": [lowered(part, arrays) for part in value]}
    if isinstance(value, dict):
        return {"dict": [[str(key), lowered(part, arrays)] for key, part in value.items()]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise BadFrame(f"expected numbers, text, a tuple or a dictionary, got {type(value).__name__}")


def decode(body: bytes) -> dict[str, Any]:
    """The message of the bytes after the length. Raises BadFrame when they are not one."""
    try:
        size = int.from_bytes(body[:4], "big")
        header = from_json(body[4 : 4 + size])
        arrays = decoded_arrays(io.BytesIO(body[4 + size :]))
        message = raised_again(header, arrays)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, EOFError) as error:
        raise BadFrame(f"{type(error).__name__}: {error}") from None
    if not isinstance(message, dict):
        raise BadFrame(f"expected a dictionary, got {type(message).__name__}")
    return message


def decoded_arrays(stream: io.BytesIO) -> list[np.ndarray]:
    """Read arrays to the end; the size that one claims is checked before it is made."""
    arrays = []
    left = stream.getbuffer().nbytes
    while stream.tell() < left:
        version = read_magic(stream)
        shape, fortran, dtype = read_header[version](stream, max_header_size=2000)
        size = math.prod(shape) * dtype.itemsize
        if dtype.kind not in KINDS or dtype.subdtype or stream.tell() + size > left:
            raise BadFrame(f"expected an array of numbers, got {dtype} of shape {shape}")
        flat = np.frombuffer(stream.read(size), dtype)
        arrays.append(flat.reshape(shape, order="F" if fortran else "C").copy())
    return arrays


def raised_again(value: Any, arrays: list[np.ndarray]) -> Any:
    """What :func:`lowered` gave, with its arrays put back."""
    if isinstance(value, dict):
        ((kind, inner),) = value.items()
        if kind == "array":
            return arrays[inner]
        if kind == "tuple":
            return tuple(raised_again(part, arrays) for part in inner)
        return {str(key): raised_again(part, arrays) for key, part in inner}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise BadFrame(f"expected numbers, text or a dictionary, got {type(value).__name__}")


def read(read_bytes: Callable[[int], bytes], limit: int = LIMIT) -> dict[str, Any] | None:
    """The next message of a stream; None at its end."""
    start = read_exactly(read_bytes, 4)
    if start is None:
        return None
    size = int.from_bytes(start, "big")
    if not 4 <= size <= limit + 2**16:
        raise BadFrame(f"a message of {size} bytes")
    body = read_exactly(read_bytes, size)
    return None if body is None else decode(body)


def read_exactly(read_bytes: Callable[[int], bytes], size: int) -> bytes | None:
    """So many bytes; None when the stream ends first."""
    parts = []
    while size:
        part = read_bytes(min(size, 2**20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)

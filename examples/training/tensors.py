#!/usr/bin/env python3
"""Reads the tensors of safetensors files in the order in which a model needs them, each as a part of its file.

    python3 examples/training/tensors.py /pfs/model/*.safetensors
"""

import json
import sys

import forebay
import numpy as np

# bfloat16 and the eight-bit floats have no type in NumPy: their bits.
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}


def header(path):
    """The tensors of a file by name: type, shape, first byte and length."""
    with forebay.open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        described = json.loads(file.read(size))
    described.pop("__metadata__", None)
    first = 8 + size
    return {
        name: (one["dtype"], one["shape"], first + one["data_offsets"][0], one["data_offsets"][1] - one["data_offsets"][0])
        for name, one in described.items()
    }


def tensors(paths):
    """Yields name and array, file by file; the files that follow are fetched meanwhile."""
    found = [(path, name, *where) for path in paths for name, where in header(path).items()]
    with forebay.Order([(path, offset, length) for path, _, _, _, offset, length in found]) as order:
        order.announce(range(len(found)))
        for path, name, kind, shape, offset, length in order.epoch(found):
            buffer = np.empty(length, dtype=np.uint8)
            with forebay.open(path, "rb") as file:
                file.seek(offset)
                if file.readinto(buffer) != length:
                    raise EOFError(f"{path} ends within the tensor {name}")
            yield name, buffer.view(TYPES.get(kind, "u1")).reshape(shape if kind in TYPES else [-1])


def main():
    for name, array in tensors(sys.argv[1:]):
        print(name, array.dtype, array.shape)


if __name__ == "__main__":
    main()

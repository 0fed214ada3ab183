"""Cached sequential read through Python: 1 MiB `readinto` on one file, four passes after one to warm up; prints JSON."""

import argparse
import ctypes
import json
import time

import forebay

PASSES = 4
PIECE_BYTES = 1 << 20
PAGE_BYTES = 4096


def buffer_of(kind: str) -> memoryview:
    """1 MiB, on a page boundary or where a bytearray happens to begin: copies are slower into one that is not aligned."""
    memory = bytearray(PIECE_BYTES + (PAGE_BYTES if kind == "aligned" else 0))
    if kind != "aligned":
        return memoryview(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = -address % PAGE_BYTES
    return memoryview(memory)[start : start + PIECE_BYTES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--buffer", choices=["aligned", "bytearray"], default="aligned")
    args = parser.parse_args()
    buffer = buffer_of(args.buffer)
    with forebay.Client().open(args.path) as file:
        size = file.size
        for index in range(PASSES + 1):
            if index == 1:
                started = time.perf_counter()
            for offset in range(0, size, PIECE_BYTES):
                file.readinto(buffer, offset)
        seconds = time.perf_counter() - started
    print(json.dumps({"gb_per_s": size * PASSES / seconds / 1e9}))


if __name__ == "__main__":
    main()

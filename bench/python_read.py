"""Cached sequential read through Python: 1 MiB `readinto` on one file, four passes after one to warm up; prints JSON."""

import json
import sys
import time

import forebay

PASSES = 4
PIECE_BYTES = 1 << 20


def main() -> None:
    path = sys.argv[1]
    buffer = bytearray(PIECE_BYTES)
    with forebay.Client().open(path) as file:
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

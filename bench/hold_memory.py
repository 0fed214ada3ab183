#!/usr/bin/env python3
"""Keeps free memory of a virtual machine from being given back to its host, until it is ended; as root.

    bench/hold_memory.py &        # says "held" when it is
    make bench-spark

Where the balloon reports free pages (`virtio_balloon` with free page reporting), memory that lay free for some seconds costs ten times as much when
it is touched again. Readings of what fills memory, as a tier does, then tell more of the host than of the tier. Pages are reported in blocks of at least
2^order; so the order is set to its largest, which is 4 MiB, and one page of each block that large is held. It takes 1/1024 of the memory, and a
minute at the start, since all of it has to be touched once. Both settings are put back at the end.
"""

import argparse
import ctypes
import mmap
import os
import signal
import sys
from pathlib import Path

ORDER = Path("/sys/module/page_reporting/parameters/page_reporting_order")
COMPACT = Path("/proc/sys/vm/compact_unevictable_allowed")
BLOCK_BYTES = 4 << 20
STEP_BYTES = 256 << 20
# Of the memory that is free: the rest is for who starts meanwhile.
SHARE = 0.92


def available_bytes():
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10


def hold(size):
    """Touches `size` bytes and gives all back but one page of each block. What is held lives as long as the result."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for at in range(0, size, STEP_BYTES):
        ctypes.memset(start + at, 1, min(STEP_BYTES, size - at))
    libc = ctypes.CDLL(None, use_errno=True)
    for at in range(0, size, BLOCK_BYTES):
        if libc.mlock(ctypes.c_void_p(start + at), mmap.PAGESIZE):
            raise OSError(ctypes.get_errno(), "cannot lock memory")
        memory.madvise(mmap.MADV_DONTNEED, at + mmap.PAGESIZE, min(BLOCK_BYTES, size - at) - mmap.PAGESIZE)
    return memory


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size-mb", type=int, help="how much [default: most of what is free]")
    args = parser.parse_args()
    if not ORDER.exists():
        sys.exit("this kernel does not report free pages: there is nothing to hold")
    # Blocks whole: the last one has a page to hold, too.
    size = (args.size_mb << 20 if args.size_mb else int(available_bytes() * SHARE)) // BLOCK_BYTES * BLOCK_BYTES
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    if os.geteuid() != 0:
        sys.exit("only root may change how the kernel reports memory")
    before = {path: path.read_text() for path in (ORDER, COMPACT)}
    try:
        ORDER.write_text("10")
        # Else the kernel moves the held pages together.
        COMPACT.write_text("0")
        held = hold(size)
        print(f"held: a page of each 4 MiB of {len(held) >> 20} MiB", flush=True)
        while True:
            signal.pause()
    finally:
        for path, text in before.items():
            try:
                path.write_text(text)
            except OSError as e:
                print(f"cannot put {text.strip()} back into {path}: {e}", file=sys.stderr)


if __name__ == "__main__":
    main()

"""The inputs of the workloads, made once on the local disk; the same sizes give the same bytes on every machine.

    inputs.py validate DIRECTORY

prints how many records the sorted files of a directory have, and their checksum; fails if they are not in order.
"""

import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy

SEED = 20180901
# Of MooseFS: a file of at most so many bytes has one split and one server.
CHUNK_BYTES = 64 << 20
RECORD_BYTES = 100
TERA_FILE_BYTES = CHUNK_BYTES // RECORD_BYTES * RECORD_BYTES
BATCH = 100_000
HEX = numpy.frombuffer(b"0123456789ABCDEF", dtype=numpy.uint8)
# A pair of numbers takes more time than its bytes of text do.
PAIRS_SHARE = 4
# Values of a key of SecondarySort, in the mean.
GROUP = 100
# Of scale factor 1 in Parquet, as tpchgen-cli writes it.
TABLE_BYTES = {"lineitem": 210e6, "orders": 61e6}
TABLE_FILE_BYTES = 60e6


def made(directory, wanted, write):
    """A directory that `write` has filled, and what `write` found; made again if it was made of other values than `wanted`."""
    mark = directory.with_suffix(".json")
    known = json.loads(mark.read_text()) if mark.exists() else {}
    if known.get("wanted") == wanted:
        return directory, known["found"]
    mark.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    found = write(directory)
    mark.write_text(json.dumps({"wanted": wanted, "found": found}))
    return directory, found


def tera(place, size):
    """Records as TeraGen has them in files of one chunk each; the directory, and what a right output has."""
    files, file_records = max(1, size // TERA_FILE_BYTES), min(size, TERA_FILE_BYTES) // RECORD_BYTES

    def write(directory):
        found = {"records": 0, "checksum": 0}
        for number in range(files):
            left = file_records
            random = numpy.random.default_rng([SEED, number])
            with open(directory / f"part-{number:05}", "wb") as out:
                while left:
                    block = records(random, found["records"], min(BATCH, left))
                    out.write(block.tobytes())
                    found = {"records": found["records"] + len(block), "checksum": found["checksum"] + checksum(block)}
                    left -= len(block)
        return found

    return made(place / "tera", {"files": files, "file_records": file_records, "seed": SEED}, write)


def records(random, first, count):
    """A key of ten random bytes, the number of the record in hexadecimal digits, and a filler; between them bytes that nothing else has."""
    block = numpy.empty((count, RECORD_BYTES), dtype=numpy.uint8)
    block[:, :10] = random.integers(0, 256, (count, 10), dtype=numpy.uint8)
    block[:, 10:12] = 0x00, 0x11
    numbers = numpy.arange(first, first + count, dtype=numpy.uint64)
    for digit in range(32):
        block[:, 43 - digit] = HEX[(numbers >> numpy.uint64(4 * digit)) & numpy.uint64(15)] if digit < 16 else HEX[0]
    block[:, 44:48] = 0x88, 0x99, 0xAA, 0xBB
    block[:, 48:96] = HEX[random.integers(0, 16, (count, 12))].repeat(4, axis=1)
    block[:, 96:] = 0xCC, 0xDD, 0xEE, 0xFF
    return block


def checksum(block):
    """The sum of the CRC-32 of each record, as TeraGen and TeraValidate have it."""
    data = block.tobytes()
    return sum(zlib.crc32(data[at : at + RECORD_BYTES]) for at in range(0, len(data), RECORD_BYTES))


def validate(directory):
    """Records and checksum of the output of TeraSort; ValueError if they are not in order within files or from file to file."""
    found, last = {"records": 0, "checksum": 0}, bytes(10)
    for path in sorted(directory.glob("part-*")):
        with open(path, "rb") as file:
            while data := file.read(BATCH * RECORD_BYTES):
                if len(data) % RECORD_BYTES:
                    raise ValueError(f"{path} ends within a record")
                block = numpy.frombuffer(data, dtype=numpy.uint8).reshape(-1, RECORD_BYTES)
                keys = block[:, :10]
                high, low = (numpy.ascontiguousarray(part).view(kind).ravel() for part, kind in ((keys[:, :8], ">u8"), (keys[:, 8:], ">u2")))
                ordered = (high[:-1] < high[1:]) | (high[:-1] == high[1:]) & (low[:-1] <= low[1:])
                if keys[0].tobytes() < last or not ordered.all():
                    raise ValueError(f"{path} is not in order")
                last = keys[-1].tobytes()
                found = {"records": found["records"] + len(block), "checksum": found["checksum"] + checksum(block)}
    return found


def pairs(place, size, files):
    """Lines of two numbers of ten digits, in as many bytes as `size` says at most; the directory."""
    lines = size // PAIRS_SHARE // files // 22
    return made(place / "pairs", {"lines": lines, "files": files, "seed": SEED}, lambda directory: write_pairs(directory, files, lines))[0]


def write_pairs(directory, files, lines):
    keys = max(1, files * lines // GROUP)
    for number in range(files):
        random = numpy.random.default_rng([SEED, number])
        numbers = numpy.stack([random.integers(0, keys, lines), random.integers(0, 1 << 31, lines)], axis=1)
        text = numpy.empty((lines, 2, 11), dtype=numpy.uint8)
        for digit in range(10):
            text[:, :, 9 - digit] = numbers // 10**digit % 10 + ord("0")
        text[:, :, 10] = ord(" "), ord("\n")
        (directory / f"part-{number:05}.txt").write_bytes(text.tobytes())


def tables(place, size, generator):
    """lineitem and orders of TPC-H in Parquet, in about `size` bytes together and files of less than a chunk; the directory."""
    scale = round(size / sum(TABLE_BYTES.values()), 2)

    def write(directory):
        for name, table_bytes in TABLE_BYTES.items():
            parts = -(-int(scale * table_bytes) // int(TABLE_FILE_BYTES))
            command = [generator, "parquet", "--quiet", "-s", str(scale), "--output-dir", directory, "--tables", name, "--parts", str(parts)]
            ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
            if ended.returncode:
                raise RuntimeError(f"tpchgen-cli failed: {ended.stderr.strip()}")

    return made(place / "tables", {"scale": scale}, write)[0]


if __name__ == "__main__":
    print(json.dumps(validate(Path(sys.argv[2]))))

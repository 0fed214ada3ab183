"""Text for WordCount and Sort: words of an invented language, as often as words are in real ones.

The vocabulary is 30,000 words of two to four syllables; the word of rank r comes with a frequency of 1 / (r + 2.7), Zipf's law as
Mandelbrot corrected it, which English follows closely (b = 1). Lines have eight to fifteen words. The same size gives the same bytes on
every machine. Why not a real book: enough of them for a cluster's memory is a download of hours, and what the two jobs do depends on
nothing but these frequencies and lengths.
"""

import json
import shutil

import numpy

WORDS = 30_000
SHIFT = 2.7
SEED = 20180901
# What is written at a time, one random stream each, so that sizes share their beginning.
CHUNK_WORDS = 1 << 18
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"


def vocabulary(random):
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    words = set()
    # Frequent words are short ones.
    while len(words) < WORDS:
        count = 1 + (len(words) > 40) + (len(words) > 2000) + int(random.integers(0, 2))
        words.add("".join(syllables[i] for i in random.integers(0, len(syllables), count)))
    return numpy.array(sorted(words, key=lambda word: (len(word), word)), dtype=object)


def write(directory, size, file_bytes, progress):
    """Directory with `size` bytes in files of `file_bytes`, made once; `progress(bytes_done)` hears how far it is."""
    made = directory / "made.json"
    wanted = {"size": size, "file_bytes": file_bytes, "seed": SEED}
    if made.exists() and json.loads(made.read_text()) == wanted:
        return directory / "text"
    shutil.rmtree(directory, ignore_errors=True)
    text = directory / "text"
    text.mkdir(parents=True)
    try:
        done = 0
        source = lines()
        rest = b""
        for number in range(-(-size // file_bytes)):
            wanted_bytes = min(file_bytes, size - done)
            with open(text / f"part-{number:04}.txt", "wb") as out:
                while wanted_bytes:
                    rest = rest or next(source)
                    piece, rest = rest[:wanted_bytes], rest[wanted_bytes:]
                    out.write(piece)
                    wanted_bytes -= len(piece)
                    done += len(piece)
                    progress(done)
    except BaseException:
        # Half a data set is of no use and takes room.
        shutil.rmtree(directory, ignore_errors=True)
        raise
    made.write_text(json.dumps(wanted))
    return text


def lines():
    """Text without end, in chunks of some megabytes, each ending with a line."""
    words = vocabulary(numpy.random.default_rng(SEED))
    frequencies = 1 / (numpy.arange(WORDS) + 1 + SHIFT)
    cumulated = numpy.cumsum(frequencies / frequencies.sum())
    chunk = 0
    while True:
        random = numpy.random.default_rng([SEED, chunk])
        chosen = words[numpy.minimum(numpy.searchsorted(cumulated, random.random(CHUNK_WORDS)), WORDS - 1)]
        ends = numpy.cumsum(random.integers(8, 16, CHUNK_WORDS // 8))
        joined, at = [], 0
        for end in ends[ends <= CHUNK_WORDS]:
            joined.append(" ".join(chosen[at:end]))
            at = end
        yield ("\n".join(joined) + "\n").encode()
        chunk += 1

"""What kinds of text is the Linux kernel made of? An analysis that goes over its data again and again.

    pass 1    lines; a vocabulary, from a sample; mean and spread of the features of all blocks of 64 KiB
    pass 2    where the words of that vocabulary are: term frequency and inverse document frequency, file by file
    pass 3... k-means: each iteration assigns every block to the nearest centre and moves the centres

Features of a block are how often some characters stand in it. They are worked out anew in every pass, as jobs do whose features do
not fit into memory either. All of it runs at several hundred MB/s on one core, so it is storage that one waits for.

The one thing it is told is how to open a file: `open`, or `forebay.open`.
"""

import re
from collections import Counter

import numpy

PIECE_BYTES = 1 << 20
BLOCK_BYTES = 64 << 10
SAMPLE_BYTES = 8 << 10
CENTRES = 5
TERMS = 2
# What tells comments from code, tables and headers: end of line, tab, underscore, and the 0 of
# numbers.
CHARACTERS = b"\n\t_0"
# Long words, as they are both more telling and faster to look for.
WORD = re.compile(rb"[A-Za-z_]{10,24}")
# Longest overlap of two pieces in which a term may stand.
OVERLAP_BYTES = 32


def passes(paths, count, open, advance):
    """Runs `count` passes; yields (name, result so far) after each. `advance(n)` hears of every n bytes read."""
    analysis = Analysis(paths, open, advance)
    yield "vocabulary", analysis.vocabulary()
    yield "tf-idf", analysis.term_weights()
    for i in range(count - 2):
        yield f"k-means {i + 1}", analysis.move_centres()


class Analysis:
    def __init__(self, paths, open, advance):
        self.paths = paths
        self.open = open
        self.advance = advance
        self.result = {}
        self.buffer = bytearray(OVERLAP_BYTES + PIECE_BYTES)

    def pieces(self, path):
        """Reads a file piece by piece into the one buffer, behind the last bytes of the piece before; yields lengths."""
        target = memoryview(self.buffer)[OVERLAP_BYTES:]
        self.buffer[:OVERLAP_BYTES] = bytes(OVERLAP_BYTES)
        with self.open(path, "rb") as file:
            while length := file.readinto(target):
                self.advance(length)
                yield length
                self.buffer[:OVERLAP_BYTES] = self.buffer[length : length + OVERLAP_BYTES]

    def features(self, length):
        """Shares of CHARACTERS in each whole block of the piece: an array (blocks, characters)."""
        blocks = length // BLOCK_BYTES
        data = numpy.frombuffer(self.buffer, numpy.uint8, blocks * BLOCK_BYTES, OVERLAP_BYTES)
        # 128 rows at a time, so that a count fits a byte and the processor adds many at once.
        rows = data.reshape(blocks, BLOCK_BYTES // 512 // 128, 128, 512)
        counts = [(rows == c).view(numpy.uint8).sum(axis=2, dtype=numpy.uint8).sum(axis=(1, 2), dtype=numpy.int64) for c in CHARACTERS]
        return numpy.stack(counts, axis=1) / BLOCK_BYTES

    def vocabulary(self):
        words, lines, blocks = Counter(), 0, 0
        total, squares = numpy.zeros(len(CHARACTERS)), numpy.zeros(len(CHARACTERS))
        first = []
        for path in self.paths:
            for length in self.pieces(path):
                sample = bytes(memoryview(self.buffer)[OVERLAP_BYTES : OVERLAP_BYTES + min(length, SAMPLE_BYTES)])
                words.update(WORD.findall(sample))
                features = self.features(length)
                lines += int(features[:, 0].sum() * BLOCK_BYTES)
                total += features.sum(axis=0)
                squares += (features**2).sum(axis=0)
                blocks += len(features)
                first.extend(features[:1])
        self.mean = total / blocks
        self.spread = numpy.sqrt(numpy.maximum(squares / blocks - self.mean**2, 1e-12))
        # Centres start at blocks spread evenly over the data: the same in every run.
        self.centres = (numpy.array(first[:: max(len(first) // CENTRES, 1)][:CENTRES]) - self.mean) / self.spread
        # The most frequent words stand everywhere and tell nothing; those behind them tell
        # something.
        ranked = sorted(words.items(), key=lambda item: (-item[1], item[0]))
        self.terms = [word for word, _ in ranked[20 : 20 + TERMS]]
        self.result |= {"lines_in_blocks": lines, "blocks": blocks, "terms": [term.decode() for term in self.terms]}
        return self.result

    def term_weights(self):
        counts, sizes = [], []
        for path in self.paths:
            found, size = [0] * len(self.terms), 0
            for length in self.pieces(path):
                size += length
                for i, term in enumerate(self.terms):
                    found[i] += self.buffer.count(term, OVERLAP_BYTES - len(term) + 1, OVERLAP_BYTES + length)
            counts.append(found)
            sizes.append(max(size, 1))
        counts, sizes = numpy.array(counts), numpy.array(sizes)
        rarity = numpy.log((1 + len(self.paths)) / (1 + (counts > 0).sum(axis=0)))
        weights = counts / sizes[:, None] * rarity
        best = [self.paths[i].rsplit("/", 1)[-1] for i in weights.argmax(axis=0)]
        self.result["term_counts"] = {term: int(n) for term, n in zip(self.result["terms"], counts.sum(axis=0))}
        self.result["term_files"] = dict(zip(self.result["terms"], best))
        return self.result

    def move_centres(self):
        sums, members, distance = numpy.zeros_like(self.centres), numpy.zeros(len(self.centres), numpy.int64), 0.0
        for path in self.paths:
            for length in self.pieces(path):
                points = (self.features(length) - self.mean) / self.spread
                squared = ((points[:, None, :] - self.centres[None, :, :]) ** 2).sum(axis=2)
                nearest = squared.argmin(axis=1)
                distance += float(squared.min(axis=1).sum())
                members += numpy.bincount(nearest, minlength=len(members))
                numpy.add.at(sums, nearest, points)
        self.centres = numpy.where(members[:, None] > 0, sums / numpy.maximum(members, 1)[:, None], self.centres)
        self.result |= {"cluster_blocks": members.tolist(), "cluster_distance": distance, "cluster_centres": self.centres.tolist()}
        return self.result

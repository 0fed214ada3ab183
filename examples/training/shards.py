#!/usr/bin/env python3
"""Reads shards of samples in an announced order, with webdataset.

    python3 examples/training/shards.py /pfs/shards/*.tar
"""

import sys

import forebay
import webdataset


def samples(shards, *, seed, epochs):
    """Yields the samples of each epoch, shard by shard in a new order, through the tier."""
    webdataset.gopen_schemes["forebay"] = lambda url, mode, bufsize: forebay.open(url.removeprefix("forebay:"), mode)
    for epoch in forebay.order(shards, seed=seed, epochs=epochs):
        urls = ({"url": f"forebay:{shard}"} for shard in epoch)
        # webdataset asks for the next shard when it has read the one before.
        yield from webdataset.DataPipeline(lambda urls=urls: urls, webdataset.tarfile_to_samples())


def main():
    shards = sys.argv[1:]
    for count, sample in enumerate(samples(shards, seed=7, epochs=2), 1):
        print(count, sample["__key__"], *(name for name in sample if not name.startswith("_")))


if __name__ == "__main__":
    main()

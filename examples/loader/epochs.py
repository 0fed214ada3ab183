"""A data loader of training samples: shuffled epochs over the files of a directory, read by path in worker processes.

    forebay run --report -- python3 epochs.py /pfs/samples --epochs 3 --workers 4

It knows nothing of Forebay. Under `forebay run` the first epoch reads each byte from the parallel file system once, and
the later ones read it from the tier. With PyTorch the same samples come through `torch.utils.data.DataLoader`, whose
workers are processes as well: pass --torch.
"""

import argparse
import hashlib
import multiprocessing
import pathlib
import random
import time


class Samples:
    """The samples of a directory: one file each. A map-style data set as PyTorch wants it."""

    def __init__(self, directory):
        self.paths = sorted(path for path in pathlib.Path(directory).iterdir() if path.is_file())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        """The bytes of a sample come down to its length and a digest; training would decode them."""
        sample = self.paths[index].read_bytes()
        return len(sample), int.from_bytes(hashlib.sha256(sample).digest()[:6], "big")


def epochs_of_pool(samples, options):
    """Yields an iterator of samples for each epoch, in an order of its own."""
    with multiprocessing.get_context(options.start).Pool(options.workers) as pool:
        for epoch in range(options.epochs):
            order = list(range(len(samples)))
            random.Random(f"{options.seed}/{epoch}").shuffle(order)
            yield pool.imap(samples.__getitem__, order, chunksize=options.batch)


def epochs_of_torch(samples, options):
    """The same by PyTorch."""
    import torch  # Only here: nobody else needs it.

    torch.manual_seed(options.seed)
    loader = torch.utils.data.DataLoader(
        samples, batch_size=options.batch, shuffle=True, num_workers=options.workers, collate_fn=list
    )
    for _ in range(options.epochs):
        yield (sample for batch in loader for sample in batch)


def main():
    """Reads all epochs; prints for each the samples, the bytes, a digest that no order changes, and the time."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("directory")
    arguments.add_argument("--epochs", type=int, default=2)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--start", choices=["fork", "spawn", "forkserver"], default="fork", help="of workers")
    arguments.add_argument("--torch", action="store_true", help="use PyTorch's DataLoader")
    options = arguments.parse_args()
    samples = Samples(options.directory)
    epochs = epochs_of_torch if options.torch else epochs_of_pool
    started = time.monotonic()
    for epoch, loaded in enumerate(epochs(samples, options), start=1):
        count = size = digest = 0
        for sample_bytes, sample_digest in loaded:
            count, size, digest = count + 1, size + sample_bytes, digest ^ sample_digest
        now = time.monotonic()
        print(f"epoch {epoch}: {count} samples, {size} bytes, digest {digest:012x}, {now - started:.2f} s", flush=True)
        started = now


if __name__ == "__main__":
    main()

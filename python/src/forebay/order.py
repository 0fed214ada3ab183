"""Announces in which order a program will read files, epoch by epoch.

The agent then fetches what is read next before it is read, and keeps what is read soonest. Reads do not depend on it: without an
agent, or if the agent refuses, the program gets one warning and reads on.
"""

from __future__ import annotations

import inspect
import os
import random
import warnings
from typing import Any, Callable, Generator, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union

from . import _core
from .process import default_client

AnyPath = Union[str, bytes, os.PathLike]
Item = Union[AnyPath, Tuple[AnyPath, int, int]]
AnItem = TypeVar("AnItem")


class Order:
    """The order in which this process will read files.

    files: paths, or tuples of a path, the first byte and a length for parts of files. Epochs name them by their place in this list.

        with forebay.Order(files) as order:
            order.announce(first)             # a list of places
            for epoch in range(epochs):
                order.announce(after(epoch))  # the next epoch, before this one is read
                for place in order.epoch(sequence):
                    read(files[place])

    `is_live` is False when nothing is announced (any more): no agent, or the program reads in another order than it announced.
    """

    def __init__(self, files: Iterable[Item], *, name: str = "order", client: Optional[_core.Client] = None):
        self._order: Optional[_core.Order] = None
        items = [_item(file) for file in files]
        self._try(lambda: self._begin(client or default_client(), name, items))

    def _begin(self, client: _core.Client, name: str, items: List[Tuple[AnyPath, int, Optional[int]]]) -> None:
        self._order = _core.Order(client, name, items)

    def _try(self, report: Callable[[], object]) -> None:
        try:
            report()
        except OSError as error:
            self.close()
            warnings.warn(f"reads go on without an announced order: {error}", RuntimeWarning, stacklevel=4)

    @property
    def is_live(self) -> bool:
        """Whether the agent knows the order."""
        return self._order is not None

    def announce(self, sequence: Sequence[int]) -> None:
        """Files will be read in this order, after those announced before. A file may occur several times, or never."""
        if self._order is not None:
            order, places = self._order, [int(place) for place in sequence]
            self._try(lambda: order.announce(places))

    def read(self, count: int = 1) -> None:
        """The next `count` files of the order are read now, or given to a reader."""
        if self._order is not None:
            order = self._order
            self._try(lambda: order.read(count))

    def leave_epoch(self) -> None:
        """The rest of the announced epoch that is being read, or is next, is not read."""
        if self._order is not None:
            order = self._order
            self._try(order.leave_epoch)

    def epoch(self, sequence: Iterable[AnItem]) -> Generator[AnItem, None, None]:
        """Yields what is in `sequence`, and reports each as read. If the caller stops early, leaves the epoch."""
        is_whole = False
        try:
            for one in sequence:
                self.read()
                yield one
            is_whole = True
        finally:
            if not is_whole:
                self.leave_epoch()

    def leave(self, reading: Generator[Any, None, None]) -> None:
        """Leaves the epoch of an iterator that `epoch` has returned, unless it has come to its end."""
        if inspect.getgeneratorstate(reading) == inspect.GEN_CREATED:
            self.leave_epoch()
        reading.close()

    def close(self) -> None:
        """Ends the order: nothing more is fetched for it. A second call does nothing."""
        order, self._order = self._order, None
        if order is not None:
            order.close()

    def __enter__(self) -> Order:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def order(
    files: Iterable[AnItem], *, seed: int, epochs: int, ahead: int = 1, client: Optional[_core.Client] = None
) -> Iterator[Iterator[AnItem]]:
    """Yields `epochs` iterators over `files` (as for `Order`), each in its own random order, which follows from `seed` and the epoch.

    Each epoch is announced when the one `ahead` places before it begins.

        for epoch in forebay.order(files, seed=7, epochs=10):
            for file in epoch:
                read(file)
    """
    items = list(files)
    with Order(items, client=client) as announced:
        for epoch in range(min(ahead, epochs)):
            announced.announce(_shuffled(len(items), seed, epoch))
        for epoch in range(epochs):
            if epoch + ahead < epochs:
                announced.announce(_shuffled(len(items), seed, epoch + ahead))
            reading = announced.epoch(_shuffled(len(items), seed, epoch))
            yield (items[place] for place in reading)
            announced.leave(reading)


def _shuffled(count: int, seed: int, epoch: int) -> List[int]:
    places = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(places)
    return places


def _item(file: Item) -> Tuple[AnyPath, int, Optional[int]]:
    if isinstance(file, tuple):
        path, offset, length = file
        return path, offset, length
    return file, 0, None

"""For PyTorch: a sampler that announces what it draws, and a dataset of files.

Importing this module does not import torch. `DataLoader` takes any object with the methods of `torch.utils.data.Sampler` and
`Dataset`.

    files = forebay.torch.Files(paths, transform=decode)
    sampler = forebay.torch.Sampler(DistributedSampler(files), paths)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in DataLoader(files, sampler=sampler, batch_size=8, num_workers=4):
            ...
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any, Callable, Deque, Generator, Iterable, Iterator, List, Optional

from . import _core
from .files import open
from .order import AnyPath, Item, Order

__all__ = ["Files", "Sampler"]


class Sampler:
    """Wraps a sampler of single samples, and announces its epochs: the current one, and the next ones if they follow from a seed.

    sampler: a `RandomSampler`, `DistributedSampler`, `WeightedRandomSampler` or any other iterable of places in `files`.
    files: what each sample reads, as for `forebay.Order`.

    ahead: how many epochs are announced before the current one ends. More than one helps where each rank reads a part of each
    epoch and its node shares no pages with others.

    The next epochs are known of samplers with `set_epoch`, and of those with a `generator` that nobody else draws from. If the guess
    was wrong, the epoch is announced when it begins.
    """

    def __init__(self, sampler: Any, files: Iterable[Item], *, ahead: int = 1, client: Optional[_core.Client] = None):
        self.sampler = sampler
        self.ahead = ahead
        self.order = Order(files, name="training", client=client)
        self._announced: Deque[List[int]] = deque()
        self._reading: Optional[Generator[int, None, None]] = None

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """As of `DistributedSampler`."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        if self._reading is not None:
            self.order.leave(self._reading)
        places = [int(place) for place in self.sampler]
        while self._announced and self._announced[0] != places:
            self._announced.popleft()
            self.order.leave_epoch()
        if not self._announced:
            self._announce(places)
        for following in self._following()[len(self._announced) - 1 :]:
            self._announce(following)
        self._announced.popleft()
        self._reading = self.order.epoch(places)
        return self._reading

    def _announce(self, places: List[int]) -> None:
        self.order.announce(places)
        self._announced.append(places)

    def _following(self) -> List[List[int]]:
        """The next epochs as far as they are known, without a change of the sampler."""
        generator = getattr(self.sampler, "generator", None)
        if hasattr(self.sampler, "set_epoch") and isinstance(getattr(self.sampler, "epoch", None), int):
            ahead = copy.copy(self.sampler)
            following = []
            for epoch in range(self.sampler.epoch + 1, self.sampler.epoch + 1 + self.ahead):
                ahead.set_epoch(epoch)
                following.append([int(place) for place in ahead])
            return following
        if generator is not None and hasattr(generator, "get_state"):
            state = generator.get_state()
            try:
                return [[int(place) for place in self.sampler] for _ in range(self.ahead)]
            finally:
                generator.set_state(state)
        return []


class Files:
    """A map-style dataset: the sample at a place is the content of the file there, or what `transform` makes of it.

    Workers of a DataLoader may share it, whether they are forked or spawned, unless it has a `client`.
    """

    def __init__(
        self,
        files: Iterable[AnyPath],
        transform: Optional[Callable[[bytes], Any]] = None,
        *,
        client: Optional[_core.Client] = None,
    ):
        self.files = list(files)
        self.transform = transform
        self.client = client

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> Any:
        with open(self.files[place], "rb", client=self.client) as file:
            content = file.read()
        return content if self.transform is None else self.transform(content)

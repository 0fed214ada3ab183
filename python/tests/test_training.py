"""Announced orders: forebay.order, forebay.Order, and the wrappers for PyTorch.

PyTorch is not needed. The samplers here follow the protocol of torch.utils.data that DataLoader uses: `__iter__`, `__len__`,
`set_epoch` and `epoch` of DistributedSampler, and a `generator` with `get_state` and `set_state`.
"""

import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import forebay
import forebay.torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/training"


@pytest.fixture
def files(agent):
    paths = [agent.root / f"training-{number}" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 70_000)
    time.sleep(0.05)
    yield [str(path) for path in paths]
    for path in paths:
        path.unlink()


class Generator:
    """As torch.Generator, as far as a sampler's wrapper can see."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def get_state(self):
        return self.random.getstate()

    def set_state(self, state):
        self.random.setstate(state)


class RandomSampler:
    def __init__(self, data, generator=None):
        self.data, self.generator = data, generator

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        places = list(range(len(self.data)))
        (self.generator.random if self.generator else random).shuffle(places)
        return iter(places)


class DistributedSampler:
    def __init__(self, data, ranks, rank, seed):
        self.data, self.ranks, self.rank, self.seed, self.epoch = data, ranks, rank, seed, 0

    def __len__(self):
        return len(self.data) // self.ranks

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        places = list(range(len(self.data)))
        random.Random(self.seed + self.epoch).shuffle(places)
        return iter(places[self.rank :: self.ranks])


class Told:
    """Stands for the agent: what it hears of an order."""

    def __init__(self):
        self.announced, self.read_count, self.left = [], 0, 0

    def announce(self, places):
        self.announced.append(places)

    def read(self, items=1):
        self.read_count += items

    def leave_epoch(self):
        self.left += 1

    def close(self):
        pass


def told_of(sampler):
    sampler.order._order = told = Told()
    return told


def test_an_order_reads_each_file_once_an_epoch_and_follows_from_its_seed(agent, files):
    client = agent.client()
    epochs = [list(epoch) for epoch in forebay.order(files, seed=3, epochs=3, client=client)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(files)] * 3
    assert epochs[0] != epochs[1]
    assert epochs == [list(epoch) for epoch in forebay.order(files, seed=3, epochs=3, client=client)]


def test_what_is_announced_is_fetched_before_it_is_read(agent, files):
    client = agent.client()
    with forebay.Order(files, client=client) as order:
        assert order.is_live
        order.announce(range(40))
        order.read()
        deadline = time.monotonic() + 30
        while client.status()["counters"]["pages_planned_total"] == 0:
            assert time.monotonic() < deadline, "nothing is fetched ahead"
            time.sleep(0.01)
        assert client.status()["counters"]["announced_bytes"] > 0
    assert not order.is_live
    deadline = time.monotonic() + 30
    while client.status()["counters"]["announced_bytes"] > 0:
        assert time.monotonic() < deadline, "the order is kept"
        time.sleep(0.01)


def test_without_an_agent_an_order_warns_once_and_reads_go_on(files):
    client = forebay.Client("none", quiet=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        epochs = [list(epoch) for epoch in forebay.order(files, seed=3, epochs=2, client=client)]
    assert [len(epoch) for epoch in epochs] == [40, 40]
    assert [str(one.message).partition(":")[0] for one in caught] == ["reads go on without an announced order"]


def test_an_epoch_that_is_left_is_left_at_the_agent_too(agent, files):
    client, read = agent.client(), []
    for epoch in forebay.order(files, seed=3, epochs=3, client=client):
        for path in epoch:
            read.append(path)
            if len(read) % 10 == 0:
                break
    assert len(read) == 30
    order = forebay.Order(files, client=client)
    order._order = told = Told()
    order.leave(order.epoch(range(5)))
    assert told.left == 1, "an epoch of which nothing was read"


def test_a_distributed_sampler_announces_the_epoch_after_this_one(agent, files):
    inner = DistributedSampler(files, 4, 1, seed=9)
    sampler = forebay.torch.Sampler(inner, files, client=agent.client())
    assert sampler.order.is_live and len(sampler) == 10
    told = told_of(sampler)
    expected = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected.append(list(inner))
        assert list(sampler) == expected[-1]
        assert inner.epoch == epoch, "the sampler was changed"
    assert told.announced[:3] == expected and len(told.announced) == 4
    assert (told.read_count, told.left) == (30, 0)
    # A program that goes back to another epoch.
    sampler.set_epoch(7)
    assert len(list(sampler)) == 10
    assert told.left == 1 and told.announced[4:] != []


def test_a_generator_foretells_and_draws_the_same_as_without_a_wrapper(agent, files):
    plain = RandomSampler(files, Generator(5))
    sampler = forebay.torch.Sampler(RandomSampler(files, Generator(5)), files, client=agent.client())
    told = told_of(sampler)
    epochs = [list(plain) for _ in range(3)]
    assert [list(sampler) for _ in range(3)] == epochs
    assert told.announced[:3] == epochs and told.left == 0


def test_without_a_seed_each_epoch_is_announced_when_it_begins(agent, files):
    sampler = forebay.torch.Sampler(RandomSampler(files), files, client=agent.client())
    told = told_of(sampler)
    epochs = [list(sampler) for _ in range(2)]
    assert told.announced == epochs


def test_files_are_samples(agent, files):
    data = forebay.torch.Files(files, transform=len, client=agent.client())
    assert len(data) == 40 and data[3] == 70_000
    assert forebay.torch.Files(files, client=agent.client())[3] == bytes([3]) * 70_000


def test_the_import_needs_no_torch():
    code = "import sys, forebay.torch; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_example_reads_shards(agent, directory):
    webdataset = pytest.importorskip("webdataset")
    shards = [f"{directory}/shard-{number}.tar" for number in range(3)]
    for number, shard in enumerate(shards):
        with webdataset.TarWriter(shard) as writer:
            for sample in range(4):
                writer.write({"__key__": f"{number}-{sample}", "txt": f"{number} {sample}"})
    time.sleep(0.05)
    out = run_example("shards.py", agent, shards)
    assert len(out) == 24 and sorted(line.split()[1] for line in out[:12]) == [f"{n}-{s}" for n in range(3) for s in range(4)]


def test_the_example_reads_tensors(agent, directory):
    numpy = pytest.importorskip("safetensors.numpy")
    np = pytest.importorskip("numpy")
    path = f"{directory}/model.safetensors"
    numpy.save_file({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, dtype=np.int64)}, path)
    time.sleep(0.05)
    assert sorted(run_example("tensors.py", agent, [path])) == ["a float32 (2, 3)", "b int64 (4,)"]


def run_example(name, agent, arguments):
    environment = {"FOREBAY_SOCKET": agent.socket, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()

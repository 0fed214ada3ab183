"""pandas, PyArrow and Dask, unchanged, on `forebay:///...`.

Each test also asks the agent whether the file is in the tier: reading the PFS past Forebay would give the right bytes too.
"""

import time

import pytest
from conftest import SETTLE_S

import forebay

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def table():
    return pd.DataFrame({"key": range(50_000), "value": [i * 0.5 for i in range(50_000)], "name": [f"n{i % 97}" for i in range(50_000)]})


def resident(path):
    return forebay.residency(path)["resident_bytes"]


def test_pandas_csv(agent, directory, table):
    url = f"forebay://{directory}/t.csv"
    table.to_csv(url, index=False)
    assert resident(directory / "t.csv") == (directory / "t.csv").stat().st_size
    pd.testing.assert_frame_equal(pd.read_csv(url), table)
    pd.testing.assert_frame_equal(pd.read_csv(directory / "t.csv"), table)


def test_pandas_parquet(agent, directory, table):
    table.to_parquet(directory / "t.parquet")
    time.sleep(SETTLE_S)
    url = f"forebay://{directory}/t.parquet"
    pd.testing.assert_frame_equal(pd.read_parquet(url), table)
    pd.testing.assert_frame_equal(pd.read_parquet(url, columns=["value"]), table[["value"]])
    assert resident(directory / "t.parquet") > 0
    table.to_parquet(f"forebay://{directory}/u.parquet")
    assert resident(directory / "u.parquet") == (directory / "u.parquet").stat().st_size
    pd.testing.assert_frame_equal(pd.read_parquet(directory / "u.parquet"), table)


def test_pandas_storage_options(agent, directory, table):
    table.to_csv(directory / "t.csv", index=False)
    time.sleep(SETTLE_S)
    options = {"read_mode": "pfs"}
    pd.testing.assert_frame_equal(pd.read_csv(f"forebay://{directory}/t.csv", storage_options=options), table)
    assert resident(directory / "t.csv") == 0


def test_pyarrow_dataset_with_the_file_system_given(agent, fs, directory, table):
    import pyarrow.dataset as dataset

    arrow = pa.Table.from_pandas(table)
    dataset.write_dataset(arrow, f"{directory}/d", format="parquet", filesystem=fs, partitioning=["name"], max_partitions=100)
    time.sleep(SETTLE_S)
    read = dataset.dataset(f"{directory}/d", filesystem=fs, partitioning=["name"], format="parquet")
    assert len(read.files) == 97
    frame = read.to_table(filter=dataset.field("key") < 1000).to_pandas().sort_values("key", ignore_index=True)
    pd.testing.assert_frame_equal(frame[["key", "value"]], table[["key", "value"]][:1000])
    assert sum(resident(file) for file in read.files) > 0


def test_pyarrow_by_url(agent, directory, table):
    import pyarrow.dataset as dataset

    table.to_parquet(directory / "t.parquet")
    time.sleep(SETTLE_S)
    read = dataset.dataset(f"fsspec+forebay://{directory}/t.parquet", format="parquet")
    assert read.count_rows() == len(table)
    assert read.to_table().equals(pa.Table.from_pandas(table))
    assert resident(directory / "t.parquet") > 0


def test_dask_dataframe(agent, directory, table):
    dd = pytest.importorskip("dask.dataframe")
    url = f"forebay://{directory}/parts"
    dd.from_pandas(table, npartitions=4).to_parquet(url)
    time.sleep(SETTLE_S)
    read = dd.read_parquet(url)
    assert read["value"].sum().compute() == table["value"].sum()
    files = list((directory / "parts").glob("*.parquet"))
    assert len(files) == 4 and sum(map(resident, files)) > 0


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_dask_text(agent, directory, scheduler):
    db = pytest.importorskip("dask.bag")
    for i in range(3):
        (directory / f"{i}.txt").write_text("".join(f"{i} {j}\n" for j in range(10_000)))
    time.sleep(SETTLE_S)
    lines = db.read_text(f"forebay://{directory}/*.txt", blocksize=20_000)
    assert lines.npartitions > 3
    assert lines.count().compute(scheduler=scheduler) == 30_000
    assert sum(resident(directory / f"{i}.txt") for i in range(3)) > 0

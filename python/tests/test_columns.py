"""Libraries that read some columns of a Parquet file: the PFS serves these columns, and not what lies between.

The slow file system of the lab counts what it serves. The bytes that a library needs are the chunks of its columns and the footer.
"""

import os
import sys
import time

import pytest
from conftest import REPOSITORY, _forget_file_systems, binary, need

import forebay
from forebay.fs import ForebayFileSystem

sys.path.insert(0, str(REPOSITORY / "python/demo"))

import lab  # noqa: E402

pytestmark = pytest.mark.skipif(
    os.environ.get("FOREBAY_SKIP_FUSE") == "1" or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="the PFS that counts what it serves needs /dev/fuse, and FOREBAY_SKIP_FUSE=1 leaves it out",
)

COLUMNS = 30
ROW_GROUPS = 5
# A column chunk has 240 KB.
ROWS = 30_000
CHOSEN = ["c3", "c17"]
MOST_OF_NEEDED = 1.2
# What changed less than two seconds ago is not kept on a file system that nobody has measured.
SETTLE_S = 3


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """A PFS that counts what it serves, with one wide table, an agent's socket, and the bytes that the columns need."""
    numpy, pa, parquet = need("numpy"), need("pyarrow"), need("pyarrow.parquet")
    place = tmp_path_factory.mktemp("columns")
    backing = place / "data"
    backing.mkdir()
    dice = numpy.random.default_rng(1)
    wide = pa.table({f"c{i}": dice.random(ROWS * ROW_GROUPS) for i in range(COLUMNS)})
    parquet.write_table(wide, backing / "wide.parquet", row_group_size=ROWS, use_dictionary=False, compression="none")
    metadata = parquet.read_metadata(backing / "wide.parquet")
    chosen = [index for index in range(COLUMNS) if metadata.schema.column(index).name in CHOSEN]
    needed = metadata.serialized_size + 8
    needed += sum(metadata.row_group(group).column(index).total_compressed_size for group in range(ROW_GROUPS) for index in chosen)
    time.sleep(SETTLE_S)
    with lab.slow_pfs(binary(), backing, place / "pfs", 1, "2000MB/s", ["--read-ahead", "0"]) as pfs:
        with lab.agent(binary(), pfs, place / "state", 256 << 20) as socket:
            yield pfs, str(socket), needed, wide.select(CHOSEN)


def with_pyarrow(fs, path):
    dataset = need("pyarrow.dataset")
    return dataset.dataset(path, filesystem=fs, format="parquet").to_table(columns=CHOSEN)


def with_pandas(fs, path):
    return need("pyarrow").Table.from_pandas(need("pandas").read_parquet(f"forebay://{path}", columns=CHOSEN))


def with_dask(fs, path):
    return need("pyarrow").Table.from_pandas(need("dask.dataframe").read_parquet(f"forebay://{path}", columns=CHOSEN).compute())


def with_duckdb(fs, path):
    connection = need("duckdb").connect()
    connection.register_filesystem(fs)
    # Its threads share the position of a file in Python, on every file system of fsspec.
    connection.sql("set threads = 1; set async_threads = 1")
    return connection.sql(f"select {', '.join(CHOSEN)} from 'forebay://{path}'").to_arrow_table()


def with_polars(fs, path):
    polars, dataset = need("polars"), need("pyarrow.dataset")
    return polars.scan_pyarrow_dataset(dataset.dataset(path, filesystem=fs)).select(CHOSEN).collect().to_arrow()


def with_polars_and_a_file(fs, path):
    polars = need("polars")
    with forebay.open(path, "rb") as file:
        return polars.read_parquet(file, columns=CHOSEN, use_pyarrow=True).to_arrow()


@pytest.mark.parametrize("read", [with_pyarrow, with_pandas, with_dask, with_duckdb, with_polars, with_polars_and_a_file])
def test_of_some_columns_the_pfs_serves_little_more(counted, monkeypatch, read):
    pfs, socket, needed, expected = counted
    monkeypatch.setenv("FOREBAY_SOCKET", socket)
    monkeypatch.setattr(forebay.process, "_client", None)
    _forget_file_systems()
    forebay.Client(socket).evict_all()
    served = []
    for _ in range(2):
        before = lab.served_bytes(pfs)
        found = read(ForebayFileSystem(), str(pfs / "wide.parquet"))
        assert found.equals(expected), "the columns are not those that were written"
        served.append(lab.served_bytes(pfs) - before)
    _forget_file_systems()
    assert needed <= served[0] <= MOST_OF_NEEDED * needed, f"{served[0] / needed:.2f} times the {needed} bytes of the columns"
    assert served[1] == 0, "a second read finds all of it in the tier"

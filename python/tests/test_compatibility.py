"""The table "What works with which library" of the Python guide, row by row.

The table names a test for each row, and `test_the_table_and_the_tests_are_the_same` holds them together. Reading tests also ask the
agent whether the file is in the tier: reading the PFS past Forebay would give the right bytes too.
"""

import pickle
import re
import shutil
import tarfile
import time
import zipfile

import pytest
from conftest import REPOSITORY, SETTLE_S, need

import forebay

ROWS = 50_000


def resident(path):
    return forebay.residency(path)["resident_bytes"]


def settle():
    """Files younger than this are not cached yet."""
    time.sleep(SETTLE_S)


@pytest.fixture
def table():
    pd = need("pandas")
    return pd.DataFrame({"key": range(ROWS), "value": [i * 0.5 for i in range(ROWS)]})


# ---- tables ----


def test_pandas(agent, directory, table):
    pd = need("pandas")
    need("pyarrow")
    for suffix in ("csv", "parquet", "feather", "pkl", "json"):
        url = f"forebay://{directory}/new/directories/t.{suffix}"
        writer = {"csv": "to_csv", "pkl": "to_pickle"}.get(suffix, f"to_{suffix}")
        getattr(table, writer)(url, **({"index": False} if suffix == "csv" else {}))
        path = directory / f"new/directories/t.{suffix}"
        assert resident(path) == path.stat().st_size, f"what pandas wrote as {suffix} is in the tier"
        reader = {"csv": pd.read_csv, "pkl": pd.read_pickle}.get(suffix) or getattr(pd, f"read_{suffix}")
        pd.testing.assert_frame_equal(reader(url), table)
    with forebay.open(directory / "new/directories/t.csv", "rb") as file:
        pd.testing.assert_frame_equal(pd.read_csv(file), table)


def test_pyarrow(agent, fs, directory, table):
    pa = need("pyarrow")
    dataset, parquet, csv = need("pyarrow.dataset"), need("pyarrow.parquet"), need("pyarrow.csv")
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    dataset.write_dataset(arrow, f"{directory}/d", format="parquet", filesystem=fs)
    assert resident(directory / "d/part-0.parquet") > 0
    assert dataset.dataset(f"{directory}/d", filesystem=fs).to_table().equals(arrow)
    assert dataset.dataset(f"fsspec+forebay://{directory}/d").count_rows() == ROWS
    parquet.write_table(arrow, f"{directory}/t.parquet", filesystem=fs)
    assert parquet.read_table(f"{directory}/t.parquet", filesystem=fs).equals(arrow)
    csv.write_csv(arrow, f"{directory}/t.csv")
    settle()
    with forebay.open(directory / "t.csv", "rb") as file:
        assert csv.read_csv(file).num_rows == ROWS
    assert resident(directory / "t.csv") > 0


def test_dask(agent, directory, table):
    dd = need("dask.dataframe")
    dd.from_pandas(table, npartitions=4).to_parquet(f"forebay://{directory}/parts")
    read = dd.read_parquet(f"forebay://{directory}/parts")
    assert read["value"].sum().compute() == table["value"].sum()
    assert all(resident(path) > 0 for path in (directory / "parts").glob("*.parquet"))


def test_dask_with_an_open_file(agent, directory):
    dask = need("dask")
    path = directory / "file"
    path.write_bytes(bytes(range(256)))
    with forebay.open(path, "rb") as file:
        file.seek(100)
        assert dask.delayed(_first)(file).compute(scheduler="processes") == 100


def _first(file):
    return file.read(1)[0]


def test_duckdb(agent, fs, directory, table):
    duckdb = need("duckdb")
    table.to_csv(directory / "t.csv", index=False)
    settle()
    connection = duckdb.connect()
    connection.register_filesystem(fs)
    where = f"forebay://{directory}"
    assert connection.sql(f"select count(*), sum(key) from '{where}/*.csv'").fetchall() == [(ROWS, ROWS * (ROWS - 1) // 2)]
    assert resident(directory / "t.csv") > 0
    connection.sql(f"copy (select * from '{where}/t.csv') to '{where}/t.parquet'")
    assert connection.sql(f"select count(*) from '{where}/t.parquet'").fetchall() == [(ROWS,)]
    assert resident(directory / "t.parquet") > 0


def test_polars(agent, fs, directory, table):
    pl = need("polars")
    dataset = need("pyarrow.dataset")
    with forebay.open(directory / "t.parquet", "wb") as file:
        pl.DataFrame({"key": range(ROWS)}).write_parquet(file)
    assert resident(directory / "t.parquet") == (directory / "t.parquet").stat().st_size
    expected = ROWS * (ROWS - 1) // 2
    for read in (pl.read_parquet, lambda source: pl.scan_parquet(source).collect()):
        path = shutil.copy(directory / "t.parquet", directory / "copy")
        settle()
        with forebay.open(path, "rb") as file:
            assert read(file)["key"].sum() == expected
        assert resident(path) > 0, "polars must read through the tier, not by the descriptor"
    lazy = pl.scan_pyarrow_dataset(dataset.dataset(f"{directory}/t.parquet", filesystem=fs))
    assert lazy.select(pl.col("key").sum()).collect().item() == expected
    table.to_csv(directory / "t.csv", index=False)
    with forebay.open(directory / "t.csv", "rb") as file:
        assert pl.read_csv(file)["key"].sum() == expected


def test_polars_with_a_url(agent, directory):
    """Not ours to mend: polars knows its own schemes only. The guide says what to write instead."""
    pl = need("polars")
    with forebay.open(directory / "t.parquet", "wb") as file:
        pl.DataFrame({"key": [1]}).write_parquet(file)
    with pytest.raises((OSError, pl.exceptions.PolarsError)):
        pl.read_parquet(f"forebay://{directory}/t.parquet")


# ---- arrays ----


def test_numpy(agent, directory):
    np = need("numpy")
    numbers = np.arange(100_000)
    with forebay.open(directory / "a.npy", "wb") as file:
        np.save(file, numbers)
    assert resident(directory / "a.npy") == (directory / "a.npy").stat().st_size
    path = shutil.copy(directory / "a.npy", directory / "b.npy")
    settle()
    with forebay.open(path, "rb") as file:
        assert (np.load(file) == numbers).all()
    assert resident(path) > 0, "numpy.load must read through the tier, not by the descriptor"
    with forebay.open(directory / "a.npz", "wb") as file:
        np.savez(file, one=numbers, two=numbers[:5])
    with forebay.open(directory / "a.npz", "rb") as file:
        assert (np.load(file)["two"] == numbers[:5]).all()


def test_numpy_fromfile_and_tofile(agent, directory):
    np = need("numpy")
    numbers = np.arange(100_000)
    with forebay.open(directory / "raw", "wb") as file:
        file.write(b"headline")
        numbers.tofile(file)
        assert file.tell() == 8 + numbers.nbytes
        file.write(b"tailline")
    with forebay.open(directory / "raw", "rb") as file:
        assert file.read(8) == b"headline"
        assert (np.fromfile(file, dtype=numbers.dtype, count=numbers.size) == numbers).all()
        assert file.read() == b"tailline", "the position is behind what NumPy read"


def test_numpy_memmap(agent, directory):
    np = need("numpy")
    np.arange(100_000).tofile(directory / "raw")
    with forebay.open(directory / "raw", "rb") as file:
        assert np.memmap(file, dtype=int, mode="r")[-1] == 99_999
    with forebay.open(directory / "raw", "r+b") as file:
        np.memmap(file, dtype=int, mode="r+")[0] = 5
    assert np.fromfile(directory / "raw", dtype=int, count=2).tolist() == [5, 1]


@pytest.mark.parametrize("mode", ["wb", "w+b"])
def test_h5py(agent, directory, mode):
    h5py, np = need("h5py"), need("numpy")
    with forebay.open(directory / "t.h5", mode) as file, h5py.File(file, "w") as h5:
        h5["group/numbers"] = np.arange(100_000)
        h5.create_dataset("packed", data=np.zeros((100, 100)), chunks=(10, 10), compression="gzip")
        del h5["packed"]
    settle()
    with forebay.open(directory / "t.h5", "rb") as file, h5py.File(file) as h5:
        assert list(h5) == ["group"] and h5["group/numbers"][:].sum() == 4_999_950_000
    assert resident(directory / "t.h5") > 0


def test_h5py_changes_a_file(agent, directory):
    h5py = need("h5py")
    with h5py.File(directory / "t.h5", "w") as h5:
        h5["numbers"] = [1, 2, 3]
    settle()
    forebay.load(directory / "t.h5")
    with forebay.open(directory / "t.h5", "r+b") as file, h5py.File(file, "a") as h5:
        h5["numbers"][1] = 20
        h5["more"] = [4]
    with forebay.open(directory / "t.h5", "rb") as file, h5py.File(file) as h5:
        assert h5["numbers"][:].tolist() == [1, 20, 3] and h5["more"][:].tolist() == [4]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr(agent, directory, zarr_format):
    zarr = need("zarr")
    url = f"forebay://{directory}/t.zarr"
    group = zarr.open_group(url, mode="w", zarr_format=zarr_format)
    group.create_array("deep/x", shape=(100, 100), chunks=(10, 10), dtype="f8")[:] = 3
    assert zarr.open_group(url, mode="r")["deep/x"][:].sum() == 30_000
    chunks = [path for path in (directory / "t.zarr/deep/x").rglob("*") if path.is_file() and path.name[0] not in ".z"]
    assert len(chunks) >= 100 and all(resident(path) > 0 for path in chunks)


def test_xarray_zarr(agent, directory):
    xr, np = need("xarray"), need("numpy")
    need("zarr")
    data = xr.Dataset({"t": (("y", "x"), np.arange(600.0).reshape(20, 30))})
    url = f"forebay://{directory}/t.zarr"
    data.to_zarr(url)
    assert xr.open_zarr(url).t.equals(data.t)
    assert xr.open_dataset(url, engine="zarr").t.equals(data.t)


def test_xarray_netcdf(agent, fs, directory):
    xr, np = need("xarray"), need("numpy")
    need("h5netcdf")
    data = xr.Dataset({"t": (("y", "x"), np.arange(600.0).reshape(20, 30))})
    with forebay.open(directory / "t.nc", "w+b") as file:
        data.to_netcdf(file, engine="h5netcdf")
    settle()
    with forebay.open(directory / "t.nc", "rb") as file:
        assert xr.open_dataset(file, engine="h5netcdf").t.equals(data.t)
    assert resident(directory / "t.nc") > 0
    assert xr.open_dataset(f"forebay://{directory}/t.nc", engine="h5netcdf").t.equals(data.t)
    need("dask")
    with fs.open(f"{directory}/t.nc") as file:
        lazy = xr.open_dataset(file, engine="h5netcdf", chunks={"y": 5})
        # As dask sends it to another process, which opens the file again.
        assert pickle.loads(pickle.dumps(lazy)).t.sum().compute() == data.t.sum()


# ---- archives and caches ----


def test_zip(agent, directory):
    with forebay.open(directory / "t.zip", "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one", b"1" * 100_000)
    with forebay.open(directory / "t.zip", "r+b") as file, zipfile.ZipFile(file, "a") as archive:
        archive.writestr("two", b"2")
    settle()
    with forebay.open(directory / "t.zip", "rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("one") == b"1" * 100_000 and archive.testzip() is None
    assert resident(directory / "t.zip") > 0
    fsspec = need("fsspec")
    with fsspec.open(f"zip://two::forebay://{directory}/t.zip") as file:
        assert file.read() == b"2"


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar(agent, directory, mode):
    fsspec = need("fsspec")
    (directory / "member").write_bytes(b"member" * 1000)
    with forebay.open(directory / "t.tar", "wb") as file, tarfile.open(fileobj=file, mode=mode) as archive:
        archive.add(directory / "member", "member")
    assert resident(directory / "t.tar") == (directory / "t.tar").stat().st_size
    with forebay.open(directory / "t.tar", "rb") as file, tarfile.open(fileobj=file) as archive:
        assert archive.extractfile("member").read() == b"member" * 1000
    with fsspec.open(f"tar://member::forebay://{directory}/t.tar", tar={"compression": "gzip" if "gz" in mode else None}) as file:
        assert file.read() == b"member" * 1000


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_fsspec_caches(agent, directory, tmp_path, cache):
    fsspec = need("fsspec")
    (directory / "t").write_bytes(b"data" * 1000)
    options = {cache: {"cache_storage": str(tmp_path / "cache")}, "forebay": {"read_mode": "cached"}}
    for _ in range(2):
        with fsspec.open(f"{cache}::forebay://{directory}/t", **options) as file:
            assert file.read() == b"data" * 1000
    if cache == "simplecache":
        with fsspec.open(f"{cache}::forebay://{directory}/out", "wb", **options) as file:
            file.write(b"out")
        assert (directory / "out").read_bytes() == b"out"


def test_fsspec_blockcache(agent, directory):
    fsspec = need("fsspec")
    (directory / "t").write_bytes(b"data")
    with pytest.raises(AttributeError, match="use simplecache, or none"), fsspec.open(f"blockcache::forebay://{directory}/t"):
        pass


def test_the_table_and_the_tests_are_the_same():
    guide = (REPOSITORY / "docs/python.md").read_text()
    named = set(re.findall(r"\| `(test_\w+)` \|", guide))
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_table_and_the_tests_are_the_same"}
    assert named == here

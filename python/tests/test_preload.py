"""Libraries that open paths of the PFS, in programs run by `forebay run`: the table "Libraries by path" of docs/programs.md, row by row.

Each script runs without and with the tier and must print the same. The report of `forebay run` says whether its bytes
came from the tier; it rounds them.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import REPOSITORY, SETTLE_S, binary, need, pattern

import forebay

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
NUMBERS = 400_000
DIGEST = "import hashlib, sys; path = sys.argv[1]; show = lambda data: print(hashlib.sha256(data).hexdigest())\n"


def environment():
    """Of `forebay run`, which finds the library by itself unless cargo has built it only for tests."""
    beside = Path(binary()).resolve().parent
    name = "libforebay_preload.so"
    if "FOREBAY_PRELOAD" in os.environ or any((place / name).exists() for place in (beside, beside.parent / "lib/forebay")):
        return None
    if not (beside / "deps" / name).exists():
        pytest.skip(f"there is no {name}: `cargo build` builds it")
    return dict(os.environ, FOREBAY_PRELOAD=str(beside / "deps" / name))


def served_bytes(report):
    """Bytes that the tier has served, by the report of `forebay run`."""
    found = re.search(r"from the tier alone: ([\d.]+) (\w+); the others: ([\d.]+) (\w+);", report)
    assert found, report
    return sum(float(number) * UNITS[unit] for number, unit in (found.group(1, 2), found.group(3, 4)))


@pytest.fixture
def same(agent, directory):
    """Runs a script with the path of its data both ways; returns how many bytes the tier has served."""

    def run(path, script):
        forebay.load(directory)
        command = [sys.executable, "-c", DIGEST + script, str(path)]
        plain = subprocess.run(command, capture_output=True, text=True, check=True)
        through = [binary(), "run", "--report", "--", *command]
        ours = subprocess.run(through, capture_output=True, text=True, check=False, env=environment())
        assert ours.returncode == 0, ours.stderr
        assert ours.stdout == plain.stdout and plain.stdout
        return served_bytes(ours.stderr)

    return run


def settle():
    """Files younger than this are not cached yet."""
    time.sleep(SETTLE_S)


@pytest.fixture
def numbers():
    return need("numpy").arange(NUMBERS, dtype="float64")


@pytest.fixture
def parquet(directory, numbers):
    pd = need("pandas")
    need("pyarrow")
    path = directory / "t.parquet"
    pd.DataFrame({"key": range(NUMBERS), "value": numbers}).to_parquet(path)
    settle()
    return path


# ---- HDF5, NetCDF, ADIOS2 ----


def test_h5py(same, directory, numbers):
    h5py = need("h5py")
    path = directory / "f.h5"
    with h5py.File(path, "w") as file:
        file["plain"] = numbers
        file.create_dataset("packed", data=numbers, chunks=(10_000,), compression="gzip")
    settle()
    script = "import h5py\nwith h5py.File(path) as file:\n show(file['plain'][:])\n show(file['packed'][5000:300000])"
    assert same(path, script) > 0.95 * numbers.nbytes


def test_netcdf4(same, directory, numbers):
    netcdf = pytest.importorskip("netCDF4")
    path = directory / "f.nc"
    with netcdf.Dataset(path, "w") as file:
        file.createDimension("x", NUMBERS)
        file.createVariable("value", "f8", ("x",))[:] = numbers
    settle()
    script = "import netCDF4\nwith netCDF4.Dataset(path) as file:\n show(file['value'][:].data)\n show(file['value'][7:9000].data)"
    assert same(path, script) > 0.95 * numbers.nbytes


def test_adios2(same, directory, numbers):
    adios2 = pytest.importorskip("adios2")
    path = directory / "f.bp"
    with adios2.Stream(str(path), "w") as stream:
        for step in stream.steps(3):
            stream.write("value", numbers + step.current_step(), numbers.shape, [0], numbers.shape)
    settle()
    script = "import adios2\nwith adios2.FileReader(path) as file:\n for step in range(3): show(file.read('value', step_selection=[step, 1]))"
    assert same(path, script) > 2.9 * numbers.nbytes


def test_xarray(same, directory, numbers):
    pytest.importorskip("netCDF4")
    xarray = need("xarray")
    path = directory / "f.nc"
    xarray.Dataset({"value": ("x", numbers)}).to_netcdf(path, engine="netcdf4")
    settle()
    script = "import xarray\nwith xarray.open_dataset(path, engine='netcdf4') as data: show(data['value'].values)"
    assert same(path, script) > 0.95 * numbers.nbytes


# ---- arrays ----


def test_zarr(same, directory, numbers):
    zarr = need("zarr")
    group = zarr.open_group(str(directory / "g"), mode="w")
    group.create_array("value", data=numbers, chunks=(50_000,))
    settle()
    script = "import zarr\nshow(zarr.open_group(path, mode='r')['value'][:])"
    assert same(directory / "g", script) > 10_000


def test_numpy_memmap(same, directory, numbers):
    path = directory / "f.raw"
    numbers.tofile(path)
    settle()
    # Not old enough to be mapped from the tier; the Rust tests (mapped.rs) do that.
    script = "import numpy\nshow(numpy.memmap(path, dtype='float64', mode='r')[:])"
    assert same(path, script) < 10_000


def test_numpy_load(same, directory, numbers):
    need("numpy").save(directory / "f.npy", numbers)
    settle()
    assert same(directory / "f.npy", "import numpy\nshow(numpy.load(path))") < 10_000


def test_numpy_from_a_file_that_python_reads(same, directory, numbers):
    path = directory / "f.raw"
    numbers.tofile(path)
    settle()
    script = "import numpy\nwith open(path, 'rb') as file: show(numpy.frombuffer(file.read()))"
    assert same(path, script) > 0.95 * numbers.nbytes


# ---- tables ----


def test_duckdb(same, parquet):
    need("duckdb")
    script = "import duckdb\nprint(duckdb.sql(f\"select sum(key), sum(value), count(*) from '{path}' where key > 7\").fetchall())"
    assert same(parquet, script) > parquet.stat().st_size / 2


def test_polars(same, parquet):
    need("polars")
    script = "import polars\nframe = polars.read_parquet(path)\nprint(frame.sum().rows(), polars.scan_parquet(path).select('value').max().collect().rows())"
    assert same(parquet, script) > parquet.stat().st_size / 2


def test_pandas(same, parquet):
    script = "import pandas\nprint(pandas.read_parquet(path).sum().tolist())"
    assert same(parquet, script) > parquet.stat().st_size / 2


def test_pandas_csv(same, directory, numbers):
    path = directory / "t.csv"
    need("pandas").DataFrame({"value": numbers[:50_000]}).to_csv(path, index=False)
    settle()
    assert same(path, "import pandas\nprint(pandas.read_csv(path).sum().tolist())") > 0.95 * path.stat().st_size


# ---- samples ----


def test_torch(agent, directory):
    pytest.importorskip("torch")
    samples = directory / "samples"
    samples.mkdir()
    for number in range(30):
        (samples / f"{number:02}").write_bytes(pattern(20_000 + number, number))
    settle()
    command = [sys.executable, REPOSITORY / "examples/loader/epochs.py", samples, "--epochs", "2", "--workers", "2", "--torch"]
    through = [binary(), "run", "--report", "--", *command]
    done = subprocess.run(through, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("30 samples, 600435 bytes") == 2, done.stdout
    assert served_bytes(done.stderr) > 1_100_000


def test_the_table_and_the_tests_are_the_same():
    text = (REPOSITORY / "docs/programs.md").read_text().split("## Libraries by path")[1].split("\n## ")[0]
    named = set(re.findall(r"\| `(test_\w+)` \|", text))
    assert named == {name for name in globals() if name.startswith("test_")} - {"test_the_table_and_the_tests_are_the_same"}

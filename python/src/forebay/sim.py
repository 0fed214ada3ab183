"""The simulator from Python: the effect of a policy on a cluster.

    from forebay import sim

    run = sim.run("scenarios/checkpoints.toml", policy="striped/coflow", seed=7)
    run.rows["io_s"]                      # a column
    pandas.DataFrame(run.records.to_dict())
    run.timeline()                        # a figure, in a notebook
    sim.compare("scenarios/checkpoints.toml", ["striped/sa-sjf", "striped/coflow"])
    sim.sweep("scenarios/eley-t2-app6.toml", {"hpc.0.allowance_percent": [5, 15, 30]})

The functions run the same code as `forebay sim` and need no agent. The same scenario and seed give the same bytes as the command.

A scenario is one of
- a path, as `str` or `os.PathLike`;
- TOML, as a `str` with a line break;
- a `dict` of what the file would contain. Objects with `item()` (NumPy's numbers) and `tolist()` (its arrays) are converted.

In messages, a scenario that is not a file is called `<scenario>`; files that it names are relative to the current directory.

`set` is a dict from keys to values that replace those of the scenario. Keys are dotted, and a number is an index into a list:
`{"hpc.0.allowance_percent": 15}`. A value is checked like one in the file.

Other Python threads run during a simulation. Ctrl-C stops it between two events, usually within a tenth of a second, with `KeyboardInterrupt`; the files of
`trace=` and `reproduce` then remain as far as they were written.

Errors have the text of the command. `SimulationError`, a `ValueError`: the scenario, a key, a policy or a log is wrong, or the run
does not end. `OSError`, such as `FileNotFoundError`: a file cannot be read or written.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Union

from ._core import SimRun as _SimRun
from ._core import SimScenario as _SimScenario
from ._core import SimulationError
from ._core import sim_reproduce as _sim_reproduce

__all__ = ["Figure", "Run", "SimulationError", "Table", "compare", "reproduce", "run", "sweep"]

AnyPath = Union[str, bytes, os.PathLike]
Scenario = Union[str, os.PathLike, Mapping[str, Any]]


class Table:
    """Rows with named columns, which are those of the command's CSV.

    Values are `str`, `int`, `float`, or `None` where a row has none. Names end in units: `_s` are seconds, `_gb` are 10^9 bytes.

    `table["io_s"]` is a column as a list, `table[0]` a row as a dict; `len`, `for` and `to_records()` go by rows.
    `pandas.DataFrame(table.to_dict())` and `pyarrow.table(table.to_dict())` convert it.
    """

    def __init__(self, columns: dict[str, list[Any]]):
        self._columns = columns

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self._columns)

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns as lists of equal length, by name."""
        return {name: list(values) for name, values in self._columns.items()}

    def to_records(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return list(self)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = list(self._columns)
        return (dict(zip(names, row)) for row in zip(*self._columns.values()))

    def __getitem__(self, key: Union[str, int]) -> Any:
        if isinstance(key, str):
            return list(self._columns[key])
        return {name: values[key] for name, values in self._columns.items()}

    def __eq__(self, other: object) -> bool:
        return self._columns == other._columns if isinstance(other, Table) else NotImplemented

    def __repr__(self) -> str:
        """In columns of text, as the command prints tables; the first 20 rows."""
        shown = [["" if v is None else str(v) for v in values[:20]] for values in self._columns.values()]
        cells = [[name, *values] for name, values in zip(self._columns, shown)]
        widths = [max(map(len, column)) for column in cells]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in zip(*cells)]
        more = len(self) - 20
        return "\n".join(lines + ([f"... and {more} more rows"] if more > 0 else []))


class Figure(NamedTuple):
    """A figure, which a notebook draws: its SVG, and its data as CSV."""

    svg: str
    csv: str

    def _repr_svg_(self) -> str:
        return self.svg


class Run:
    """A completed run."""

    def __init__(self, run: _SimRun):
        self._run = run

    @functools.cached_property
    def rows(self) -> Table:
        """The rows that `forebay sim run` prints; `docs/simulator.md` describes the columns of each kind."""
        return Table(self._run.rows())

    @functools.cached_property
    def records(self) -> Table:
        """A row for each step, wave and I/O phase, task or sample, as with `--records`. Times are seconds from the start."""
        return Table(self._run.records())

    @functools.cached_property
    def json(self) -> str:
        """The whole result as JSON: the text that `forebay sim run --json` prints and `--result` writes."""
        return self._run.json()

    @functools.cached_property
    def result(self) -> dict[str, Any]:
        """The same as a dict: every phase, wave, step, token and decision. Times are nanoseconds from the start."""
        return json.loads(self.json)

    @property
    def summary(self) -> str:
        """The last line of the command: how much happened, and what the horizon left unfinished."""
        return self._run.summary()

    def timeline(self, window_s: Optional[tuple[float, float]] = None) -> Figure:
        """The activity of each job over time, as with `--timeline`.

        window_s: the part of the time to draw, in seconds. ValueError: it does not begin at 0 or later, or is empty.
        """
        if window_s is not None:
            begin, end = window_s
            if not 0 <= begin < end < float("inf"):
                raise ValueError(f"window_s={window_s!r}: seconds from 0 are needed, the begin before the end, such as (5, 10)")
        return Figure(*self._run.timeline(window_s))

    def __repr__(self) -> str:
        return f"{self.rows!r}\n{self.summary}"


def run(
    scenario: Scenario,
    *,
    policy: Optional[str] = None,
    seed: Optional[int] = None,
    set: Optional[Mapping[str, Any]] = None,
    trace: Optional[AnyPath] = None,
) -> Run:
    """Simulates once, as `forebay sim run`.

    policy: a planner (`colocation`, `cluster`), `ACCESS` or `ALLOCATION/ACCESS` (`burst-buffer`), a memory law (`memory`), or a planner,
        `PLANNER/DRAIN` or `PLANNER/DRAIN/ACCESS` (`world`).
    seed: of all random numbers, from 0. set: values of other keys.
    trace: a file to record every event and decision in, as JSON lines.

    SimulationError, OSError, KeyboardInterrupt: see the module.
    """
    values = dict(set or {})
    if seed is not None:
        values["seed"] = seed
    return Run(_read(scenario, values, policy).run(trace))


def compare(
    scenario: Scenario,
    policies: Iterable[str] = (),
    *,
    seeds: Optional[int] = None,
    threads: Optional[int] = None,
    set: Optional[Mapping[str, Any]] = None,
) -> Table:
    """Simulates under several policies, as `forebay sim compare`.

    policies: as for `run`; all of the scenario's kind by default. The others are compared with the first.
    seeds: number of seeds, 2 to 100,000, starting with the scenario's. threads: for several seeds; all cores by default.
    set: values of other keys.

    Returns the rows of `run` under each policy. With `seeds`, a row for each policy, job and measure: `mean` and its 95 % confidence
    interval from `low` to `high`, `change` against the first policy with `change_low` and `change_high`, in the unit `change_in`
    ("percent" or "absolute"), and `difference`, the verdict of a paired t test.

    SimulationError, OSError, KeyboardInterrupt: see the module.
    """
    names = [policies] if isinstance(policies, str) else list(policies)
    return Table(_read(scenario, set or {}).compare(names, seeds, threads))


def sweep(
    scenario: Scenario,
    grid: Mapping[str, Iterable[Any]],
    *,
    seeds: Optional[int] = None,
    threads: Optional[int] = None,
    set: Optional[Mapping[str, Any]] = None,
) -> Table:
    """Simulates every combination of some keys' values, as `forebay sim sweep`.

    grid: keys, as in `set`, and the values of each: `{"planner.policy": ["eley", "forebay"], "seed": range(5)}`. The last key changes
        fastest. At most 1,000,000 points.
    seeds, threads, set: as for `compare`.

    Returns the rows of `compare`, with a column for each key of the grid before them, which has the grid's values. The rows do not
    depend on the number of threads.

    SimulationError, OSError, KeyboardInterrupt: see the module.
    """
    axes = [(key, [_json(value) for value in ([values] if isinstance(values, str) else values)]) for key, values in grid.items()]
    columns = _read(scenario, set or {}).sweep(axes, seeds, threads)
    # Columns of keys have the numbers of the values.
    for key, values in axes:
        columns[key] = [json.loads(values[number]) for number in columns[key]]
    return Table(columns)


def reproduce(what: str, out: AnyPath) -> dict[str, Any]:
    """Recomputes a paper's tables and figures, as `forebay sim reproduce`; "all" takes 5 to 10 seconds.

    what: "eley", "io-sets", "bb", "tls", "dynims", "held-out" or "all".
    out: a directory for `report.md`, `summary.json`, the figures and their data.

    Returns the dict that the command prints with `--json`: `report` (path), `met` and `judged` (numbers of results), `counts`, and
    `results`, a list of dicts. SimulationError, OSError, KeyboardInterrupt: see the module.
    """
    return json.loads(_sim_reproduce(what, out))


def _read(scenario: Scenario, values: Mapping[str, Any], policy: Optional[str] = None) -> _SimScenario:
    if isinstance(scenario, Mapping):
        read = _SimScenario.of(_json(dict(scenario)))
    elif isinstance(scenario, str) and "\n" in scenario:
        read = _SimScenario.parse(scenario)
    else:
        read = _SimScenario.read(scenario)
    return read.with_values([(key, _json(value)) for key, value in values.items()], policy)


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    """NumPy's arrays and numbers, paths, and other mappings as what JSON has."""
    for convert in ("tolist", "item"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    if isinstance(value, Mapping):
        return dict(value)
    return os.fspath(value)

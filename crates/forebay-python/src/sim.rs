//! The simulator: scenarios in, results out. The package `forebay.sim` is built on it.
//!
//! A run works in a thread of its own while the calling thread looks for signals, so that Ctrl-C
//! stops it within a tenth of a second.

use crate::convert::PathArg;
use forebay_sim::cancel::Cancel;
use forebay_sim::error::{Error, Result};
use forebay_sim::kinds::{self, Done};
use forebay_sim::parallel::threads;
use forebay_sim::reproduce;
use forebay_sim::scenario::{File, Scenario};
use forebay_sim::study::{self, Axis};
use forebay_sim::table::{Table, value};
use pyo3::create_exception;
use pyo3::exceptions::{
    PyFileNotFoundError, PyIsADirectoryError, PyOSError, PyPermissionError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::Value;
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Longest delay of Ctrl-C.
const STEP: Duration = Duration::from_millis(100);

create_exception!(
    forebay.sim,
    SimulationError,
    PyValueError,
    "A scenario is wrong, or its run does not come to an end. The text is that of `forebay sim`."
);

/// The command line's message. Errors of files are `OSError` and its subclasses, with `errno`.
fn py_error(py: Python<'_>, e: &Error) -> PyErr {
    let Error::Io { source, .. } = e else { return SimulationError::new_err(e.to_string()) };
    let text = e.to_string();
    let error = match source.kind() {
        io::ErrorKind::NotFound => PyFileNotFoundError::new_err(text),
        io::ErrorKind::PermissionDenied => PyPermissionError::new_err(text),
        io::ErrorKind::IsADirectory => PyIsADirectoryError::new_err(text),
        _ => PyOSError::new_err(text),
    };
    // As an argument, the number would change the text.
    if let Some(errno) = source.raw_os_error() {
        let _ = error.value(py).setattr("errno", errno);
    }
    error
}

/// Does `work` while other Python threads run; an exception from a signal's handler cancels it.
fn interruptible<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let cancel = Cancel::default();
    let (done, wait) = channel::<()>();
    let outcome = py.detach(move || {
        let cancel = &cancel;
        thread::scope(|scope| {
            let worker = scope.spawn(move || {
                // Dropped when the work ends, in whatever way.
                let _done = done;
                cancel.watch(work)
            });
            let mut interrupted = Ok(());
            while interrupted.is_ok() && wait.recv_timeout(STEP) == Err(RecvTimeoutError::Timeout) {
                interrupted = Python::attach(|py| py.check_signals());
            }
            if interrupted.is_err() {
                cancel.cancel();
            }
            let result = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            interrupted.map(|()| result)
        })
    })?;
    outcome.map_err(|e| py_error(py, &e))
}

/// A scenario that was read, and may be changed.
#[pyclass(frozen, module = "forebay._core")]
pub struct SimScenario(File);

/// What a scenario that is not a file is called in messages.
const NO_FILE: &str = "<scenario>";

fn json(text: &str) -> PyResult<toml::Value> {
    serde_json::from_str(text).map_err(|e| {
        let shown: String = text.chars().take(200).collect();
        SimulationError::new_err(format!(
            "{NO_FILE}: {shown}: finite numbers, text, lists and tables are needed: {e}"
        ))
    })
}

#[pymethods]
impl SimScenario {
    /// Reads the file at `path`.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathArg) -> PyResult<Self> {
        py.detach(|| File::read(&path.0)).map(SimScenario).map_err(|e| py_error(py, &e))
    }

    /// Reads a scenario from TOML.
    #[staticmethod]
    fn parse(py: Python<'_>, text: &str) -> PyResult<Self> {
        File::parse(Path::new(NO_FILE), text).map(SimScenario).map_err(|e| py_error(py, &e))
    }

    /// Makes a scenario from an object as JSON.
    #[staticmethod]
    fn of(text: &str) -> PyResult<Self> {
        match json(text)? {
            toml::Value::Table(table) => Ok(SimScenario(File::of(Path::new(NO_FILE), table))),
            _ => Err(SimulationError::new_err(format!("{NO_FILE}: a dict is needed"))),
        }
    }

    /// Returns the same with values of some keys, as JSON, and with a policy.
    #[pyo3(signature = (values, policy = None))]
    fn with_values(
        &self,
        py: Python<'_>,
        values: Vec<(String, String)>,
        policy: Option<&str>,
    ) -> PyResult<Self> {
        let mut file = self.0.clone();
        for (key, text) in values {
            file.set_value(&key, json(&text)?).map_err(|e| py_error(py, &e))?;
        }
        if let Some(policy) = policy {
            kinds::set_policy(&mut file, policy).map_err(|e| py_error(py, &e))?;
        }
        Ok(SimScenario(file))
    }

    /// Runs it once.
    #[pyo3(signature = (trace = None))]
    fn run(&self, py: Python<'_>, trace: Option<PathArg>) -> PyResult<SimRun> {
        let trace = trace.map(|path| path.0);
        interruptible(py, || {
            let scenario = self.0.scenario()?;
            let done = scenario.run_traced(trace.as_deref())?;
            Ok(SimRun { name: self.0.name(), scenario, done })
        })
    }

    /// Runs it under several policies, or under all: rows of each, or measures over this many
    /// seeds.
    fn compare<'py>(
        &self,
        py: Python<'py>,
        policies: Vec<String>,
        seeds: Option<u64>,
        wanted: Option<NonZeroUsize>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let made = interruptible(py, || match seeds {
            Some(seeds) => study::compare_seeds(&self.0, &policies, seeds, threads(wanted)).map(|s| s.table),
            None => study::compare(&self.0, &policies, |_, _, _| Ok(())),
        })?;
        table(py, &made)
    }

    /// Runs it at each point of a grid, whose values are JSON. Columns of keys have the numbers of
    /// the values: a text does not say whether it was a number, a text or a flag.
    fn sweep<'py>(
        &self,
        py: Python<'py>,
        grid: Vec<(String, Vec<String>)>,
        seeds: Option<u64>,
        wanted: Option<NonZeroUsize>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let values = |texts: &[String]| texts.iter().map(|text| json(text)).collect::<PyResult<Vec<_>>>();
        let axis = |(key, texts): &(String, Vec<String>)| {
            Axis::of(key, values(texts)?).map_err(|e| py_error(py, &e))
        };
        let axes = grid.iter().map(axis).collect::<PyResult<Vec<_>>>()?;
        let made = interruptible(py, || match seeds {
            Some(seeds) => study::sweep_seeds(&self.0, &axes, seeds, threads(wanted)).map(|s| s.table),
            None => study::sweep(&self.0, &axes, threads(wanted)),
        })?;
        let dict = table(py, &made)?;
        for (c, ((key, _), axis)) in grid.iter().zip(&axes).enumerate() {
            let numbers: Vec<Option<usize>> = made.rows.iter().map(|row| axis.number_of(&row[c])).collect();
            dict.set_item(key, numbers)?;
        }
        Ok(dict)
    }
}

/// A run that has ended.
#[pyclass(frozen, module = "forebay._core")]
pub struct SimRun {
    name: String,
    scenario: Scenario,
    done: Done,
}

#[pymethods]
impl SimRun {
    /// All of it as JSON.
    fn json(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.done.json()).map_err(|e| SimulationError::new_err(e.to_string()))
    }

    /// The last line of the command's output.
    fn summary(&self) -> String {
        self.done.summary()
    }

    /// A row for each job: columns by name, in their order.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let rows = py.detach(|| self.scenario.rows(&self.done));
        columns(py, self.scenario.columns(), &rows)
    }

    /// A row for each step, wave, I/O phase, task or sample.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (names, rows) = py.detach(|| self.done.records());
        columns(py, names, &rows)
    }

    /// The timeline as SVG, and its data as CSV.
    #[pyo3(signature = (window_s = None))]
    fn timeline(&self, py: Python<'_>, window_s: Option<(f64, f64)>) -> (String, String) {
        let figure = py.detach(|| self.scenario.timeline(&self.done, &self.name, window_s));
        (figure.svg, figure.csv)
    }
}

fn table<'py>(py: Python<'py>, table: &Table) -> PyResult<Bound<'py, PyDict>> {
    columns(py, &table.columns, &table.rows)
}

/// Lists of the values of each column.
fn columns<'py, S: AsRef<str>>(
    py: Python<'py>,
    names: &[S],
    rows: &[Vec<String>],
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (c, name) in names.iter().map(AsRef::as_ref).enumerate() {
        let cells = rows.iter().map(|row| cell(py, value(name, &row[c])));
        dict.set_item(name, PyList::new(py, cells.collect::<PyResult<Vec<_>>>()?)?)?;
    }
    Ok(dict)
}

fn cell(py: Python<'_>, value: Value) -> PyResult<Bound<'_, PyAny>> {
    Ok(match value {
        Value::Number(n) if n.is_f64() => n.as_f64().into_pyobject(py)?.into_any(),
        Value::Number(n) => n.as_i64().into_pyobject(py)?.into_any(),
        Value::String(text) => text.into_pyobject(py)?.into_any(),
        _ => py.None().into_bound(py),
    })
}

/// Writes a report of the papers' results into directory `out`; its numbers as JSON.
#[pyfunction]
pub fn sim_reproduce(py: Python<'_>, what: &str, out: PathArg) -> PyResult<String> {
    interruptible(py, || Ok(reproduce::report(what, &out.0)?.json().to_string()))
}

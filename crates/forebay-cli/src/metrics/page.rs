//! A page of metrics as text, in OpenMetrics or in Prometheus' older format.
//!
//! Names are a contract: they begin with `forebay_`, carry their units, and are never reused. The
//! two formats differ in the names of counters' families and in the last line.

use std::fmt::Write as _;

/// Which text is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Plain,
}

impl Format {
    /// Returns the value of the header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A page of metrics.
pub struct Page {
    text: String,
    format: Format,
}

impl Page {
    /// Begins a page with the version of the program.
    pub fn new(format: Format) -> Self {
        let mut page = Page { text: String::new(), format };
        page.family("build_info", "gauge", "Version of the program");
        page.sample("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        page
    }

    /// The text.
    pub fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text += "# EOF\n";
        }
        self.text
    }

    /// Begins a family of samples; a counter's is named without its ending.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let total = if kind == "counter" && self.format == Format::Plain { "_total" } else { "" };
        let _ = writeln!(self.text, "# TYPE forebay_{name}{total} {kind}");
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit(name)) {
            let _ = writeln!(self.text, "# UNIT forebay_{name} {unit}");
        }
        if !help.is_empty() {
            let _ = writeln!(self.text, "# HELP forebay_{name}{total} {}", escaped(help));
        }
    }

    /// Appends one sample. Its name has the ending of its kind.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "forebay_{name}");
        for (i, (label, text)) in labels.iter().enumerate() {
            let open = if i == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{label}=\"{}\"", escaped(text));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    /// Appends a family of one gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    /// Appends a family of one counter, named with or without its ending.
    pub fn counter(&mut self, name: &str, help: &str, value: f64) {
        let family = name.strip_suffix("_total").unwrap_or(name);
        self.family(family, "counter", help);
        self.sample(&format!("{family}_total"), &[], value);
    }
}

fn unit(name: &str) -> Option<&'static str> {
    ["bytes", "seconds", "ratio"]
        .into_iter()
        .find(|unit| name.strip_suffix(unit).is_some_and(|before| before.ends_with('_')))
}

/// Escapes label values and help texts.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

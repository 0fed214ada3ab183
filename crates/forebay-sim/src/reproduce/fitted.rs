//! Constants that were fitted, and the results that they were fitted on.
//!
//! The agreement of such a result shows that the constants fit, not that the model is right. So it
//! is shown and never judged; a test compares this list with the records.

use crate::report::Report;

/// A constant, its value, its source as text, and ids of the results that it was fitted on (or
/// their beginnings).
pub struct Fitted {
    /// What it stands for.
    pub constant: &'static str,
    /// Its value.
    pub value: &'static str,
    /// Results that it was fitted on; empty if it was fitted only on statements in the text.
    pub on: &'static [&'static str],
    /// What else it was fitted on.
    pub words: &'static str,
}

/// All fitted constants.
pub const FITTED: &[Fitted] = &[
    Fitted {
        constant: "Eley: interference of direct reads, I_hpc and I_bd",
        value: "2.0, 2.2",
        on: &["eley/table5/naive-bb/"],
        words: "",
    },
    Fitted {
        constant: "Eley: the HPC job begins with compute; the last wave counts as a whole one",
        value: "",
        on: &["eley/table5/naive-bb/1", "eley/table5/naive-bb/4"],
        words: "",
    },
    Fitted {
        constant: "Eley: interference of a prefetch by 8 nodes of one thread, I_hpc and I_bd",
        value: "1.3, 1.2",
        on: &["eley/table5/no-action/"],
        words: "",
    },
    Fitted {
        constant: "Eley: reading a wave from the tier",
        value: "3 s",
        on: &["eley/table5/no-action/5", "eley/table5/no-action/6", "eley/table5/no-action/7"],
        words: "",
    },
    Fitted {
        constant: "Eley: interference of n of 8 nodes, I_hpc",
        value: "1 + 0.3 (n/8)^6",
        on: &["eley/table6/action/", "eley/table6/cost/", "eley/figure8/app2/"],
        words: "",
    },
    Fitted {
        constant: "Eley: prefetch time, I_hpc and I_bd of more threads",
        value: "25, 23, 21.25 s at 1, 2, 4; x 1 to 1.5; x 1 to 1.7",
        on: &["eley/figure8/app3/", "eley/figure8/app8/", "eley/table4/action/3"],
        words: "",
    },
    Fitted {
        constant: "Planner `forebay`: waves that it simulates, finalists, reach of out-of-order schedules",
        value: "",
        on: &["eley/forebay/geomean/"],
        words: "",
    },
    Fitted {
        constant: "Catalyst: what the clients of each job can send",
        value: "0.281, 0.726, 0.782 of the nodes' bandwidth",
        on: &["bb/catalyst/ns/", "bb/catalyst/sjf/", "bb/catalyst/fcfs/"],
        words: "a second set, on `bb/catalyst/ns/` without the sum, gives `bb/catalyst/predicted/`",
    },
    Fitted {
        constant: "Trinity: part of its memory that J1 writes",
        value: "82 %",
        on: &["bb/trinity/interference-j1"],
        words: "",
    },
    Fitted {
        constant: "Storage mountain: memory ridge, PFS ridge, request times",
        value: "13.2 GB/s, 0.47 GB/s, 20 us and 2 ms",
        on: &["tls/mountain/"],
        words: "",
    },
    Fitted {
        constant: "DynIMS: what a node reads from the data nodes' disks",
        value: "93 MB/s",
        on: &["dynims/read/dynims"],
        words: "",
    },
];

/// Adds the chapter.
pub fn chapter(report: &mut Report) {
    report.heading(2, "Fitted constants");
    report.text("The papers do not print these. The results that they were fitted on are shown in their chapters, and judged nowhere.");
    let row = |f: &Fitted| {
        let on: Vec<String> = f.on.iter().map(|id| format!("`{id}`")).collect();
        let words = Some(f.words.to_owned()).filter(|words| !words.is_empty());
        let on = on.into_iter().chain(words).collect::<Vec<_>>().join(", ");
        vec![f.constant.into(), f.value.into(), on]
    };
    report.table(&["constant", "value", "fitted on"], &FITTED.iter().map(row).collect::<Vec<_>>());
}

/// Whether constants were fitted on the result called `id`.
pub fn is_fitted(id: &str) -> bool {
    FITTED.iter().flat_map(|fitted| fitted.on).any(|on| id == *on || on.ends_with('/') && id.starts_with(on))
}

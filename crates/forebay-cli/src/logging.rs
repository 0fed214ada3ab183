//! `log`: what the running agent or coordinator logs.

use crate::Outcome;
use crate::cli::{Global, LogArgs};
use crate::out::{no_agent, print};
use std::process::ExitCode;

/// Shows or changes it.
pub fn log(global: &Global, args: &LogArgs) -> Outcome {
    let client = global.client();
    let set =
        |filter: &str| client.admin().set_log(filter, args.coordinator).map_err(|e| no_agent(global, &e));
    let filter = match (&args.level, &args.module) {
        (None, _) => set("")?,
        (Some(level), None) => set(level)?,
        (Some(level), Some(module)) => {
            let module = whole_name(module, args.coordinator);
            let before = set("")?;
            let others = before.split(',').filter(|part| part.split('=').next() != Some(module.as_str()));
            let parts = others.map(str::to_owned).chain([format!("{module}={level}")]);
            set(&parts.collect::<Vec<_>>().join(","))?
        }
    };
    print(global, &serde_json::json!({ "filter": filter }), |out| writeln!(out, "{filter}"))?;
    Ok(ExitCode::SUCCESS)
}

/// `fetch` is `forebay_agent::fetch`.
fn whole_name(module: &str, at_coordinator: bool) -> String {
    let of = if at_coordinator { "forebay_coordinator" } else { "forebay_agent" };
    if module.starts_with("forebay_") { module.to_owned() } else { format!("{of}::{module}") }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_module_is_named_with_or_without_its_crate() {
        assert_eq!(super::whole_name("fetch::pfs", false), "forebay_agent::fetch::pfs");
        assert_eq!(super::whole_name("driver", true), "forebay_coordinator::driver");
        assert_eq!(super::whole_name("forebay_wire", true), "forebay_wire");
    }
}

//! `limit`: rate limits of jobs, on all nodes of a cluster.

use crate::Outcome;
use crate::cli::{Global, LimitArgs};
use crate::out::{name, no_agent, print};
use forebay_agent::units::Human;
use std::process::ExitCode;

/// Lists, sets or lifts limits.
pub fn limit(global: &Global, args: &LimitArgs) -> Outcome {
    let (client, failed) = (global.client(), |e| no_agent(global, &e));
    if let (Some(job), Some(rate)) = (&args.job, args.rate) {
        let rate = Some(rate).filter(|rate| *rate > 0);
        client.admin().set_limit(job, args.user, rate).map_err(failed)?;
    }
    let is_meant = |of: &str| args.job.as_ref().is_none_or(|job| job == of);
    let mut limits = client.admin().limits().map_err(failed)?;
    limits.retain(|limit| is_meant(&limit.job));
    print(global, &limits, |out| {
        if limits.is_empty() {
            return match &args.job {
                Some(job) => writeln!(out, "job {} has no rate limit", name(job.as_bytes())),
                None => writeln!(out, "no job has a rate limit"),
            };
        }
        writeln!(out, "{:<32} {:>8} {:>14}  SET BY", "JOB", "USER", "RATE")?;
        for limit in &limits {
            let user = limit.user.map_or("any".to_owned(), |user| user.to_string());
            let rate = format!("{}/s", Human(limit.rate_bytes_per_s.unwrap_or(0)));
            let by =
                if limit.is_operators { "the operator".to_owned() } else { format!("user {}", limit.by) };
            writeln!(out, "{:<32} {user:>8} {rate:>14}  {by}", name(limit.job.as_bytes()))?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

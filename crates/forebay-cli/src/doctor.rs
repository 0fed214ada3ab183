//! `doctor`: finds problems of this machine, and names their remedies.
//!
//! Each finding names what was checked, what it means for Forebay, and the remedy. Nothing is
//! changed.

mod cluster;
mod finding;

pub use self::cluster::problems_of;
pub use self::finding::Finding;

use self::finding::{EXPIRY_WARNING_DAYS, Level, bad, good, warn};
use crate::Outcome;
use crate::cli::{DoctorArgs, Global};
use crate::out::print;
use forebay_agent::units::Human;
use forebay_agent::{Config, memory};
use forebay_pfs::long_write;
use forebay_pfs::stamps::{Stamps, measure};
use forebay_pfs::{Revalidate, Traits};
use forebay_wire::MountStatus;
use forebay_wire::tls::Identity;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// A stamp that is older than the last byte by less than this is of the same moment: it is a few
/// looks apart.
const LATE: Duration = Duration::from_millis(200);

/// Looks at this machine.
pub fn doctor(global: &Global, args: &DoctorArgs) -> Outcome {
    let mut findings = vec![
        kernel(),
        memory_size(),
        group_limit(),
        dev_shm(),
        huge_pages(),
        namespaces(),
        open_files(),
        locked_memory(),
        agent(global),
    ];
    findings.extend(args.config.as_deref().and_then(tier_size));
    findings.extend(memory_controller(global));
    findings.extend(served_mounts(global));
    findings.extend(args.config.as_deref().map(certificates));
    if args.cluster {
        findings.extend(cluster::findings(&global.client()));
    }
    for path in &args.pfs {
        findings.extend([pfs(path), time_stamps(path, args.second.as_deref())]);
        let long = args.second.as_deref().zip(args.long_write);
        findings.extend(long.map(|(second, bytes)| long_write(path, second, bytes)));
    }
    print(global, &findings, |out| {
        for finding in &findings {
            let mark = match finding.level {
                Level::Good => "good",
                Level::Warning => "WARN",
                Level::Bad => "BAD ",
            };
            writeln!(out, "{mark}  {:<14} {}", finding.what, finding.found)?;
            if !finding.remedy.is_empty() {
                writeln!(out, "      {:<14} -> {}", "", finding.remedy)?;
            }
        }
        Ok(())
    })?;
    let worst = findings.iter().any(|f| f.level == Level::Bad);
    Ok(if worst { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let found = format!("Linux {release}");
    match version {
        v if v >= (6, 14) => good("kernel", found),
        v if v >= (4, 14) => warn(
            "kernel",
            format!("{found}: fetched bytes stay in the page cache briefly (no uncached reads before 6.14)"),
            "no action needed; newer kernels save some memory traffic",
        ),
        _ => bad("kernel", found, "Forebay needs Linux 4.14 or newer (huge pages on tmpfs, statx)"),
    }
}

fn memory_size() -> Finding {
    let usable = memory::usable_bytes();
    let found = format!("{} usable; the default budget takes a quarter of it", Human(usable));
    if usable >= 2 << 30 {
        good("memory", found)
    } else {
        warn("memory", found, "give the agent a --capacity that leaves compute enough")
    }
}

fn group_limit() -> Finding {
    match memory::group_limit() {
        None => good("control group", "no memory limit".into()),
        Some(limit) => warn(
            "control group",
            format!("v{} limit of {} by {}", limit.version, Human(limit.bytes), limit.group.display()),
            "the tier's pages count against it: keep capacity and job memory below it together, or start the agent \
             outside of the job's group",
        ),
    }
}

fn dev_shm() -> Finding {
    let remedy = "only the directory backing uses it: mount -o remount,size=50% /dev/shm, or run `forebay up` where it \
                  can mount its own (root, or user namespaces)";
    match rustix::fs::statvfs("/dev/shm") {
        Err(e) => warn("/dev/shm", format!("cannot be examined: {e}"), remedy),
        Ok(s) => {
            let free = s.f_bavail * s.f_frsize;
            let found = format!("{} free", Human(free));
            if free < memory::usable_bytes() / 4 {
                warn("/dev/shm", found, remedy)
            } else {
                good("/dev/shm", found)
            }
        }
    }
}

fn huge_pages() -> Finding {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let shmem = text("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let chosen = shmem.split(['[', ']']).nth(1).unwrap_or("").to_owned();
    match chosen.as_str() {
        "" => warn(
            "huge pages",
            "this kernel has no huge pages for tmpfs".into(),
            "expect half the bandwidth and a slow release of memory; use a kernel with TRANSPARENT_HUGEPAGE",
        ),
        "deny" => bad(
            "huge pages",
            "denied for tmpfs".into(),
            "echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled (the tier's own mount requests them itself)",
        ),
        other => good(
            "huge pages",
            format!("the tier's own mount may use them (system default for tmpfs: {other})"),
        ),
    }
}

fn namespaces() -> Finding {
    if rustix::process::geteuid().is_root() {
        return good("namespaces", "not needed: root may mount the tier's tmpfs".into());
    }
    let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    let restricted = std::fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    let off = limit.trim() == "0" || restricted.is_ok_and(|text| text.trim() == "1");
    if off {
        warn(
            "namespaces",
            "user namespaces are switched off: without root the tier falls back to /dev/shm and small pages"
                .into(),
            "sysctl user.max_user_namespaces=10000 (and kernel.apparmor_restrict_unprivileged_userns=0), or start the \
             agent as root",
        )
    } else {
        good(
            "namespaces",
            "user namespaces are allowed: the tier gets a tmpfs of its own without root".into(),
        )
    }
}

fn open_files() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let found = format!("up to {limit} a process");
    if limit >= 16_384 {
        good("open files", found)
    } else {
        warn("open files", found, "raise the hard limit (limits.conf nofile) to 65536 for the agent")
    }
}

fn locked_memory() -> Finding {
    match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
        None => good("locked memory", "unlimited".into()),
        Some(bytes) if bytes >= 8 << 20 => good("locked memory", format!("{} a process", Human(bytes))),
        Some(bytes) => warn(
            "locked memory",
            format!("{} a process", Human(bytes)),
            "no action needed now; io_uring buffers and RDMA will need more (limits.conf memlock)",
        ),
    }
}

fn agent(global: &Global) -> Finding {
    let client = global.client();
    let socket = client.socket().map(|p| p.display().to_string()).unwrap_or_default();
    match client.admin().status() {
        Ok(s) if s.version == env!("CARGO_PKG_VERSION") => {
            good("agent", format!("version {} answers at {socket}, huge pages {}", s.version, s.huge_pages))
        }
        Ok(s) => warn(
            "agent",
            format!("version {} runs, this program is {}", s.version, env!("CARGO_PKG_VERSION")),
            "restart it: `forebay down`, `forebay up`; the cache stays",
        ),
        Err(e) => {
            let said = e.to_string();
            let (found, remedy) = said
                .split_once("; ")
                .unwrap_or((&said, "read its log; `forebay up --pfs DIR` starts an agent"));
            warn("agent", found.to_owned(), remedy)
        }
    }
}

/// What makes the agent give memory back; nothing without an agent, or if it has not looked yet.
fn memory_controller(global: &Global) -> Option<Finding> {
    let what = "memory law";
    let status = global.client().admin().memory().ok()?;
    if status.policy == "static" {
        let remedy = "memory.policy = \"forebay\" lets the tier give way when programs need memory";
        return Some(warn(what, "static: the capacity never changes".into(), remedy));
    }
    let list = |names: Vec<&str>| names.join(", ");
    let mut places = list(status.places.iter().map(|place| place.name.as_str()).collect());
    if !status.awaited.is_empty() {
        let awaited = list(status.awaited.iter().map(String::as_str).collect());
        places = format!("{places}; of memory.watch are not there now: {awaited}");
    }
    if places.is_empty() {
        return Some(warn(what, format!("{}: no memory to watch yet", status.policy), "see the agent's log"));
    }
    if let Some(place) = status.places.iter().find(|place| !place.problem.is_empty()) {
        let found = format!("cannot read the memory use of {}: {}", place.name, place.problem);
        return Some(warn(what, found, "the tier does not grow until it can be read; repair what is named"));
    }
    let target = f64::from(status.target_per_10000) / 100.0;
    let found = format!("{} keeps use below {target} % of: {places}", status.policy);
    if status.alarms.is_empty() {
        let remedy = "the agent only looks ten times a second; boot with psi=1 and it is woken at once";
        return Some(warn(what, format!("{found}; the kernel reports no stalls"), remedy));
    }
    Some(good(
        what,
        format!("{found}; woken by {}", list(status.alarms.iter().map(String::as_str).collect())),
    ))
}

/// Whether the tier that a configuration requests fits this node. A file that cannot be read is
/// reported by [`certificates`].
fn tier_size(config: &Path) -> Option<Finding> {
    let (config, _) = Config::load(Some(config)).ok()?;
    Some(match config.sizes(memory::usable_bytes()) {
        Ok((capacity, limit)) => {
            good("tier size", format!("capacity {}, limit {}", Human(capacity), Human(limit)))
        }
        Err(e) => bad("tier size", e, "the agent does not start with this capacity"),
    })
}

/// The roots that the agent serves.
fn served_mounts(global: &Global) -> Vec<Finding> {
    let mounts = global.client().admin().status().map(|s| s.mounts).unwrap_or_default();
    let finding = |mount: &MountStatus| {
        let root = PathBuf::from(OsStr::from_bytes(&mount.root));
        if mount.mounted {
            return local_directory(&root)
                .unwrap_or_else(|| good("mount", format!("{} is served", root.display())));
        }
        bad(
            "mount",
            format!("nothing is mounted on {}, the root of {:?}", root.display(), mount.label),
            "mount the PFS again; until then the agent serves nothing of it",
        )
    };
    mounts.iter().map(finding).collect()
}

/// A warning if `root` is a plain directory of a local file system: most likely the PFS is not
/// mounted.
fn local_directory(root: &Path) -> Option<Finding> {
    let kind = forebay_pfs::local_directory(&root.canonicalize().ok()?)?;
    Some(warn(
        "mount",
        format!("{} is not a mount point but a directory of a local file system ({kind})", root.display()),
        "mount the PFS there; with mount.require_mount = true the agent does not start without it",
    ))
}

/// The certificates that a configuration names, if it names any.
fn certificates(config: &Path) -> Finding {
    let what = "certificates";
    let cluster = match Config::load(Some(config)) {
        Ok((config, _)) => config.cluster,
        Err(e) => return bad(what, e, "`forebay config check` says more"),
    };
    let Some(directory) = &cluster.tls else {
        return good(
            what,
            "none: this node communicates only with processes of its own user on this machine".into(),
        );
    };
    let facts = match Identity::load(directory) {
        Ok(identity) => identity.facts(),
        Err(e) => {
            return bad(
                what,
                e.to_string(),
                "without valid files the agent does not start; see docs/security.md",
            );
        }
    };
    if !facts.node.eq_ignore_ascii_case(&cluster.node) {
        let found = format!("made for {:?}, while cluster.node is {:?}", facts.node, cluster.node);
        return bad(
            what,
            found,
            "other nodes refuse it: give this node its own certificate, or change cluster.node",
        );
    }
    let left = facts.expires.duration_since(SystemTime::now()).unwrap_or_default();
    let days = left.as_secs() / 86_400;
    let found = format!("{} in {}, valid for {days} more days", facts.node, directory.display());
    if days < EXPIRY_WARNING_DAYS {
        warn(
            what,
            found,
            "create a new one with `forebay init` and copy it over the old one; no restart is needed",
        )
    } else {
        good(what, found)
    }
}

fn pfs(path: &Path) -> Finding {
    let what = "PFS";
    let remedy = "name the directory on which the PFS is mounted";
    // It is looked up in the directory: a FUSE mount that keeps other users out answers `statfs`.
    let root = match std::fs::metadata(path.join(".")).and_then(|_| path.canonicalize()) {
        Ok(root) => root,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            let remedy = "let this user enter it; a FUSE mount of another user needs the option allow_other";
            return bad(what, format!("{}: {e}", path.display()), remedy);
        }
        Err(e) => return bad(what, format!("{}: {e}", path.display()), remedy),
    };
    if let Some(warning) = local_directory(&root) {
        return warning;
    }
    let Some(kind) = forebay_pfs::name_of(&root) else {
        let found = format!("{}: its mount is not in /proc/self/mountinfo", path.display());
        return warn(what, found, "mount /proc, or look from where the PFS is mounted");
    };
    if kind == "tmpfs" || kind == "devtmpfs" {
        return bad(what, format!("{} is a {kind}", path.display()), remedy);
    }
    let only = if Traits::of(&root).is_local { ", which only this node has" } else { "" };
    good(what, format!("{}: {kind}{only}", path.display()))
}

/// Whether writes move the time stamps of `path`'s file system, as this node sees them, or as
/// `second`, another mount of the same directory, does.
fn time_stamps(path: &Path, second: Option<&Path>) -> Finding {
    let what = "time stamps";
    let seen = second.unwrap_or(path);
    let shown = match second {
        None => path.display().to_string(),
        Some(second) => format!("{}, seen in {}", path.display(), second.display()),
    };
    if let Some(fs_type) = path.canonicalize().ok().and_then(|root| Traits::of(&root).unchanging) {
        return good(what, format!("{shown}: nobody can change files of {fs_type}"));
    }
    match measure(path, seen, Revalidate::Force) {
        Ok(Stamps::Follow { within, ctime }) => {
            let but = if ctime { "" } else { ", but ctime does not" };
            good(what, format!("{shown}: follow writes {} ms apart{but}", within.as_millis()))
        }
        Ok(Stamps::Rest(change)) => bad(
            what,
            format!(
                "{shown}: {change} does not move them, so the agent cannot distinguish new content from old"
            ),
            "the agent does not cache it; set mount.stamps = \"trust\" only if no file changes after it was read",
        ),
        Err(e) => warn(
            what,
            format!("{shown}: cannot be measured: {e}"),
            "name a directory on it where you may write; for the agent set mount.probe_dir",
        ),
    }
}

/// What `second` sees of the time stamps while one write of `bytes` through `path` is in progress.
fn long_write(path: &Path, second: &Path, bytes: u64) -> Finding {
    let what = "long write";
    let shown = format!("{}, seen in {}", path.display(), second.display());
    let seen = match long_write::measure(path, second, bytes, Revalidate::Force) {
        Ok(seen) => seen,
        Err(e) => {
            let remedy = "name two mounts of one directory where you may write that much";
            return warn(what, format!("{shown}: cannot be measured: {e}"), remedy);
        }
    };
    let bytes = Human(bytes.min(long_write::BYTES_MAX));
    let took = seen.took.as_secs_f64();
    let moves = format!("{shown}: the stamps moved {} times while {bytes} took {took:.1} s", seen.moves);
    match seen.behind {
        _ if seen.moves == 0 => {
            bad(what, moves, "that mount would notice no change: do not cache this file system")
        }
        None => good(what, format!("{moves}, the last time after the last byte")),
        Some(behind) if behind < LATE => good(what, format!("{moves}, the last time with the last byte")),
        Some(behind) => warn(
            what,
            format!("{moves}; the last stamp is {:.1} s older than the last byte", behind.as_secs_f64()),
            "set mount.settle_ms above the time of the longest overwrite in place, or evict such files afterwards",
        ),
    }
}

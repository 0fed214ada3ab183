//! Analytics jobs: what a plug-in in Java reports (`io.forebay.core.JobUpdate`), in the terms of
//! the wire.
//!
//! Java names files by their paths. Here each is opened once for its version; one that cannot be
//! named (it is gone, it is on no mount of the agent's, it may not be read) is left out, and with
//! it the parts of splits that are in it: their tasks read what they read without a prefetch. The
//! numbers of files are therefore not the same on the two sides.

use crate::client::CLIENTS;
use crate::env::{Failure, Jni, Outcome};
use crate::handles::Handles;
use forebay_client::{Client, Job};
use forebay_wire::{FileRef, JobUpdate, Part, Split};
use jni_sys::{jboolean, jbyteArray, jint, jlong};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

static JOBS: Handles<ReportedJob> = Handles::new();

/// Files named at a time: a file system answers many opens at the same time much sooner than one
/// after the other.
const NAMING_THREADS: usize = 8;

struct ReportedJob {
    job: Job,
    client: Arc<Client>,
    files: Mutex<Numbers>,
}

/// The coordinator's numbers of the files by Java's.
#[derive(Default)]
struct Numbers {
    reported: u32,
    by_java: Vec<Option<u32>>,
}

impl Numbers {
    /// Numbers for the files that Java reported next; those that could be named follow, in order.
    fn add(&mut self, named: Vec<Option<FileRef>>) -> Vec<FileRef> {
        let mut files = Vec::new();
        for file in named {
            self.by_java.push(file.as_ref().map(|_| self.reported));
            if let Some(file) = file {
                self.reported += 1;
                files.push(file);
            }
        }
        files
    }

    fn of(&self, java: u32) -> Option<u32> {
        self.by_java.get(usize::try_from(java).ok()?).copied().flatten()
    }
}

/// Reads what Java has written: big-endian numbers, and bytes after their number.
struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, n: usize) -> Outcome<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or_else(short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Outcome<u8> {
        Ok(self.take(1)?[0])
    }

    fn int(&mut self) -> Outcome<u32> {
        let bytes = self.take(4)?.try_into().map_err(|_| short())?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn long(&mut self) -> Outcome<u64> {
        let bytes = self.take(8)?.try_into().map_err(|_| short())?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn bytes(&mut self) -> Outcome<&'a [u8]> {
        let n = self.int()?;
        self.take(usize::try_from(n).map_err(|_| short())?)
    }

    fn text(&mut self) -> Outcome<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// As many things as are announced. The number is not believed beforehand: no memory is taken
    /// for it.
    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Outcome<T>) -> Outcome<Vec<T>> {
        let mut all = Vec::new();
        for _ in 0..self.int()? {
            all.push(one(self)?);
        }
        Ok(all)
    }
}

fn short() -> Failure {
    Failure::Errno(libc::EINVAL, "updates of a job that end too early: the jar is of another version".into())
}

/// The updates in `bytes`; `name` finds files.
fn decode(
    bytes: &[u8],
    files: &mut Numbers,
    name: impl Fn(&[&Path]) -> Vec<Option<FileRef>>,
) -> Outcome<Vec<JobUpdate>> {
    let mut from = Decoder(bytes);
    let mut updates = Vec::new();
    while !from.0.is_empty() {
        updates.push(match from.byte()? {
            0 => JobUpdate::Slots(from.list(|d| Ok((d.text()?, d.int()?)))?),
            1 => {
                let paths = from.list(|d| d.bytes().map(|path| Path::new(OsStr::from_bytes(path))))?;
                JobUpdate::Files(files.add(name(&paths)))
            }
            2 => JobUpdate::Splits {
                stage: from.int()?,
                splits: from.list(|d| Ok(Split { parts: parts(d, files)?, preferred_node: d.text()? }))?,
            },
            3 => JobUpdate::StageReady { stage: from.int()? },
            4 => JobUpdate::TaskStarted { stage: from.int()?, task: from.int()?, host: from.text()? },
            5 => JobUpdate::TaskEnded {
                stage: from.int()?,
                task: from.int()?,
                ok: from.byte()? != 0,
                run_ms: from.long()?,
            },
            6 => JobUpdate::StageEnded { stage: from.int()? },
            7 => JobUpdate::TasksAsk,
            8 => JobUpdate::Partitions { stage: from.int()?, partitions: from.list(Decoder::int)? },
            other => {
                let words = format!("an update of kind {other}: the jar is of another version");
                return Err(Failure::Errno(libc::EINVAL, words));
            }
        });
    }
    Ok(updates)
}

fn parts(from: &mut Decoder<'_>, files: &Numbers) -> Outcome<Vec<Part>> {
    let reported = from.list(|d| Ok((d.int()?, d.long()?, d.long()?)))?;
    Ok(reported
        .into_iter()
        .filter_map(|(file, offset, len)| files.of(file).map(|file| Part { file, offset, len }))
        .collect())
}

fn name_all(client: &Client, paths: &[&Path]) -> Vec<Option<FileRef>> {
    let per_thread = paths.len().div_ceil(NAMING_THREADS).max(1);
    std::thread::scope(|scope| {
        let name = |some: &[&Path]| some.iter().map(|path| client.file_ref(path).ok()).collect::<Vec<_>>();
        let threads: Vec<_> =
            paths.chunks(per_thread).map(|some| (some.len(), scope.spawn(move || name(some)))).collect();
        threads.into_iter().flat_map(|(n, thread)| thread.join().unwrap_or_else(|_| vec![None; n])).collect()
    })
}

/// Begins a job; `planner` may be empty.
pub fn job_begin(jni: &Jni, client: jlong, name: jbyteArray, planner: jbyteArray) -> Outcome<jlong> {
    let client = CLIENTS.get(client)?;
    let text = |array| jni.bytes(array).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let job = client.begin_job(&text(name)?, &text(planner)?)?;
    Ok(JOBS.put(ReportedJob { job, client, files: Mutex::default() }))
}

/// Reports what `io.forebay.core.JobUpdate` has encoded.
pub fn job_report(jni: &Jni, job: jlong, updates: jbyteArray) -> Outcome<()> {
    let job = JOBS.get(job)?;
    let bytes = jni.bytes(updates)?;
    // Locked during the call, so that reports go out in the order of their numbers.
    let mut files = job.files.lock().unwrap_or_else(PoisonError::into_inner);
    let updates = decode(&bytes, &mut files, |paths| name_all(&job.client, paths))?;
    Ok(job.job.report(&updates)?)
}

/// Ends a job.
pub fn job_end(_: &Jni, job: jlong) -> Outcome<()> {
    JOBS.take(job);
    Ok(())
}

/// Whether a task may read; waits about a second for the answer.
pub fn task_may_read(
    jni: &Jni,
    client: jlong,
    job: jbyteArray,
    stage: jint,
    partition: jint,
) -> Outcome<jboolean> {
    let client = CLIENTS.get(client)?;
    let job = String::from_utf8_lossy(&jni.bytes(job)?).into_owned();
    Ok(client.task_may_read(&job, stage as u32, partition as u32)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_client::ClientConfig;

    /// Files are there unless their name says otherwise.
    fn name(paths: &[&Path]) -> Vec<Option<FileRef>> {
        let version = forebay_pfs::FileVersion { ino: 1, size: 2, mtime_ns: 3, ctime_ns: 4 };
        let file =
            |p: &Path| FileRef { mount: "pfs".into(), path: p.as_os_str().as_bytes().to_vec(), version };
        paths.iter().map(|p| (!p.starts_with("/gone")).then(|| file(p))).collect()
    }

    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u32).to_be_bytes());
        out.extend(text.as_bytes());
    }

    /// As Java writes it.
    fn files(out: &mut Vec<u8>, paths: &[&str]) {
        out.push(1);
        out.extend((paths.len() as u32).to_be_bytes());
        paths.iter().for_each(|path| text(out, path));
    }

    fn split(out: &mut Vec<u8>, stage: u32, parts: &[(u32, u64, u64)]) {
        out.push(2);
        out.extend([stage, 1, parts.len() as u32].iter().flat_map(|n| n.to_be_bytes()));
        for (file, offset, len) in parts {
            out.extend(file.to_be_bytes());
            out.extend(offset.to_be_bytes());
            out.extend(len.to_be_bytes());
        }
        text(out, "h1");
    }

    #[test]
    fn parts_of_files_that_cannot_be_named_are_left_out() {
        let mut numbers = Numbers::default();
        let mut bytes = Vec::new();
        files(&mut bytes, &["/gone/a", "/pfs/b", "/pfs/c"]);
        split(&mut bytes, 4, &[(0, 0, 1), (2, 5, 6), (9, 0, 1)]);
        files(&mut bytes, &["/pfs/d"]);
        split(&mut bytes, 4, &[(3, 7, 8)]);
        let updates = decode(&bytes, &mut numbers, name).map_err(|_| "refused").unwrap();
        let JobUpdate::Files(reported) = &updates[0] else { panic!("{updates:?}") };
        assert_eq!(reported.iter().map(|f| &f.path[..]).collect::<Vec<_>>(), [&b"/pfs/b"[..], b"/pfs/c"]);
        let parts = |update: &JobUpdate| match update {
            JobUpdate::Splits { stage: 4, splits } if splits[0].preferred_node == "h1" => {
                splits[0].parts.clone()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(parts(&updates[1]), [Part { file: 1, offset: 5, len: 6 }]);
        assert_eq!(parts(&updates[3]), [Part { file: 2, offset: 7, len: 8 }]);
    }

    #[test]
    fn the_other_updates_come_as_java_writes_them() {
        let mut bytes = vec![0, 0, 0, 0, 1];
        text(&mut bytes, "h");
        bytes.extend([0, 0, 0, 7]);
        bytes.extend([3, 0, 0, 0, 2]);
        bytes.extend([4, 0, 0, 0, 2, 0, 0, 0, 5]);
        text(&mut bytes, "h");
        bytes.extend([5, 0, 0, 0, 2, 0, 0, 0, 5, 1, 0, 0, 0, 0, 0, 0, 1, 0]);
        bytes.extend([6, 0, 0, 0, 2]);
        bytes.extend([7]);
        bytes.extend([8, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 9]);
        let updates = decode(&bytes, &mut Numbers::default(), name).map_err(|_| "refused").unwrap();
        assert_eq!(
            updates,
            [
                JobUpdate::Slots(vec![("h".into(), 7)]),
                JobUpdate::StageReady { stage: 2 },
                JobUpdate::TaskStarted { stage: 2, task: 5, host: "h".into() },
                JobUpdate::TaskEnded { stage: 2, task: 5, ok: true, run_ms: 256 },
                JobUpdate::StageEnded { stage: 2 },
                JobUpdate::TasksAsk,
                JobUpdate::Partitions { stage: 2, partitions: vec![9] },
            ]
        );
    }

    #[test]
    fn what_is_cut_off_or_unknown_is_refused() {
        let mut whole = Vec::new();
        files(&mut whole, &["/pfs/a"]);
        split(&mut whole, 1, &[(0, 0, 1)]);
        assert!(decode(&whole, &mut Numbers::default(), name).is_ok());
        for end in [1, 4, 12, whole.len() - 1] {
            assert!(decode(&whole[..end], &mut Numbers::default(), name).is_err(), "{end}");
        }
        assert!(decode(&[99], &mut Numbers::default(), name).is_err());
        // A number of billions, and nothing after it.
        assert!(decode(&[1, 255, 255, 255, 255], &mut Numbers::default(), name).is_err());
    }

    #[test]
    fn files_are_named_in_order_whatever_their_number() {
        let client = Client::new(ClientConfig { socket: None, quiet: true, ..ClientConfig::from_env() });
        for n in [0, 1, 7, 8, 9, 100] {
            let names: Vec<String> = (0..n).map(|i| format!("/nowhere/{i}")).collect();
            let paths: Vec<&Path> = names.iter().map(Path::new).collect();
            assert_eq!(name_all(&client, &paths), vec![None; n]);
        }
    }
}

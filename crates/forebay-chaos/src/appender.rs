//! Appenders: many processes that append records to the same files, by plain calls and through the
//! library. A record that was acknowledged is in the file, once, whatever was killed.

use crate::actor::Actor;
use crate::changes::errno_of;
use crate::content::byte;
use crate::record::{Kind, Record};
use forebay_client::{Client, WriteMode, WriteOptions};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Files that are appended to.
pub const APPEND_FILES: u32 = 3;

const RECORD_BYTES: usize = 64;
const HEAD: &[u8; 8] = b"\nrecord:";

fn record(appender: u32, number: u32) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..8].copy_from_slice(HEAD);
    bytes[8..12].copy_from_slice(&appender.to_le_bytes());
    bytes[12..16].copy_from_slice(&number.to_le_bytes());
    for (i, b) in bytes.iter_mut().enumerate().skip(16) {
        *b = byte(appender ^ number.rotate_left(16) | 1, i as u64);
    }
    bytes
}

/// The records in these bytes, by appender; and what is between them, unless it is a truncated
/// record.
pub fn parse(bytes: &[u8]) -> (BTreeMap<u32, Vec<u32>>, Option<String>) {
    let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let (mut at, mut broken) = (0, None);
    while at < bytes.len() {
        let rest = &bytes[at..];
        let number =
            |from: usize| rest.get(from..from + 4).and_then(|b| Some(u32::from_le_bytes(b.try_into().ok()?)));
        let (Some(appender), Some(seq)) = (number(8), number(12)) else { break };
        if rest.get(..RECORD_BYTES) == Some(&record(appender, seq)[..]) {
            found.entry(appender).or_default().push(seq);
            at += RECORD_BYTES;
            continue;
        }
        // A record is truncated if its writer was killed; the next one then begins immediately.
        let same = rest.iter().zip(record(appender, seq)).take_while(|(a, b)| **a == *b).count();
        if same == 0 || same >= RECORD_BYTES {
            broken = Some(format!("no record at byte {at}: {:02x?}", &rest[..rest.len().min(24)]));
            break;
        }
        at += same;
    }
    (found, broken)
}

/// Reads all appended files, by plain calls and through the library, when nobody appends any more.
pub fn check(actor: &mut Actor, client: &Client) -> io::Result<()> {
    for file in 0..APPEND_FILES {
        look_at(actor, client, file, Kind::Plain)?;
        look_at(actor, client, file, Kind::Cached)?;
    }
    Ok(())
}

/// Appends until the time is over.
pub fn run(mut actor: Actor) -> io::Result<()> {
    let client = actor.client();
    let appender = actor.orders.process;
    let mut numbers = [0; APPEND_FILES as usize];
    while !actor.is_over() {
        let file = actor.random.below(u64::from(APPEND_FILES)) as u32;
        let count = actor.random.between(1, 4);
        let way = actor.random.below(3);
        let begin = actor.begin()?;
        let first = numbers[file as usize] + 1;
        let mut bytes = Vec::new();
        for _ in 0..count {
            numbers[file as usize] += 1;
            let number = numbers[file as usize];
            actor.note(&Record::AppendBegin { at: begin, file, appender, number })?;
            bytes.extend_from_slice(&record(appender, number));
        }
        let done = append(&actor, &client, file, &bytes, way);
        let at = actor.end()?;
        match done {
            Ok(()) => {
                for number in first..=numbers[file as usize] {
                    actor.note(&Record::AppendDone { at, file, appender, number })?;
                }
            }
            // Nothing was acknowledged. Some file systems cannot create one file on two nodes at
            // the same time.
            Err(e) if [libc::ENOSPC, libc::EEXIST].contains(&errno_of(&e)) => {}
            Err(e) => return Err(e),
        }
        actor.pause_up_to(20);
    }
    Ok(())
}

fn append(actor: &Actor, client: &Client, file: u32, bytes: &[u8], way: u64) -> io::Result<()> {
    let path = actor.append_path(file);
    if way == 0 {
        let mut file = std::fs::File::options().append(true).create(true).open(path)?;
        return file.write_all(bytes);
    }
    let mode = if way == 1 { WriteMode::Bypass } else { WriteMode::Through };
    let options = WriteOptions { mode, append: true, ..WriteOptions::default() };
    let mut writer = client.create_with(path, options)?;
    writer.write_all(bytes)?;
    writer.close()
}

/// Reads the whole of a random appended file.
pub fn look(actor: &mut Actor, client: &Client) -> io::Result<()> {
    let file = actor.random.below(u64::from(APPEND_FILES)) as u32;
    look_at(actor, client, file, Kind::Cached)
}

/// Reads the whole of this file.
pub fn look_at(actor: &mut Actor, client: &Client, file: u32, kind: Kind) -> io::Result<()> {
    let path = actor.append_path(file);
    let begin = actor.begin()?;
    let read = match kind {
        Kind::Plain => std::fs::read(&path).map(|bytes| (bytes, false)),
        _ => read_by(client, &path),
    };
    actor.end()?;
    let node = actor.orders.node;
    let (bytes, tiered) = match read {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        // Somebody is appending to it: the next read will do.
        Err(e) if errno_of(&e) == libc::ESTALE => return Ok(()),
        other => other?,
    };
    let (found, mut broken) = parse(&bytes);
    let mut counts = Vec::new();
    for (appender, numbers) in found {
        if numbers.windows(2).any(|w| w[0] >= w[1]) {
            broken.get_or_insert(format!("records of appender {appender} are not in order: {numbers:?}"));
        }
        counts.extend(numbers.into_iter().map(|number| (appender, number)));
    }
    actor.note(&Record::AppendSeen { begin, file, node, kind, tiered, counts, broken })
}

fn read_by(client: &Client, path: &std::path::Path) -> io::Result<(Vec<u8>, bool)> {
    let file = client.open(path)?;
    let mut bytes = vec![0; file.size()? as usize];
    let n = file.read_at(&mut bytes, 0)?;
    bytes.truncate(n);
    Ok((bytes, file.is_tiered()))
}

/// Returns violations of what appenders were promised, as text, and how many reads were judged.
/// Where the clients of a file system keep caches of their own (`plain` is false), reads without an
/// agent are not judged, nor reads that begin within `settle_ns` of an append: a client may show
/// zeros in place of what another one has appended at the same time.
pub fn judge(records: &[Record], plain: bool, settle_ns: u64) -> (Vec<String>, u64) {
    let (mut acknowledged, mut begun) = (BTreeMap::new(), BTreeMap::new());
    for record in records {
        match record {
            Record::AppendBegin { at, file, appender, number } => {
                begun.insert((*file, *appender, *number), *at);
            }
            Record::AppendDone { at, file, appender, number } => {
                acknowledged.insert((*file, *appender, *number), *at);
            }
            _ => {}
        }
    }
    let (mut wrong, mut looks) = (Vec::new(), 0);
    // Each loss is reported once, where it was seen first.
    let mut reported = std::collections::BTreeSet::new();
    for record in records {
        let Record::AppendSeen { begin, file, node, kind, tiered, counts, broken } = record else { continue };
        let is_recent = |at: &u64| *begin < at.saturating_add(settle_ns);
        let appends = begun.range((*file, 0, 0)..(*file + 1, 0, 0)).map(|(_, at)| at);
        if !plain && (!tiered || appends.filter(|at| *at <= begin).any(is_recent)) {
            continue;
        }
        looks += 1;
        let way = if *tiered { "with" } else { "without" };
        let who = format!("file {file} read on node {node} ({kind:?}, {way} an agent) at {begin}");
        wrong.extend(broken.iter().map(|why| format!("{who}: {why}")));
        let seen: std::collections::BTreeSet<_> = counts.iter().map(|(a, n)| (*file, *a, *n)).collect();
        let mine = acknowledged.range((*file, 0, 0)..(*file + 1, 0, 0));
        let is_lost = |(id, at): &(&(u32, u32, u32), &u64)| **at <= *begin && !seen.contains(*id);
        let lost: Vec<_> =
            mine.filter(is_lost).map(|(id, _)| *id).filter(|id| reported.insert(*id)).collect();
        if !lost.is_empty() {
            wrong.push(format!(
                "{who}: {} acknowledged records are lost: {:?}; {}",
                lost.len(),
                &lost[..lost.len().min(5)],
                seen_later(records, lost[0], *begin)
            ));
        }
        if let Some(never) = seen.iter().find(|id| !begun.contains_key(id)) {
            wrong.push(format!("{who}: a record that nobody has appended: {never:?}"));
        }
    }
    (wrong, looks)
}

/// How the reads that began after `begin` saw this record: it distinguishes a stale read from a
/// record that is not on the servers.
fn seen_later(records: &[Record], id: (u32, u32, u32), begin: u64) -> String {
    let mut looks = std::collections::BTreeMap::<(u32, bool), (u32, u32)>::new();
    for record in records {
        let Record::AppendSeen { begin: at, file, node, tiered, counts, .. } = record else { continue };
        if *file == id.0 && *at > begin {
            let (with, without) = looks.entry((*node, *tiered)).or_default();
            *if counts.contains(&(id.1, id.2)) { with } else { without } += 1;
        }
    }
    let each: Vec<_> = looks
        .iter()
        .map(|((node, tiered), (with, without))| {
            let way = if *tiered { "with an agent" } else { "without" };
            format!("{with} of {} on node {node} {way}", with + without)
        })
        .collect();
    match each.is_empty() {
        true => "nobody read the file later".into(),
        false => format!("later reads that have the first of them: {}", each.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_and_a_cut_off_one_is_passed_over() {
        let mut bytes = record(1, 1).to_vec();
        bytes.extend_from_slice(&record(2, 1)[..40]);
        bytes.extend_from_slice(&record(1, 2));
        let (found, broken) = parse(&bytes);
        assert_eq!((found.get(&1), broken), (Some(&vec![1, 2]), None));
        bytes[130] ^= 1;
        assert_eq!(parse(&bytes).0.get(&1), Some(&vec![1]));
    }

    #[test]
    fn what_was_acknowledged_before_a_look_must_be_in_it() {
        let done = Record::AppendDone { at: 5, file: 0, appender: 1, number: 1 };
        let begun = Record::AppendBegin { at: 4, file: 0, appender: 1, number: 1 };
        let look = |begin, counts: &[(u32, u32)]| Record::AppendSeen {
            begin,
            file: 0,
            node: 0,
            kind: Kind::Plain,
            tiered: false,
            counts: counts.to_vec(),
            broken: None,
        };
        let faults = |look| judge(&[begun.clone(), done.clone(), look], true, 0).0.len();
        assert_eq!(faults(look(4, &[])), 0);
        assert_eq!(faults(look(6, &[])), 1);
        assert_eq!(faults(look(6, &[(1, 1)])), 0);
        assert_eq!(faults(look(6, &[(1, 1), (1, 2)])), 1);
        let (later, _) = judge(&[begun.clone(), done.clone(), look(6, &[]), look(7, &[(1, 1)])], true, 0);
        assert!(later[0].ends_with("have the first of them: 1 of 1 on node 0 without"), "{later:?}");
        // A file system whose clients have caches of their own.
        let tiered = |begin| {
            let Record::AppendSeen { file, node, kind, counts, broken, .. } = look(begin, &[]) else {
                panic!()
            };
            Record::AppendSeen { begin, file, node, kind, tiered: true, counts, broken }
        };
        let judged = |look| judge(&[begun.clone(), done.clone(), look], false, 10);
        assert_eq!(judged(look(20, &[])), (vec![], 0), "without an agent");
        assert_eq!(judged(tiered(13)), (vec![], 0), "too early");
        assert_eq!(judged(tiered(14)).0.len(), 1);
    }
}

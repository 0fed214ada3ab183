//! Several programs append to one file, as they may with `O_APPEND` and no cache.

use crate::common::{Agent, Helper, MIB, PAGE, content, one_file, plain_pfs, read_all};
use crate::roles::{hear, say};
use crate::room::SmallTmpfs;
use forebay_client::{Client, FileWriter, WriteMode, WriteOptions};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use std::fs::File;
use std::io::Write;
use std::path::Path;

fn appender(client: &Client, path: &Path, mode: WriteMode) -> FileWriter {
    client.create_with(path, WriteOptions { mode, append: true, ..WriteOptions::default() }).unwrap()
}

/// A record that says whose it is, which one, and in its last bytes that it is whole.
fn record(who: u8, number: u64, len: usize) -> Vec<u8> {
    let mut record = vec![who; len];
    record[1..9].copy_from_slice(&number.to_le_bytes());
    record[len - 1] = b'\n';
    record
}

/// Fails unless `bytes` hold `count` whole records of each appender, each appender's in order.
#[track_caller]
fn assert_all_there(bytes: &[u8], who: &[u8], count: u64, len: usize) {
    assert_eq!(bytes.len(), who.len() * count as usize * len, "records are lost or there twice");
    let mut next = vec![0; who.len()];
    for (i, found) in bytes.chunks(len).enumerate() {
        let of = who.iter().position(|w| *w == found[0]).unwrap_or_else(|| panic!("record {i} is of nobody"));
        assert!(found == record(who[of], next[of], len), "record {i} is not number {} of {of}", next[of]);
        next[of] += 1;
    }
}

/// A client process: opens the file, appends a record and closes it, `count` times. It writes when
/// the test says so: then the other has the file open, too, and both have seen the same end.
pub fn append_again_and_again(path: &str, who: u8, count: u64) {
    let client = Client::from_env();
    for number in 0..count {
        let mut writer = appender(&client, Path::new(path), WriteMode::Through);
        say("open");
        hear();
        writer.write_all(&record(who, number, 100)).unwrap();
        writer.close().unwrap();
        say("closed");
    }
}

#[test]
fn two_appenders_at_the_same_time_lose_nothing() {
    const COUNT: u64 = 200;
    let pfs = plain_pfs();
    let path = pfs.path().join("log");
    let agent = Agent::on(pfs.path());
    let (name, count) = (path.to_str().unwrap(), COUNT.to_string());
    let mut both = ["65", "66"].map(|who| Helper::start(&agent, "append", &[name, who, &count]));
    for _ in 0..COUNT {
        both.iter_mut().for_each(|helper| drop(helper.expect("open")));
        both.iter_mut().for_each(|helper| helper.say("go"));
        both.iter_mut().for_each(|helper| drop(helper.expect("closed")));
    }
    assert_all_there(&std::fs::read(&path).unwrap(), b"AB", COUNT, 100);
    both.into_iter().for_each(Helper::finish);
}

#[test]
fn appenders_that_stay_open_write_behind_each_other_and_cut_no_record() {
    // None of the sizes divides what a writer gathers; the last one is larger.
    for (len, count) in [(1000, 3000), (700_000, 6), (3_000_001, 3)] {
        for mode in [WriteMode::Through, WriteMode::Bypass] {
            let pfs = plain_pfs();
            let path = pfs.path().join("log");
            let agent = Agent::on(pfs.path());
            let client = agent.client();
            let mut writers = [appender(&client, &path, mode), appender(&agent.client(), &path, mode)];
            for number in 0..count {
                for (writer, who) in writers.iter_mut().zip(*b"AB") {
                    writer.write_all(&record(who, number, len)).unwrap();
                }
            }
            writers.into_iter().for_each(|writer| writer.close().unwrap());
            assert_all_there(&std::fs::read(&path).unwrap(), b"AB", count, len);
            let read = read_all(&client.open(&path).unwrap()).unwrap();
            assert!(read == std::fs::read(&path).unwrap(), "an appended file is not read as the PFS has it");
        }
    }
}

#[test]
fn an_append_only_file_can_be_appended_to() {
    let (_pfs, path, agent) = one_file(1, PAGE);
    let file = File::open(&path).unwrap();
    let flags = ioctl_getflags(&file).expect("/tmp is on a file system with attributes (chattr)");
    ioctl_setflags(&file, flags | IFlags::APPEND).unwrap();
    let plain = File::options().write(true).open(&path).map(drop).map_err(|e| e.raw_os_error());
    let mut writer = appender(&agent.client(), &path, WriteMode::Through);
    let written = writer.write_all(b"behind").and_then(|()| writer.close());
    ioctl_setflags(&file, flags).unwrap();
    assert_eq!(plain, Err(Some(libc::EPERM)), "the file was not append-only");
    written.unwrap();
    let mut expected = content(1, 0, PAGE as usize);
    expected.extend_from_slice(b"behind");
    assert!(std::fs::read(&path).unwrap() == expected);
}

#[test]
fn what_an_appender_could_not_write_on_a_full_pfs_is_written_once() {
    let pfs = SmallTmpfs::new(4 * MIB);
    let (path, other) = (pfs.0.path().join("log"), pfs.0.path().join("other"));
    std::fs::write(&other, vec![0; 3 << 20]).unwrap();
    let agent = Agent::on(pfs.0.path());
    let mut writer = appender(&agent.client(), &path, WriteMode::Bypass);
    for number in 0..2 {
        writer.write_all(&record(b'A', number, 600_000)).unwrap();
    }
    assert_eq!(writer.flush().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    let partly = path.metadata().unwrap().len();
    assert!(partly % 600_000 != 0 && partly < 1_200_000, "no record was written in part: {partly} bytes");
    std::fs::remove_file(&other).unwrap();
    writer.close().unwrap();
    assert_all_there(&std::fs::read(&path).unwrap(), b"A", 2, 600_000);
}

#[test]
fn an_appender_counts_from_the_end_that_it_found() {
    let (_pfs, path, agent) = one_file(1, 1000);
    let mut writer = appender(&agent.client(), &path, WriteMode::Through);
    assert_eq!(writer.position(), 1000);
    File::options().append(true).open(&path).unwrap().write_all(&[0; 50]).unwrap();
    writer.write_all(&[1; 10]).unwrap();
    assert_eq!(writer.position(), 1010);
    writer.close().unwrap();
    assert_eq!(path.metadata().unwrap().len(), 1060);
    let options = WriteOptions { mode: WriteMode::MemoryOnly, append: true, ..WriteOptions::default() };
    let refused = agent.client().create_with(&path, options).unwrap_err();
    assert_eq!(forebay_client::errno(&refused), libc::EINVAL);
}

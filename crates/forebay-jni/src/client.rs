//! A client, what its agent serves, and what it has counted.

use crate::encode::Encoder;
use crate::env::{Failure, Jni, Outcome};
use crate::handles::Handles;
use forebay_client::{Client, ClientConfig, Location};
use forebay_pfs::FileVersion;
use forebay_wire::FileRef;
use jni_sys::{jboolean, jbyteArray, jint, jlong};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub static CLIENTS: Handles<Client> = Handles::new();

/// A path as Java sends it.
pub fn path(jni: &Jni, bytes: jbyteArray) -> Outcome<PathBuf> {
    let bytes = jni.bytes(bytes)?;
    if bytes.contains(&0) {
        return Err(Failure::Errno(libc::EINVAL, "a path with a zero byte".to_owned()));
    }
    Ok(OsString::from_vec(bytes).into())
}

/// An offset or a length, which Java keeps in a signed number.
pub fn offset_of(offset: jlong) -> Outcome<u64> {
    u64::try_from(offset)
        .map_err(|_| Failure::Errno(libc::EINVAL, format!("the offset {offset} is negative")))
}

/// What Java says of a client; negative numbers say nothing.
struct Wishes {
    socket: Option<PathBuf>,
    deadline_ms: i64,
    read_ahead_bytes: i64,
    trusted_uid: i64,
    quiet: bool,
}

fn configuration(wishes: Wishes) -> ClientConfig {
    let Wishes { socket, deadline_ms, read_ahead_bytes, trusted_uid, quiet } = wishes;
    let mut config = ClientConfig::from_env();
    if let Some(socket) = socket {
        config.socket = (socket != Path::new("none")).then_some(socket);
    }
    if let Ok(ms) = u64::try_from(deadline_ms) {
        config.deadline = Duration::from_millis(ms);
    }
    config.read_ahead_bytes = u64::try_from(read_ahead_bytes).ok().or(config.read_ahead_bytes);
    config.trusted_uids.extend(u32::try_from(trusted_uid));
    config.quiet |= quiet;
    config
}

/// A new client. `socket`: null for the environment's or the usual one, "none" for no agent. Of the
/// numbers, negative ones stand for the environment's or the default.
pub fn client_new(
    jni: &Jni,
    socket: jbyteArray,
    deadline_ms: jlong,
    read_ahead_bytes: jlong,
    trusted_uid: jlong,
    quiet: jboolean,
) -> Outcome<jlong> {
    let socket = if socket.is_null() { None } else { Some(path(jni, socket)?) };
    let wishes = Wishes { socket, deadline_ms, read_ahead_bytes, trusted_uid, quiet };
    Ok(CLIENTS.put(Client::new(configuration(wishes))))
}

/// Forgets a client; its open files continue to work.
pub fn client_free(_: &Jni, client: jlong) -> Outcome<()> {
    CLIENTS.take(client);
    Ok(())
}

/// The mounts that the agent serves: how many, and for each its label, root, and the bytes of a
/// page and of an extent. None without an agent.
pub fn mounts(jni: &Jni, client: jlong) -> Outcome<jbyteArray> {
    let mounts = CLIENTS.get(client)?.mounts();
    let mut answer = Encoder::default();
    answer.count(mounts.len());
    for mount in mounts {
        answer.bytes(mount.label.as_bytes()).bytes(&mount.root).number(mount.page_bytes);
        answer.number(mount.extent_bytes);
    }
    jni.new_bytes(&answer.finish())
}

/// What the agent has counted: how many, and for each its name and value. An error without an
/// agent.
pub fn counters(jni: &Jni, client: jlong) -> Outcome<jbyteArray> {
    let status = CLIENTS.get(client)?.admin().status()?;
    let state = [
        ("capacity_bytes", status.capacity_bytes),
        ("resident_bytes", status.resident_bytes),
        ("pinned_bytes", status.pinned_bytes),
        ("files", status.files),
        ("scratch_files", status.scratch_files),
        ("connections", status.connections),
    ];
    let mut answer = Encoder::default();
    answer.count(state.len() + status.counters.len());
    for (name, value) in state {
        answer.bytes(name.as_bytes()).number(value);
    }
    for (name, value) in &status.counters {
        answer.bytes(name.as_bytes()).number(*value);
    }
    jni.new_bytes(&answer.finish())
}

/// Where `length` bytes of a file from `offset` on are kept, or where tasks that read them should
/// run, as `preferred` says ([`Preferred`]): how many parts, and for each its offset and length in
/// bytes, how many hosts, and their names. An error without an agent.
pub fn locate(
    jni: &Jni,
    client: jlong,
    file: jbyteArray,
    offset: jlong,
    length: jlong,
    preferred: jint,
) -> Outcome<jbyteArray> {
    let file = path(jni, file)?;
    let (offset, length) = (offset_of(offset)?, offset_of(length)?);
    let client = CLIENTS.get(client)?;
    let parts = match Preferred::of(preferred) {
        Preferred::Owner => client.locate(&file, offset, length),
        Preferred::Balanced => client.preferred_nodes(&file, offset, length),
        Preferred::Storage => client.storage_nodes(&file, offset, length),
    };
    jni.new_bytes(&encode_locations(&parts.map_err(Failure::about(&file))?))
}

/// As `locate`, for a file whose path below the root of its mount, inode number and length in bytes
/// are known from a listing: the file is not touched, unless its PFS must be asked where it is.
#[expect(clippy::too_many_arguments, reason = "as many as the native method has")]
pub fn locate_listed(
    jni: &Jni,
    client: jlong,
    mount: jbyteArray,
    below: jbyteArray,
    inode: jlong,
    size: jlong,
    offset: jlong,
    length: jlong,
    preferred: jint,
) -> Outcome<jbyteArray> {
    let mount = String::from_utf8_lossy(&jni.bytes(mount)?).into_owned();
    // Inode numbers are unsigned, and Java has none that are.
    let version = FileVersion { ino: inode as u64, size: offset_of(size)?, mtime_ns: 0, ctime_ns: 0 };
    let file = FileRef { mount, path: jni.bytes(below)?, version };
    let (offset, length) = (offset_of(offset)?, offset_of(length)?);
    let client = CLIENTS.get(client)?;
    let parts = match Preferred::of(preferred) {
        Preferred::Owner => client.locate_ref(&file, offset, length),
        Preferred::Balanced => client.preferred_nodes_ref(&file, offset, length),
        Preferred::Storage => client.storage_nodes_ref(&file, offset, length),
    };
    jni.new_bytes(&encode_locations(&parts?))
}

/// Which node is named, by the number of Java's enumeration.
enum Preferred {
    Owner,
    Balanced,
    Storage,
}

impl Preferred {
    fn of(number: jint) -> Self {
        match number {
            0 => Preferred::Owner,
            1 => Preferred::Balanced,
            _ => Preferred::Storage,
        }
    }
}

fn encode_locations(parts: &[Location]) -> Vec<u8> {
    let mut answer = Encoder::default();
    answer.count(parts.len());
    for part in parts {
        answer.number(part.offset).number(part.len).count(part.hosts.len());
        part.hosts.iter().for_each(|host| {
            answer.bytes(host.as_bytes());
        });
    }
    answer.finish()
}

/// Releases the memory of one file; returns the bytes.
pub fn evict(jni: &Jni, client: jlong, file: jbyteArray) -> Outcome<jlong> {
    let file = path(jni, file)?;
    let bytes = CLIENTS.get(client)?.admin().evict(&file).map_err(Failure::about(&file))?;
    Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// This job's memory-only files: how many, and for each its path and length in bytes.
pub fn memory_only_files(jni: &Jni, client: jlong) -> Outcome<jbyteArray> {
    let files = CLIENTS.get(client)?.scratch_files()?;
    let mut answer = Encoder::default();
    answer.count(files.len());
    for (file, bytes) in files {
        answer.bytes(file.as_os_str().as_bytes()).number(bytes);
    }
    jni.new_bytes(&answer.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_java_does_not_say_comes_from_the_environment() {
        let silent =
            Wishes { socket: None, deadline_ms: -1, read_ahead_bytes: -1, trusted_uid: -1, quiet: false };
        let (same, default) = (configuration(silent), ClientConfig::from_env());
        assert_eq!((same.socket, same.deadline), (default.socket, default.deadline));
        assert_eq!((same.trusted_uids, same.read_ahead_bytes), (default.trusted_uids, None));
        let wishes = Wishes {
            socket: Some("/run/a.sock".into()),
            deadline_ms: 250,
            read_ahead_bytes: 0,
            trusted_uid: 7,
            quiet: true,
        };
        let other = configuration(wishes);
        assert_eq!(other.socket, Some(PathBuf::from("/run/a.sock")));
        assert_eq!((other.deadline, other.quiet), (Duration::from_millis(250), true));
        assert_eq!((other.read_ahead_bytes, other.trusted_uids.contains(&7)), (Some(0), true));
        let none = Wishes {
            socket: Some("none".into()),
            deadline_ms: 0,
            read_ahead_bytes: -1,
            trusted_uid: -1,
            quiet: false,
        };
        assert_eq!(configuration(none).socket, None);
    }
}

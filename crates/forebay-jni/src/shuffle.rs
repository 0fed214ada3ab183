//! Map outputs: what the shuffles in Java (`io.forebay.spark`, `io.forebay.mapreduce`) write and
//! read.
//!
//! Bytes are copied between a Java array and the tier's memory in place: neither waits for
//! anything, so the JVM can lend its array meanwhile.

use crate::client::{CLIENTS, offset_of};
use crate::encode::Encoder;
use crate::env::{Failure, Jni, Outcome, Span};
use crate::handles::Handles;
use forebay_client::{Fetched, MapOutput, Shuffles};
use forebay_wire::shuffle::{App, Block};
use jni_sys::{jboolean, jbyteArray, jint, jlong};
use std::sync::{Arc, Mutex, PoisonError};

static APPS: Handles<Arc<Shuffles>> = Handles::new();
static OUTPUTS: Handles<Mutex<MapOutput>> = Handles::new();
static FETCHED: Handles<Fetched> = Handles::new();

fn with_output<T>(output: jlong, body: impl FnOnce(&mut MapOutput) -> T) -> Outcome<T> {
    Ok(body(&mut OUTPUTS.get(output)?.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Numbers of eight bytes, big-endian.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| word.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn text(jni: &Jni, bytes: jbyteArray) -> Outcome<String> {
    Ok(String::from_utf8_lossy(&jni.bytes(bytes)?).into_owned())
}

/// Begins an application if `token` is empty, else joins the one of that token and origin.
pub fn shuffle_open(jni: &Jni, client: jlong, token: jbyteArray, origin: jbyteArray) -> Outcome<jlong> {
    let client = CLIENTS.get(client)?;
    let app = App { token: text(jni, token)?, origin: text(jni, origin)?, master_port: None };
    let begins = app.token.is_empty();
    Ok(APPS.put(if begins { client.begin_shuffles()? } else { client.join_shuffles(app)? }))
}

/// Names, one per line.
fn lines(jni: &Jni, bytes: jbyteArray) -> Outcome<Vec<String>> {
    Ok(text(jni, bytes)?.lines().map(str::to_owned).collect())
}

/// Joins a job of MapReduce whose master listens at a port of a host with these names, one per
/// line.
pub fn shuffle_join_job(
    jni: &Jni,
    client: jlong,
    token: jbyteArray,
    hosts: jbyteArray,
    port: jint,
) -> Outcome<jlong> {
    let client = CLIENTS.get(client)?;
    let port = u16::try_from(port).map_err(|_| Failure::Errno(libc::EINVAL, format!("{port} is no port")))?;
    Ok(APPS.put(client.join_job(&text(jni, token)?, lines(jni, hosts)?, port)?))
}

/// Returns the nodes of the host with these names, one per line; `with_second`: also the nodes that
/// may have second copies. Both lists have one name per line.
pub fn shuffle_nodes_at(
    jni: &Jni,
    app: jlong,
    hosts: jbyteArray,
    with_second: jboolean,
) -> Outcome<jbyteArray> {
    let nodes = APPS.get(app)?.nodes_at(lines(jni, hosts)?, with_second)?;
    jni.new_bytes(nodes.join("\n").as_bytes())
}

/// Token, origin, and this node.
pub fn shuffle_names(jni: &Jni, app: jlong) -> Outcome<jbyteArray> {
    let shuffles = APPS.get(app)?;
    let mut answer = Encoder::default();
    let (app, node) = (shuffles.app(), shuffles.node());
    answer.bytes(app.token.as_bytes()).bytes(app.origin.as_bytes()).bytes(node.as_bytes());
    jni.new_bytes(&answer.finish())
}

/// Notes, for the driver, that the application has a shuffle, or has removed it.
pub fn shuffle_lives(_: &Jni, app: jlong, shuffle: jint, lives: jboolean) -> Outcome<()> {
    Ok(APPS.get(app)?.set_lives(shuffle as u32, lives)?)
}

/// Fails if the agent does not answer.
pub fn shuffle_check(_: &Jni, app: jlong) -> Outcome<()> {
    Ok(APPS.get(app)?.check()?)
}

/// Removes the outputs of a shuffle on this node.
pub fn shuffle_remove(_: &Jni, app: jlong, shuffle: jint) -> Outcome<()> {
    Ok(APPS.get(app)?.remove(shuffle as u32)?)
}

/// Ends this process's part in an application; the driver's ends the application.
pub fn shuffle_close(_: &Jni, app: jlong) -> Outcome<()> {
    APPS.take(app);
    Ok(())
}

/// Begins a map output.
pub fn output_create(_: &Jni, app: jlong, shuffle: jint, map: jlong) -> Outcome<jlong> {
    Ok(OUTPUTS.put(Mutex::new(APPS.get(app)?.map_output(shuffle as u32, map as u64)?)))
}

/// Appends `length` bytes of an array from `start` on.
pub fn output_append(jni: &Jni, output: jlong, array: jbyteArray, start: jint, length: jint) -> Outcome<()> {
    let span = Span { start, length };
    let needed =
        u64::try_from(length).map_err(|_| Failure::Errno(libc::EINVAL, "a negative length".into()))?;
    with_output(output, |output| {
        // Asks the agent, which may wait: before the array is lent.
        output.make_room(needed)?;
        Ok(jni.with_array(array, span, |bytes| output.append(bytes))??)
    })?
}

/// Reads what was appended, from `offset` on, into an array; returns the number of bytes.
pub fn output_read(
    jni: &Jni,
    output: jlong,
    offset: jlong,
    array: jbyteArray,
    length: jint,
) -> Outcome<jint> {
    let offset = offset_of(offset)?;
    let span = Span { start: 0, length };
    let read =
        with_output(output, |output| jni.with_array(array, span, |bytes| output.read_at(bytes, offset)))??;
    Ok(read? as jint)
}

/// Ends an output whose partitions have these lengths, eight bytes each. It stays open for
/// `outputClose`.
pub fn output_commit(jni: &Jni, output: jlong, lengths: jbyteArray) -> Outcome<()> {
    let lengths: Vec<u64> = numbers(&jni.bytes(lengths)?).collect();
    Ok(with_output(output, |output| output.commit(&lengths))??)
}

/// Has a second node keep a copy of a committed output; returns the name of the node.
pub fn output_copy(jni: &Jni, output: jlong) -> Outcome<jbyteArray> {
    let node = with_output(output, |output| output.copy())??;
    jni.new_bytes(node.as_bytes())
}

/// Closes an output; removes it if it is not committed.
pub fn output_close(_: &Jni, output: jlong) -> Outcome<()> {
    OUTPUTS.take(output);
    Ok(())
}

/// Fetches blocks of outputs on nodes, whose names are one per line. Each block is six numbers of
/// eight bytes: shuffle, map, first partition, one after the last, bytes to leave out, most bytes.
pub fn blocks_fetch(jni: &Jni, app: jlong, nodes: jbyteArray, blocks: jbyteArray) -> Outcome<jlong> {
    let numbers: Vec<u64> = numbers(&jni.bytes(blocks)?).collect();
    let block = |n: &[u64]| Block {
        shuffle: n[0] as u32,
        map: n[1],
        first: n[2] as u32,
        end: n[3] as u32,
        from: n[4],
        most: n[5],
    };
    let blocks = numbers.chunks_exact(6).map(block).collect();
    Ok(FETCHED.put(APPS.get(app)?.fetch(lines(jni, nodes)?, blocks)?))
}

/// Length of a fetched block in bytes.
pub fn block_size(_: &Jni, blocks: jlong, number: jint) -> Outcome<jlong> {
    let len = FETCHED.get(blocks)?.len_of(number as usize);
    len.map(|len| len as jlong).ok_or_else(|| Failure::Errno(libc::EINVAL, format!("no block {number}")))
}

/// Bytes of the partitions of a fetched block, of which it may be a part.
pub fn block_total(_: &Jni, blocks: jlong, number: jint) -> Outcome<jlong> {
    let total = FETCHED.get(blocks)?.total_of(number as usize);
    total.map(|len| len as jlong).ok_or_else(|| Failure::Errno(libc::EINVAL, format!("no block {number}")))
}

/// Reads from a fetched block into an array; returns the number of bytes, 0 at its end.
pub fn block_read(
    jni: &Jni,
    blocks: jlong,
    number: jint,
    offset: jlong,
    array: jbyteArray,
    start: jint,
    length: jint,
) -> Outcome<jint> {
    let fetched = FETCHED.get(blocks)?;
    let offset = offset_of(offset)?;
    let read = jni
        .with_array(array, Span { start, length }, |bytes| fetched.read_at(number as usize, bytes, offset))?;
    Ok(read? as jint)
}

/// Releases fetched blocks.
pub fn blocks_close(_: &Jni, blocks: jlong) -> Outcome<()> {
    FETCHED.take(blocks);
    Ok(())
}

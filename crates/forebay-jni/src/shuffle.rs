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
use jni_sys::{JNIEnv, jboolean, jbyteArray, jclass, jint, jlong};
use std::ptr::null_mut;
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
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_shuffleOpen(
    env: *mut JNIEnv,
    class: jclass,
    client: jlong,
    token: jbyteArray,
    origin: jbyteArray,
) -> jlong {
    let body = |jni: &Jni| {
        let client = CLIENTS.get(client)?;
        let app = App { token: text(jni, token)?, origin: text(jni, origin)?, master_port: None };
        let begins = app.token.is_empty();
        Ok(APPS.put(if begins { client.begin_shuffles()? } else { client.join_shuffles(app)? }))
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, 0, body) }
}

/// Names, one a line.
fn lines(jni: &Jni, bytes: jbyteArray) -> Outcome<Vec<String>> {
    Ok(text(jni, bytes)?.lines().map(str::to_owned).collect())
}

/// Joins a job of MapReduce whose master listens at a port of a host with these names, one a line.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_shuffleJoinJob(
    env: *mut JNIEnv,
    class: jclass,
    client: jlong,
    token: jbyteArray,
    hosts: jbyteArray,
    port: jint,
) -> jlong {
    let body = |jni: &Jni| {
        let client = CLIENTS.get(client)?;
        let port =
            u16::try_from(port).map_err(|_| Failure::Told(libc::EINVAL, format!("{port} is no port")))?;
        Ok(APPS.put(client.join_job(&text(jni, token)?, lines(jni, hosts)?, port)?))
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, 0, body) }
}

/// The nodes of a host by its names, one a line, and of second copies; one a line.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_shuffleNodesAt(
    env: *mut JNIEnv,
    class: jclass,
    app: jlong,
    hosts: jbyteArray,
    with_second: jboolean,
) -> jbyteArray {
    let body = |jni: &Jni| {
        let nodes = APPS.get(app)?.nodes_at(lines(jni, hosts)?, with_second)?;
        jni.new_bytes(nodes.join("\n").as_bytes())
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, null_mut(), body) }
}

/// Token, origin, and this node.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_shuffleNames(
    env: *mut JNIEnv,
    class: jclass,
    app: jlong,
) -> jbyteArray {
    let body = |jni: &Jni| {
        let shuffles = APPS.get(app)?;
        let mut answer = Encoder::default();
        let (app, node) = (shuffles.app(), shuffles.node());
        answer.bytes(app.token.as_bytes()).bytes(app.origin.as_bytes()).bytes(node.as_bytes());
        jni.new_bytes(&answer.finish())
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, null_mut(), body) }
}

/// The driver's: the application has a shuffle, or has removed it.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_shuffleLives(
    env: *mut JNIEnv,
    class: jclass,
    app: jlong,
    shuffle: jint,
    lives: jboolean,
) {
    let body = |_: &Jni| Ok(APPS.get(app)?.set_lives(shuffle as u32, lives)?);
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, (), body) }
}

/// Fails if the agent does not answer.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_shuffleCheck(
    env: *mut JNIEnv,
    class: jclass,
    app: jlong,
) {
    let body = |_: &Jni| Ok(APPS.get(app)?.check()?);
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, (), body) }
}

/// Removes the outputs of a shuffle on this node.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_shuffleRemove(
    env: *mut JNIEnv,
    class: jclass,
    app: jlong,
    shuffle: jint,
) {
    let body = |_: &Jni| Ok(APPS.get(app)?.remove(shuffle as u32)?);
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, (), body) }
}

/// Ends this process's part in an application; the driver's ends the application.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_shuffleClose(
    env: *mut JNIEnv,
    class: jclass,
    app: jlong,
) {
    let body = |_: &Jni| {
        APPS.take(app);
        Ok(())
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, (), body) }
}

/// Begins a map output.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_outputCreate(
    env: *mut JNIEnv,
    class: jclass,
    app: jlong,
    shuffle: jint,
    map: jlong,
) -> jlong {
    let body = |_: &Jni| Ok(OUTPUTS.put(Mutex::new(APPS.get(app)?.map_output(shuffle as u32, map as u64)?)));
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, 0, body) }
}

/// Appends `length` bytes of an array from `start` on.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_outputAppend(
    env: *mut JNIEnv,
    class: jclass,
    output: jlong,
    array: jbyteArray,
    start: jint,
    length: jint,
) {
    let body = |jni: &Jni| {
        let span = Span { start, length };
        let needed =
            u64::try_from(length).map_err(|_| Failure::Told(libc::EINVAL, "a negative length".into()))?;
        with_output(output, |output| {
            // Asks the agent, which may wait: before the array is lent.
            output.make_room(needed)?;
            Ok(jni.with_array(array, span, |bytes| output.append(bytes))??)
        })?
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, (), body) }
}

/// Reads what was appended, from `offset` on, into an array; the number of bytes.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_outputRead(
    env: *mut JNIEnv,
    class: jclass,
    output: jlong,
    offset: jlong,
    array: jbyteArray,
    length: jint,
) -> jint {
    let body = |jni: &Jni| {
        let offset = offset_of(offset)?;
        let span = Span { start: 0, length };
        let read = with_output(output, |output| {
            jni.with_array(array, span, |bytes| output.read_at(bytes, offset))
        })??;
        Ok(read? as jint)
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, -1, body) }
}

/// Ends an output whose partitions have these lengths, eight bytes each. It stays open for
/// [`Java_io_forebay_core_Native_outputClose`].
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_outputCommit(
    env: *mut JNIEnv,
    class: jclass,
    output: jlong,
    lengths: jbyteArray,
) {
    let body = |jni: &Jni| {
        let lengths: Vec<u64> = numbers(&jni.bytes(lengths)?).collect();
        Ok(with_output(output, |output| output.commit(&lengths))??)
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, (), body) }
}

/// Has a second node keep a copy of a committed output; the name of the node.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_outputCopy(
    env: *mut JNIEnv,
    class: jclass,
    output: jlong,
) -> jbyteArray {
    let body = |jni: &Jni| {
        let node = with_output(output, |output| output.copy())??;
        jni.new_bytes(node.as_bytes())
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, null_mut(), body) }
}

/// Closes an output; removes it if it is not committed.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_outputClose(
    env: *mut JNIEnv,
    class: jclass,
    output: jlong,
) {
    let body = |_: &Jni| {
        OUTPUTS.take(output);
        Ok(())
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, (), body) }
}

/// Fetches blocks of outputs on nodes, whose names are one a line. Each block is six numbers of
/// eight bytes: shuffle, map, first partition, one after the last, bytes to leave out, most bytes.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_blocksFetch(
    env: *mut JNIEnv,
    class: jclass,
    app: jlong,
    nodes: jbyteArray,
    blocks: jbyteArray,
) -> jlong {
    let body = |jni: &Jni| {
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
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, 0, body) }
}

/// Length of a fetched block in bytes.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_blockSize(
    env: *mut JNIEnv,
    class: jclass,
    blocks: jlong,
    number: jint,
) -> jlong {
    let body = |_: &Jni| {
        let len = FETCHED.get(blocks)?.len_of(number as usize);
        len.map(|len| len as jlong).ok_or_else(|| Failure::Told(libc::EINVAL, format!("no block {number}")))
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, -1, body) }
}

/// Bytes of the partitions of a fetched block, of which it may be a part.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_blockTotal(
    env: *mut JNIEnv,
    class: jclass,
    blocks: jlong,
    number: jint,
) -> jlong {
    let body = |_: &Jni| {
        let total = FETCHED.get(blocks)?.total_of(number as usize);
        total.map(|len| len as jlong).ok_or_else(|| Failure::Told(libc::EINVAL, format!("no block {number}")))
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, -1, body) }
}

/// Reads from a fetched block into an array; the number of bytes, 0 at its end.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_blockRead(
    env: *mut JNIEnv,
    class: jclass,
    blocks: jlong,
    number: jint,
    offset: jlong,
    array: jbyteArray,
    start: jint,
    length: jint,
) -> jint {
    let body = |jni: &Jni| {
        let fetched = FETCHED.get(blocks)?;
        let offset = offset_of(offset)?;
        let read = jni.with_array(array, Span { start, length }, |bytes| {
            fetched.read_at(number as usize, bytes, offset)
        })?;
        Ok(read? as jint)
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, -1, body) }
}

/// Releases fetched blocks.
///
/// # Safety
/// Called by the JVM.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_forebay_core_Native_blocksClose(
    env: *mut JNIEnv,
    class: jclass,
    blocks: jlong,
) {
    let body = |_: &Jni| {
        FETCHED.take(blocks);
        Ok(())
    };
    // SAFETY: what the JVM has passed.
    unsafe { Jni::run(env, class, (), body) }
}

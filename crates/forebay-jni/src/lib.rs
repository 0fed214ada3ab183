//! The native half of the Java binding: the `native` methods of `io.forebay.core.Native`.
//!
//! Java holds numbers, not addresses: every handle is looked up in a table here (`handles`), so a
//! handle that was closed, or closed by another thread just now, is an exception and never a wild
//! pointer. Paths come as bytes, answers with a structure go as bytes (`encode`), and a failure
//! becomes an exception with its error number (`env`). What is unsafe is in `env` and in the macro
//! `natives`, whose table lists all methods; the rest is plain Rust on the client core.
//!
//! Why not the `jni` crate: of the two hundred functions of a JVM ten are needed here, and its care
//! for references and exceptions pays off in code that works with Java objects, of which there are
//! none.

mod client;
mod encode;
mod env;
mod handles;
mod job;
mod names;
mod read;
mod shuffle;
mod write;

use env::Jni;
use jni_sys::{JNIEnv, jboolean, jbyteArray, jclass, jint, jlong, jobject};

/// Exports native methods: the name in Java, and the function here that does the work.
macro_rules! natives {
    ($($java:literal = $module:ident::$function:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(const _: () = {
            #[unsafe(export_name = concat!("Java_io_forebay_core_Native_", $java))]
            unsafe extern "system" fn native(
                env: *mut JNIEnv,
                class: jclass,
                $($argument: $type),*
            ) $(-> $returned)? {
                // SAFETY: called by the JVM, which has passed both for this call in this thread.
                unsafe { Jni::run(env, class, |jni| $module::$function(jni, $($argument),*)) }
            }
        };)*
    };
}

natives! {
    "clientNew" = client::client_new(
        socket: jbyteArray, deadline_ms: jlong, read_ahead_bytes: jlong, trusted_uid: jlong,
        quiet: jboolean
    ) -> jlong;
    "clientFree" = client::client_free(client: jlong);
    "mounts" = client::mounts(client: jlong) -> jbyteArray;
    "counters" = client::counters(client: jlong) -> jbyteArray;
    "locate" = client::locate(
        client: jlong, file: jbyteArray, offset: jlong, length: jlong, preferred: jint
    ) -> jbyteArray;
    "locateListed" = client::locate_listed(
        client: jlong, mount: jbyteArray, below: jbyteArray, inode: jlong, size: jlong, offset: jlong,
        length: jlong, preferred: jint
    ) -> jbyteArray;
    "evict" = client::evict(client: jlong, file: jbyteArray) -> jlong;
    "memoryOnlyFiles" = client::memory_only_files(client: jlong) -> jbyteArray;
    "renameNew" = names::rename_new(from: jbyteArray, to: jbyteArray) -> jint;
    "sameFile" = names::same_file(a: jbyteArray, b: jbyteArray) -> jboolean;
    "remove" = names::remove(client: jlong, file: jbyteArray);
    "open" = read::open(client: jlong, file: jbyteArray, mode: jint) -> jlong;
    "close" = read::close(file: jlong);
    "size" = read::size(file: jlong) -> jlong;
    "residentBytes" = read::resident_bytes(file: jlong) -> jlong;
    "readDirect" = read::read_direct(
        file: jlong, offset: jlong, buffer: jobject, start: jint, length: jint
    ) -> jint;
    "readArray" = read::read_array(
        file: jlong, offset: jlong, array: jbyteArray, start: jint, length: jint
    ) -> jint;
    "readResidentDirect" = read::read_resident_direct(
        file: jlong, offset: jlong, buffer: jobject, start: jint, length: jint
    ) -> jint;
    "readResidentArray" = read::read_resident_array(
        file: jlong, offset: jlong, array: jbyteArray, start: jint, length: jint
    ) -> jint;
    "map" = read::map(file: jlong, offset: jlong, length: jlong) -> jlong;
    "mapped" = read::mapped(mapping: jlong) -> jobject;
    "unmap" = read::unmap(mapping: jlong);
    "create" = write::create(
        client: jlong, file: jbyteArray, mode: jint, exclusive: jboolean, append: jboolean,
        permissions: jint
    ) -> jlong;
    "write" = write::write(writer: jlong, array: jbyteArray, start: jint, length: jint);
    "flush" = write::flush(writer: jlong, durable: jboolean);
    "closeWriter" = write::close_writer(writer: jlong);
    "jobBegin" = job::job_begin(client: jlong, name: jbyteArray, planner: jbyteArray) -> jlong;
    "jobReport" = job::job_report(job: jlong, updates: jbyteArray);
    "jobEnd" = job::job_end(job: jlong);
    "taskMayRead" = job::task_may_read(
        client: jlong, job: jbyteArray, stage: jint, partition: jint
    ) -> jboolean;
    "shuffleOpen" = shuffle::shuffle_open(client: jlong, token: jbyteArray, origin: jbyteArray) -> jlong;
    "shuffleJoinJob" = shuffle::shuffle_join_job(
        client: jlong, token: jbyteArray, hosts: jbyteArray, port: jint
    ) -> jlong;
    "shuffleNodesAt" = shuffle::shuffle_nodes_at(
        app: jlong, hosts: jbyteArray, with_second: jboolean
    ) -> jbyteArray;
    "shuffleNames" = shuffle::shuffle_names(app: jlong) -> jbyteArray;
    "shuffleLives" = shuffle::shuffle_lives(app: jlong, shuffle: jint, lives: jboolean);
    "shuffleCheck" = shuffle::shuffle_check(app: jlong);
    "shuffleRemove" = shuffle::shuffle_remove(app: jlong, shuffle: jint);
    "shuffleClose" = shuffle::shuffle_close(app: jlong);
    "outputCreate" = shuffle::output_create(app: jlong, shuffle: jint, map: jlong) -> jlong;
    "outputAppend" = shuffle::output_append(output: jlong, array: jbyteArray, start: jint, length: jint);
    "outputRead" = shuffle::output_read(
        output: jlong, offset: jlong, array: jbyteArray, length: jint
    ) -> jint;
    "outputCommit" = shuffle::output_commit(output: jlong, lengths: jbyteArray);
    "outputCopy" = shuffle::output_copy(output: jlong) -> jbyteArray;
    "outputClose" = shuffle::output_close(output: jlong);
    "blocksFetch" = shuffle::blocks_fetch(app: jlong, nodes: jbyteArray, blocks: jbyteArray) -> jlong;
    "blockSize" = shuffle::block_size(blocks: jlong, number: jint) -> jlong;
    "blockTotal" = shuffle::block_total(blocks: jlong, number: jint) -> jlong;
    "blockRead" = shuffle::block_read(
        blocks: jlong, number: jint, offset: jlong, array: jbyteArray, start: jint, length: jint
    ) -> jint;
    "blocksClose" = shuffle::blocks_close(blocks: jlong);
}

//! Makes the files of the first round, on a node, since only nodes may see the file system.

use crate::actor::{Actor, FILES, usual_bytes};
use crate::content::{Part, Source, fill};
use crate::record::{Found, Record, now_ns};
use std::io;
use std::os::unix::fs::MetadataExt;

pub fn run(mut actor: Actor) -> io::Result<()> {
    for dir in ["d0", "d1", "append"] {
        std::fs::create_dir_all(actor.orders.root.join(dir))?;
    }
    for path in 0..FILES {
        // Numbers that no process of the run draws.
        let (write, size) = (path + 1, usual_bytes(path));
        let mut bytes = vec![0; size as usize];
        fill(write, 0, &mut bytes);
        let name = actor.path(path);
        std::fs::write(&name, &bytes)?;
        let part = Part { start: 0, end: size, source: Source::Write(write) };
        let found = Some(Found { ino: std::fs::metadata(&name)?.ino(), parts: vec![part] });
        actor.note(&Record::Observed { at: now_ns(), path, found })?;
    }
    Ok(())
}

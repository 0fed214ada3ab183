//! Blocks of map outputs: those of this node through descriptors of their files, those of others
//! copied into a file of this tier that is removed with its reader.
//!
//! A block that is not there is an error. Nothing answers with fewer bytes than requested, so a
//! reducer never mistakes a lost block for an empty one.

use super::Shuffles;
use crate::counters::add;
use crate::jobs::scratch_files::{FILE_BYTES, Scratch};
use crate::lock::lock;
use crate::user_limits::Kind;
use forebay_store::bounded::BoundedFile;
use forebay_store::{Class, blocks_bytes};
use forebay_wire::shuffle::{App, BLOCKS_MAX, Block, BlockPlace, locate};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a peer may send nothing before it counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Room of blocks that were read is free at the next housekeeping; a reader that lacks room looks
/// again after this time.
const ROOM_PAUSE: Duration = Duration::from_millis(10);

/// How long a node is waited for before the next one that may have second copies is asked.
const OTHER_COPY_AFTER: Duration = Duration::from_secs(5);

/// A block of this node: its file, the bytes in it, and those of its partitions.
pub type Here = (OwnedFd, Range<u64>, u64);

/// Files, and where in them the blocks are.
pub type Found = (Vec<OwnedFd>, Vec<BlockPlace>);

impl Shuffles {
    /// Blocks of an application of user `uid`, from the first of `nodes` that has them all. Nodes
    /// that failed recently come last.
    ///
    /// # Errors
    /// The error of the first that failed: one of the blocks is not there, the node does not
    /// answer, or the tier has no room for them.
    pub fn fetch(
        &self,
        uid: u32,
        app: &App,
        nodes: &[String],
        blocks: &[Block],
        deadline: Instant,
    ) -> io::Result<Found> {
        let mut nodes: Vec<_> = nodes.iter().collect();
        nodes.sort_by_key(|node| self.cluster.is_avoided(node));
        let mut failed = None;
        for (number, node) in nodes.iter().enumerate() {
            let is_last = number + 1 == nodes.len();
            let until = if is_last { deadline } else { deadline.min(Instant::now() + OTHER_COPY_AFTER) };
            match self.fetch_from(uid, app, node, blocks, until) {
                Ok(found) => return Ok(found),
                Err(e) => {
                    if !is_last && !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy)
                    {
                        self.cluster.avoid(node);
                    }
                    failed.get_or_insert(e);
                }
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "their node is gone")))
    }

    fn fetch_from(
        &self,
        uid: u32,
        app: &App,
        node: &str,
        blocks: &[Block],
        deadline: Instant,
    ) -> io::Result<Found> {
        if blocks.is_empty() || blocks.len() > BLOCKS_MAX {
            let why = format!("a request is for 1 to {BLOCKS_MAX} blocks");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        add(&self.counters.shuffle_blocks_total, blocks.len() as u64);
        if node == self.node() {
            let found = self.blocks_here(uid, &app.token, blocks)?;
            let place = |(number, (_, part, total)): (usize, &Here)| BlockPlace {
                file: number as u32,
                offset: part.start,
                len: part.end - part.start,
                total: *total,
            };
            let places = found.iter().enumerate().map(place).collect();
            return Ok((found.into_iter().map(|(file, ..)| file).collect(), places));
        }
        self.at_peer(node, deadline, |link| {
            let lengths = link.blocks(&app.token, uid, blocks, deadline)?;
            if lengths.len() != blocks.len() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "not as many blocks as were asked for",
                ));
            }
            let total = lengths.iter().map(|(len, _)| len).sum();
            let scratch = self.room_for(uid, total, deadline)?;
            link.content(&scratch.file.for_writing()?, total, SILENCE_MAX)?;
            let (file, _) = scratch.file.for_reading()?;
            // It takes its room until the reader has closed it.
            self.files.give_up(uid, scratch);
            add(&self.counters.shuffle_from_peers_bytes, total);
            let mut offset = 0;
            let places = lengths.iter().map(|&(len, total)| {
                offset += len;
                BlockPlace { file: 0, offset: offset - len, len, total }
            });
            Ok((vec![file], places.collect()))
        })
        .map_err(|e| io::Error::new(e.kind(), format!("map outputs on node {node}: {e}")))
    }

    /// Files of this node's blocks, open for reading, where in them the blocks are, and the bytes
    /// of the partitions that they are a part of.
    ///
    /// # Errors
    /// `NotFound`: one of them is not here.
    pub fn blocks_here(&self, uid: u32, token: &str, blocks: &[Block]) -> io::Result<Vec<Here>> {
        let absent = |block: &Block, why: &str| {
            let Block { shuffle, map, first, end, .. } = block;
            let node = self.node();
            let what = format!("partitions {first} to {end} of map output {map} of shuffle {shuffle}");
            io::Error::new(io::ErrorKind::NotFound, format!("{what} are not on node {node}: {why}"))
        };
        let jobs = lock(&self.files.by_token);
        let job = jobs.get(token).filter(|job| job.uid == uid);
        let opened: io::Result<Vec<_>> = blocks
            .iter()
            .map(|block| {
                let job = job.ok_or_else(|| absent(block, "the agent does not know the application"))?;
                let output = job.files.get(&block.output_name());
                let output = output.ok_or_else(|| absent(block, "no such map output, or it is removed"))?;
                Ok((output.file.for_reading()?.0, block))
            })
            .collect();
        drop(jobs);
        let located = opened?.into_iter().map(|(file, block)| {
            let range = locate(&file, block.first, block.end).map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => absent(block, &e.to_string()),
                _ => e,
            })?;
            Ok((file, block.part_of(&range), range.end - range.start))
        });
        located.collect()
    }

    pub(super) fn room_for(&self, uid: u32, bytes: u64, deadline: Instant) -> io::Result<Scratch> {
        let (cache, shares) = (&self.cache, &self.shares);
        let room = loop {
            let held =
                cache.hold(shares, uid, Class::Scratch, blocks_bytes(bytes).saturating_add(FILE_BYTES));
            if held.is_err()
                && let Some(spill) = &self.spill
                && let Ok(share) = self.share_of_disk(uid, bytes)
                && let Ok(file) = spill.file(bytes)
            {
                return Ok(self.on_disk(uid, cache.next_copy(), file, share));
            }
            match held {
                Ok(room) => break room,
                Err(_) if Instant::now() + ROOM_PAUSE < deadline && !self.stop.is_stopping() => {
                    std::thread::sleep(ROOM_PAUSE);
                }
                Err(refusal) => {
                    let why = format!("no room for {bytes} bytes of them: {refusal}");
                    return Err(io::Error::new(io::ErrorKind::StorageFull, why));
                }
            }
        };
        let refused = |refusal| io::Error::other(format!("{refusal}"));
        let descriptors = BoundedFile::descriptors(&cache.tier);
        let descriptors = shares.share(Kind::Descriptors, uid, descriptors).map_err(refused)?;
        let file = BoundedFile::create(&cache.tier)?;
        if !file.set_room(room.bytes() - FILE_BYTES)? {
            return Err(io::Error::other("the room of a file cannot be set"));
        }
        Ok(Scratch { copy: cache.next_copy(), file, room, descriptors, on_disk: None })
    }
}

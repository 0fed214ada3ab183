//! The kernel's requests that a frozen tree answers, and those that change it.

use crate::abi::*;
use crate::data::{SET_FLAGS, SET_XATTR};
use crate::device::Device;
use crate::directory::{Entry as Dirent, append};
use crate::frozen::tree::{Found, Id, Kind, ROOT};
use crate::frozen::{Frozen, is_number};
use crate::fs::{Done, Effect, Fs, Out, attributes, self_path};
use crate::handles::{Handle, Opener};
use crate::nodes::FileId;
use crate::request::Request;
use crate::served::{Served, read_pfs};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Longer than any job; the kernel counts in 32 bits on some machines.
const FOR_EVER_S: u64 = u32::MAX as u64 / 1000;

/// Bytes of an entry of a listing that precede its name.
const BEFORE_NAME_BYTES: usize = size_of::<EntryOut>() + 24;

impl Fs {
    /// Answers a request if a frozen tree can; otherwise takes out of the tree what it may change.
    pub fn by_frozen(&self, frozen: &Frozen, request: &Request<'_>, out: &mut Out) -> Option<Done> {
        let done = self.answer_frozen(frozen, &mut request.clone(), out).transpose();
        if done.is_none() {
            out.clear();
            // What cannot be parsed is refused below.
            let _ = frozen.before(&mut request.clone(), &self.device);
        }
        done
    }

    /// Answers from the tree; `None`: the PFS answers.
    fn answer_frozen(
        &self,
        frozen: &Frozen,
        request: &mut Request<'_>,
        out: &mut Out,
    ) -> Result<Option<Effect>, Errno> {
        let node = request.header.nodeid;
        match request.header.opcode {
            READ | READDIR | READDIRPLUS | FLUSH | RELEASE | RELEASEDIR | FSYNCDIR => {
                return self.use_open(frozen, request, out);
            }
            _ => {}
        }
        let Some(id) = frozen.entry(node) else { return Ok(None) };
        match request.header.opcode {
            LOOKUP => return self.look_up(frozen, id, request, out),
            _ if !frozen.has_attributes(id) => return Ok(None),
            GETATTR => out.put(&AttrOut {
                attr_valid: FOR_EVER_S,
                attr: attributes(&frozen.tree.get(id).stat),
                ..AttrOut::default()
            }),
            STATX => out.put(&StatxOut {
                attr_valid: FOR_EVER_S,
                stat: crate::attributes::statx_attributes(&frozen.tree.get(id).stat),
                ..StatxOut::default()
            }),
            READLINK => match &frozen.tree.get(id).kind {
                Kind::Link { target } => out.bytes.extend_from_slice(target),
                _ => return Ok(None),
            },
            ACCESS => {
                let mask = request.arg::<AccessIn>()?.mask;
                let granted = match frozen.tree.get(id).kind {
                    Kind::Dir { is_whole: true, .. } => libc::R_OK | libc::X_OK,
                    Kind::File { at: Some(_) } => libc::R_OK,
                    _ => 0,
                };
                if mask & !granted != 0 {
                    return Ok(None);
                }
            }
            OPEN => return self.open_frozen(frozen, id, request, out),
            OPENDIR => match frozen.tree.get(id).kind {
                Kind::Dir { is_whole: true, .. } => {
                    let fh = frozen.opened(node, id);
                    out.put(&OpenOut { fh, open_flags: FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR, backing_id: 0 });
                    return Ok(Some(Effect::Opened(fh)));
                }
                _ => return Ok(None),
            },
            _ => return Ok(None),
        }
        Ok(Some(Effect::Nothing))
    }

    fn look_up(
        &self,
        frozen: &Frozen,
        dir: Id,
        request: &mut Request<'_>,
        out: &mut Out,
    ) -> Result<Option<Effect>, Errno> {
        let parent = request.header.nodeid;
        let mut by_name = *request;
        let name = request.name()?.to_bytes();
        match frozen.find(dir, name) {
            Found::Unknown => Ok(None),
            Found::Nothing => {
                out.put(&EntryOut { entry_valid: FOR_EVER_S, ..EntryOut::default() });
                Ok(Some(Effect::Nothing))
            }
            Found::Entry(id) if frozen.has_attributes(id) || frozen.is_way(id) => {
                let entry = self.frozen_entry(frozen, parent, name, id);
                out.put(&entry);
                Ok(Some(Effect::LookedUp(entry.nodeid)))
            }
            Found::Entry(id) => {
                let done = self.lookup(&mut by_name, out)?;
                let is_it = |entry: EntryOut| entry.attr.ino == frozen.tree.get(id).stat.stx_ino;
                if let Effect::LookedUp(node) = done
                    && from_bytes(&out.bytes).is_some_and(is_it)
                {
                    frozen.note(node, id);
                }
                Ok(Some(done))
            }
        }
    }

    fn frozen_entry(&self, frozen: &Frozen, parent: u64, name: &[u8], id: Id) -> EntryOut {
        let stat = &frozen.tree.get(id).stat;
        let nodeid = self.nodes.looked_up(parent, name, FileId::of(stat));
        frozen.note(nodeid, id);
        EntryOut {
            nodeid,
            entry_valid: FOR_EVER_S,
            attr_valid: if frozen.has_attributes(id) { FOR_EVER_S } else { 0 },
            attr: attributes(stat),
            ..EntryOut::default()
        }
    }

    fn open_frozen(
        &self,
        frozen: &Frozen,
        id: Id,
        request: &mut Request<'_>,
        out: &mut Out,
    ) -> Result<Option<Effect>, Errno> {
        const OF_CONTENT: i32 = libc::O_ACCMODE | libc::O_TRUNC | libc::O_DIRECT | libc::O_PATH;
        let flags = request.arg::<OpenIn>()?.flags;
        if flags & OF_CONTENT != libc::O_RDONLY || frozen.content(id).is_none() {
            return Ok(None);
        }
        let node = request.header.nodeid;
        if flags & FMODE_EXEC != 0 {
            self.may(self.locate(node)?.as_fd(), libc::X_OK)?;
        }
        let fh = frozen.opened(node, id);
        out.put(&OpenOut { fh, open_flags: FOPEN_KEEP_CACHE, backing_id: 0 });
        Ok(Some(Effect::Opened(fh)))
    }

    /// Requests for open files, whose numbers come first.
    fn use_open(
        &self,
        frozen: &Frozen,
        request: &mut Request<'_>,
        out: &mut Out,
    ) -> Result<Option<Effect>, Errno> {
        let mut rest = *request;
        let number: u64 = rest.arg()?;
        let Some(open) = is_number(number).then(|| frozen.opened_as(number)).flatten() else {
            return Ok(None);
        };
        match request.header.opcode {
            READ => {
                let arg: ReadIn = request.arg()?;
                let Some((image, at)) = frozen.content(open.id) else { return Ok(None) };
                let left = frozen.tree.get(open.id).stat.stx_size.saturating_sub(arg.offset);
                let buffer = out.data(u64::from(arg.size).min(left) as u32);
                let n =
                    read_pfs(image, buffer, at + arg.offset, true).map_err(|e| crate::fs::number_of(&e))?;
                out.has_data(n);
            }
            READDIR | READDIRPLUS => {
                let arg: ReadIn = request.arg()?;
                let with_attributes = request.header.opcode == READDIRPLUS;
                self.list_frozen(frozen, open.id, request.header.nodeid, &arg, with_attributes, out);
            }
            FLUSH => {
                let arg: FlushIn = request.arg()?;
                if !self.locks.are_none()
                    && let Some(file) = self.nodes.file(open.node)
                {
                    self.locks.drop_owner(file, arg.lock_owner);
                }
            }
            RELEASE if open.real.is_some() => {
                self.release(request)?;
                frozen.closed(number);
            }
            RELEASE | RELEASEDIR => {
                frozen.closed(number);
            }
            _ => {}
        }
        Ok(Some(Effect::Nothing))
    }

    fn list_frozen(
        &self,
        frozen: &Frozen,
        dir: Id,
        node: u64,
        arg: &ReadIn,
        with_attributes: bool,
        out: &mut Out,
    ) {
        let entry = frozen.tree.get(dir);
        let own: [(&[u8], Id); 2] = [(b".", dir), (b"..", entry.parent)];
        let listed = frozen.tree.listed(dir);
        let all = own.into_iter().chain(listed.iter().map(|id| (&*frozen.tree.get(*id).name, *id)));
        let room = arg.size as usize;
        for (at, (name, id)) in all.enumerate().skip(arg.offset as usize) {
            let stat = &frozen.tree.get(id).stat;
            let before = if with_attributes { BEFORE_NAME_BYTES } else { 24 };
            if out.bytes.len() + (before + name.len()).next_multiple_of(8) > room {
                return;
            }
            let is_known = at >= own.len() && frozen.find(dir, name) == Found::Entry(id);
            let attributes = match with_attributes && is_known && frozen.has_attributes(id) {
                true => self.frozen_entry(frozen, node, name, id),
                // The kernel looks it up when it needs it.
                false => EntryOut::default(),
            };
            let before = if with_attributes { bytes_of(&attributes) } else { &[] };
            let kind = (stat.stx_mode >> 12) as u8;
            let next = at as i64 + 1;
            append(&mut out.bytes, room, before, Dirent { ino: stat.stx_ino, next, kind, name });
        }
    }

    /// The PFS's file of an open file of a frozen tree, which is opened now.
    ///
    /// # Errors
    /// What the PFS returns.
    pub fn real_handle(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        let frozen = self.frozen.as_ref().ok_or(Errno::BADF)?;
        let open = frozen.opened_as(number).ok_or(Errno::BADF)?;
        if let Some(real) = open.real {
            return Ok(real);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = rustix::fs::open(self_path(self.locate(open.node)?.as_fd()), flags, Mode::empty())?;
        let opener = Opener { uid: rustix::process::geteuid().as_raw(), share: None };
        let handle = Handle::file(open.node, libc::O_RDONLY, fd, Served::never(), opener, None);
        Ok(frozen.has_real(number, handle))
    }
}

impl Frozen {
    /// Notes that the PFS has answered for a name: its node is not an entry, even if the inode
    /// number was that of one.
    pub fn answered_by_pfs(&self, done: &Done) {
        if let Ok(Effect::LookedUp(node) | Effect::Created(node, _)) = done {
            self.forget(*node);
        }
    }

    /// Takes out what the request may change.
    fn before(&self, request: &mut Request<'_>, device: &Device) -> Result<(), Errno> {
        let (node, opcode) = (request.header.nodeid, request.header.opcode);
        let name_in = |node: u64, name: &std::ffi::CStr| {
            if let Some(dir) = self.entry(node) {
                self.changes_name(dir, name.to_bytes());
            }
        };
        let attributes_of = |node: u64| {
            if let Some(id) = self.entry(node).filter(|id| *id != ROOT) {
                self.changes_attributes(id);
            }
        };
        let content_of = |node: u64| {
            if let Some(id) = self.entry(node).filter(|id| *id != ROOT) {
                self.changes_content(id);
                device.forget_attributes(node);
            }
        };
        match opcode {
            SETATTR => match request.arg::<SetattrIn>()?.valid & FATTR_SIZE {
                0 => attributes_of(node),
                _ => content_of(node),
            },
            IOCTL if [SET_FLAGS, SET_XATTR].contains(&request.arg::<IoctlIn>()?.cmd) => attributes_of(node),
            SETXATTR | REMOVEXATTR | TMPFILE => attributes_of(node),
            OPEN => {
                let flags = request.arg::<OpenIn>()?.flags;
                if flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY {
                    content_of(node);
                }
            }
            MKNOD => drop(request.arg::<MknodIn>()),
            MKDIR => drop(request.arg::<MkdirIn>()),
            CREATE => drop(request.arg::<CreateIn>()),
            LINK => attributes_of(request.arg::<LinkIn>()?.oldnodeid),
            _ => {}
        }
        match opcode {
            MKNOD | MKDIR | SYMLINK | LINK | UNLINK | RMDIR => name_in(node, request.name()?),
            CREATE => {
                let name = request.name()?;
                if let Some(dir) = self.entry(node)
                    && let Found::Entry(id) = self.find(dir, name.to_bytes())
                {
                    self.changes_content(id);
                }
                name_in(node, name);
            }
            RENAME | RENAME2 => {
                let to = match opcode {
                    RENAME => request.arg::<RenameIn>()?.newdir,
                    _ => request.arg::<Rename2In>()?.newdir,
                };
                name_in(node, request.name()?);
                name_in(to, request.name()?);
            }
            _ => {}
        }
        Ok(())
    }
}

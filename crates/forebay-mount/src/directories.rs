//! Open directories.

use crate::abi::{EntryOut, FsyncIn, OpenIn, OpenOut, ReadIn, ReleaseIn, bytes_of};
use crate::directory::append;
use crate::fs::{Done, Effect, Fs, Out, self_path};
use crate::handles::Handle;
use crate::nodes::FileId;
use crate::request::Request;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::PoisonError;

impl Fs {
    /// Serves OPENDIR.
    ///
    /// # Errors
    /// What the PFS returns, as for all operations.
    pub fn opendir(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let _arg: OpenIn = request.arg()?;
        let node = request.header.nodeid;
        let opener = self.opener(request.header.uid)?;
        self.callers.act_as_caller(&request.header)?;
        let dir = self.locate(node)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(self_path(dir.as_fd()), flags, Mode::empty())?;
        let handle = Handle::directory(node, fd, opener);
        self.nodes.opened(node, &handle, None, None);
        let number = self.handles.add(handle);
        out.put(&OpenOut { fh: number, open_flags: 0, backing_id: 0 });
        Ok(Effect::Opened(number))
    }

    /// Serves READDIR.
    ///
    /// # Errors
    /// As for all operations.
    pub fn readdir(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: ReadIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        let stream = handle.stream.as_ref().ok_or(Errno::NOTDIR)?;
        let room = arg.size as usize;
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = &mut out.bytes;
        stream.list(handle.as_fd(), arg.offset as i64, |entry| Ok(append(bytes, room, &[], entry)))?;
        Ok(Effect::Nothing)
    }

    /// Serves READDIRPLUS: entries with attributes, which the kernel may use while it caches them.
    ///
    /// # Errors
    /// As for all operations.
    pub fn readdirplus(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: ReadIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        let stream = handle.stream.as_ref().ok_or(Errno::NOTDIR)?;
        self.callers.act_as_caller(&request.header)?;
        let room = arg.size as usize;
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = &mut out.bytes;
        stream.list(handle.as_fd(), arg.offset as i64, |entry| {
            let room_left = room - bytes.len().min(room);
            if room_left < size_of::<EntryOut>() + 24 + entry.name.len() + 8 {
                return Ok(false);
            }
            let attributes = self.entry_plus(&handle, entry.name);
            Ok(append(bytes, room, bytes_of(&attributes), entry))
        })?;
        Ok(Effect::Nothing)
    }

    /// The attributes of `name`. All zero if it has none here; the kernel then looks it up when
    /// needed.
    fn entry_plus(&self, handle: &Handle, name: &[u8]) -> EntryOut {
        let Ok(text) = CString::new(name) else { return EntryOut::default() };
        // What the kernel may not cache is not requested.
        if name == b"." || name == b".." || self.valid_for.is_zero() {
            return EntryOut::default();
        }
        match self.stat_name(handle.as_fd(), &text) {
            Ok(stat) => {
                let node = self.nodes.looked_up(handle.node, name, FileId::of(&stat));
                self.entry(node, &stat)
            }
            Err(_) => EntryOut::default(),
        }
    }

    /// Serves FSYNCDIR.
    ///
    /// # Errors
    /// As for all operations.
    pub fn fsyncdir(&self, request: &mut Request<'_>) -> Done {
        let arg: FsyncIn = request.arg()?;
        self.callers.act_as_daemon();
        rustix::fs::fsync(self.handle(arg.fh)?.as_fd())?;
        Ok(Effect::Nothing)
    }

    /// Serves RELEASEDIR.
    ///
    /// # Errors
    /// As for all operations.
    pub fn releasedir(&self, request: &mut Request<'_>) -> Done {
        let arg: ReleaseIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        self.close_handle(arg.fh, &handle);
        Ok(Effect::Nothing)
    }
}

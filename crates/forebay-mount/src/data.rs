//! The content of open files.

use crate::abi::{
    CopyFileRangeIn, FSYNC_FDATASYNC, FallocateIn, FsyncIn, IoctlIn, IoctlOut, LseekIn, LseekOut, ReadIn,
    WRITE_CACHE, WRITE_KILL_SUIDGID, WriteIn, WriteOut,
};
use crate::content::Content;
use crate::fs::{Done, Effect, Fs, Out, last_error, number_of};
use crate::handles::Handle;
use crate::request::Request;
use crate::served::read_pfs;
use crate::writes::{write_all, write_once};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Most bytes that one copy request copies, so that it ends soon.
const COPY_BYTES: u64 = 128 << 20;

/// Requests for the file flags of `lsattr` and `chattr`, each in two forms.
const GET_FLAGS: u32 = 0x8008_6601;
/// Sets them.
pub const SET_FLAGS: u32 = 0x4008_6602;
const GET_XATTR: u32 = 0x801c_581f;
/// Sets them.
pub const SET_XATTR: u32 = 0x401c_5820;

impl Fs {
    /// Serves READ.
    ///
    /// # Errors
    /// What the PFS returns, as for all operations.
    pub fn read(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: ReadIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        self.nodes.used(&handle);
        let buffer = out.data(arg.size);
        while let Some(content) = self.current_content(&handle) {
            if let Some(n) = content.read(buffer, arg.offset).map_err(|e| number_of(&e))? {
                out.has_data(n);
                return Ok(Effect::Nothing);
            }
            // It is called in: a guest reads it on the PFS once that has it.
            self.go_on_at_pfs(&handle)?;
        }
        self.register_with_tier(&handle);
        let n = match handle.served.read(buffer, arg.offset) {
            Some(n) => n,
            None => {
                self.client.pace(buffer.len() as u64);
                handle.with_flags(arg.flags, || read_through(&handle, buffer, arg.offset))?
            }
        };
        out.has_data(n);
        Ok(Effect::Nothing)
    }

    /// Serves WRITE.
    ///
    /// # Errors
    /// As for all operations.
    pub fn write(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: WriteIn = request.arg()?;
        let data = request.bytes(arg.size)?;
        let handle = self.handle(arg.fh)?;
        let appends = (handle.flags & libc::O_APPEND != 0, arg.flags & libc::O_APPEND != 0);
        let (from_cache, kill) =
            (arg.write_flags & WRITE_CACHE != 0, arg.write_flags & WRITE_KILL_SUIDGID != 0);
        let mut done = 0;
        while done < data.len() {
            let (rest, offset) = (&data[done..], arg.offset + done as u64);
            let to_content =
                |content: &Content| content.write(rest, offset, appends).map_err(|e| number_of(&e));
            let was_in_memory = handle.content().is_some();
            match self.write_to_content(&handle, (rest.len() as u64, kill), to_content) {
                Ok(Some(0)) => break,
                Ok(Some(n)) => done += n,
                Ok(None) => {
                    if was_in_memory && !from_cache {
                        Self::refuse_to_the_dead(&request.header)?;
                    }
                    if self.client.is_limited() {
                        self.callers.act_as_daemon();
                        self.client.pace(rest.len() as u64);
                    }
                    let opener = handle.writer.as_deref().filter(|_| from_cache);
                    self.callers.act_as_writer(&request.header, opener, kill);
                    let written = write_all(rest, offset, |data, offset| {
                        handle.with_flags(arg.flags, || write_once(handle.as_fd(), data, offset, appends))
                    })?;
                    handle.wrote(offset, written as u64);
                    done += written;
                    break;
                }
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        out.put(&WriteOut { size: done as u32, padding: 0 });
        Ok(Effect::Nothing)
    }

    /// Serves FSYNC and FSYNCDIR.
    ///
    /// # Errors
    /// As for all operations.
    pub fn fsync(&self, request: &mut Request<'_>) -> Done {
        let arg: FsyncIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        self.callers.act_as_daemon();
        if let Some(content) = handle.content() {
            content.keep(&self.client).map_err(|e| number_of(&e))?;
            return Ok(Effect::Nothing);
        }
        match arg.fsync_flags & FSYNC_FDATASYNC {
            0 => rustix::fs::fsync(handle.as_fd())?,
            _ => rustix::fs::fdatasync(handle.as_fd())?,
        }
        Ok(Effect::Nothing)
    }

    /// Serves SYNCFS.
    ///
    /// # Errors
    /// As for all operations.
    pub fn syncfs(&self) -> Done {
        self.callers.act_as_daemon();
        let root = rustix::fs::openat(
            &self.root,
            c".",
            OFlags::RDONLY | OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        rustix::fs::syncfs(root)?;
        Ok(Effect::Nothing)
    }

    /// Serves FALLOCATE: reserves, punches and shifts.
    ///
    /// # Errors
    /// As for all operations.
    pub fn fallocate(&self, request: &mut Request<'_>) -> Done {
        let arg: FallocateIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        let flags = FallocateFlags::from_bits_retain(arg.mode as u32);
        let bytes = if flags.contains(FallocateFlags::PUNCH_HOLE) { 0 } else { arg.length };
        let change = |content: &Content| {
            let file = content.file().ok_or(Errno::OPNOTSUPP)?;
            rustix::fs::fallocate(file, flags, arg.offset, arg.length).map(Some)
        };
        let was_in_memory = handle.content().is_some();
        match self.write_to_content(&handle, (bytes, request.header.uid != 0), change) {
            Ok(Some(())) => return Ok(Effect::Nothing),
            // The memory cannot do it, and the PFS may.
            Err(Errno::OPNOTSUPP) => self.go_on_at_pfs(&handle)?,
            Ok(None) => {}
            Err(e) => return Err(e),
        }
        if was_in_memory {
            Self::refuse_to_the_dead(&request.header)?;
        }
        self.callers.act_as_caller(&request.header)?;
        rustix::fs::fallocate(handle.as_fd(), flags, arg.offset, arg.length)?;
        handle.wrote(arg.offset, arg.length);
        Ok(Effect::Nothing)
    }

    /// Serves LSEEK: holes and data.
    ///
    /// # Errors
    /// As for all operations.
    pub fn lseek(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: LseekIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        let content = self.current_content(&handle);
        let Some(file) = content.as_ref().map_or(Some(handle.as_fd()), |content| content.file()) else {
            // All of it is data.
            out.put(&LseekOut { offset: self.seek_away(&handle, arg.offset, arg.whence)? });
            return Ok(Effect::Nothing);
        };
        // SAFETY: no pointers. Nobody uses the position of this descriptor.
        let offset = unsafe { libc::lseek(file.as_raw_fd(), arg.offset, arg.whence) };
        if offset < 0 {
            return Err(last_error());
        }
        out.put(&LseekOut { offset });
        Ok(Effect::Nothing)
    }

    fn seek_away(&self, handle: &Handle, offset: i64, whence: i32) -> Result<i64, Errno> {
        let stat = crate::fs::stat(handle.as_fd())?;
        let size = self.newest(handle.node, &stat).stx_size as i64;
        match whence {
            _ if !(0..size).contains(&offset) => Err(Errno::NXIO),
            libc::SEEK_DATA => Ok(offset),
            _ => Ok(size),
        }
    }

    /// Serves COPY_FILE_RANGE: the PFS copies, perhaps without moving bytes.
    ///
    /// # Errors
    /// As for all operations.
    pub fn copy_file_range(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: CopyFileRangeIn = request.arg()?;
        let (from, to) = (self.handle(arg.fh_in)?, self.handle(arg.fh_out)?);
        let len = arg.len.min(COPY_BYTES) as usize;
        let source = self.current_content(&from);
        let source =
            source.as_ref().map_or(Some(from.as_fd()), |content| content.file()).ok_or(Errno::XDEV)?;
        let copy = |to: BorrowedFd<'_>| {
            let (mut off_in, mut off_out) = (arg.off_in, arg.off_out);
            // Between a content and a file of the PFS this is EXDEV, and the kernel copies itself.
            rustix::fs::copy_file_range(source, Some(&mut off_in), to, Some(&mut off_out), len)
        };
        let to_content = |content: &Content| copy(content.file().ok_or(Errno::XDEV)?).map(Some);
        let was_in_memory = to.content().is_some();
        let n = match self.write_to_content(&to, (len as u64, request.header.uid != 0), to_content)? {
            Some(n) => n,
            None => {
                if was_in_memory {
                    Self::refuse_to_the_dead(&request.header)?;
                }
                self.callers.act_as_writer(&request.header, None, true);
                let n = copy(to.as_fd())?;
                to.wrote(arg.off_out, n as u64);
                n
            }
        };
        out.put(&WriteOut { size: n as u32, padding: 0 });
        Ok(Effect::Nothing)
    }

    /// Serves IOCTL: the flags of files, and nothing else.
    ///
    /// # Errors
    /// `ENOTTY` for others.
    pub fn ioctl(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: IoctlIn = request.arg()?;
        let bytes = request.bytes(arg.in_size)?;
        let len = match arg.cmd {
            GET_FLAGS | SET_FLAGS => size_of::<libc::c_int>(),
            GET_XATTR | SET_XATTR => 28,
            // Python asks of each file that it opens whether it is a terminal.
            _ => return Err(Errno::NOTTY),
        };
        let handle = self.handle(arg.fh)?;
        let gets = matches!(arg.cmd, GET_FLAGS | GET_XATTR);
        let mut value = [0_u64; 4];
        // SAFETY: four words, as bytes.
        let room = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), 32) };
        let given = bytes.len().min(room.len());
        room[..given].copy_from_slice(&bytes[..given]);
        self.callers.act_as_caller(&request.header)?;
        // SAFETY: these requests read or write at most 28 bytes.
        if unsafe { libc::ioctl(handle.as_fd().as_raw_fd(), arg.cmd as libc::Ioctl, room.as_mut_ptr()) } < 0 {
            return Err(last_error());
        }
        out.put(&IoctlOut::default());
        if gets {
            out.bytes.extend_from_slice(&room[..len]);
        }
        Ok(Effect::Nothing)
    }
}

/// Reads the PFS's own file.
fn read_through(handle: &Handle, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let all = handle.kept().is_some();
    match read_pfs(handle.as_fd(), buffer, offset, all) {
        // The agent has set `O_DIRECT` on a file that it has read past the page cache.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) && handle.flags & libc::O_DIRECT == 0 => {
            let flags = rustix::fs::fcntl_getfl(handle.as_fd())?;
            rustix::fs::fcntl_setfl(handle.as_fd(), flags - OFlags::DIRECT)?;
            read_pfs(handle.as_fd(), buffer, offset, all).map_err(|e| number_of(&e))
        }
        result => result.map_err(|e| number_of(&e)),
    }
}

//! The FUSE requests, one method each. They contain no logic: a method unpacks its request, names
//! the function that serves it and the way its result is answered.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno as FuseErrno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};

use super::backing::Caller;
use super::control;
use super::data::{self, errno};
use super::fault::Op;
use super::meta::{self, Changes, On, Opened, run};
use super::nodes::ROOT;
use super::state::State;

/// The largest request: 256 pages, the kernel's default limit. Smaller ones cost round trips,
/// larger ones are refused.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Background requests (read-ahead) pending at the same time. Hung ones count too, so it must
/// exceed what a test hangs.
const BACKGROUND_MAX: u16 = 1024;

/// The kernel's view of the shared state.
pub struct SlowFs(pub Arc<State>);

impl SlowFs {
    fn entry(&self) -> impl FnOnce(ReplyEntry, FileAttr) + Send + 'static {
        let ttl = self.0.ttl;
        move |reply, attr| reply.entry(&ttl, &attr, Generation(0))
    }

    fn attr(&self) -> impl FnOnce(ReplyAttr, FileAttr) + Send + 'static {
        let ttl = self.0.ttl;
        move |reply, attr| reply.attr(&ttl, &attr)
    }

    /// The page cache of a file is kept from one open to the next only while somebody has it open
    /// and nothing has changed it: concurrent readers share what one of them fetched, as with the
    /// clients of real parallel file systems. Otherwise an open starts from the servers, so changes
    /// in the backing directory are seen, and a second pass over a file is as slow as the first.
    fn open_flags(&self) -> impl FnOnce(&Opened) -> FopenFlags + Send + 'static {
        let direct_io = self.0.direct_io;
        move |opened| match (direct_io, opened.keep_cache) {
            (true, _) => FopenFlags::FOPEN_DIRECT_IO,
            (false, true) => FopenFlags::FOPEN_KEEP_CACHE,
            (false, false) => FopenFlags::empty(),
        }
    }
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), thread: request.pid() }
}

fn done(reply: ReplyEmpty, (): ()) {
    reply.ok();
}

impl Filesystem for SlowFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |what: &str| io::Error::other(format!("the kernel refuses {what}"));
        config.set_max_write(REQUEST_BYTES_MAX).map_err(|_| refused("requests of 1 MiB"))?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| refused("1024 background requests"))?;
        // Each of these is worth having and none is needed; an old kernel goes without.
        for wish in
            [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS, InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP]
        {
            let _ = config.add_capabilities(wish);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (parent, owned) = (parent.0, name.to_owned());
        let act = move |state: &State| meta::lookup(state, parent, &owned);
        run(&self.0, Op::Meta, On::Name(parent, name), reply, act, self.entry());
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.0.nodes.forget(ino.0, nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let act = move |state: &State| meta::getattr(state, ino.0);
        let on = if ino.0 == ROOT { On::RootAttributes } else { On::Inode(ino.0) };
        run(&self.0, Op::Meta, on, reply, act, self.attr());
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes { mode, uid, gid, size, atime, mtime };
        let act = move |state: &State| meta::setattr(state, ino.0, &changes);
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, self.attr());
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        let act = move |state: &State| meta::readlink(state, ino.0);
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, |reply, target| {
            reply.data(target.as_encoded_bytes());
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (owned, who) = (name.to_owned(), caller(request));
        let act = move |state: &State| meta::mknod(state, parent.0, &owned, mode, rdev, who);
        run(&self.0, Op::Meta, On::Name(parent.0, name), reply, act, self.entry());
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (owned, who) = (name.to_owned(), caller(request));
        let act = move |state: &State| meta::mkdir(state, parent.0, &owned, mode, who);
        run(&self.0, Op::Meta, On::Name(parent.0, name), reply, act, self.entry());
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let owned = name.to_owned();
        let act = move |state: &State| meta::remove(state, parent.0, &owned, false);
        run(&self.0, Op::Meta, On::Name(parent.0, name), reply, act, done);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let owned = name.to_owned();
        let act = move |state: &State| meta::remove(state, parent.0, &owned, true);
        run(&self.0, Op::Meta, On::Name(parent.0, name), reply, act, done);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (owned, target, who) = (name.to_owned(), target.as_os_str().to_owned(), caller(request));
        let act = move |state: &State| meta::symlink(state, parent.0, &owned, &target, who);
        run(&self.0, Op::Meta, On::Name(parent.0, name), reply, act, self.entry());
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (name.to_owned(), newname.to_owned());
        let act =
            move |state: &State| meta::rename(state, (parent.0, &from), (newparent.0, &to), flags.bits());
        run(&self.0, Op::Meta, On::Name(parent.0, name), reply, act, done);
    }

    fn link(&self, _request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let owned = newname.to_owned();
        let act = move |state: &State| meta::link(state, ino.0, newparent.0, &owned);
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, self.entry());
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let fopen = self.open_flags();
        let opener = request.pid();
        let act = move |state: &State| meta::open(state, ino.0, flags.0, opener);
        run(&self.0, Op::Open, On::Inode(ino.0), reply, act, move |reply, opened| {
            reply.opened(FileHandle(opened.handle), fopen(&opened));
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (owned, who, ttl, fopen) = (name.to_owned(), caller(request), self.0.ttl, self.open_flags());
        let act = move |state: &State| meta::create(state, parent.0, &owned, mode, flags, who);
        run(&self.0, Op::Open, On::Name(parent.0, name), reply, act, move |reply, (attr, opened)| {
            reply.created(&ttl, &attr, Generation(0), FileHandle(opened.handle), fopen(&opened));
        });
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.files.get(fh.0) {
            Some(file) => data::read(&self.0, data::Read { file, offset, size, reply }),
            None => reply.error(FuseErrno::EBADF),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        bytes: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.files.get(fh.0) {
            Some(file) => data::write(&self.0, file, offset, bytes, reply),
            None => reply.error(FuseErrno::EBADF),
        }
    }

    fn flush(&self, request: &Request, _ino: INodeNo, fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        let Some(file) = self.0.files.get(fh.0) else { return reply.error(FuseErrno::EBADF) };
        file.flushed(request.pid());
        data::sync(&self.0, file, None, reply);
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        match self.0.files.get(fh.0) {
            Some(file) => data::sync(&self.0, file, Some(datasync), reply),
            None => reply.error(FuseErrno::EBADF),
        }
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        meta::release(&self.0, fh.0);
        reply.ok();
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let act = move |state: &State| meta::opendir(state, ino.0);
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, |reply, handle| {
            reply.opened(FileHandle(handle), FopenFlags::empty());
        });
    }

    fn readdir(&self, _request: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        let act = move |state: &State| meta::readdir(state, fh.0, offset);
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, meta::answer_entries);
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.dirs.remove(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, ino: INodeNo, _fh: FileHandle, _data: bool, reply: ReplyEmpty) {
        // Names are in the backing directory the moment they are made; only the round trip is left
        // to model.
        run(&self.0, Op::Sync, On::Inode(ino.0), reply, |_| Ok(()), done);
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let act = |state: &State| rustix::fs::fstatvfs(state.backing.root());
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, |reply, fs| {
            let (bsize, frsize) = (fs.f_bsize as u32, fs.f_frsize as u32);
            let name_max = fs.f_namemax as u32;
            reply.statfs(
                fs.f_blocks,
                fs.f_bfree,
                fs.f_bavail,
                fs.f_files,
                fs.f_ffree,
                bsize,
                name_max,
                frsize,
            );
        });
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if let Some(result) = control::virtual_set(&self.0, ino.0, name, value) {
            return match result {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            };
        }
        let (name, value) = (name.to_owned(), value.to_owned());
        let act = move |state: &State| control::set(state, ino.0, &name, &value, flags);
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, done);
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let at_once = control::virtual_get(&self.0, ino.0, name)
            .or_else(|| control::is_kernel_chatter(name).then(|| control::get(&self.0, ino.0, name)));
        if let Some(result) = at_once {
            return match result {
                Ok(value) => control::answer(reply, size, &value),
                Err(error) => reply.error(errno(error)),
            };
        }
        let name = name.to_owned();
        let act = move |state: &State| control::get(state, ino.0, &name);
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, move |reply, value| {
            control::answer(reply, size, &value);
        });
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let act = move |state: &State| control::list(state, ino.0);
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, move |reply, names| {
            control::answer(reply, size, &names);
        });
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        let act = move |state: &State| control::remove(state, ino.0, &name);
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, done);
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(file) = self.0.files.get(fh.0) else { return reply.error(FuseErrno::EBADF) };
        let act = move |_: &State| {
            let mode = rustix::fs::FallocateFlags::from_bits_truncate(mode as u32);
            rustix::fs::fallocate(&*file, mode, offset, length)
        };
        run(&self.0, Op::Write, On::Inode(ino.0), reply, act, done);
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Some(file) = self.0.files.get(fh.0) else { return reply.error(FuseErrno::EBADF) };
        let act = move |_: &State| meta::lseek(&file, offset, whence);
        run(&self.0, Op::Meta, On::Inode(ino.0), reply, act, ReplyLseek::offset);
    }
}

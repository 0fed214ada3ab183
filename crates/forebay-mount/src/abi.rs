//! The kernel's FUSE protocol (`linux/fuse.h`): numbers and layouts, and nothing else.
//!
//! The names are those of the header, so that its documentation applies. Only the parts that this
//! file system uses are here.

#![allow(missing_docs, reason = "the kernel's header documents these")]

/// Version of the protocol that this file system speaks.
pub const KERNEL_VERSION: u32 = 7;
/// 7.40 has FUSE_PASSTHROUGH.
pub const KERNEL_MINOR_VERSION: u32 = 40;
pub const ROOT_ID: u64 = 1;

macro_rules! numbers {
    ($type:ty: $($name:ident = $value:expr,)*) => {
        $(pub const $name: $type = $value;)*
    };
}

numbers! { u32:
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    GETLK = 31,
    SETLK = 32,
    SETLKW = 33,
    ACCESS = 34,
    CREATE = 35,
    INTERRUPT = 36,
    DESTROY = 38,
    IOCTL = 39,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    SYNCFS = 50,
    TMPFILE = 51,
    STATX = 52,
}

// Flags of INIT: features of the kernel that this file system uses.
numbers! { u64:
    ASYNC_READ = 1 << 0,
    POSIX_LOCKS = 1 << 1,
    ATOMIC_O_TRUNC = 1 << 3,
    BIG_WRITES = 1 << 5,
    DONT_MASK = 1 << 6,
    FLOCK_LOCKS = 1 << 10,
    HAS_IOCTL_DIR = 1 << 11,
    AUTO_INVAL_DATA = 1 << 12,
    READDIRPLUS_AUTO = 1 << 14,
    DO_READDIRPLUS = 1 << 13,
    ASYNC_DIO = 1 << 15,
    PARALLEL_DIROPS = 1 << 18,
    POSIX_ACL = 1 << 20,
    MAX_PAGES = 1 << 22,
    HANDLE_KILLPRIV_V2 = 1 << 28,
    INIT_EXT = 1 << 30,
    DIRECT_IO_ALLOW_MMAP = 1 << 36,
    PASSTHROUGH = 1 << 37,
    NO_EXPORT_SUPPORT = 1 << 38,
}

numbers! { u32:
    FATTR_MODE = 1 << 0,
    FATTR_UID = 1 << 1,
    FATTR_GID = 1 << 2,
    FATTR_SIZE = 1 << 3,
    FATTR_ATIME = 1 << 4,
    FATTR_MTIME = 1 << 5,
    FATTR_FH = 1 << 6,
    FATTR_ATIME_NOW = 1 << 7,
    FATTR_MTIME_NOW = 1 << 8,

    GETATTR_FH = 1 << 0,

    FOPEN_DIRECT_IO = 1 << 0,
    FOPEN_KEEP_CACHE = 1 << 1,
    FOPEN_CACHE_DIR = 1 << 3,
    FOPEN_PARALLEL_DIRECT_WRITES = 1 << 6,
    FOPEN_PASSTHROUGH = 1 << 7,

    WRITE_CACHE = 1 << 0,
    WRITE_KILL_SUIDGID = 1 << 2,

    RELEASE_FLOCK_UNLOCK = 1 << 1,
    LK_FLOCK = 1 << 0,
    FSYNC_FDATASYNC = 1 << 0,
}

/// The code of a message to the kernel, in the place of an error.
pub const NOTIFY_INVAL_INODE: i32 = 2;

/// The kernel opens a file in order to execute it: a flag of OPEN that programs cannot set.
pub const FMODE_EXEC: i32 = 0x20;

/// Types without padding, for which every byte may have any value.
///
/// # Safety
/// The type must have no padding, and every bit pattern must be valid.
pub unsafe trait Plain: Copy + Default {}

/// The bytes of a value.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: as `Plain` promises, every byte is initialized.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value at the beginning of `bytes`.
pub fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: there are as many bytes, of any value, as `Plain` permits.
    Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

macro_rules! plain {
    ($($name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default)]
            pub struct $name { $(pub $field: $type,)* }
            const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "no padding");
            // SAFETY: integers and arrays of them, without padding.
            unsafe impl Plain for $name {}
        )*
    };
}

// SAFETY: an integer.
unsafe impl Plain for u64 {}

plain! {
    InHeader { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, padding: u32, }
    OutHeader { len: u32, error: i32, unique: u64, }
    Attr {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    ForgetOne { nodeid: u64, nlookup: u64, }
    BatchForgetIn { count: u32, dummy: u32, }
    GetattrIn { flags: u32, dummy: u32, fh: u64, }
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    StatxAttr {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: StatxAttr, }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { newdir: u64, }
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    LinkIn { oldnodeid: u64, }
    OpenIn { flags: i32, open_flags: u32, }
    CreateIn { flags: i32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut { fh: u64, open_flags: u32, backing_id: u32, }
    ReleaseIn { fh: u64, flags: i32, release_flags: u32, lock_owner: u64, }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: i32, padding: u32,
    }
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: i32, padding: u32,
    }
    WriteOut { size: u32, padding: u32, }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    SetxattrIn { size: u32, flags: i32, }
    GetxattrIn { size: u32, padding: u32, }
    GetxattrOut { size: u32, padding: u32, }
    FileLock { start: u64, end: u64, kind: i32, pid: u32, }
    LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32, }
    LkOut { lk: FileLock, }
    AccessIn { mask: i32, padding: u32, }
    InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, unused: [u32; 6],
    }
    InterruptIn { unique: u64, }
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: i32, padding: u32, }
    LseekIn { fh: u64, offset: i64, whence: i32, padding: u32, }
    LseekOut { offset: i64, }
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    NotifyInvalInodeOut { ino: u64, off: i64, len: i64, }
    BackingMap { fd: i32, flags: u32, padding: u64, }
}

//! Serves reads of files of the PFS from the tier, to programs that know nothing of it.
//!
//! `FOREBAY_INTERCEPT_ROOTS` switches it on and names the mounts. The program's own descriptor is a
//! real one of the PFS, with the file's real position, so whatever is not served here just works:
//! the kernel does it. So nothing here may fail; what cannot be served goes on to the kernel.
//!
//! A descriptor is looked at when it is first read, as the observer does: opening costs nothing,
//! and inherited and duplicated descriptors need no rule of their own. Served are regular files
//! below a mount that are open for reading only, and that this process has not open for writing as
//! well. The handle is the client core's, on a duplicate of the descriptor.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use forebay_client::{Client, ClientConfig, File, Served};
use forebay_wire::intercepted::{REGION_BYTES, Region, Slot};
use libc::{iovec, off_t, ssize_t};

use crate::handles::{Handles, Known};
use crate::inside::{self, Inside};
use crate::paths::{self, Roots};
use crate::position::{self, OfDescriptor, Range};
use crate::{own_files, shared};

const ROOTS_VARIABLE: &CStr = c"FOREBAY_INTERCEPT_ROOTS";
const REPORT_VARIABLE: &CStr = c"FOREBAY_REPORT";

/// Longest path of a file that is served.
const PATH_BYTES: usize = 4096;

/// The kernel reads no more at a time.
const MOST_BYTES: u64 = 0x7fff_f000;
/// The kernel takes no longer list of buffers.
const MOST_PARTS: usize = 1024;

/// What other processes write to a file is seen after so long at the latest, or after so many times
/// what a look at the file's attributes has cost: looking takes a hundredth of the time at most.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const LOOK_SHARE: u32 = 100;

static HANDLES: Handles<Handle> = Handles::new();
static CLIENT: OnceLock<Client> = OnceLock::new();
/// Written by [`attach`] before the tier is turned on, and never again.
static mut ROOTS: Roots = Roots::NONE;
static REPORT: AtomicPtr<Region> = AtomicPtr::new(null_mut());

/// Serves the reads of a descriptor.
struct Handle {
    file: File,
    size: u64,
    /// Where the position was last.
    position: AtomicU64,
    opened: Instant,
    /// The next look at the file's attributes, in nanoseconds since it was opened.
    look_at_ns: AtomicU64,
}

/// Where to read.
#[derive(Clone, Copy)]
pub enum At {
    /// At the position, which moves on.
    Position,
    /// There.
    Offset(off_t),
}

/// Turns the tier on if the environment says so. The program has not begun yet.
pub extern "C" fn attach() {
    // SAFETY: the names end with a zero byte; no other thread changes the environment yet.
    let (roots, report) =
        unsafe { (libc::getenv(ROOTS_VARIABLE.as_ptr()), libc::getenv(REPORT_VARIABLE.as_ptr())) };
    if roots.is_null() {
        return;
    }
    // SAFETY: `errno` is the calling thread's; the program finds it as it was.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: `getenv` returned C strings. No thread reads the roots before the tier is on.
    unsafe {
        let place = &raw mut ROOTS;
        (*place).set(CStr::from_ptr(roots).to_bytes());
        if !report.is_null()
            && let Some(region) = shared::map(report, REGION_BYTES)
            && (*region.cast::<Region>()).is_valid()
        {
            REPORT.store(region.cast(), Release);
        }
    }
    let config = catch_unwind(|| {
        // What a panic has to say would be among the program's own words.
        std::panic::set_hook(Box::new(|_| {}));
        ClientConfig { quiet: true, place: own_files::place, ..ClientConfig::from_env() }
    });
    if let Ok(config) = config
        && config.socket.is_some()
        && CLIENT.set(Client::new(config)).is_ok()
    {
        own_files::measure();
        inside::turn_on();
        count(|slot| &slot.processes);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Counts one more in the report, if there is one.
fn count(sum: impl FnOnce(&Slot) -> &AtomicU64) {
    if let Some(slot) = slot() {
        sum(slot).fetch_add(1, Relaxed);
    }
}

/// This process's part of the report, if there is one.
fn slot() -> Option<&'static Slot> {
    // SAFETY: the region stays mapped, and all its fields are atomics.
    unsafe { REPORT.load(Acquire).as_ref() }.map(|region| region.slot(inside::process()))
}

/// Reads into `parts`, or has `kernel` do it.
///
/// # Safety
/// The parts are the caller's memory, or the kernel would refuse them; the caller has nothing to
/// drop, because a cancelled thread ends here.
#[inline]
pub unsafe fn read(fd: c_int, parts: &[iovec], at: At, kernel: impl FnOnce() -> ssize_t) -> ssize_t {
    if !inside::is_on() || HANDLES.known(fd) == Known::Foreign || inside::is_inside() {
        return kernel();
    }
    // SAFETY: the caller's promises.
    match unsafe { serve(fd, parts, at) } {
        Some(bytes) => bytes,
        None => kernel(),
    }
}

/// As [`read`], into one buffer.
///
/// # Safety
/// As [`read`].
#[inline]
pub unsafe fn read_one(
    fd: c_int,
    buffer: *mut c_void,
    bytes: usize,
    at: At,
    kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let part = iovec { iov_base: buffer, iov_len: bytes };
    // SAFETY: the caller's promises.
    unsafe { read(fd, &[part], at, kernel) }
}

/// As [`read`], of a list in the caller's memory.
///
/// # Safety
/// As [`read`]; `parts` are as many as `len` says, or the kernel would refuse them.
pub unsafe fn read_list(
    fd: c_int,
    (parts, len): (*const iovec, c_int),
    at: At,
    kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let len = usize::try_from(len).unwrap_or(0);
    if parts.is_null() || len > MOST_PARTS || HANDLES.known(fd) == Known::Foreign {
        return kernel();
    }
    // SAFETY: the caller's promises.
    unsafe { read(fd, std::slice::from_raw_parts(parts, len), at, kernel) }
}

/// # Safety
/// As [`read`].
unsafe fn serve(fd: c_int, parts: &[iovec], at: At) -> Option<ssize_t> {
    let want = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.iov_len as u64))?;
    if want == 0 || parts.iter().any(|part| part.iov_base.is_null() && part.iov_len > 0) {
        return None;
    }
    // SAFETY: the caller has nothing to drop, and neither has this function yet.
    unsafe { inside::cancellation_point() };
    let inside = inside::enter()?;
    guarded(&inside, || {
        if let Known::No(seen) = HANDLES.known(fd) {
            adopt(fd, seen);
        }
        let handle = HANDLES.pin(fd)?;
        if !handle.is_fresh() {
            HANDLES.forget(fd, true);
            return None;
        }
        let want = want.min(MOST_BYTES);
        // SAFETY: the caller's promises.
        let bytes = unsafe {
            match at {
                At::Position => handle.read_on(fd, parts, want),
                At::Offset(offset) => handle.read_there(fd, parts, u64::try_from(offset).ok()?, want),
            }
        };
        ssize_t::try_from(bytes?).ok()
    })
}

/// Runs `work` with `errno` as it was, and without a panic: after one the tier is off.
fn guarded<R>(_inside: &Inside, work: impl FnOnce() -> Option<R>) -> Option<R> {
    // SAFETY: `errno` is the calling thread's.
    let errno = unsafe { *libc::__errno_location() };
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        inside::turn_off();
        None
    });
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// Looks at a descriptor that is read for the first time.
#[cold]
fn adopt(fd: c_int, seen: u64) {
    HANDLES.free_retired();
    if !inside::is_owner() {
        return;
    }
    let mut room = [0_u8; PATH_BYTES];
    let path = paths::of_descriptor(fd, &mut room);
    // SAFETY: the roots do not change after the tier was turned on.
    let is_covered = unsafe {
        let roots = &raw const ROOTS;
        (*roots).cover(path)
    };
    if !is_covered || path.len() == PATH_BYTES {
        return HANDLES.put_foreign(fd, seen);
    }
    match open(fd, Path::new(OsStr::from_bytes(path))) {
        Some(handle) => {
            count(|slot| &slot.files);
            HANDLES.put(fd, seen, handle);
        }
        None => {
            count(|slot| &slot.left_files);
            HANDLES.put_foreign(fd, seen);
        }
    }
}

/// A handle of a descriptor below a mount, if its reads may be served and an agent serves them.
fn open(fd: c_int, path: &Path) -> Option<Handle> {
    let client = CLIENT.get().filter(|client| client.may_ask())?;
    if !is_for_reading(fd) || own_files::are_too_many(HANDLES.count()) {
        return None;
    }
    let size = own_files::regular_size(fd)?;
    let file = attributes(fd)?;
    if size == 0 || HANDLES.writable().any(|other| attributes(other) == Some(file)) {
        return None;
    }
    let file = show(client, fd, path)?;
    let size = file.size().ok()?;
    let look_at_ns = AtomicU64::new(LOOK_INTERVAL.as_nanos() as u64);
    Some(Handle { file, size, position: AtomicU64::new(0), opened: Instant::now(), look_at_ns })
}

/// Shows a duplicate to the agent. Where the agent reads past the page cache, it has set `O_DIRECT`
/// on the open file, which the program must not notice: then the file is opened anew.
fn show(client: &Client, fd: c_int, path: &Path) -> Option<File> {
    let file = client.open_descriptor(own_files::duplicate(fd)?, path).ok()?;
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags & libc::O_DIRECT == 0 {
        return Some(file);
    }
    drop(file);
    // SAFETY: no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_DIRECT) };
    let anew = std::fs::File::open(format!("/proc/self/fd/{fd}")).ok()?;
    client.open_descriptor(own_files::place(anew.into()), path).ok()
}

fn is_for_reading(fd: c_int) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & (libc::O_ACCMODE | libc::O_DIRECT | libc::O_PATH) == libc::O_RDONLY
}

/// Device and inode.
fn attributes(fd: c_int) -> Option<(u64, u64)> {
    own_files::stat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

impl Handle {
    /// Whether the file has its old content, as far as it is time to look.
    fn is_fresh(&self) -> bool {
        let age = self.opened.elapsed();
        if (age.as_nanos() as u64) < self.look_at_ns.load(Relaxed) {
            return true;
        }
        let is_current = self.file.is_current().unwrap_or(false);
        let now = self.opened.elapsed();
        let next = now + LOOK_INTERVAL.max((now - age) * LOOK_SHARE);
        self.look_at_ns.store(next.as_nanos() as u64, Relaxed);
        is_current
    }

    /// Reads at the position.
    ///
    /// # Safety
    /// As [`read`].
    unsafe fn read_on(&self, fd: c_int, parts: &[iovec], want: u64) -> Option<u64> {
        let guess = self.position.load(Relaxed);
        let mut file = OfDescriptor(fd);
        let Some(range) = position::take(&mut file, self.size, guess, want) else {
            self.position.store(self.size, Relaxed);
            return None;
        };
        // SAFETY: the caller's promises.
        let read = match unsafe { self.copy(parts, range) } {
            Ok(bytes) => bytes,
            Err(()) => {
                HANDLES.forget(fd, true);
                // The range is this read's, so the kernel reads there.
                // SAFETY: the caller's memory, which the kernel checks.
                let bytes = unsafe { kernel_pread(fd, parts, range) };
                u64::try_from(bytes).unwrap_or(0)
            }
        };
        position::give_back(&mut file, range.len - read);
        self.position.store(range.offset + read, Relaxed);
        // Nothing at all: the kernel says why.
        (read > 0).then_some(read)
    }

    /// Reads at `offset`.
    ///
    /// # Safety
    /// As [`read`].
    unsafe fn read_there(&self, fd: c_int, parts: &[iovec], offset: u64, want: u64) -> Option<u64> {
        let len = self.size.checked_sub(offset).filter(|left| *left > 0)?.min(want);
        // SAFETY: the caller's promises.
        match unsafe { self.copy(parts, Range { offset, len }) } {
            Ok(bytes) => Some(bytes),
            Err(()) => {
                HANDLES.forget(fd, true);
                None
            }
        }
    }

    /// Copies a range into the parts, all of it.
    ///
    /// # Safety
    /// As [`read`].
    unsafe fn copy(&self, parts: &[iovec], range: Range) -> Result<u64, ()> {
        let is_reported = !REPORT.load(Relaxed).is_null();
        let started = is_reported.then(Instant::now);
        let (mut done, mut total) = (0, Served::default());
        for part in parts {
            let len = (part.iov_len as u64).min(range.len - done) as usize;
            if len == 0 {
                continue;
            }
            // SAFETY: the caller's memory for this call, by its promise; bytes of any value are
            // valid ones.
            let buffer = unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), len) };
            let served = self.file.read_counted(buffer, range.offset + done);
            let Ok(served) = served.map_err(|_| count(|slot| &slot.failures)) else {
                return Err(());
            };
            done += served.bytes as u64;
            total.pfs_bytes += served.pfs_bytes;
            total.fetches += served.fetches;
            if served.bytes < len {
                return Err(());
            }
        }
        if let Some(started) = started {
            note(done, &total, started.elapsed().as_nanos() as u64);
        }
        Ok(done)
    }
}

/// Counts a read that was served.
fn note(bytes: u64, served: &Served, ns: u64) {
    let Some(slot) = slot() else { return };
    slot.reads.fetch_add(1, Relaxed);
    let is_hit = served.pfs_bytes == 0 && served.fetches == 0;
    let (of_bytes, of_ns) = match is_hit {
        true => (&slot.hit_bytes, &slot.hit_ns),
        false => (&slot.miss_bytes, &slot.miss_ns),
    };
    slot.hits.fetch_add(u64::from(is_hit), Relaxed);
    of_bytes.fetch_add(bytes, Relaxed);
    of_ns.fetch_add(ns, Relaxed);
}

/// # Safety
/// As [`read`].
unsafe fn kernel_pread(fd: c_int, parts: &[iovec], range: Range) -> i64 {
    let mut left = range.len as usize;
    let mut list = [iovec { iov_base: null_mut(), iov_len: 0 }; MOST_PARTS];
    let mut used = 0;
    for (place, part) in list.iter_mut().zip(parts) {
        let len = part.iov_len.min(left);
        *place = iovec { iov_base: part.iov_base, iov_len: len };
        left -= len;
        used += 1;
    }
    // SAFETY: a list of that length of the caller's memory, which the kernel checks.
    unsafe { libc::syscall(libc::SYS_preadv, fd, list.as_ptr(), used, range.offset, 0) }
}

/// `fd` stands for a new file, which the program may write if it `may_write`.
pub fn opened(fd: c_int, may_write: bool) {
    if fd < 0 || !inside::is_on() {
        return;
    }
    if own_files::is_own(fd) {
        // It was closed past this library, and the program has got the number.
        own_files::unmark(fd);
    }
    closed(fd);
    if !may_write || !inside::is_owner() {
        return;
    }
    HANDLES.note_writable(fd);
    if HANDLES.count() == 0 {
        return;
    }
    // The program has the file open for reading as well, perhaps: it sees what it writes.
    if let Some(inside) = inside::enter() {
        guarded(&inside, || {
            let file = attributes(fd)?;
            HANDLES
                .served()
                .filter(|other| attributes(*other) == Some(file))
                .for_each(|other| HANDLES.forget(other, true));
            Some(())
        });
    }
}

/// `to` is a duplicate of `from`.
pub fn duplicated(from: c_int, to: c_int) {
    opened(to, HANDLES.is_writable(from));
}

/// The number `fd` stands for no file any more.
#[inline]
pub fn closed(fd: c_int) {
    if !inside::is_on() {
        return;
    }
    // The child of a `vfork` closes numbers of its own in its parent's memory.
    let matters = HANDLES.known(fd) == Known::Served || HANDLES.is_writable(fd);
    if matters && !inside::is_owner() {
        return;
    }
    HANDLES.forget(fd, false);
    if matters && let Some(inside) = inside::enter() {
        guarded(&inside, || {
            HANDLES.free_retired();
            Some(())
        });
    }
}

/// All numbers from `first` to `last` stand for no files any more.
pub fn closed_range(first: u32, last: u32) {
    if inside::is_on() {
        let end = HANDLES.end().unsigned_abs().min(last.saturating_add(1));
        (first..end).for_each(|fd| closed(fd as c_int));
    }
}

/// The program has moved the position of `fd`.
#[inline]
pub fn sought(fd: c_int, position: off_t) {
    if position >= 0
        && inside::is_on()
        && HANDLES.known(fd) == Known::Served
        && !inside::is_inside()
        && let Some(handle) = HANDLES.pin(fd)
    {
        handle.position.store(position.unsigned_abs(), Relaxed);
    }
}

/// A call has found no free descriptor: frees this library's, if it has any. True if the call may
/// be tried again.
pub fn make_room() -> bool {
    if !inside::is_on() || HANDLES.count() == 0 || !inside::is_owner() {
        return false;
    }
    let Some(inside) = inside::enter() else { return false };
    guarded(&inside, || {
        HANDLES.served().for_each(|fd| HANDLES.forget(fd, true));
        HANDLES.free_retired();
        Some(())
    })
    .is_some()
}

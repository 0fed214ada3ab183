//! Serves reads of files of the PFS from the tier, to programs that know nothing of it.
//!
//! `FOREBAY_INTERCEPT_ROOTS` switches it on and names the mounts. The program's own descriptor is a
//! real one of the PFS, with the file's real position, so the kernel can handle every call. So
//! nothing here may fail: what cannot be served goes to the kernel.
//!
//! A descriptor is examined when it is first read, as the observer does: opening costs nothing,
//! and inherited and duplicated descriptors need no rules of their own. The tier serves regular
//! files below a mount that are open for reading only and that this process does not also have
//! open for writing. The handle is the client core's, on a duplicate of the descriptor.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::OnceLock;

use forebay_client::dirty::{Newest, Shown};
use forebay_client::{Client, ClientConfig};
use libc::{iovec, off_t, ssize_t};

use crate::absorb::{self, Access};
use crate::elsewhere::Elsewhere;
use crate::handles::{Handles, Known, Pinned};
use crate::inside::{self, Inside};
use crate::paths::{self, Roots};
use crate::served::{self, Handle};
use crate::unserved::{self, Why};
use crate::{bare_calls, kernel, layout, mapping, own_files, report, shared};

const ROOTS_VARIABLE: &CStr = c"FOREBAY_INTERCEPT_ROOTS";
const REPORT_VARIABLE: &CStr = c"FOREBAY_REPORT";

/// Longest path of a file that is served.
const PATH_BYTES: usize = 4096;

/// How many files a process opens through the agent before it leaves further small ones to the
/// kernel if that has them in its cache: asking the agent takes as long as many such reads.
const FILES_ASKED_FOR: u32 = 64;
const SMALL_BYTES: u64 = 128 << 10;

/// The kernel reads at most this many bytes at a time.
const MOST_BYTES: u64 = 0x7fff_f000;
/// The kernel accepts at most this many buffers in a list.
pub const MOST_PARTS: usize = 1024;

static HANDLES: Handles<Handle> = Handles::new();
static CLIENT: OnceLock<Client> = OnceLock::new();
static ELSEWHERE: Elsewhere = Elsewhere::new();
/// Written by [`attach`] before the tier is turned on, and never again.
static mut ROOTS: Roots = Roots::NONE;
/// The process has locked a file with `fcntl`, and would lose the lock if any descriptor of the
/// file were closed.
static HAS_LOCKS: AtomicBool = AtomicBool::new(false);
/// Files opened through the agent so far.
static FILES: AtomicU32 = AtomicU32::new(0);
/// Whether system calls were filtered when the program began (`PR_GET_SECCOMP`).
static FILTERS: AtomicI32 = AtomicI32::new(0);

/// Where to read.
#[derive(Clone, Copy)]
pub enum At {
    /// At the position, which advances.
    Position,
    /// At this offset.
    Offset(off_t),
}

/// Turns the tier on if the environment says so. The program has not begun yet.
pub extern "C" fn attach() {
    mapping::attach();
    // SAFETY: no other thread changes the environment yet.
    let (roots, report) = unsafe { (shared::variable(ROOTS_VARIABLE), shared::variable(REPORT_VARIABLE)) };
    if roots.is_null() {
        return;
    }
    // SAFETY: `errno` is the calling thread's; the program finds it as it was.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the variables are C strings. No thread reads the roots before the tier is on.
    unsafe {
        let place = &raw mut ROOTS;
        (*place).set(CStr::from_ptr(roots).to_bytes());
        if !report.is_null() {
            report::attach(report);
        }
    }
    let config = catch_unwind(|| {
        // A panic's message would appear in the program's own output.
        std::panic::set_hook(Box::new(|_| {}));
        let own = ClientConfig::from_env();
        ClientConfig { quiet: true, watches: false, place: own_files::place, ..own }
    });
    if let Ok(config) = config
        && config.socket.is_some()
        && CLIENT.set(Client::new(config)).is_ok()
    {
        own_files::measure();
        CLIENT.get().into_iter().for_each(absorb::attach);
        layout::attach();
        FILTERS.store(filters(), Relaxed);
        unserved::attach();
        inside::turn_on();
        report::count(|slot| &slot.processes);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs when the process ends in order, or closes its standard error, as many do before they end.
pub extern "C" fn detach() {
    if inside::is_on()
        && unserved::has_words()
        && inside::is_owner()
        && !is_on_signal_stack()
        && filters() == FILTERS.load(Relaxed)
        && let Some(client) = CLIENT.get()
        && let Some(inside) = inside::enter()
    {
        guarded(&inside, || {
            unserved::say(client);
            Some(())
        });
    }
}

/// Whether system calls are filtered now.
fn filters() -> c_int {
    // SAFETY: no pointers.
    unsafe { kernel::sys!(SYS_prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) as c_int }
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
    if HANDLES.known(fd) != Known::Channel
        // SAFETY: the caller's promises.
        && let Some(bytes) = unsafe { serve(fd, parts, at) }
    {
        return bytes;
    }
    kernel_heard(fd, kernel)
}

/// Has the kernel read. What comes from a pipe or the like is a message from another process.
fn kernel_heard(fd: c_int, kernel: impl FnOnce() -> ssize_t) -> ssize_t {
    let got = kernel();
    if got > 0 && inside::is_on() && HANDLES.known(fd) == Known::Channel {
        heard();
    }
    got
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

/// As [`read`], for a list in the caller's memory.
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
    if len > MOST_PARTS || matches!(HANDLES.known(fd), Known::Foreign | Known::Channel) || !inside::is_on() {
        return kernel_heard(fd, kernel);
    }
    if !is_readable(parts, len) {
        return kernel();
    }
    // SAFETY: the caller's promises.
    unsafe { read(fd, std::slice::from_raw_parts(parts, len), at, kernel) }
}

/// Whether a list of the program's can be read; if not, the kernel says so. A system call for each
/// page: this one reads the mask of signals, and then refuses an unknown command.
pub fn is_readable(parts: *const iovec, len: usize) -> bool {
    const PAGE_BYTES: usize = 4096;
    let (first, bytes) = (parts as usize & !7, len * size_of::<iovec>());
    let last = (parts as usize).saturating_add(bytes.saturating_sub(1));
    (first / PAGE_BYTES..=last / PAGE_BYTES).all(|page| {
        let at = first.max(page * PAGE_BYTES);
        // SAFETY: it changes nothing, and reports memory that cannot be read.
        let refusal = unsafe { kernel::sys!(SYS_rt_sigprocmask, -1_isize, at, 0, 8) };
        refusal == -(libc::EINVAL as isize)
    })
}

/// # Safety
/// As [`read`].
unsafe fn serve(fd: c_int, parts: &[iovec], at: At) -> Option<ssize_t> {
    let want = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.iov_len as u64))?;
    if want == 0
        || want > isize::MAX as u64
        || parts.iter().any(|part| part.iov_base.is_null() && part.iov_len > 0)
    {
        return None;
    }
    // SAFETY: the caller has nothing to drop, and neither has this function yet.
    unsafe { inside::cancellation_point() };
    let inside = inside::enter()?;
    guarded(&inside, || {
        let handle = handle_of(fd)?;
        if handle.has_failed() || !handle.is_fresh(fd) {
            leave(fd);
            return None;
        }
        unserved::is_served();
        let want = want.min(MOST_BYTES);
        // SAFETY: the caller's promises.
        let bytes = unsafe {
            match at {
                At::Position => handle.read_on(fd, parts, want),
                At::Offset(offset) => handle.read_there(parts, u64::try_from(offset).ok()?, want),
            }
        };
        if handle.has_failed() {
            leave(fd);
        }
        ssize_t::try_from(bytes?).ok()
    })
}

/// Has `map` map the copy of `fd`'s file; `None`: the kernel maps the file.
pub fn map(fd: c_int, map: impl FnOnce(&Handle) -> Option<*mut c_void>) -> Option<*mut c_void> {
    if !inside::is_on() || matches!(HANDLES.known(fd), Known::Foreign | Known::Channel) {
        return None;
    }
    let inside = inside::enter()?;
    guarded(&inside, || {
        let handle = handle_of(fd)?;
        if handle.has_failed() {
            return None;
        }
        let mapped = map(&handle);
        match mapped {
            Some(_) => unserved::is_served(),
            None => unserved::is_left(handle.path()?, Why::NotMapped),
        }
        mapped
    })
}

/// The handle of `fd`, which is examined if nothing is known of it.
fn handle_of(fd: c_int) -> Option<Pinned<'static, Handle>> {
    if let Known::No(seen) = HANDLES.known(fd) {
        adopt(fd, seen);
    }
    let handle = HANDLES.pin(fd)?;
    if !bare_calls::are_possible() || handle.is_of(fd) {
        return Some(handle);
    }
    drop(handle);
    // The program has closed the number unseen and got it again, or is the child of a `vfork`.
    if !inside::is_owner() {
        return None;
    }
    HANDLES.forget(fd, false);
    if let Known::No(seen) = HANDLES.known(fd) {
        adopt(fd, seen);
    }
    HANDLES.pin(fd)
}

/// As [`inside::guarded`]; then frees what was closed.
fn guarded<R>(inside: &Inside, work: impl FnOnce() -> Option<R>) -> Option<R> {
    inside::guarded(inside, || {
        let result = work();
        // Including what was closed while this thread read it.
        HANDLES.free_retired();
        absorb::free_retired();
        result
    })
}

/// Leaves a descriptor to the kernel from now on, with the read-ahead that the client core has
/// switched off.
fn leave(fd: c_int) {
    HANDLES.leave(fd);
    // SAFETY: no pointers.
    unsafe { kernel::sys!(SYS_fadvise64, fd, 0, 0, libc::POSIX_FADV_NORMAL) };
}

/// Examines a descriptor that is read for the first time.
#[cold]
fn adopt(fd: c_int, seen: u64) {
    if !inside::is_owner() {
        return;
    }
    // Most files are not the PFS's, and the mount shows that.
    let kind = own_files::kind(fd);
    if let Some(kind) = kind.filter(|kind| ELSEWHERE.has(kind.mount)) {
        return HANDLES.put_foreign(fd, seen, !kind.is_regular);
    }
    // Not on the stack, which is the program's and may be small.
    let mut room = vec![0_u8; PATH_BYTES];
    let path = paths::of_descriptor(fd, &mut room);
    if !is_covered(path) || path.len() == PATH_BYTES {
        let is_regular = match kind {
            Some(kind) => {
                ELSEWHERE.note(kind.mount, may_hold);
                kind.is_regular
            }
            None => own_files::regular(fd).is_some(),
        };
        return HANDLES.put_foreign(fd, seen, !is_regular);
    }
    if is_on_signal_stack() {
        return;
    }
    if filters() != FILTERS.load(Relaxed) {
        // The program has forbidden system calls that the library would make.
        return inside::turn_off();
    }
    bare_calls::look();
    let path = Path::new(OsStr::from_bytes(path));
    let handle = match open(fd, path) {
        Ok(handle) => Some(handle),
        Err(why) => {
            why.into_iter().for_each(|why| unserved::is_left(path, why));
            None
        }
    };
    if handle.as_ref().is_some_and(Handle::is_served) {
        report::count(|slot| &slot.files);
    } else {
        report::count(|slot| &slot.left_files);
    }
    match handle {
        Some(handle) if handle.is_served() => HANDLES.put(fd, seen, handle, false),
        Some(handle) if HAS_LOCKS.load(Acquire) => HANDLES.put(fd, seen, handle, true),
        _ => HANDLES.put_foreign(fd, seen, own_files::regular(fd).is_none()),
    }
}

fn is_covered(path: &[u8]) -> bool {
    // SAFETY: the roots do not change after the tier was turned on.
    unsafe {
        let roots = &raw const ROOTS;
        (*roots).cover(path)
    }
}

/// Whether files of this mount may be below a root. A small stack has no room for the answer.
fn may_hold(mount: u64) -> Option<bool> {
    if is_on_signal_stack() {
        return None;
    }
    // SAFETY: the roots do not change after the tier was turned on.
    unsafe {
        let roots = &raw const ROOTS;
        let roots = (*roots).all().map(|root| Path::new(OsStr::from_bytes(root)));
        Some(forebay_pfs::mount::may_hold(mount, roots))
    }
}

/// Whether this is a signal handler with a stack of its own, which may be small.
fn is_on_signal_stack() -> bool {
    // SAFETY: zeroes are a valid value, and a place for the result.
    unsafe {
        let mut stack: libc::stack_t = core::mem::zeroed();
        kernel::sys!(SYS_sigaltstack, 0, &raw mut stack) == 0 && stack.ss_flags & libc::SS_ONSTACK != 0
    }
}

/// A handle of a descriptor below a mount, if its reads may be served. Perhaps no agent serves it.
/// The error is the reason, if that matters to anybody.
fn open(fd: c_int, path: &Path) -> Result<Handle, Option<Why>> {
    let (size, identity) = own_files::regular(fd).filter(|(size, _)| *size > 0).ok_or(None)?;
    if !is_for_reading(fd) {
        return Err(Some(Why::NotForReading));
    }
    if own_files::are_too_many(HANDLES.count()) {
        return Err(Some(Why::TooMany));
    }
    if HANDLES.writable().any(|other| own_files::identity(other) == Some(identity)) {
        return Err(Some(Why::IsWritten));
    }
    let is_cached = size <= SMALL_BYTES && FILES.load(Relaxed) >= FILES_ASKED_FOR && own_files::is_cached(fd);
    let client = CLIENT.get().filter(|client| client.may_ask() && !is_cached).ok_or(None)?;
    FILES.fetch_add(1, Relaxed);
    let (handle, refused) = Handle::open(client, fd, path, identity);
    refused.into_iter().for_each(|why| unserved::is_left(path, Why::NotServed(why)));
    Ok(handle)
}

fn is_for_reading(fd: c_int) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { kernel::fcntl(fd, libc::F_GETFL, 0) } as c_int;
    flags >= 0 && flags & (libc::O_ACCMODE | libc::O_DIRECT | libc::O_PATH) == libc::O_RDONLY
}

/// Notes that `fd` stands for a new file; `false`: its newest bytes cannot be had.
#[must_use]
pub fn opened(fd: c_int, access: Access) -> bool {
    let may_write = access.may_write();
    if fd < 0 || !inside::is_on() {
        return true;
    }
    if own_files::is_own(fd) {
        // It was closed unseen by this library, and the program has got the number.
        own_files::unmark(fd);
    }
    closed(fd);
    if absorb::may_matter(access) && inside::is_owner() && !is_on_signal_stack() && !may_absorb(fd, access) {
        return false;
    }
    if !may_write && unserved::is_looking() && inside::is_owner() {
        look_at_opened(fd);
    }
    if !may_write || !inside::is_owner() {
        return true;
    }
    HANDLES.note_writable(fd);
    if HANDLES.count() == 0 && !mapping::has_mapped() {
        return true;
    }
    // The program has the file open for reading as well, perhaps: it sees what it writes.
    if let Some(inside) = inside::enter() {
        guarded(&inside, || {
            let file = own_files::identity(fd)?;
            HANDLES.served().filter(|other| own_files::identity(*other) == Some(file)).for_each(leave);
            mapping::return_to_file(fd, file);
            Some(())
        });
    }
    true
}

/// Handles a file of the PFS that may be written to the tier first, or be there; `false` as for
/// [`opened`].
#[cold]
fn may_absorb(fd: c_int, access: Access) -> bool {
    let Some(inside) = inside::enter() else { return true };
    let absorbed = guarded(&inside, || {
        let kind = own_files::kind(fd).filter(|kind| kind.is_regular && !ELSEWHERE.has(kind.mount))?;
        let mut room = vec![0_u8; PATH_BYTES];
        let path = paths::of_descriptor(fd, &mut room);
        if !is_covered(path) || path.len() == PATH_BYTES {
            ELSEWHERE.note(kind.mount, may_hold);
            return None;
        }
        let writes =
            |file| HANDLES.writable().any(|other| other != fd && own_files::identity(other) == Some(file));
        absorb::opened(CLIENT.get()?, fd, path, access, writes)
    });
    absorbed != Some(false)
}

/// Notes a file of the PFS that the program may be about to read unseen.
#[cold]
fn look_at_opened(fd: c_int) {
    if is_on_signal_stack() {
        return;
    }
    let Some(inside) = inside::enter() else { return };
    guarded(&inside, || {
        let kind = own_files::kind(fd).filter(|kind| kind.is_regular && !ELSEWHERE.has(kind.mount))?;
        let mut room = vec![0_u8; PATH_BYTES];
        let path = paths::of_descriptor(fd, &mut room);
        if !is_covered(path) {
            ELSEWHERE.note(kind.mount, may_hold);
        } else if is_for_reading(fd) && own_files::regular(fd).is_some_and(|(size, _)| size > 0) {
            unserved::is_left(Path::new(OsStr::from_bytes(path)), Why::Unseen);
        }
        Some(())
    });
}

/// Notes that `to` is a duplicate of `from`.
pub fn duplicated(from: c_int, to: c_int) {
    if to < 0 || !absorb::has(from) {
        let access = if HANDLES.is_writable(from) { Access::Write } else { Access::Read };
        // A duplicate has the newest bytes if its original has.
        let _ = opened(to, access);
        return;
    }
    closed(to);
    if inside::is_owner()
        && let Some(inside) = inside::enter()
    {
        guarded(&inside, || {
            absorb::duplicated(from, to);
            Some(())
        });
    }
}

/// Notes that the number `fd` no longer stands for a file.
#[inline]
pub fn closed(fd: c_int) {
    if !inside::is_on() {
        return;
    }
    if fd == libc::STDERR_FILENO {
        detach();
    }
    // The child of a `vfork` closes numbers of its own in its parent's memory.
    let matters = HANDLES.has_handle(fd) || HANDLES.is_writable(fd) || absorb::has(fd);
    if matters && !inside::is_owner() {
        return;
    }
    HANDLES.forget(fd, false);
    absorb::closed(fd);
    if matters && let Some(inside) = inside::enter() {
        guarded(&inside, || Some(()));
    }
}

/// Notes that no number from `first` to `last` stands for a file any more.
pub fn closed_range(first: u32, last: u32) {
    if inside::is_on() {
        let end = HANDLES.end().unsigned_abs().min(last.saturating_add(1));
        (first..end).for_each(|fd| closed(fd as c_int));
    }
}

/// Notes that the program has moved the position of `fd`.
#[inline]
pub fn sought(fd: c_int, position: off_t) {
    if position >= 0
        && inside::is_on()
        && HANDLES.known(fd) == Known::Served
        && !inside::is_inside()
        && let Some(handle) = HANDLES.pin(fd)
    {
        handle.moved_to(position.unsigned_abs());
    }
}

/// What is newer than the PFS's attributes of the file with this device and inode, if it is dirty.
#[cold]
pub fn newest(identity: (u64, u64), shown: Shown) -> Option<Newest> {
    if !absorb::is_dirty(identity) || !inside::is_owner() || is_on_signal_stack() {
        return None;
    }
    let inside = inside::enter()?;
    guarded(&inside, || CLIENT.get()?.dirty_stat(identity, shown))
}

/// Prepares for the program's open of `path` below the directory `dir`. Returns the flags for that:
/// without `O_EXCL` if the file is there now because of this call.
#[inline]
pub fn before_open(dir: c_int, path: *const libc::c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let creates = flags & libc::O_CREAT != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
    if !creates || !layout::is_on() || path.is_null() {
        return flags;
    }
    // SAFETY: the program has passed a C string.
    before_create(dir, unsafe { CStr::from_ptr(path) }.to_bytes(), flags, mode)
}

/// Runs before the program opens `path` to create it; see [`layout::create`].
#[cold]
fn before_create(dir: c_int, path: &[u8], flags: c_int, mode: u32) -> c_int {
    if !inside::is_on() || inside::is_inside() || !inside::is_owner() || is_on_signal_stack() {
        return flags;
    }
    let Some(inside) = inside::enter() else { return flags };
    guarded(&inside, || layout::create(CLIENT.get()?, dir, path, flags, mode, is_covered)).unwrap_or(flags)
}

/// Runs before a rename; see [`absorb::before_rename`].
#[cold]
pub fn before_rename(from: &[u8], to: &[u8]) -> Result<(), c_int> {
    if !inside::is_owner() || is_on_signal_stack() {
        return Ok(());
    }
    let Some(inside) = inside::enter() else { return Ok(()) };
    guarded(&inside, || Some(absorb::before_rename(CLIENT.get()?, from, to))).unwrap_or(Ok(()))
}

/// Runs before the times of a dirty file are set; see [`Client::note_times`].
#[cold]
pub fn before_times(identity: (u64, u64), mtime_ns: Option<i64>) {
    if !inside::is_owner() || is_on_signal_stack() {
        return;
    }
    if let Some(inside) = inside::enter() {
        guarded(&inside, || {
            CLIENT.get()?.note_times(identity, mtime_ns);
            Some(())
        });
    }
}

/// Frees this library's descriptors, if it has any, after a call has found no free one. Returns
/// whether the call may be tried again.
pub fn make_room() -> bool {
    // No descriptor of a file that the process has locked may be closed.
    if !inside::is_on() || HANDLES.count() == 0 || HAS_LOCKS.load(Acquire) || !inside::is_owner() {
        return false;
    }
    let Some(inside) = inside::enter() else { return false };
    guarded(&inside, || {
        HANDLES.served().for_each(|fd| HANDLES.forget(fd, true));
        Some(())
    })
    .is_some()
}

/// Gives up what can be made again, because the program wants a number that is this library's.
pub fn make_way() {
    make_room();
    if let Some(client) = CLIENT.get()
        && inside::is_owner()
        && let Some(inside) = inside::enter()
    {
        guarded(&inside, || {
            client.disconnect();
            Some(())
        });
    }
}

/// Notes that the process takes a lock of the kind that ends when any descriptor of the file is
/// closed.
#[inline]
pub fn locks(fd: c_int) {
    HAS_LOCKS.store(true, Release);
    locks_file(fd);
}

/// Notes that the process takes a lock on the file of `fd`.
pub fn locks_file(fd: c_int) {
    if inside::is_on()
        && inside::is_owner()
        && let Some(inside) = inside::enter()
    {
        guarded(&inside, || {
            mapping::locked(fd);
            Some(())
        });
    }
}

/// Notes that the process has got a lock, and expects to see what others have written before.
#[inline]
pub fn locked() {
    if HANDLES.count() > 0 {
        served::locked();
    }
}

/// Notes that the process has received a message from another one, whose earlier writes it must now
/// see.
#[inline]
pub fn heard() {
    if HANDLES.count() > 0 {
        served::heard();
    }
}

/// Notes that the program forbids system calls from now on, perhaps some that only the library
/// makes.
pub fn restricted() {
    inside::turn_off();
}

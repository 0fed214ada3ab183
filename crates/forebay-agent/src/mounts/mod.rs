//! The PFS mounts of an agent.
//!
//! | file | what it does |
//! | --- | --- |
//! | `admit` | which mount a descriptor is on, and whether it may be served |
//! | `by_path` | opens a file by its path, for requests that come without a descriptor |
//! | `stamps` | whether the time stamps of a mount can be believed |
//! | `seal` | whether a version is settled: no write to it is under way |

pub mod admit;
pub mod by_path;
pub mod opened_path;
pub mod seal;
pub mod stamps;

use crate::config::{Live, MountConfig};
use forebay_pfs::mount::is_mount_point;
use forebay_pfs::read::PageCache;
use forebay_pfs::{FileFacts, Mount, Mounted, Source, Traits};
use forebay_wire::{MountInfo, MountStatus};
use stamps::{StampCheck, Trust};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where two writes this far apart may leave the same stamps, what was just written is not kept.
pub const COARSE: Duration = Duration::from_secs(1);

/// `mount.settle_ms` where none is configured: longer than the clients of most file systems hold
/// back a change of stamps.
pub const SETTLE_NS: i64 = 3_000_000_000;

/// The same where stamps come late: MooseFS stamps an overwrite in place when it begins and not
/// again.
pub const SETTLE_LATE_NS: i64 = 30_000_000_000;

/// A flag of Linux that `rustix` lacks.
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

/// One mount and its fetches.
#[derive(Debug)]
pub struct MountState {
    /// Its configuration at the start.
    pub config: MountConfig,
    /// The one that was read last.
    pub live: Live<MountConfig>,
    /// What is mounted there.
    pub source: Arc<dyn Source>,
    /// What reads do with the kernel's copy now.
    page_cache: RwLock<PageCache>,
    /// Bytes read from it.
    pub fetched_bytes: AtomicU64,
    /// Fetches that failed.
    pub fetch_errors: AtomicU64,
    /// What is mounted there at this moment is local: other nodes cannot write it.
    is_local: AtomicBool,
    /// Nobody can change the files of what is mounted there at this moment.
    is_unchanging: AtomicBool,
    /// What is cached of an earlier mount is to be forgotten before anything of this one is cached.
    must_forget: AtomicBool,
    /// How long a file must be quiet where writers cannot be excluded: as configured, or by the
    /// type of what is mounted.
    settle_ns: AtomicI64,
    /// Whether its time stamps can be believed.
    pub stamps: Arc<StampCheck>,
    /// Nothing that is written through can be kept ([`COARSE`]): set from the start, or when that
    /// is seen.
    pub is_coarse: AtomicBool,
    /// Its root with symbolic links resolved.
    root: PathBuf,
    /// Something was mounted there at the start, or has to be: the bare directory is not the PFS.
    must_be_mounted: bool,
}

impl MountState {
    /// Looks at the mount.
    ///
    /// # Errors
    /// Its root cannot be resolved.
    pub fn new(config: MountConfig) -> io::Result<Self> {
        Self::of(config, |root, dev| Arc::new(Mounted::new(root, dev)))
    }

    /// As [`MountState::new`], with what `source` makes of the root and its device.
    ///
    /// # Errors
    /// Its root cannot be resolved.
    pub fn of(config: MountConfig, source: impl FnOnce(&Path, u64) -> Arc<dyn Source>) -> io::Result<Self> {
        let probed = Mount::probe(&config.label, &config.root).map_err(|e| {
            let hint = match e.kind() {
                io::ErrorKind::PermissionDenied => {
                    "; the agent's user must be able to enter it (a FUSE mount of another user: allow_other)"
                }
                _ => "",
            };
            io::Error::new(
                e.kind(),
                format!("mount {:?}: {}: {e}{hint}", config.label, config.root.display()),
            )
        })?;
        let is_mount_point = root_is_mounted(&probed.root);
        if config.require_mount && !is_mount_point {
            return Err(io::Error::other(format!(
                "mount {:?}: nothing is mounted on {}, and mount.require_mount is set: mount the PFS first",
                config.label,
                config.root.display()
            )));
        }
        let source = source(&probed.root, probed.dev);
        Ok(MountState {
            must_be_mounted: is_mount_point,
            page_cache: RwLock::new(page_cache_of(&*source, config.keep_page_cache)),
            fetched_bytes: AtomicU64::new(0),
            fetch_errors: AtomicU64::new(0),
            is_coarse: AtomicBool::new(
                Duration::from_nanos(config.stamp_granularity_ns.unsigned_abs()) >= COARSE,
            ),
            is_local: AtomicBool::new(false),
            is_unchanging: AtomicBool::new(false),
            must_forget: AtomicBool::new(false),
            settle_ns: AtomicI64::new(SETTLE_LATE_NS),
            stamps: StampCheck::new(&config, source.clone()),
            source,
            root: probed.root,
            live: Live::new(config.clone()),
            config,
        })
    }

    /// Its label.
    pub fn label(&self) -> &str {
        &self.config.label
    }

    /// Its root with symbolic links resolved.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Unit of caching in bytes of the file of `size` bytes that is open as `fd`.
    pub fn page_bytes_of(&self, fd: BorrowedFd<'_>, size: u64) -> u64 {
        if self.config.small_page_files.is_empty() {
            return self.config.page_bytes;
        }
        self.config.page_bytes_of(&opened_path::opened_path(fd), size)
    }

    /// What clients get.
    pub fn info(&self) -> MountInfo {
        MountInfo {
            label: self.config.label.clone(),
            root: self.root.as_os_str().as_bytes().to_vec(),
            page_bytes: self.config.page_bytes,
            read_ahead_bytes: self.config.read_ahead_bytes,
            revalidate: self.config.revalidate,
            stamp_granularity_ns: self.config.stamp_granularity_ns,
            extent_bytes: self.config.extent_bytes,
        }
    }

    /// What operators see. Fetches waiting or running are counted elsewhere, and so is the age
    /// in milliseconds of the oldest running one.
    pub fn status(&self, (fetches_pending, slowest_ms): (u64, u64)) -> MountStatus {
        let (cached, stamps) = self.stamps.report();
        MountStatus {
            label: self.config.label.clone(),
            root: self.root.as_os_str().as_bytes().to_vec(),
            mounted: self.is_mounted(),
            fetched_bytes: self.fetched_bytes.load(Relaxed),
            fetch_errors: self.fetch_errors.load(Relaxed),
            fetches_pending,
            slowest_ms,
            cached,
            stamps,
        }
    }

    /// Begins to find out whether its time stamps can be believed.
    pub fn begin_to_measure(&self) {
        self.has_device(0);
        self.stamps.trust();
    }

    /// Whether its time stamps can be believed, and nothing of another mount is cached under its
    /// label.
    pub fn trust(&self) -> Trust {
        match self.stamps.trust() {
            Trust::Believed if self.must_forget() => Trust::Measuring,
            trust => trust,
        }
    }

    /// Whether its pages may be handed out.
    pub fn is_believed(&self) -> bool {
        self.trust() == Trust::Believed
    }

    /// Whether `lseek` finds the holes of its files. Other file systems may report what another
    /// node has just written as a hole.
    pub fn reports_holes(&self) -> bool {
        self.is_local.load(Acquire)
    }

    /// Whether nobody can change its files.
    pub fn is_unchanging(&self) -> bool {
        self.is_unchanging.load(Acquire)
    }

    /// Whether what is cached of it has to be forgotten first.
    pub fn must_forget(&self) -> bool {
        self.must_forget.load(Acquire)
    }

    /// Records that this has been done.
    pub fn has_forgotten(&self) {
        self.must_forget.store(false, Release);
    }

    /// False if the PFS was unmounted since the start. Its root may be there all the same, as a
    /// directory of the file system below, which the agent must not mistake for the PFS.
    pub fn is_mounted(&self) -> bool {
        !self.must_be_mounted || root_is_mounted(&self.root)
    }

    /// Whether `dev` is the file system mounted on the root at this moment. Looked at every time,
    /// in the kernel's own tables and without asking a server: a PFS that is mounted again has
    /// another number, and the number of one that is gone may be given to a file system of
    /// somebody's own.
    pub fn has_device(&self, dev: u64) -> bool {
        self.device() == Some(dev)
    }

    /// The device number of its file system, if that is mounted. Asks the kernel only.
    pub fn device(&self) -> Option<u64> {
        use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
        // The number of a mount, never given twice. Kernels before 6.8 report one that may be,
        // those before 5.8 none: the device's number distinguishes most mounts then.
        let mask = StatxFlags::MNT_ID | StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE);
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = statx(CWD, &self.root, flags, mask).ok()?;
        if self.must_be_mounted && !is_mount_root(&stat, &self.root) {
            return None;
        }
        let present = makedev(stat.stx_dev_major, stat.stx_dev_minor);
        self.found(present.rotate_left(32) ^ stat.stx_mnt_id);
        Some(present)
    }

    /// Records that a request has found this mount there. An agent may have begun before its PFS
    /// was mounted.
    fn found(&self, mount: u64) {
        if !self.stamps.is_present(mount) {
            // First: a thread that finds the number known must find this known too.
            self.apply_live();
            let traits = self.source.traits();
            self.is_local.store(traits.is_local, Release);
            // Files of two images may have equal numbers, lengths and times and yet differ.
            self.must_forget.store(traits.unchanging.is_some(), Release);
            self.is_unchanging.store(traits.unchanging.is_some(), Release);
            self.stamps.found(mount);
        }
    }

    /// Takes a configuration that was read again.
    pub fn reconfigure(&self, config: &MountConfig) {
        self.live.set(config.clone());
        self.apply_live();
    }

    /// What depends on the configuration and on what is mounted there now.
    fn apply_live(&self) {
        let (keep, settle_ns) = self.live.get(|config| (config.keep_page_cache, config.settle_ns));
        let page_cache = page_cache_of(&*self.source, keep);
        *self.page_cache.write().unwrap_or_else(PoisonError::into_inner) = page_cache;
        let settle_ns = settle_ns.unwrap_or_else(|| default_settle_ns(self.source.traits()));
        self.settle_ns.store(settle_ns, Release);
    }

    /// What reads do with the kernel's copy now.
    pub fn page_cache(&self) -> PageCache {
        *self.page_cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The facts of an open file now, as its configuration looks at them.
    ///
    /// # Errors
    /// The PFS fails to report them.
    pub fn facts(&self, fd: BorrowedFd<'_>) -> io::Result<FileFacts> {
        self.source.facts(fd, self.config.revalidate)
    }

    /// The descriptor to fetch the file with, for one that has been admitted. Where reads bypass
    /// caches it is opened again. If the agent may not, the client's own is used: the library opens
    /// the file that way before it sends it to be fetched.
    pub fn for_fetching(&self, fd: OwnedFd) -> OwnedFd {
        self.opened_past_caches(fd.as_fd()).and_then(Result::ok).unwrap_or(fd)
    }

    /// The file of `fd`, opened again past caches where reads bypass them.
    pub fn opened_past_caches(&self, fd: BorrowedFd<'_>) -> Option<io::Result<OwnedFd>> {
        let page_cache = self.page_cache();
        (page_cache == PageCache::Bypass).then(|| self.source.reopen(fd, page_cache))
    }

    /// True if the file was changed too recently for its time stamps to be believed.
    pub fn is_racily_clean(&self, facts: &FileFacts) -> bool {
        let by = self.stamps.change_stamp();
        !self.is_unchanging() && facts.is_racily_clean(wall_clock_ns(), self.config.stamp_granularity_ns, by)
    }

    /// How long a file is racily clean after a change.
    pub fn racy_for(&self, facts: &FileFacts) -> Duration {
        Duration::from_nanos(self.granularity_ns(facts).unsigned_abs())
    }

    /// How long until the file's stamps can be believed, if it does not change again; `None` if
    /// they can. `alone`: nobody on this node writes it. Then only a node elsewhere may, and a
    /// local file system has none.
    pub fn settles_in(&self, facts: &FileFacts, alone: bool) -> Option<Duration> {
        if self.is_unchanging() {
            return None;
        }
        let age_ns = wall_clock_ns().saturating_sub(facts.changed_ns(self.stamps.change_stamp()));
        let left_ns = self.settling_ns(facts, alone).saturating_sub(age_ns);
        // A moment longer, so that it is over then.
        (left_ns > 0).then(|| Duration::from_nanos(left_ns.unsigned_abs()) + Duration::from_millis(1))
    }

    /// Whether the file has not changed for so long that a mapping of its copy may take the place
    /// of one of the file.
    pub fn has_rested(&self, facts: &FileFacts) -> bool {
        let age_ns = wall_clock_ns().saturating_sub(facts.changed_ns(self.stamps.change_stamp()));
        age_ns >= self.live.get(|config| config.map_rest_ns).max(self.settling_ns(facts, false))
    }

    /// The longest that [`MountState::settles_in`] returns, unless the change is in the future.
    pub fn settling(&self, facts: &FileFacts) -> Duration {
        Duration::from_nanos(self.settling_ns(facts, false).unsigned_abs()) + Duration::from_millis(1)
    }

    fn settling_ns(&self, facts: &FileFacts, alone: bool) -> i64 {
        let settle_ns = if alone && self.is_local.load(Acquire) { 0 } else { self.settle_ns.load(Acquire) };
        self.granularity_ns(facts).max(settle_ns)
    }

    fn granularity_ns(&self, facts: &FileFacts) -> i64 {
        facts.granularity_ns(self.config.stamp_granularity_ns, self.stamps.change_stamp())
    }
}

/// Whether something is mounted on `root` itself.
fn root_is_mounted(root: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    statx(CWD, root, flags, StatxFlags::empty()).is_ok_and(|stat| is_mount_root(&stat, root))
}

/// Whether `stat` is of the root of a mount. Kernels before 5.8 report it in their table alone,
/// which takes longer.
fn is_mount_root(stat: &rustix::fs::Statx, root: &Path) -> bool {
    use rustix::fs::StatxAttributes;
    let is_reported = stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    if is_reported { stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) } else { is_mount_point(root) }
}

fn page_cache_of(source: &dyn Source, keep: bool) -> PageCache {
    match keep {
        true => PageCache::Keep,
        // Its client drops the kernel's pages some time after it has given up the right to cache
        // them, and an open keeps what is left: a read through the cache may see old bytes, and
        // leave them there for other programs. Its own cache keeps old bytes as well, and serves
        // them to descriptors that were opened without `O_DIRECT`.
        false if source.traits().keeps_old_pages => PageCache::Bypass,
        false => PageCache::Drop,
    }
}

/// How long a file of such a file system must be quiet, where nothing is configured.
fn default_settle_ns(traits: Traits) -> i64 {
    if traits.stamps_late { SETTLE_LATE_NS } else { SETTLE_NS }
}

/// Nanoseconds since 1970, as file systems stamp.
pub fn wall_clock_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pfs::Revalidate;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_racily_clean_file_is_waited_for_as_long_as_it_stays_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"one").unwrap();
        let mount = MountState::new(MountConfig::new("pfs", dir.path())).unwrap();
        mount.is_local.store(true, Relaxed);
        mount.settle_ns.store(SETTLE_NS, Relaxed);
        let mut facts =
            FileFacts::of(std::fs::File::open(&path).unwrap().as_fd(), Revalidate::Force).unwrap();
        let stamped = |facts: &mut FileFacts, seconds: i64| {
            let at = (wall_clock_ns() / 1_000_000_000 + seconds) * 1_000_000_000;
            (facts.version.mtime_ns, facts.version.ctime_ns) = (at, at);
        };
        let second = Duration::from_millis(1_001);
        stamped(&mut facts, -1);
        assert!(mount.is_racily_clean(&facts) && mount.settles_in(&facts, true).unwrap() <= second);
        assert!(mount.settles_in(&facts, false).unwrap() > second, "somebody may be writing");
        stamped(&mut facts, -9);
        assert!(!mount.is_racily_clean(&facts));
        assert_eq!([true, false].map(|alone| mount.settles_in(&facts, alone)), [None; 2]);
        stamped(&mut facts, 9);
        assert!(
            mount.settles_in(&facts, false).unwrap() > mount.settling(&facts),
            "the clock of the server is ahead"
        );
        mount.is_local.store(false, Relaxed);
        stamped(&mut facts, -2);
        assert!(mount.settles_in(&facts, true).is_some(), "other nodes write it");
    }

    /// The kernel mounts it without an answer from its server, and the agent asks none.
    #[test]
    fn a_mount_by_ceph_fuse_made_after_the_start_is_read_past_the_page_cache() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
        let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        let (true, Ok(fuse)) = (rustix::process::geteuid().is_root(), fuse) else {
            eprintln!("left out: not root, or no /dev/fuse");
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let state = MountState::new(MountConfig::new("pfs", dir.path())).unwrap();
        let kept = MountConfig { keep_page_cache: true, ..MountConfig::new("kept", dir.path()) };
        let kept = MountState::new(kept).unwrap();
        let modes = || {
            [&state, &kept].map(|mount| {
                mount.has_device(0);
                mount.page_cache()
            })
        };
        assert_eq!(modes(), [PageCache::Drop, PageCache::Keep]);
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        if let Err(e) =
            mount("ceph-fuse", dir.path(), "fuse.ceph-fuse", MountFlags::empty(), Some(options.as_c_str()))
        {
            eprintln!("left out: cannot mount: {e}");
            return;
        }
        let mounted = modes();
        // Aborts the connection first, so that nothing waits for a server.
        drop(fuse);
        unmount(dir.path(), UnmountFlags::DETACH).unwrap();
        assert_eq!(mounted, [PageCache::Bypass, PageCache::Keep]);
        assert_eq!(modes(), [PageCache::Drop, PageCache::Keep]);
    }

    #[test]
    fn a_configured_settling_time_wins_over_that_of_the_file_system() {
        let dir = tempfile::tempdir().unwrap();
        for (configured, wanted) in [(None, SETTLE_NS), (Some(0), 0), (Some(7), 7)] {
            let mut config = MountConfig::new("pfs", dir.path());
            config.settle_ns = configured;
            let mount = MountState::new(config).unwrap();
            assert_eq!(mount.settle_ns.load(Relaxed), SETTLE_LATE_NS, "the longest until it is known");
            mount.has_device(0);
            assert_eq!(mount.settle_ns.load(Relaxed), wanted);
        }
    }

    #[test]
    fn a_configuration_that_is_read_again_takes_effect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"one").unwrap();
        let facts = FileFacts::of(std::fs::File::open(&path).unwrap().as_fd(), Revalidate::Force).unwrap();
        let config = |settle_ns, map_rest_ns, keep_page_cache| MountConfig {
            settle_ns: Some(settle_ns),
            map_rest_ns,
            keep_page_cache,
            stamp_granularity_ns: 0,
            ..MountConfig::new("pfs", dir.path())
        };
        let hour = 3_600_000_000_000;
        let mount = MountState::new(config(hour, 0, false)).unwrap();
        mount.has_device(0);
        let is_now = || (mount.has_rested(&facts), mount.page_cache());
        assert_eq!(is_now(), (false, PageCache::Drop));
        mount.reconfigure(&config(0, hour, true));
        assert_eq!(is_now(), (false, PageCache::Keep));
        mount.reconfigure(&config(0, 0, true));
        assert_eq!(is_now(), (true, PageCache::Keep));
        // It is mounted again.
        mount.found(7);
        assert_eq!(is_now(), (true, PageCache::Keep));
    }
}

//! The controller's loop, step by step: what it allocates, and which groups it follows.

use super::*;
use crate::memory::limit::Group;
use crate::memory::memory_place::Place;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// Counts what each thread of this test program allocates.
struct Counted;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

// SAFETY: every call goes to the system's allocator with what the caller has passed, and counting
// neither allocates nor panics: the cell is a constant, and a thread that ends has none any more.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

const MIB: u64 = 1 << 20;

struct Stand {
    control: Control,
    machine: Recorded,
    sources: Sources,
    calls: Calls,
    buffer: Box<[u8; BUFFER_BYTES]>,
    group: PathBuf,
    _dir: tempfile::TempDir,
}

/// Sets the use of the group to `mib` MiB of 200.
fn uses(group: &Path, mib: u64) {
    let write = |name: &str, text: String| std::fs::write(group.join(name), text).unwrap();
    write("memory.max", format!("{}\n", 200 * MIB));
    write("memory.current", format!("{}\n", mib * MIB));
    write("memory.stat", format!("active_file 0\ninactive_file 0\nshmem {}\n", mib * MIB));
}

impl Stand {
    /// A controller that looks at the node and at a group of version 2 whose files are the test's.
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let cache = Arc::new(Cache::for_tests(dir.path(), 64 * MIB));
        let wake = Arc::new(Wake::new().unwrap());
        let config = MemoryConfig::default();
        let calls = Calls::new(&wake).unwrap();
        let machine = Recorded::new(&config, None).unwrap();
        let mut sources = Sources::new(&config.watch, &calls);
        let group = Group { version: 2, directory: dir.path().join("group") };
        std::fs::create_dir(&group.directory).unwrap();
        let control = Control::new(config, 0, cache, Arc::default(), wake);
        uses(&group.directory, 100);
        sources.watched.push(Watched::new(Place::of(group.clone(), u64::MAX)));
        let mut stand = Stand {
            control,
            machine,
            sources,
            calls,
            buffer: Box::new([0; BUFFER_BYTES]),
            group: group.directory,
            _dir: dir,
        };
        stand.machine.moved(Nanos(0), stand.sources.names());
        stand
    }

    fn turn(&mut self, ms: u64) {
        let now = Nanos(ms * 1_000_000);
        let bounds = (false, self.control.max_bytes());
        self.control.look(now, bounds, &mut self.machine, &mut self.sources, &mut self.buffer);
        self.control.carry_out((now, bounds.1), &self.machine, &mut self.sources, &self.calls);
    }
}

/// Looks and resizes of an empty tier allocate nothing once all is known.
#[test]
fn a_look_allocates_nothing_and_neither_does_carrying_out_what_it_decides() {
    let mut stand = Stand::new();
    (0..40).for_each(|i| stand.turn(i * 100));
    let (before, resized) =
        (allocations(), stand.control.counters.capacity_changes_total.load(Ordering::Relaxed));
    let _ = Box::new(1);
    assert_eq!(allocations(), before + 1, "allocations are counted");
    let mut counted = 0;
    for i in 40..440u64 {
        uses(&stand.group, if (i / 20) % 2 == 0 { 100 } else { 180 });
        let before = allocations();
        stand.turn(i * 100);
        counted += allocations() - before;
    }
    let resizes = stand.control.counters.capacity_changes_total.load(Ordering::Relaxed) - resized;
    assert!(resizes >= 10, "{resizes} resizes");
    assert_eq!(counted, 0, "allocations in 400 looks and {resizes} resizes");
}

//! Has all Rust code in this library take its memory from `heap`, from inside.

use core::alloc::{GlobalAlloc, Layout};

use crate::heap::HEAP;
use crate::inside;

struct Own;

// SAFETY: blocks are as large and aligned as asked for, and nobody has a block twice.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _inside = inside::stay();
        HEAP.take(layout)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let _inside = inside::stay();
        // SAFETY: the caller's promise is the same.
        unsafe { HEAP.release(block, layout) };
    }
}

#[global_allocator]
static OWN: Own = Own;

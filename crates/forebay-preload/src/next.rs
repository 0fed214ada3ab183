//! The functions that ours replace.
//!
//! `RTLD_NEXT` gives the next definition in the order of loaded libraries, so that other preloaded
//! libraries (profilers, allocators) still see each call. It is looked up at the first call and
//! kept, because libraries that are loaded before this one call functions before its constructor
//! runs.

use core::ffi::{CStr, c_void};
use core::marker::PhantomData;
use core::mem::transmute_copy;
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

/// The next definition of one function, of the type `F`, a function pointer.
pub struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

// SAFETY: it holds an address that never changes once it is found; `F` itself is not stored.
unsafe impl<F> Sync for Next<F> {}

impl<F: Copy> Next<F> {
    /// # Safety
    /// `F` must be the type of a pointer to the C function `name`.
    pub const unsafe fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Next { name, found: AtomicPtr::new(null_mut()), kind: PhantomData }
    }

    /// The function, if it was looked up before.
    #[inline]
    pub fn known(&self) -> Option<F> {
        let found = self.found.load(Relaxed);
        // SAFETY: as in `get`.
        (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
    }

    /// The function, or none if nothing behind us defines it: then nobody can have linked to it.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let mut found = self.found.load(Relaxed);
        if found.is_null() {
            // SAFETY: the name ends with a zero byte.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Relaxed);
        }
        // SAFETY: `new`'s caller promises that `F` is a pointer to this function; it is not null.
        (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
    }
}

/// Calls the next definition of a function. If there is none, sets `errno` to `ENOSYS` and returns
/// the value behind `else`.
macro_rules! next {
    ($name:ident($($arg:expr => $type:ty),*) -> $ret:ty, else $missing:expr) => {{
        static NEXT: $crate::next::Next<unsafe extern "C-unwind" fn($($type),*) -> $ret> = {
            const NAME: &core::ffi::CStr =
                match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without zero bytes"),
                };
            // SAFETY: the types are those of the C library's declaration.
            unsafe { $crate::next::Next::new(NAME) }
        };
        match NEXT.get() {
            // SAFETY: the arguments are the caller's own, for the same function.
            Some(function) => unsafe { function($($arg),*) },
            None => {
                // SAFETY: `errno` is the calling thread's.
                unsafe { *libc::__errno_location() = libc::ENOSYS };
                $missing
            }
        }
    }};
}
pub(crate) use next;

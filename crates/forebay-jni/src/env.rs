//! The JVM, as far as it is needed: arrays, direct buffers, exceptions.
//!
//! A [`Jni`] is made from what the JVM passes to a native method and lives for that call. Failures
//! of the JVM itself (no memory for an array) leave an exception pending in it; the functions here
//! then say [`Pending`], and the call returns.

use forebay_client::errno;
use forebay_client::error::panic_message;
use jni_sys::{
    JNI_ABORT, JNIEnv, JNINativeInterface__1_4, jarray, jbyteArray, jclass, jlong, jobject, jvalue,
};
use std::ffi::c_void;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Why a call does not return a value.
#[derive(Debug)]
pub enum Failure {
    /// An exception of the JVM is pending.
    Pending,
    /// Error number and message for an exception.
    Errno(i32, String),
}

impl Failure {
    /// An error of the core about `path`.
    pub fn about(path: &Path) -> impl FnOnce(io::Error) -> Failure {
        move |e| {
            let (errno, words) = named(path, &e);
            Failure::Errno(errno, words)
        }
    }

    fn invalid(words: &str) -> Failure {
        Failure::Errno(libc::EINVAL, words.to_owned())
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Failure::Errno(errno(&e), e.to_string())
    }
}

/// An error with the file it is about in its message; the core's own messages begin with it
/// already.
fn named(path: &Path, e: &io::Error) -> (i32, String) {
    let number = errno(e);
    // Java puts the message where it likes; the number is passed separately.
    let text = e.to_string();
    let text = text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text).to_owned();
    match text.starts_with(&*path.to_string_lossy()) {
        true => (number, text),
        false => (number, format!("{}: {text}", path.display())),
    }
}

/// What a native method returns.
pub type Outcome<T> = Result<T, Failure>;

/// What a native method returns along with an exception. Java never sees it.
pub trait Ignored {
    /// Such a value.
    const IGNORED: Self;
}

impl Ignored for () {
    const IGNORED: Self = ();
}

impl Ignored for bool {
    const IGNORED: Self = false;
}

impl Ignored for i32 {
    const IGNORED: Self = -1;
}

impl Ignored for i64 {
    const IGNORED: Self = -1;
}

impl<T> Ignored for *mut T {
    const IGNORED: Self = std::ptr::null_mut();
}

/// The JVM during one native method of `class`.
pub struct Jni {
    env: *mut JNIEnv,
    class: jclass,
}

/// A range of a Java array or buffer: `length` bytes from `start` on, as Java's own `int`s.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First byte.
    pub start: i32,
    /// Number of bytes.
    pub length: i32,
}

impl Span {
    /// Within `size` bytes, as indices.
    fn within(self, size: usize) -> Option<(usize, usize)> {
        let (start, length) = (usize::try_from(self.start).ok()?, usize::try_from(self.length).ok()?);
        (start.checked_add(length)? <= size).then_some((start, length))
    }
}

impl Jni {
    /// Runs the body of a native method. On failure or panic an exception is pending afterwards.
    ///
    /// # Safety
    /// `env` and `class` are what the JVM has passed to the native method that calls this, in this
    /// thread.
    pub unsafe fn run<T: Ignored>(
        env: *mut JNIEnv,
        class: jclass,
        body: impl FnOnce(&Jni) -> Outcome<T>,
    ) -> T {
        let jni = Jni { env, class };
        // Nothing is seen half done after a panic: the core takes its locks over from a thread that
        // panicked.
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&jni)));
        match outcome {
            Ok(Ok(value)) => return value,
            Ok(Err(Failure::Pending)) => {}
            Ok(Err(Failure::Errno(errno, words))) => jni.fail(errno, &words),
            Err(panic) => {
                jni.fail(libc::EIO, &format!("a bug in forebay: {}", panic_message(panic.as_ref())))
            }
        }
        T::IGNORED
    }

    fn functions(&self) -> &JNINativeInterface__1_4 {
        // SAFETY: the JVM's table outlives every call; each JVM that runs today has the functions
        // of version 1.4.
        unsafe { &(**self.env).v1_4 }
    }

    fn pending_unless(&self, good: bool) -> Outcome<()> {
        if good { Ok(()) } else { Err(Failure::Pending) }
    }

    /// Leaves an exception pending, made by the class's own `static void fail(int, byte[])`: only
    /// Java knows which exception suits which number, and text goes as bytes because the JVM's own
    /// strings have an encoding of their own.
    fn fail(&self, errno: i32, words: &str) {
        let f = self.functions();
        let Ok(text) = self.new_bytes(words.as_bytes()) else { return };
        // SAFETY: env and class are the JVM's for this call; names and signature end in a zero
        // byte; a missing method leaves its own exception pending.
        unsafe {
            let method = (f.GetStaticMethodID)(self.env, self.class, c"fail".as_ptr(), c"(I[B)V".as_ptr());
            if !method.is_null() {
                let arguments = [jvalue { i: errno }, jvalue { l: text }];
                (f.CallStaticVoidMethodA)(self.env, self.class, method, arguments.as_ptr());
            }
        }
    }

    /// The bytes of a Java array.
    pub fn bytes(&self, array: jbyteArray) -> Outcome<Vec<u8>> {
        let length = self.length(array)?;
        let mut bytes = vec![0; length];
        self.copy_out(array, Span { start: 0, length: length as i32 }, &mut bytes)?;
        Ok(bytes)
    }

    fn length(&self, array: jarray) -> Outcome<usize> {
        if array.is_null() {
            return Err(Failure::invalid("no array where one is needed"));
        }
        // SAFETY: a reference to an array, as the signature of the native method says.
        let length = unsafe { (self.functions().GetArrayLength)(self.env, array) };
        Ok(usize::try_from(length).unwrap_or(0))
    }

    /// Copies `span` of a Java array into `target`, which is as long.
    pub fn copy_out(&self, array: jbyteArray, span: Span, target: &mut [u8]) -> Outcome<()> {
        let within = span.within(self.length(array)?).filter(|(_, length)| *length == target.len());
        if within.is_none() {
            return Err(Failure::invalid("a range that is not within its array"));
        }
        let f = self.functions();
        // SAFETY: `target` has room for `span.length` bytes; the range is within the array.
        unsafe {
            (f.GetByteArrayRegion)(self.env, array, span.start, span.length, target.as_mut_ptr().cast());
            self.pending_unless(!(f.ExceptionCheck)(self.env))
        }
    }

    /// Copies `source` into a Java array from `start` on.
    pub fn copy_in(&self, array: jbyteArray, start: i32, source: &[u8]) -> Outcome<()> {
        let span = Span { start, length: i32::try_from(source.len()).unwrap_or(i32::MAX) };
        if span.within(self.length(array)?).is_none() {
            return Err(Failure::invalid("a range that is not within its array"));
        }
        let f = self.functions();
        // SAFETY: `source` has `span.length` bytes; the range is within the array.
        unsafe {
            (f.SetByteArrayRegion)(self.env, array, span.start, span.length, source.as_ptr().cast());
            self.pending_unless(!(f.ExceptionCheck)(self.env))
        }
    }

    /// Lends `span` of a Java array in place. The JVM may hold up its garbage collection meanwhile:
    /// `body` must not wait for anything, nor call into the JVM.
    pub fn with_array<T>(
        &self,
        array: jbyteArray,
        span: Span,
        body: impl FnOnce(&mut [u8]) -> T,
    ) -> Outcome<T> {
        let Some((start, length)) = span.within(self.length(array)?) else {
            return Err(Failure::invalid("a range that is not within its array"));
        };
        let f = self.functions();
        // SAFETY: a reference to an array; nothing of the JVM is called until the address is given
        // back below.
        let address = unsafe { (f.GetPrimitiveArrayCritical)(self.env, array, std::ptr::null_mut()) };
        self.pending_unless(!address.is_null())?;
        let lent = Lent { jni: self, array, address };
        // SAFETY: the array has at least `start + length` bytes at this address, and the JVM has
        // been informed that they are in use; that a Java thread may write them meanwhile is the
        // program's affair, as with any read into a buffer.
        let slice = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>().add(start), length) };
        let result = body(slice);
        drop(lent);
        Ok(result)
    }

    /// `span` of a direct buffer.
    ///
    /// # Safety
    /// The slice must not be used after the native method has returned.
    pub unsafe fn direct<'a>(&self, buffer: jobject, span: Span) -> Outcome<&'a mut [u8]> {
        if buffer.is_null() {
            return Err(Failure::invalid("no buffer where one is needed"));
        }
        let f = self.functions();
        // SAFETY: a reference to a ByteBuffer, as the signature of the native method says; one that
        // is not direct has no address and a negative capacity.
        let (address, capacity) = unsafe {
            ((f.GetDirectBufferAddress)(self.env, buffer), (f.GetDirectBufferCapacity)(self.env, buffer))
        };
        let within = span.within(usize::try_from(capacity).unwrap_or(0)).filter(|_| !address.is_null());
        let Some((start, length)) = within else {
            return Err(Failure::invalid("a range that is not within a direct buffer"));
        };
        // SAFETY: within the buffer, which lives for the call because the JVM holds a reference for
        // it.
        Ok(unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>().add(start), length) })
    }

    /// A new Java array with these bytes.
    pub fn new_bytes(&self, bytes: &[u8]) -> Outcome<jbyteArray> {
        let length = i32::try_from(bytes.len())
            .map_err(|_| Failure::Errno(libc::EOVERFLOW, "an answer longer than a Java array".to_owned()))?;
        // SAFETY: env is the JVM's for this call.
        let array = unsafe { (self.functions().NewByteArray)(self.env, length) };
        self.pending_unless(!array.is_null())?;
        self.copy_in(array, 0, bytes)?;
        Ok(array)
    }

    /// A direct buffer over memory of ours.
    ///
    /// # Safety
    /// `bytes` stay where they are for as long as Java uses the buffer, and Java does not write
    /// them.
    pub unsafe fn new_direct(&self, bytes: &[u8]) -> Outcome<jobject> {
        let address: *mut c_void = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the caller's promise; a length of a slice fits a jlong.
        let buffer =
            unsafe { (self.functions().NewDirectByteBuffer)(self.env, address, bytes.len() as jlong) };
        self.pending_unless(!buffer.is_null())?;
        Ok(buffer)
    }
}

/// An array lent by the JVM; released when this is dropped, even by a panic.
struct Lent<'a> {
    jni: &'a Jni,
    array: jbyteArray,
    address: *mut c_void,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // 0: keep what was written, even where the JVM has lent a copy. (JNI_ABORT would throw it
        // away.)
        const KEEP: i32 = 0;
        const { assert!(KEEP != JNI_ABORT) };
        let f = self.jni.functions();
        // SAFETY: the address was lent for this array and is released once.
        unsafe { (f.ReleasePrimitiveArrayCritical)(self.jni.env, self.array, self.address, KEEP) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_within_or_it_is_nothing() {
        let span = |start, length| Span { start, length };
        assert_eq!(span(2, 3).within(5), Some((2, 3)));
        assert_eq!(span(5, 0).within(5), Some((5, 0)));
        for bad in [span(3, 3), span(-1, 2), span(2, -1), span(i32::MAX, i32::MAX)] {
            assert_eq!(bad.within(5), None, "{bad:?}");
        }
    }

    #[test]
    fn an_error_names_its_file_once_and_not_its_number() {
        let path = Path::new("/pfs/a");
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(named(path, &missing), (libc::ENOENT, "/pfs/a: No such file or directory".into()));
        let reported = io::Error::new(io::ErrorKind::TimedOut, "/pfs/a: too late");
        assert_eq!(named(path, &reported), (libc::ETIMEDOUT, "/pfs/a: too late".into()));
    }
}

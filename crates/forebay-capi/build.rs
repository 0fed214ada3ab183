//! Gives the shared library its soname, so that a program linked today refuses a library with
//! another ABI tomorrow.
//!
//! The number is the ABI's, not the release's: it goes up when a function of `include/forebay.h`
//! changes or goes.

/// Also in the Makefile, which makes the symbolic links.
const ABI: u32 = 0;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libforebay.so.{ABI}");
}

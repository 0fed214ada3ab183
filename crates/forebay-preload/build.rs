//! Compiles the functions of stdio that take a variable number of arguments.

fn main() {
    println!("cargo:rerun-if-changed=src/print.c");
    cc::Build::new().file("src/print.c").opt_level(2).pic(true).compile("forebay_print");
}

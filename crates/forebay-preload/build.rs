//! Compiles what only C can define: functions that take a variable number of arguments, functions
//! that leave by a jump, and a variable in each thread's static block.

const SOURCES: [&str; 3] = ["src/print.c", "src/jumps.c", "src/thread.c"];

fn main() {
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    cc::Build::new().files(SOURCES).opt_level(2).pic(true).compile("forebay_c");
}

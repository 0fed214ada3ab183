//! Compiles what only C can define: functions that take a variable number of arguments, and a
//! variable in each thread's static block.

fn main() {
    for source in ["src/print.c", "src/thread.c"] {
        println!("cargo:rerun-if-changed={source}");
    }
    cc::Build::new().files(["src/print.c", "src/thread.c"]).opt_level(2).pic(true).compile("forebay_c");
}

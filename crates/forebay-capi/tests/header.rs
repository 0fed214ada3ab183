//! The header and the library say the same: names, types and numbers.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every C type of the header with the Rust type that has its size and meaning. A type that is not
/// here is refused.
const TYPES: &[(&str, &str)] = &[
    ("void", ""),
    ("int", "c_int"),
    ("unsigned int", "c_uint"),
    ("int64_t", "i64"),
    ("uint64_t", "u64"),
    ("size_t", "usize"),
    ("ssize_t", "isize"),
    ("const char *", "*const c_char"),
    ("const char *const *", "*const *const c_char"),
    ("void *", "*mut c_void"),
    ("const void *", "*const c_void"),
    ("forebay_file *", "*mut ForebayFile"),
    ("const forebay_file *", "*const ForebayFile"),
    ("const uint64_t *", "*const u64"),
    ("forebay_writer *", "*mut ForebayWriter"),
    ("forebay_job *", "*mut ForebayJob"),
    ("const forebay_job *", "*const ForebayJob"),
    ("forebay_mapping *", "*mut ForebayMapping"),
    ("forebay_mapping **", "*mut *mut ForebayMapping"),
];

/// Parameters and result of a function, as Rust types.
type Signature = (Vec<String>, String);

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header_path() -> PathBuf {
    crate_dir().join("include/forebay.h")
}

fn header_without_comments() -> String {
    let text = std::fs::read_to_string(header_path()).unwrap();
    let mut code = String::new();
    for (nth, part) in text.split("/*").enumerate() {
        code += if nth == 0 { part } else { part.split_once("*/").expect("a comment ends").1 };
    }
    code
}

fn rust_type(c_type: &str) -> String {
    let found = TYPES.iter().find(|(c, _)| *c == c_type.trim());
    found.unwrap_or_else(|| panic!("the C type `{c_type}` is not in the table")).1.to_owned()
}

/// `const char *path` is the type `const char *` and the name `path`.
fn split_name(declaration: &str) -> (&str, &str) {
    let declaration = declaration.trim();
    let at = declaration.rfind([' ', '*']).expect("a type and a name") + 1;
    (&declaration[..at], &declaration[at..])
}

fn functions_of_header() -> BTreeMap<String, Signature> {
    let code = header_without_comments();
    let flat: Vec<&str> = code.lines().filter(|line| !line.starts_with('#')).collect();
    let mut functions = BTreeMap::new();
    for statement in flat.join(" ").split(';').filter(|s| s.contains('(')) {
        let statement = statement.trim().trim_start_matches(r#"extern "C" {"#);
        let (front, parameters) = statement.split_once('(').unwrap();
        let (result, name) = split_name(front);
        let parameters = parameters.trim_end().strip_suffix(')').expect("a prototype ends in a parenthesis");
        let parameters = match parameters.trim() {
            "void" => Vec::new(),
            list => list.split(',').map(|p| rust_type(split_name(p).0)).collect(),
        };
        functions.insert(name.to_owned(), (parameters, rust_type(result)));
    }
    functions
}

fn functions_of_library() -> BTreeMap<String, Signature> {
    let mut functions = BTreeMap::new();
    for entry in std::fs::read_dir(crate_dir().join("src")).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for part in source.split("extern \"C\" fn ").skip(1) {
            let (name, rest) = part.split_once('(').unwrap();
            let (parameters, rest) = rest.split_once(')').unwrap();
            let result = rest.split_once('{').unwrap().0.trim().trim_start_matches("->").trim();
            let types = parameters.split(',').filter_map(|p| p.split_once(':'));
            let parameters = types.map(|(_, ty)| ty.trim().to_owned()).collect();
            functions.insert(name.to_owned(), (parameters, result.to_owned()));
        }
    }
    functions
}

#[test]
fn the_header_declares_what_the_library_has() {
    let (header, library) = (functions_of_header(), functions_of_library());
    assert!(library.len() >= 12, "the functions of the library were not found: {library:?}");
    assert_eq!(header, library);
}

fn number(name: &str) -> String {
    let code = header_without_comments();
    let line = code.lines().find(|line| line.starts_with(&format!("#define {name} ")));
    line.unwrap_or_else(|| panic!("no #define {name}")).rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn the_header_and_the_soname_have_the_same_number() {
    let build = std::fs::read_to_string(crate_dir().join("build.rs")).unwrap();
    assert!(build.contains(&format!("const ABI: u32 = {};", number("FOREBAY_ABI"))));
}

/// Where the library's source gives a number of the header its meaning.
const MEANINGS: &[(&str, &str, &str)] = &[
    ("FOREBAY_READ_CACHED", "read.rs", "# => Ok(ReadMode::Cached)"),
    ("FOREBAY_READ_TIER_ONLY", "read.rs", "# => Ok(ReadMode::TierOnly)"),
    ("FOREBAY_READ_PFS_ONLY", "read.rs", "# => Ok(ReadMode::PfsOnly)"),
    ("FOREBAY_WRITE_BYPASS", "write.rs", "# => WriteMode::Bypass"),
    ("FOREBAY_WRITE_THROUGH", "write.rs", "# => WriteMode::Through"),
    ("FOREBAY_WRITE_MEMORY_ONLY", "write.rs", "# => WriteMode::MemoryOnly"),
    ("FOREBAY_WRITE_BACK", "write.rs", "# => WriteMode::Back"),
    ("FOREBAY_EXCLUSIVE", "write.rs", "const EXCLUSIVE: c_uint = #;"),
    ("FOREBAY_APPEND", "write.rs", "const APPEND: c_uint = #;"),
    ("FOREBAY_JOB_SHARES", "phase.rs", "const SHARES: c_uint = #;"),
];

#[test]
fn the_numbers_of_the_header_mean_the_same_in_the_library() {
    for (name, file, pattern) in MEANINGS {
        let source = std::fs::read_to_string(crate_dir().join("src").join(file)).unwrap();
        let expected = pattern.replace('#', number(name).trim_end_matches('u'));
        assert!(source.contains(&expected), "{name}: no `{expected}` in {file}");
    }
    let defined = header_without_comments();
    let constants =
        defined.lines().filter(|l| l.starts_with("#define FOREBAY_") && l.split(' ').count() == 3);
    assert_eq!(constants.count(), MEANINGS.len() + 1, "every constant but FOREBAY_ABI has a meaning");
}

/// The shared library exports these functions and nothing else of ours.
#[test]
fn the_shared_library_exports_the_functions_of_the_header() {
    let library = std::env::current_exe().unwrap().with_file_name("libforebay.so");
    let Ok(out) = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output() else {
        eprintln!("skipped: no `nm` here (package binutils)");
        return;
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let symbols = String::from_utf8_lossy(&out.stdout).into_owned();
    let exported: Vec<_> = symbols.lines().filter_map(|line| line.split(' ').next_back()).collect();
    let expected: Vec<_> = functions_of_header().into_keys().collect();
    assert_eq!(exported, expected);
}

/// The header stands alone and is clean C99 and C++, and the table of types is right about sizes.
#[test]
fn the_header_compiles_by_itself() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = dir.join("header.c");
    let sizes = "_Static_assert(sizeof(size_t) == sizeof(void *), \"size_t is usize\");\n\
                 _Static_assert(sizeof(ssize_t) == sizeof(void *), \"ssize_t is isize\");\n\
                 _Static_assert(sizeof(int) == 4, \"int is c_int\");\n";
    let text =
        format!("#include <forebay.h>\n#ifndef __cplusplus\n{sizes}#endif\nint main(void) {{ return 0; }}\n");
    std::fs::write(&source, text).unwrap();
    let include = header_path();
    for language in [["-x", "c", "-std=c11"], ["-x", "c++", "-std=c++11"]] {
        let run = Command::new("cc")
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
            .arg(include.parent().unwrap())
            .args(language)
            .arg(&source)
            .output()
            .expect("a C compiler (package build-essential)");
        assert!(run.status.success(), "{language:?}: {}", String::from_utf8_lossy(&run.stderr));
    }
}

//! No crate has modules that import each other in a circle: each can be read after those that it
//! imports, and before those that import it.
//!
//! The rule, for every folder of modules on every level of every crate:
//!
//! - The rooms of a folder are the modules in it, each with all that is below it, and the folder's
//!   own file (`mod.rs`, `lib.rs`, `main.rs`) as one more.
//! - A room imports another if a path in it (`use`, or in code) leads to an item that is defined in
//!   the other. A re-export is not where its item is defined, and re-exporting alone is not an
//!   import: a folder's file may hand out what its modules define.
//! - `mod name;` is not an import. So modules may import what the folder's file defines, as long as
//!   that file names none of them; and it may be built from its modules, as long as these do not
//!   reach back to it. Folders that do both are listed below with their reason; their modules are
//!   free of circles among themselves all the same.
//! - Tests are left out: they may reach everywhere.
//!
//! Calls of methods are not seen: which type has them is not known without the compiler. The type
//! is named somewhere.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Folders whose own file and modules name each other, and why they may.
const ONE_WITH_THEIR_FILE: &[(&str, &str, &str)] = &[
    ("forebay-policy", "burst::access", TABLE),
    ("forebay-policy", "burst::allocation", TABLE),
    ("forebay-policy", "bandwidth", TABLE),
    ("forebay-policy", "eviction", TABLE),
    ("forebay-policy", "memory", TABLE),
    ("forebay-policy", "planner", TABLE),
    ("forebay-policy", "batch_queue", TABLE),
    ("forebay-pfs", "quirks", TABLE),
    ("forebay-sim", "scenario", TABLE),
    ("forebay-sim", "cli", COMMANDS),
    ("forebay-sim", "cli::random", COMMANDS),
    ("forebay-cli", "", COMMANDS),
    ("forebay-sim", "study", STUDY),
    ("forebay-sim", "reproduce::bb", STUDY),
    ("forebay-sim", "reproduce::eley", STUDY),
    ("forebay-policy", "stage", MACHINE),
    ("forebay-policy", "stage::waves", MACHINE),
    ("forebay-sim", "cluster::world", WORLD),
    ("forebay-sim", "colocate::world", WORLD),
    ("forebay-sim", "world", WORLD),
];

const TABLE: &str = "its file defines what its modules implement, and lists them by name";
const COMMANDS: &str = "its file runs the commands, and defines what they share";
const STUDY: &str = "its file runs the parts of a study, and defines what they share";
const MACHINE: &str = "its file defines a machine, and its modules are the parts of that";
const WORLD: &str = "its file defines a simulated world, and its modules are what happens in it";

/// What precedes an item of tests.
const TEST_ONLY: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

/// What precedes a `use` that imports, unlike the word in a text or in bounds.
const BEFORE_USE: [&str; 6] = [";", "{", "}", "]", ")", "pub"];

/// A module's place: the names from the crate's root to it.
type Place = Vec<String>;

#[derive(Debug, Default)]
struct Module {
    children: BTreeSet<String>,
    /// Names that it hands on, and the paths to where they come from.
    exports: BTreeMap<String, Vec<String>>,
    /// Paths in its code that may lead to other modules.
    paths: BTreeSet<Vec<String>>,
}

type Modules = BTreeMap<Place, Module>;

/// Names, `::` and single signs, without comments. A text is not distinguished from code: no text
/// here has the path of a module, and its braces are pairs.
fn tokens(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    for line in text.lines() {
        let mut rest = line.split("//").next().unwrap_or_default().trim_start();
        while let Some(first) = rest.chars().next() {
            let len = match first {
                _ if is_name(first) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
                _ if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            tokens.push(rest[..len].to_owned());
            rest = rest[len..].trim_start();
        }
    }
    tokens
}

/// The index after the item that begins at `at`: after its `;` or its block.
fn behind_item(tokens: &[String], mut at: usize) -> usize {
    let mut depth = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "{" | "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at
}

/// The paths of a `use` that begins at `at`, each with the name that it is known by, and the index
/// after it.
fn used(tokens: &[String], at: usize, prefix: &[String], out: &mut Vec<(Vec<String>, String)>) -> usize {
    let mut path = prefix.to_vec();
    let mut at = at;
    let mut name = None;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "{" => {
                at += 1;
                while at < tokens.len() && tokens[at] != "}" {
                    at = used(tokens, at, &path, out);
                    at += usize::from(tokens[at] == ",");
                }
                return at + 1;
            }
            "," | ";" | "}" => break,
            "::" => {}
            "as" => {
                name = Some(tokens[at + 1].clone());
                at += 1;
            }
            segment => path.push(segment.to_owned()),
        }
        at += 1;
    }
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
    out.push((path, name));
    at
}

/// Reads a module's text.
fn module(text: &str) -> Module {
    let tokens = tokens(text);
    let mut module = Module::default();
    let mut exported = Vec::new();
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at].as_str();
        if tokens[at..].iter().zip(TEST_ONLY).filter(|(a, b)| a == b).count() == TEST_ONLY.len() {
            at = behind_item(&tokens, at + TEST_ONLY.len());
        } else if token == "mod" && tokens.get(at + 2).is_some_and(|next| next == ";") {
            module.children.insert(tokens[at + 1].clone());
            at += 3;
        } else if token == "use" && (at == 0 || BEFORE_USE.contains(&tokens[at - 1].as_str())) {
            let mut found = Vec::new();
            let before = tokens[at.saturating_sub(1)].as_str();
            at = used(&tokens, at + 1, &[], &mut found);
            if before == "pub" || before == ")" {
                exported.extend(found);
            } else {
                module.paths.extend(found.into_iter().map(|(path, _)| path));
            }
        } else {
            *named.entry(token).or_default() += 1;
            let begins = tokens.get(at + 1).is_some_and(|next| next == "::");
            if begins && (at == 0 || tokens[at - 1] != "::") {
                let mut path = vec![token.to_owned()];
                while tokens.get(at + 1).is_some_and(|next| next == "::")
                    && let Some(next) = tokens.get(at + 2)
                    && next.starts_with(|c: char| c.is_alphabetic() || c == '_')
                {
                    path.push(next.clone());
                    at += 2;
                }
                module.paths.insert(path);
            }
            at += 1;
        }
    }
    for (path, name) in exported {
        // What is handed out and used here as well is an import.
        if named.contains_key(name.as_str()) {
            module.paths.insert(path.clone());
        }
        module.exports.insert(name, path);
    }
    module
}

/// The module in `file` and all below it.
fn read(file: &Path, directory: &Path, place: Place, modules: &mut Modules) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let module = module(&text);
    for child in &module.children {
        let below = directory.join(child);
        let (flat, folder) = (directory.join(format!("{child}.rs")), below.join("mod.rs"));
        let place = place.iter().chain([child]).cloned().collect();
        // A module whose source is another crate's imports nothing of this one.
        if !flat.exists() && !folder.exists() && text.contains("#[path") {
            modules.insert(place, Module::default());
            continue;
        }
        read(if flat.exists() { &flat } else { &folder }, &below, place, modules);
    }
    modules.insert(place, module);
}

/// The module in which what `path` names in the module at `from` is defined; `None` if it is not in
/// this crate.
fn lead(modules: &Modules, from: &Place, path: &[String], depth: usize) -> Option<Place> {
    let mut at = from.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => at.clear(),
        "self" => {}
        "super" => {
            at.pop()?;
        }
        first if modules[from].children.contains(first) => at.push(first.to_owned()),
        _ => return None,
    }
    rest = &rest[1..];
    while let Some(segment) = rest.first() {
        let module = &modules[&at];
        if segment == "super" {
            at.pop()?;
        } else if module.children.contains(segment) {
            at.push(segment.clone());
        } else if let (Some(export), true) = (module.exports.get(segment), depth < 8) {
            return lead(modules, &at, export, depth + 1).or(Some(at));
        } else {
            break;
        }
        rest = &rest[1..];
    }
    Some(at)
}

/// By folder: which of its rooms imports which, and through what.
type Imports = BTreeMap<Place, BTreeMap<String, BTreeMap<String, String>>>;

/// The folder's own file, among its rooms.
const OWN: &str = "its own file";

fn imports(modules: &Modules) -> Imports {
    let mut imports = Imports::new();
    for (from, module) in modules {
        for path in &module.paths {
            let Some(to) = lead(modules, from, path, 0).filter(|to| to != from) else { continue };
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            let room = |place: &Place| place.get(shared).map_or(OWN, String::as_str).to_owned();
            let evidence = format!("{} names {}", from.join("::"), path.join("::"));
            let folder = imports.entry(from[..shared].to_vec()).or_default();
            folder.entry(room(from)).or_default().entry(room(&to)).or_insert(evidence);
        }
    }
    imports
}

/// A shortest circle, as the rooms in order.
fn circle(rooms: &BTreeMap<String, BTreeMap<String, String>>) -> Option<Vec<String>> {
    let from = |start: &String| {
        let mut came: BTreeMap<&String, &String> = BTreeMap::new();
        let mut waiting = std::collections::VecDeque::from([start]);
        while let Some(room) = waiting.pop_front() {
            for next in rooms.get(room).into_iter().flat_map(BTreeMap::keys) {
                if next == start {
                    let mut way = vec![start.clone(), room.clone()];
                    while way.last() != Some(start) {
                        way.push((*came[&way[way.len() - 1]]).clone());
                    }
                    way.reverse();
                    return Some(way);
                }
                if !came.contains_key(next) {
                    came.insert(next, room);
                    waiting.push_back(next);
                }
            }
        }
        None
    };
    rooms.keys().filter_map(from).min_by_key(Vec::len)
}

/// One circle of each folder that has any, as text. `own`: with the folder's own file as a room.
fn circles(modules: &Modules, own: bool) -> Vec<(String, String)> {
    let in_words = |(folder, mut rooms): (Place, BTreeMap<String, BTreeMap<String, String>>)| {
        if !own {
            rooms.remove(OWN);
            rooms.values_mut().for_each(|imported| drop(imported.remove(OWN)));
        }
        let way = circle(&rooms)?;
        let step = |pair: &[String]| format!("    {} -> {}: {}", pair[0], pair[1], rooms[&pair[0]][&pair[1]]);
        let steps: Vec<String> = way.windows(2).map(step).collect();
        Some((folder.join("::"), steps.join("\n")))
    };
    imports(modules).into_iter().filter_map(in_words).collect()
}

fn crates() -> Vec<(String, PathBuf)> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(all).unwrap() {
        let src = entry.unwrap().path().join("src");
        let roots = ["lib.rs", "main.rs"].map(|root| src.join(root));
        for root in roots.into_iter().filter(|root| root.exists()) {
            let name = src.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
            found.push((name, root));
        }
    }
    found.sort();
    found
}

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let mut wrong = Vec::new();
    let mut one = BTreeSet::new();
    let (mut folders, mut all) = (0, 0);
    for (name, root) in crates() {
        let mut modules = Modules::new();
        read(&root, root.parent().unwrap(), Place::new(), &mut modules);
        all += modules.len();
        folders += imports(&modules).len();
        let in_words = |(folder, steps)| format!("{name}, folder {folder:?}:\n{steps}");
        for (folder, steps) in circles(&modules, false) {
            wrong.push(in_words((folder, steps)));
        }
        for (folder, steps) in circles(&modules, true) {
            match ONE_WITH_THEIR_FILE.iter().position(|(of, at, _)| *of == name && *at == folder) {
                Some(known) => drop(one.insert(known)),
                None => wrong.push(in_words((folder, steps))),
            }
        }
    }
    assert!(all > 250 && folders > 30, "only {all} modules and {folders} folders were found");
    assert!(wrong.is_empty(), "modules import each other in a circle:\n{}", wrong.join("\n"));
    let needless = (0..ONE_WITH_THEIR_FILE.len()).filter(|known| !one.contains(known));
    let needless: Vec<_> = needless.map(|known| ONE_WITH_THEIR_FILE[known]).collect();
    assert!(needless.is_empty(), "these are no circles any more: {needless:?}");
}

/// A crate of texts, by place.
fn house(texts: &[(&str, &str)]) -> Modules {
    let place = |name: &str| name.split("::").filter(|part| !part.is_empty()).map(String::from).collect();
    texts.iter().map(|(name, text)| (place(name), module(text))).collect()
}

#[test]
fn circles_are_found_and_nothing_else_is_one() {
    let found = |texts: &[(&str, &str)]| {
        circles(&house(texts), true).into_iter().map(|(folder, _)| folder).collect::<Vec<_>>()
    };
    let root = ("", "mod a; mod b;");
    assert_eq!(found(&[root, ("a", "use crate::b::B;"), ("b", "")]), [""; 0]);
    assert_eq!(
        found(&[root, ("a", "use crate::b::B;"), ("b", "fn f() { super::a::g() }")]),
        [""],
        "by a path in code"
    );
    assert_eq!(
        found(&[
            root,
            ("a", "use super::{b::{B}, X};"),
            ("b", "// crate::a\n const S: u32 = 1; // crate::a")
        ]),
        [""; 0]
    );
    let bounds = "fn f() -> impl Iterator + use<> { crate::a::g() }";
    assert_eq!(found(&[root, ("a", "use crate::b::B;"), ("b", bounds)]), [""]);
    let tests = "#[cfg(test)] mod tests { use crate::a::A; }";
    assert_eq!(found(&[root, ("a", "use crate::b;"), ("b", tests)]), [""; 0], "tests reach everywhere");

    // The folder's file and its modules.
    let folder = |own: &str, child: &str| {
        let own = format!("mod child; {own}");
        circles(&house(&[("", "mod a;"), ("a", &own), ("a::child", child)]), true)
            .into_iter()
            .map(|(f, _)| f)
            .collect::<Vec<_>>()
    };
    assert_eq!(folder("use child::C;", "use super::A;"), ["a"]);
    assert_eq!(folder("fn f() { child::g() }", "use super::A;"), ["a"]);
    assert_eq!(folder("pub use child::C;", "use super::A;"), [""; 0], "handing out is no import");
    assert_eq!(folder("pub use child::C; fn f(c: C) {}", "use super::A;"), ["a"], "using is");
    assert_eq!(folder("use child::C;", "use super::super::X;"), [""; 0]);

    // What is handed out is where it was defined.
    let root = ("", "mod a; mod b; pub use b::B;");
    assert_eq!(found(&[root, ("a", "use crate::B;"), ("b", "use crate::a::A;")]), [""]);
    assert_eq!(found(&[root, ("a", "use crate::B;"), ("b", "")]), [""; 0]);

    // Rooms are folders as a whole.
    let rooms = [
        ("", "mod a; mod b;"),
        ("a", "mod x; mod y;"),
        ("a::x", "use crate::b::B;"),
        ("a::y", ""),
        ("b", "use crate::a::y::Y;"),
    ];
    assert_eq!(found(&rooms), [""]);
}

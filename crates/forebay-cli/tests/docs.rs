//! The documentation is held to the program: links lead somewhere, commands are understood,
//! generated parts are what the program generates, every promise names a test that exists, every
//! counter and variable is explained.
//!
//! A command line is checked by appending `--help`, at which the parser stops after it has
//! understood everything before it; so options, values and subcommands are checked, missing
//! arguments are not, and nothing is run.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod kit;

use kit::{FOREBAY, Node};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two levels down")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = workspace().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Files below `dir` whose name ends in one of `endings`; what is built or not ours is left out.
fn files(dir: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "node_modules" {
                files(&path, endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

fn documents() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(workspace(), &[".md"], &mut found);
    found.sort();
    assert!(found.len() >= 15, "the documents were not found: {found:?}");
    found.into_iter().map(|path| (path.clone(), read(path))).collect()
}

/// The target of each `[text](target)` outside of code blocks.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split("```").step_by(2).flat_map(|part| part.split("](").skip(1));
    parts.filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// The anchor that a heading gets where Markdown is shown.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut checked = 0;
    let mut broken = Vec::new();
    for (path, text) in documents() {
        for target in links(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            // The site links a page of docs/ to files outside of it, and to no directory.
            let exists =
                if path.starts_with(workspace().join("docs")) { file.is_file() } else { file.exists() };
            let heading =
                |line: &str| line.starts_with('#') && anchor(line.trim_start_matches('#')) == fragment;
            if !exists || (!fragment.is_empty() && !read(&file).lines().any(heading)) {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(checked > 100, "only {checked} links were found");
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

/// Names of the functions in all sources; the tests are among them.
fn functions() -> BTreeSet<String> {
    let mut sources = Vec::new();
    for dir in ["crates", "python", "java"] {
        files(&workspace().join(dir), &[".rs", ".py", ".java"], &mut sources);
    }
    let mut names = BTreeSet::new();
    for text in sources.into_iter().map(read) {
        for word in ["fn ", "def ", "void "] {
            let name =
                |rest: &str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned);
            names.extend(text.split(word).skip(1).filter_map(name));
        }
    }
    names
}

/// The code spans of a text.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Names of tests are sentences; other code spans are shorter.
fn is_sentence(span: &str) -> bool {
    span.matches('_').count() >= 4 && span.chars().all(|c| c.is_alphanumeric() || c == '_')
}

#[test]
fn every_promise_names_tests_that_exist() {
    let functions = functions();
    let text = read("docs/semantics.md");
    let (mut promises, mut named, mut wrong) = (0, Vec::new(), Vec::new());
    // A promise is a list item, to the next item or blank line; it ends with its tests in brackets.
    for part in text.split("\n- ").skip(1) {
        let promise = part.split("\n\n").next().unwrap();
        promises += 1;
        match promise.strip_suffix("`]").and_then(|promise| promise.rsplit_once(" [`")) {
            Some((_, tests)) => named.extend(tests.split("`, `")),
            None => wrong.push(format!("no test for: {}", promise.lines().next().unwrap())),
        }
    }
    // In the tables of calls, the last column names the tests.
    for table in text.split(" | test |\n").skip(1) {
        let rows = table.lines().skip(1).map_while(|row| row.strip_suffix(" |"));
        named.extend(rows.flat_map(|row| spans(row.rsplit(" | ").next().unwrap())));
    }
    named.extend(spans(&text).filter(|span| is_sentence(span)));
    wrong.extend(named.iter().filter(|n| !functions.contains(**n)).map(|n| format!("no test {n}")));
    assert!(promises > 100 && named.len() > 250, "only {promises} promises, {} tests", named.len());
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn tests_named_in_decisions_exist() {
    let functions = functions();
    let mut named = 0;
    for (path, text) in
        documents().into_iter().filter(|(path, _)| path.to_string_lossy().contains("/decisions/"))
    {
        for heading in
            ["## Context", "## Choice", "## Alternatives", "## Evidence", "## What would change our mind"]
        {
            assert!(text.contains(heading), "{} has no {heading}", path.display());
        }
        for name in spans(&text).filter(|span| is_sentence(span)) {
            named += 1;
            assert!(functions.contains(name), "{}: no test {name}", path.display());
        }
    }
    assert!(named > 10, "only {named} tests are named");
}

/// The prose of a page: no code, no comments, no targets of links.
fn prose(text: &str) -> String {
    let unfenced: String = text.split("```").step_by(2).collect();
    let uncommented =
        unfenced.split("<!--").map(|part| part.split_once("-->").map_or(part, |(_, rest)| rest));
    let uncommented: String = uncommented.collect();
    let plain: String = uncommented.split('`').step_by(2).collect();
    plain.split("](").map(|part| part.split_once(')').map_or(part, |(_, rest)| rest)).collect()
}

#[test]
fn the_guides_use_the_words_of_the_glossary() {
    let glossary = read("docs/glossary.md");
    let table = glossary.split("| avoid | write |").nth(1).unwrap();
    let cells = table.lines().skip(2).filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let avoided: Vec<_> = cells.flat_map(|cell| cell.split([',', ';'])).map(str::trim).collect();
    assert!(avoided.len() > 10 && avoided.contains(&"brought"), "{avoided:?}");
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        let name = path.strip_prefix(workspace()).unwrap().display().to_string();
        let guide = name.starts_with("docs/") && !name.contains("decisions") && name != "docs/glossary.md";
        if !guide && name != "README.md" && name != "CONTRIBUTING.md" {
            continue;
        }
        let lower = prose(&text).to_lowercase();
        let spaced = lower.split(|c: char| !c.is_alphanumeric() && c != '-').filter(|w| !w.is_empty());
        let words = format!(" {} ", spaced.collect::<Vec<_>>().join(" "));
        wrong.extend(
            avoided.iter().filter(|a| words.contains(&format!(" {a} "))).map(|a| format!("{name}: {a}")),
        );
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Identifiers of Rust or Java, without comments and texts.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let code = text.lines().flat_map(|line| {
        let line = line.trim_start();
        let is_comment = line.starts_with("//") || line.starts_with('*') || line.starts_with("/*");
        let line = if is_comment { "" } else { line };
        // Outside of quotation marks; what follows `//` there is a comment.
        let outside = line.split('"').step_by(2);
        let mut behind = false;
        outside.filter_map(move |part| {
            let (code, rest) = part.split_once("//").map_or((part, None), |(code, rest)| (code, Some(rest)));
            let shown = (!behind).then_some(code);
            behind |= rest.is_some();
            shown
        })
    });
    let names = code.flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_'));
    names.filter(|name| !name.is_empty())
}

/// `aGuestPage`, `a_guest_page` and `A_GUEST_PAGE` are `a`, `guest` and `page`.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for c in identifier.chars() {
        if c == '_' || c.is_uppercase() && before.is_lowercase() {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().unwrap().extend(c.to_lowercase());
        }
        before = c;
    }
    parts
}

#[test]
fn no_identifier_has_a_word_that_the_glossary_avoids() {
    let glossary = read("docs/glossary.md");
    let table = glossary.split("| avoid | write | but may stand in |").nth(1).unwrap();
    let rows = table.lines().skip(2).map_while(|line| line.strip_prefix("| "));
    let rows: Vec<(Vec<&str>, Vec<&str>)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
            (cells[0].split(", ").collect(), cells[2].split('`').skip(1).step_by(2).collect())
        })
        .collect();
    assert!(rows.len() > 5, "{rows:?}");
    let (mut wrong, mut files) = (Vec::new(), 0);
    let mut dirs = vec![workspace().join("crates"), workspace().join("java")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                dirs.push(path);
                continue;
            }
            if !path.extension().is_some_and(|e| e == "rs" || e == "java") {
                continue;
            }
            files += 1;
            let name = path.strip_prefix(workspace()).unwrap().display().to_string();
            let text = std::fs::read_to_string(&path).unwrap();
            let used: std::collections::BTreeSet<&str> = identifiers(&text).collect();
            for (avoided, places) in &rows {
                if places.iter().any(|place| name.starts_with(place)) {
                    continue;
                }
                let is_bad = |id: &&&str| parts(id).iter().any(|part| avoided.contains(&part.as_str()));
                wrong.extend(used.iter().filter(is_bad).map(|id| format!("{name}: {id}")));
            }
        }
    }
    assert!(files > 300, "only {files} files were read");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_eq!(parts("guestPages_ofOTHERS"), ["guest", "pages", "of", "others"]);
    assert_eq!(identifiers("a(\"b\" // c\n").collect::<Vec<_>>(), ["a"]);
}

/// Words of a command line as a shell would make them, up to a redirection, a pipe or a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut begun) = (Vec::new(), String::new(), None, false);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => (quote, begun) = (Some(c), true),
            (None, ' ') if begun || !word.is_empty() => {
                words.push(std::mem::take(&mut word));
                begun = false;
            }
            (None, ' ') => {}
            // The number of a redirected descriptor is not a word.
            (None, '>') if word.chars().all(|c| c.is_ascii_digit()) => {
                word.clear();
                break;
            }
            (None, '|' | '>' | ';' | '&' | '#' | ')') => break,
            (None, c) => word.push(c),
        }
    }
    if begun || !word.is_empty() {
        words.push(word);
    }
    words
}

/// Every call of the program in the shell blocks of `text`, including those after `&&`, `|` and
/// `;`.
fn commands(text: &str) -> Vec<Vec<String>> {
    let blocks = text.split("```").skip(1).step_by(2);
    // In `console` blocks, the other lines are output.
    let typed = blocks.flat_map(|block| {
        let console = block.starts_with("console\n");
        let lines = block.lines().filter(move |line| !console || line.starts_with("$ "));
        lines.filter(move |_| console || block.starts_with("sh\n"))
    });
    let mut calls = Vec::new();
    for line in typed {
        let line = line
            .find("# ")
            .filter(|at| *at == 0 || line[..*at].ends_with(' '))
            .map_or(line, |at| &line[..at]);
        let starts = line.match_indices("forebay ").filter(|(at, _)| {
            // Policies and laws are called `forebay` as well.
            let before = line[..*at].trim_end_matches("target/release/");
            before.chars().next_back().is_none_or(|c| " '\"(`".contains(c))
                && !["--policy ", "--setting "].iter().any(|option| before.ends_with(option))
        });
        for (at, _) in starts {
            // Inside of quotes the command ends with the quote.
            let quote = line[..at].chars().filter(|c| *c == '\'').count() % 2 == 1;
            let rest = if quote { line[at..].split('\'').next().unwrap() } else { &line[at..] };
            calls.push(words(rest).split_off(1));
        }
    }
    calls
}

#[test]
fn every_command_shown_is_understood() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for mut words in commands(&text) {
            checked += 1;
            // What `run` and `ship` run takes its own arguments.
            let at = words.iter().position(|w| w == "run" || w == "ship").map_or(words.len(), |at| at + 1);
            words.truncate(at);
            let mut command = Command::new(FOREBAY);
            command.args(&words).arg("--help").env_remove("FOREBAY_SOCKET").env_remove("FOREBAY_CONFIG");
            let out = command.output().unwrap();
            if !out.status.success() {
                let said = String::from_utf8_lossy(&out.stderr).into_owned();
                wrong.push(format!("{}: forebay {}: {said}", path.display(), words.join(" ")));
            }
        }
    }
    assert!(checked > 30, "only {checked} commands were found");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_reference_of_the_configuration_is_the_programs_own() {
    let out = Command::new(FOREBAY).args(["config", "reference"]).output().unwrap();
    let reference = String::from_utf8(out.stdout).unwrap();
    assert!(reference.contains("capacity"), "{reference}");
    assert!(
        read("docs/reference.toml") == reference,
        "docs/reference.toml is not up to date: run `forebay config reference > docs/reference.toml`"
    );
    let text = read("docs/configuration.md");
    let example = text.split("```toml\n").find(|part| part.contains("[[mount]]")).unwrap();
    let example = example.split("```").next().unwrap();
    forebay_agent::Config::parse(example).expect("the example is good");
}

#[test]
fn every_c_program_shown_compiles() {
    let mut checked = 0;
    for (path, text) in documents() {
        for program in text.split("```c\n").skip(1) {
            checked += 1;
            let dir = tempfile::tempdir().unwrap();
            let source = dir.path().join("shown.c");
            std::fs::write(&source, program.split("```").next().unwrap()).unwrap();
            let mut cc = Command::new("cc");
            cc.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I"]);
            let out = cc.arg(workspace().join("crates/forebay-capi/include")).arg(&source).output().unwrap();
            assert!(out.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&out.stderr));
        }
    }
    assert!(checked > 0, "no C program was found");
}

#[test]
fn every_variable_of_the_environment_is_explained() {
    let mut sources = Vec::new();
    for name in ["client", "cli", "agent", "capi", "python", "store"] {
        files(&workspace().join(format!("crates/forebay-{name}/src")), &[".rs"], &mut sources);
    }
    let mut read_by_code = BTreeSet::new();
    for path in sources {
        for part in read(path).split("\"FOREBAY_").skip(1) {
            let end = part.find('"').unwrap();
            if end > 0 && part[..end].chars().all(|c| c.is_ascii_uppercase() || c == '_') {
                read_by_code.insert(format!("FOREBAY_{}", &part[..end]));
            }
        }
    }
    let text = read("docs/configuration.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `FOREBAY_")?.split('`').next());
    let explained: BTreeSet<_> = rows.map(|name| format!("FOREBAY_{name}")).collect();
    assert!(explained.len() >= 7, "{explained:?}");
    assert_eq!(explained, read_by_code);
}

#[test]
fn every_counter_is_explained() {
    let node = Node::start(&["--capacity", "64MiB"]);
    let printed = kit::succeeded(&mut node.forebay(&["status", "--counters"]));
    let counters = node.client().admin().status().unwrap().counters;
    assert!(counters.len() > 60, "only {} counters", counters.len());
    for (name, _) in counters {
        let line = printed.lines().find(|line| line.split(' ').next() == Some(name.as_str()));
        let line = line.unwrap_or_else(|| panic!("{name} is not printed"));
        assert!(line.split_whitespace().count() > 3, "no help: {line}");
    }
}

#[test]
fn every_message_of_the_table_is_one_that_the_program_has() {
    let mut sources = Vec::new();
    for name in ["agent", "cli", "client", "store", "wire", "pfs"] {
        files(&workspace().join(format!("crates/forebay-{name}/src")), &[".rs"], &mut sources);
    }
    // As the compiler sees strings that are broken over lines.
    let joined = |text: String| {
        let mut parts = text.split("\\\n");
        let first = parts.next().unwrap().to_owned();
        parts.fold(first, |all, part| all + part.trim_start())
    };
    let sources: String = sources.into_iter().map(|path| joined(read(path))).collect();
    let text = read("docs/operations.md");
    let section = text.split("\n## Troubleshooting\n").nth(1).unwrap();
    let mut checked = 0;
    for row in section.lines().filter_map(|line| line.strip_prefix("| `")?.split("` |").next()) {
        checked += 1;
        for fragment in row.split('…') {
            assert!(sources.contains(fragment.trim()), "nothing says {:?}", fragment.trim());
        }
    }
    assert!(checked >= 20, "only {checked} messages were found");
}

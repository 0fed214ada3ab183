//! Patterns of paths, as `forebay run --write-back` has them: `*` and `?` match no slash, `**`
//! matches any directories. A user chooses both pattern and path, and the agent compares them while
//! others wait: the time is bounded by the product of their lengths.

use glob::Pattern;

/// Whether the path is one that the pattern names.
pub fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<&str>, Vec<&str>) = (pattern.split('/').collect(), path.split('/').collect());
    let (mut at, mut to) = (0, 0);
    // The last `**`, and how far the path was when it was met.
    let mut any: Option<(usize, usize)> = None;
    while to < path.len() {
        if pattern.get(at) == Some(&"**") {
            any = Some((at, to));
            at += 1;
        } else if pattern.get(at).is_some_and(|name| matches_name(name, path[to])) {
            (at, to) = (at + 1, to + 1);
        } else if let Some((star, from)) = any {
            any = Some((star, from + 1));
            (at, to) = (star + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|name| *name == "**")
}

/// The same of one name.
fn matches_name(pattern: &str, name: &str) -> bool {
    let pieces = pieces(pattern);
    let name: Vec<char> = name.chars().collect();
    let fits = |piece: &(Pattern, usize), at: usize| {
        name.get(at..at + piece.1).is_some_and(|part| piece.0.matches(&part.iter().collect::<String>()))
    };
    let [first, rest @ ..] = &pieces[..] else { return name.is_empty() };
    let Some((last, between)) = rest.split_last() else { return first.1 == name.len() && fits(first, 0) };
    let Some(end) = name.len().checked_sub(last.1) else { return false };
    if !fits(first, 0) || !fits(last, end) {
        return false;
    }
    let mut at = first.1;
    for piece in between {
        match (at..=end).find(|start| start + piece.1 <= end && fits(piece, *start)) {
            Some(start) => at = start + piece.1,
            None => return false,
        }
    }
    at <= end
}

/// What is between the stars, with the number of characters that each piece matches. One that is
/// not a pattern matches nothing.
fn pieces(pattern: &str) -> Vec<(Pattern, usize)> {
    let (mut pieces, mut piece, mut len) = (Vec::new(), String::new(), 0);
    let mut chars = pattern.chars().peekable();
    let compiled =
        |piece: &str, len| Pattern::new(piece).map_or((Pattern::default(), usize::MAX / 2), |p| (p, len));
    while let Some(c) = chars.next() {
        match c {
            '*' => {
                pieces.push(compiled(&piece, len));
                (piece, len) = (String::new(), 0);
                continue;
            }
            '[' => {
                piece.push(c);
                // A bracket at the beginning of a class is one of its characters.
                let mut is_first = true;
                if chars.peek() == Some(&'!') {
                    piece.extend(chars.next());
                }
                for c in chars.by_ref() {
                    piece.push(c);
                    if c == ']' && !is_first {
                        break;
                    }
                    is_first = false;
                }
            }
            c => piece.push(c),
        }
        len += 1;
    }
    pieces.push(compiled(&piece, len));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_as_by_the_shell() {
        for (pattern, path, expected) in [
            ("/p/**", "/p/a/1", true),
            ("/p/**", "/q/a/1", false),
            ("/p/*.h5", "/p/a.h5", true),
            ("/p/*.h5", "/p/a/b.h5", false),
            ("/p/**/*.h5", "/p/b.h5", true),
            ("/p/**/*.h5", "/p/a/b/c.h5", true),
            ("/p/step-[0-9]?/x*", "/p/step-12/xyz", true),
            ("/p/step-[!0-9]?/x*", "/p/step-12/xyz", false),
            ("/p/a*b*c", "/p/aXbYbZc", true),
            ("/p/ab*bc", "/p/abc", false),
            ("j", "j", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
        // Exponential in most matchers.
        let path = format!("/p/{}/x", "a".repeat(250));
        assert!(!matches(&format!("/p/{}b/x", "*a".repeat(100)), &path));
        assert!(!matches(&format!("{}/y", "/**/a".repeat(200)), &"/a".repeat(1000)));
    }

    /// All paths of up to three of these names.
    fn paths(names: &[&str]) -> Vec<String> {
        let longer = |paths: &[String]| -> Vec<String> {
            paths.iter().flat_map(|path| names.iter().map(move |name| format!("{path}/{name}"))).collect()
        };
        let one = longer(&[String::new()]);
        let two = longer(&one);
        let three = longer(&two);
        [one, two, three].concat()
    }

    #[test]
    fn as_the_library_matches() {
        let options = glob::MatchOptions { require_literal_separator: true, ..Default::default() };
        for pattern in paths(&["a", "*", "?", "a*", "*b", "a*b", "*a*b*", "**"]) {
            // Behind a last `**` the library wants one name more.
            let Ok(library) = Pattern::new(&pattern) else { continue };
            for path in paths(&["a", "b", "ab", "aab"]).iter().filter(|_| !pattern.ends_with("**")) {
                assert_eq!(matches(&pattern, path), library.matches_with(path, options), "{pattern} {path}");
            }
        }
    }
}

//! Layout hints: how a new file is to be striped.

use std::fmt;
use std::str::FromStr;

/// How a new file is to be placed on the servers. What is not given is the directory's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Servers over which the file is striped; [`ALL`] for as many as there are.
    pub stripes: Option<u32>,
    /// Bytes of one stripe.
    pub stripe_bytes: Option<u64>,
    /// Pool of servers, by the file system's name for it.
    pub pool: Option<String>,
    /// Numbers of the servers, in the order of the stripes; none for any.
    pub servers: Vec<u32>,
}

/// As many stripes as there are servers.
pub const ALL: u32 = u32::MAX;

/// Most servers in a hint.
const SERVERS_MAX: usize = 2000;

const FORM: &str = "write for example stripes:8,size:4MiB,pool:flash or servers:0+2+5";

const UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];

fn size(text: &str) -> Option<u64> {
    let unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number, factor) = unit.unwrap_or((text, 1));
    number.parse::<u64>().ok()?.checked_mul(factor).filter(|bytes| *bytes > 0)
}

impl FromStr for Hint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut hint = Hint::default();
        for part in text.split(',') {
            let wrong = |why: &str| format!("layout {text:?}: {part:?} {why}; {FORM}");
            let (key, value) = part.split_once(':').ok_or_else(|| wrong("has no value"))?;
            let is_taken = match key {
                "stripes" => {
                    let number = if value == "all" { Some(ALL) } else { value.parse().ok() };
                    let number = number.filter(|count| *count > 0 && (*count <= 2000 || *count == ALL));
                    let number = number.ok_or_else(|| wrong("is no number from 1 to 2000, nor `all`"))?;
                    hint.stripes.replace(number).is_some()
                }
                "size" => {
                    let bytes = size(value).ok_or_else(|| wrong("is no size"))?;
                    hint.stripe_bytes.replace(bytes).is_some()
                }
                "pool" => {
                    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
                    if value.is_empty() || !value.chars().all(is_plain) || value.starts_with('-') {
                        return Err(wrong("is no name of a pool"));
                    }
                    hint.pool.replace(value.to_owned()).is_some()
                }
                "servers" => {
                    let servers: Option<Vec<u32>> = value.split('+').map(|one| one.parse().ok()).collect();
                    let servers = servers.filter(|all| all.len() <= SERVERS_MAX);
                    let servers = servers.ok_or_else(|| wrong("is no list of numbers"))?;
                    !std::mem::replace(&mut hint.servers, servers).is_empty()
                }
                _ => return Err(wrong("is not known")),
            };
            if is_taken {
                return Err(wrong("is given twice"));
            }
        }
        let counted = u32::try_from(hint.servers.len()).unwrap_or(ALL);
        if counted > 0 && hint.stripes.is_some_and(|stripes| stripes != counted) {
            return Err(format!("layout {text:?}: as many stripes as servers, or only one of the two"));
        }
        Ok(hint)
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.stripes {
            Some(ALL) => parts.push("stripes:all".to_owned()),
            Some(stripes) => parts.push(format!("stripes:{stripes}")),
            None => {}
        }
        parts.extend(self.stripe_bytes.map(|bytes| format!("size:{bytes}")));
        parts.extend(self.pool.as_ref().map(|pool| format!("pool:{pool}")));
        if !self.servers.is_empty() {
            let servers: Vec<String> = self.servers.iter().map(u32::to_string).collect();
            parts.push(format!("servers:{}", servers.join("+")));
        }
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(text: &str) -> Hint {
        text.parse().unwrap()
    }

    #[test]
    fn a_hint_is_read_as_it_is_written() {
        let all = hint("stripes:8,size:4MiB,pool:flash");
        let expected = Hint {
            stripes: Some(8),
            stripe_bytes: Some(4 << 20),
            pool: Some("flash".into()),
            servers: Vec::new(),
        };
        assert_eq!(all, expected);
        for text in ["stripes:all", "size:65536", "servers:0+2+5", "stripes:3,servers:0+2+5", "pool:a.b-1"] {
            assert_eq!(hint(&hint(text).to_string()), hint(text), "{text}");
        }
        let wrong = [
            "",
            "stripes",
            "stripes:0",
            "stripes:9999",
            "size:0",
            "size:4XB",
            "size:1.5MiB",
            "pool:",
            "pool:-r",
            "pool:a b",
            "servers:",
            "servers:a",
            "stripes:2,servers:1",
            "stripes:1,stripes:2",
            "color:red",
        ];
        for text in wrong {
            assert!(text.parse::<Hint>().unwrap_err().contains(text), "{text}");
        }
    }
}

//! Tables for spreadsheets and programs.

/// Rows as CSV; cells are quoted where they have to be.
pub fn csv(header: &[&str], rows: &[Vec<String>]) -> String {
    let quote = |cell: &str| {
        if cell.contains([',', '"', '\n']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.into()
        }
    };
    let line = |cells: Vec<&str>| cells.into_iter().map(quote).collect::<Vec<_>>().join(",") + "\n";
    let body: String = rows.iter().map(|r| line(r.iter().map(String::as_str).collect())).collect();
    line(header.to_vec()) + &body
}

/// A moment or a time in seconds, to the nanosecond.
pub fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    #[test]
    fn seconds_are_exact() {
        assert_eq!(super::seconds(90_000_000_000_000_001), "90000000.000000001");
    }

    #[test]
    fn cells_are_quoted_where_they_have_to_be() {
        let rows = [vec!["a,b".to_owned(), "1".to_owned()], vec!["say \"a\"".to_owned(), String::new()]];
        assert_eq!(super::csv(&["name", "n"], &rows), "name,n\n\"a,b\",1\n\"say \"\"a\"\"\",\n");
    }
}

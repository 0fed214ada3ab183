//! What a page requests to be run: its blocks, and the HTML comments that steer them.

/// A command as it is typed, and what the page shows of its output.
#[derive(Clone)]
pub struct Command {
    pub line: usize,
    pub text: String,
    /// `None` where the page shows no output: in `sh` blocks.
    pub shown: Option<String>,
}

pub enum Step {
    Block {
        commands: Vec<Command>,
    },
    Excused {
        line: usize,
        why: String,
    },
    /// From a comment: a file that the page shows, or what the page takes for granted.
    Hidden(Command),
    /// Programs of other packages, without which the page cannot run.
    Needs(Vec<String>),
}

impl Step {
    pub fn commands(&self) -> Vec<Command> {
        match self {
            Step::Block { commands } => commands.clone(),
            Step::Excused { .. } | Step::Needs(_) => Vec::new(),
            Step::Hidden(command) => vec![command.clone()],
        }
    }
}

/// Blocks of commands, which are run.
const SHELLS: [&str; 3] = ["sh", "bash", "console"];

/// Blocks that are not run. A label outside both lists is an error, because a misspelt `console`
/// would otherwise be a command that nothing runs.
const OTHERS: [&str; 9] = ["c", "ini", "json", "properties", "python", "rust", "text", "toml", "yaml"];

/// The steps of a page in order; an error begins with the number of the line.
pub fn steps(text: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut comment = None;
    let mut lines = text.lines().enumerate().map(|(number, line)| (number + 1, line));
    while let Some((number, line)) = lines.next() {
        if let Some(begun) = line.trim().strip_prefix("<!--") {
            let mut content = begun.to_owned();
            while !content.contains("-->") {
                let (_, more) = lines.next().ok_or(format!("{number}: the comment does not end"))?;
                content = content + "\n" + more;
            }
            let content = content.split("-->").next().unwrap_or_default().trim().to_owned();
            if let Some(script) = content.strip_prefix("setup:") {
                steps.push(Step::Hidden(hidden(number, script.trim())));
            } else if let Some(programs) = content.strip_prefix("needs:") {
                steps.push(Step::Needs(programs.split_whitespace().map(str::to_owned).collect()));
            } else {
                comment = Some(content);
            }
        } else if line.trim_start().starts_with("~~~") {
            return Err(format!("{number}: write the fence of the block as ```"));
        } else if let Some(label) = line.trim_start().strip_prefix("```") {
            let mut block = Vec::new();
            loop {
                let line = lines.next().ok_or(format!("{number}: the block does not end"))?;
                if line.1.trim_start().starts_with("```") {
                    break;
                }
                block.push(line);
            }
            steps.extend(step(number, label, &block, comment.take())?);
        } else if !line.trim().is_empty() {
            comment = None;
        }
    }
    Ok(steps)
}

fn hidden(line: usize, script: &str) -> Command {
    Command { line, text: script.to_owned() + "\n", shown: None }
}

fn step(
    number: usize,
    label: &str,
    block: &[(usize, &str)],
    comment: Option<String>,
) -> Result<Option<Step>, String> {
    let comment = comment.unwrap_or_default();
    if let Some(path) = comment.strip_prefix("file:") {
        let content: String = block.iter().map(|(_, line)| format!("{line}\n")).collect();
        let script = format!(
            "mkdir -p $(dirname {0}) && cat > {0} <<'END OF FILE'\n{content}END OF FILE",
            path.trim()
        );
        return Ok(Some(Step::Hidden(hidden(number, &script))));
    }
    if OTHERS.contains(&label) {
        let command = block.iter().find(|(_, line)| line.starts_with("$ "));
        return command.map_or(Ok(None), |(number, _)| {
            Err(format!("{number}: a command in a block `{label}` is not run; label the block `console`"))
        });
    }
    if !SHELLS.contains(&label) {
        return Err(format!("{number}: the label {label:?} of the block is none of {SHELLS:?}, {OTHERS:?}"));
    }
    if let Some(why) = comment.strip_prefix("not run:") {
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        let refused = format!("{number}: `not run:` without a reason");
        return if why.is_empty() { Err(refused) } else { Ok(Some(Step::Excused { line: number, why })) };
    }
    let commands = if label == "console" { console(block)? } else { plain(block) };
    Ok(Some(Step::Block { commands }))
}

/// In a `console` block, `$ ` begins a command, `> ` continues it, and anything else is output.
fn console(block: &[(usize, &str)]) -> Result<Vec<Command>, String> {
    let mut commands: Vec<Command> = Vec::new();
    for (number, line) in block {
        if let Some(text) = line.strip_prefix("$ ") {
            commands.push(Command { line: *number, text: format!("{text}\n"), shown: Some(String::new()) });
            continue;
        }
        let command = commands.last_mut().ok_or(format!("{number}: a console block begins with `$ `"))?;
        let shown = command.shown.get_or_insert_default();
        match line.strip_prefix("> ") {
            Some(more) if shown.is_empty() => command.text += &format!("{more}\n"),
            _ => *shown += &format!("{line}\n"),
        }
    }
    Ok(commands)
}

/// In other blocks each line is a command, together with the lines that the shell reads on to:
/// after a backslash, within quotes, in a here-document.
fn plain(block: &[(usize, &str)]) -> Vec<Command> {
    let mut commands = Vec::new();
    let mut pending: Option<Command> = None;
    for (number, line) in block {
        if pending.is_none() && line.trim().is_empty() {
            continue;
        }
        let command =
            pending.get_or_insert_with(|| Command { line: *number, text: String::new(), shown: None });
        command.text += &format!("{line}\n");
        let check = std::process::Command::new("bash").args(["-n", "-c", &command.text]).output();
        let complete = check.is_ok_and(|out| out.status.success() && out.stderr.is_empty());
        if complete && !line.ends_with('\\') {
            commands.extend(pending.take());
        }
    }
    commands.extend(pending);
    commands
}

/// Whether `printed` is what `shown` says. `<name>` stands for any text within a line, a line `...`
/// for any lines; the number of spaces does not matter, since columns grow with their figures.
pub fn matches(shown: &str, printed: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        words.filter(|line| !line.is_empty()).collect()
    };
    lines_match(&lines(shown), &lines(printed))
}

fn lines_match(shown: &[String], printed: &[String]) -> bool {
    match shown {
        [] => printed.is_empty(),
        [any, rest @ ..] if any == "..." => {
            (0..=printed.len()).any(|skip| lines_match(rest, &printed[skip..]))
        }
        [first, rest @ ..] => printed
            .split_first()
            .is_some_and(|(line, more)| line_matches(first, line) && lines_match(rest, more)),
    }
}

fn line_matches(shown: &str, printed: &str) -> bool {
    let Some((before, after)) = placeholder(shown) else { return shown == printed };
    let Some(rest) = printed.strip_prefix(before) else { return false };
    rest.char_indices().any(|(at, c)| line_matches(after, &rest[at + c.len_utf8()..]))
}

/// What precedes and follows the first `<name>` of a line.
fn placeholder(line: &str) -> Option<(&str, &str)> {
    for (open, _) in line.match_indices('<') {
        if let Some(len) = line[open + 1..].find('>') {
            let name = &line[open + 1..open + 1 + len];
            if !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == ' ') {
                return Some((&line[..open], &line[open + len + 2..]));
            }
        }
    }
    None
}

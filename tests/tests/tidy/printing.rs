//! Texts of clients, plugins and models are printed through `host/tools/terminal`, which escapes their control characters.

use super::{files, none, read};

/// Files that print something else.
const OTHERS: &[(&str, &str)] = &[
    ("host/tools/terminal/", "escapes"),
    ("host/operation/events/src/log", "writes JSON"),
    ("host/tools/afterbay/src/commands/demo", "prints its own figures"),
    ("host/tools/afterbay/src/commands/sim", "prints its own figures"),
    ("host/tools/afterbay/src/commands/command_line.rs", "prints scripts for shells"),
    ("host/plugins/plugin-loader/src/project/tools.rs", "gives a compiler its output"),
    ("host/followers/follow/src/main.rs", "writes JSON"),
    ("host/tools/journal-tools/src/pack.rs", "writes the bytes of a file"),
    ("host/tools/terminal/src/top/run.rs", "draws the screen from cells, which escape"),
];

#[test]
fn commands_print_only_through_the_terminal_crate() {
    let mut wrong = Vec::new();
    for (name, path) in files("rs") {
        let is_source = name.starts_with("host/") && name.contains("/src/") && !name.contains("tests");
        if !is_source || OTHERS.iter().any(|(other, _)| name.starts_with(other)) {
            continue;
        }
        let text = read(&path);
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let prints = line.contains("println!(") || line.contains("print!(");
            let takes = ["stdout()", "stderr()"].iter().any(|it| {
                line.contains(&format!("io::{it}")) && !line.contains(&format!("{it}.is_terminal()"))
            });
            if prints || takes {
                wrong.push(format!("{name}: {}", line.trim()));
            }
        }
    }
    none("lines that print without afterbay_terminal", wrong);
}

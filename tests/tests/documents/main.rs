//! Checks of the documents: links, the book's summary, and every command, path and admin address that a document names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod facts;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use afterbay_tests::commands::{afterbay_command, run_command};
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::Msgpack;

/// Programs that a document may call beside `afterbay` and `make`. CI runs or builds with the programs after the comment mark.
const PROGRAMS: [&str; 31] = [
    "cd",
    "cp",
    "rm",
    "mkdir",
    "sed",
    "id",
    "kill",
    "curl",
    "install",
    "ls",
    "git",
    "jq",
    "export",
    "systemctl",
    "systemd-sysusers",
    "kubectl",
    "ssh",
    "docker",
    "openssl",
    "promtool",
    "apt",
    "tar",
    "nats",
    "oras",
    "vllm", //
    "cargo",
    "python",
    "python3",
    "pip",
    "npm",
    ".venv/bin/pip",
];
/// Directories of the repository whose paths a document may name.
const DIRECTORIES: [&str; 7] = ["host/", "plugins/", "examples/", "tests/", "docs/", "wit/", ".ci/"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// A document, by its path from the repository's root.
struct Document {
    name: String,
    path: PathBuf,
    text: String,
}

/// The Markdown files of the repository. Symbolic links are not followed, so that each file is listed once.
fn documents() -> Vec<Document> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let is_foreign = name == "target" || name == "node_modules" || name.starts_with('.');
            if path.is_symlink() || is_foreign {
                continue;
            }
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|it| it == "md") {
                found.push(path);
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    collect(&root, &mut found);
    found.sort();
    let document = |path: PathBuf| Document {
        name: path.strip_prefix(&root).unwrap().display().to_string(),
        text: std::fs::read_to_string(&path).unwrap(),
        path,
    };
    // Templates are files that `afterbay plugin new` writes.
    found.into_iter().map(document).filter(|document| !document.name.contains("/templates/")).collect()
}

/// The lines of a document outside of code blocks, numbered from 1.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let outside = |(_, line): &(usize, &str)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    };
    (1..).zip(text.lines()).filter(outside).collect()
}

/// The targets of the links in a line.
fn links(line: &str) -> Vec<&str> {
    // Inline code is no link.
    let code: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
    let targets = line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    targets.filter(|target| !code.iter().any(|code| code.contains(target) && code.contains("]("))).collect()
}

/// The files that a document includes, relative to its directory.
fn includes(document: &Document) -> Vec<PathBuf> {
    let dir = document.path.parent().unwrap();
    let files = document.text.split("{{#include ").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0));
    files.map(|file| dir.join(file.trim())).collect()
}

/// The anchor that mdBook and GitHub give a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The anchors of a Markdown file and of the Markdown files that it includes.
fn anchors(document: &Document) -> BTreeSet<String> {
    let included =
        includes(document).into_iter().filter(|path| path.extension().is_some_and(|it| it == "md"));
    let texts = included.map(|path| std::fs::read_to_string(path).unwrap());
    let (mut found, mut times) = (BTreeSet::new(), HashMap::new());
    for text in std::iter::once(document.text.clone()).chain(texts) {
        let headings = prose(&text).into_iter().filter(|(_, line)| line.starts_with('#'));
        for heading in headings.map(|(_, line)| anchor(line.trim_start_matches('#'))) {
            let time = times.entry(heading.clone()).or_insert(0);
            found.insert(if *time == 0 { heading } else { format!("{heading}-{time}") });
            *time += 1;
        }
    }
    found
}

#[track_caller]
fn none(what: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

#[test]
fn every_link_names_an_existing_file_and_heading() {
    let documents = documents();
    let by_path: BTreeMap<PathBuf, &Document> =
        documents.iter().map(|document| (document.path.clone(), document)).collect();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for document in &documents {
        for (line, text) in prose(&document.text) {
            for target in links(text) {
                if target.starts_with("http://") || target.starts_with("https://") {
                    continue;
                }
                checked += 1;
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let path = document.path.parent().unwrap().join(file);
                let path = if file.is_empty() { Ok(document.path.clone()) } else { path.canonicalize() };
                let Ok(path) = path else {
                    wrong.push(format!("{}:{line}: no file {file}", document.name));
                    continue;
                };
                let has_heading = || by_path.get(&path).is_some_and(|it| anchors(it).contains(heading));
                if !heading.is_empty() && !has_heading() {
                    wrong.push(format!(
                        "{}:{line}: no heading #{heading} in {}",
                        document.name,
                        path.display()
                    ));
                }
            }
        }
    }
    assert!(checked > 50, "only {checked} links were found");
    none("links", &wrong);
}

#[test]
fn every_include_exists_and_has_no_relative_link() {
    let mut wrong = Vec::new();
    for document in documents() {
        for path in includes(&document) {
            let Ok(text) = std::fs::read_to_string(&path) else {
                wrong.push(format!("{}: no file {}", document.name, path.display()));
                continue;
            };
            if path.extension().is_none_or(|it| it != "md") {
                continue;
            }
            let relative = prose(&text).into_iter().flat_map(|(_, line)| links(line));
            let relative = relative.filter(|target| !target.contains("://") && !target.starts_with('#'));
            wrong.extend(relative.map(|target| {
                format!(
                    "{}: a page of the book includes this file, so a relative link to {target} breaks",
                    path.display()
                )
            }));
        }
    }
    none("includes", &wrong);
}

#[test]
fn the_summary_of_the_book_names_every_page_once() {
    let book = root().join("docs/src");
    let summary = std::fs::read_to_string(book.join("SUMMARY.md")).unwrap();
    let mut named: Vec<PathBuf> =
        summary.lines().flat_map(links).map(|page| book.join(page).canonicalize().expect(page)).collect();
    let pages = documents()
        .into_iter()
        .filter(|document| document.name.starts_with("docs/") && !document.name.ends_with("/SUMMARY.md"));
    let mut pages: Vec<PathBuf> = pages.map(|document| document.path).collect();
    named.sort();
    pages.sort();
    // The index of the decisions lists the pages of decisions.
    let decisions = root().join("docs/decisions");
    let index = std::fs::read_to_string(decisions.join("index.md")).unwrap();
    let mut wrong: Vec<String> = Vec::new();
    for page in pages {
        let file = page.file_name().unwrap().to_string_lossy().into_owned();
        let is_listed = !page.starts_with(&decisions) || page.ends_with("index.md") || index.contains(&file);
        match named.iter().filter(|named| **named == page).count() {
            1 if is_listed => {}
            1 => wrong.push(format!("docs/decisions/index.md does not link to {file}")),
            times => wrong.push(format!("{} occurs {times} times in the summary", page.display())),
        }
    }
    none("docs/src/SUMMARY.md", &wrong);
}

/// The commands of a document's `sh` blocks, each with its line number. Continued lines are joined.
fn commands(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut in_shell, mut continued) = (Vec::new(), false, None::<(usize, String)>);
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            in_shell = trimmed == "```sh";
            continue;
        }
        if !in_shell {
            continue;
        }
        let (first, mut command) = continued.take().unwrap_or((number, String::new()));
        match trimmed.strip_suffix('\\') {
            Some(beginning) => {
                command.push_str(beginning);
                continued = Some((first, command));
            }
            None => {
                command.push_str(trimmed);
                found.push((first, command));
            }
        }
    }
    found
}

/// The words of each simple command of a line, without quotes, comments, assignments and redirections. A substitution is one word.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut letters = line.chars().peekable();
    let mut quote = None;
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (None | Some('"'), '$') if letters.next_if_eq(&'(').is_some() => {
                let mut depth = 1;
                while depth > 0 {
                    match letters.next() {
                        Some('(') => depth += 1,
                        Some(')') => depth -= 1,
                        Some(_) => {}
                        None => break,
                    }
                }
                word.get_or_insert_default().push_str("substituted");
            }
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (Some(open), _) if open == letter => quote = None,
            (None, '#') if word.is_none() => break,
            (None, '&' | '|' | ';') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (None, '>') => {
                words.extend(word.take());
                // The file of a redirection is no argument.
                while letters.next_if(|letter| *letter == ' ').is_some() {}
                while letters.next_if(|letter| *letter != ' ').is_some() {}
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    commands.push(words);
    let is_assignment = |word: &String| {
        word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        })
    };
    let command = |words: Vec<String>| words.into_iter().skip_while(is_assignment).collect::<Vec<_>>();
    commands.into_iter().map(command).filter(|words| !words.is_empty()).collect()
}

/// The reason why `afterbay` refuses these arguments. Adding `--help` parses them without running the command.
fn refused(arguments: &[String]) -> Option<String> {
    let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let mut asked: Vec<&str> = arguments[..end].iter().map(String::as_str).collect();
    asked.push("--help");
    let done = run_command(&mut afterbay_command(&asked));
    if done.code != 0 {
        return Some(done.stderr.trim().replace('\n', " "));
    }
    // `--help` does not check required options, so they are read from the usage line.
    let usage = done.stdout.lines().find_map(|line| line.strip_prefix("Usage: "))?;
    let required = usage.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2);
    let missing = required.filter(|flag| !arguments.iter().any(|word| word.split('=').next() == Some(flag)));
    let missing: Vec<&str> = missing.collect();
    (!missing.is_empty()).then(|| format!("{} is required", missing.join(", ")))
}

/// The targets of the Makefile.
fn targets() -> BTreeSet<String> {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let rules = makefile.lines().filter(|line| !line.starts_with(['\t', '#', ' ']));
    rules.filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

/// The files of code with these extensions, each with its path in the repository.
fn sources(extensions: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let (mut found, mut dirs) = (Vec::new(), vec![root.clone()]);
    while let Some(dir) = dirs.pop() {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let is_foreign = [".git", ".venv", "docs", "node_modules", "target", "templates"]
                .iter()
                .any(|name| path.ends_with(name));
            if path.is_dir() && !path.is_symlink() && !is_foreign {
                dirs.push(path);
            } else if path.extension().is_some_and(|it| extensions.iter().any(|extension| it == *extension))
                && let Ok(text) = std::fs::read_to_string(&path)
            {
                found.push((path.strip_prefix(&root).unwrap().display().to_string(), text));
            }
        }
    }
    found
}

/// The texts of [`sources`].
fn code(extension: &str) -> Vec<String> {
    sources(&[extension]).into_iter().map(|(_, text)| text).collect()
}

/// The reason why cargo refuses these arguments: a package or a test that does not exist.
fn unknown_to_cargo(arguments: &[String], manifests: &[String], sources: &[String]) -> Option<String> {
    let package = arguments.iter().skip_while(|word| *word != "-p").nth(1);
    let has_package = |name: &String| manifests.iter().any(|it| it.contains(&format!("name = {name:?}")));
    if let Some(name) = package.filter(|name| !has_package(name)) {
        return Some(format!("no package {name}"));
    }
    let filters = arguments.iter().filter(|word| word.contains('_') && !word.contains(['/', '=']));
    let has_test = |name: &&String| !sources.iter().any(|it| it.contains(&format!("fn {name}(")));
    filters.into_iter().find(has_test).map(|name| format!("no test {name}"))
}

#[test]
fn every_command_of_a_document_can_be_run() {
    let (targets, sources, manifests) = (targets(), code("rs"), code("toml"));
    let routes: String = sources.iter().filter(|text| text.contains(".route(")).cloned().collect();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for document in documents() {
        for (line, text) in commands(&document.text) {
            for words in simple_commands(&text) {
                let (program, arguments) = words.split_first().unwrap();
                checked += 1;
                let problem = match program.as_str() {
                    "afterbay" | "target/release/afterbay" => refused(arguments),
                    "make" => {
                        let mut named = arguments.iter().filter(|word| !word.contains('='));
                        let unknown = named.find(|target| !targets.contains(*target));
                        unknown.map(|target| format!("the Makefile has no target {target}"))
                    }
                    "curl" => arguments.iter().find_map(|word| {
                        let path = word.split_once("localhost").or(word.split_once(":9464"))?.1;
                        let mut parts: Vec<&str> = path.split('?').next()?.split('/').collect();
                        if let ["", "v1", "requests", rid, ..] = &mut parts[..] {
                            *rid = "{rid}";
                        }
                        let route = parts.join("/");
                        (!routes.contains(&format!("\"{route}\""))).then(|| format!("no route {route}"))
                    }),
                    "cargo" => unknown_to_cargo(arguments, &manifests, &sources),
                    other if PROGRAMS.contains(&other) => None,
                    other => Some(format!("{other} is not among the programs of this test")),
                };
                let missing = arguments.iter().find(|word| {
                    DIRECTORIES.iter().any(|dir| word.starts_with(dir)) && !root().join(word).exists()
                });
                let problem = problem.or(missing.map(|path| format!("no {path} in the repository")));
                wrong.extend(problem.map(|why| format!("{}:{line}: {text:?}: {why}", document.name)));
            }
        }
    }
    assert!(checked > 80, "only {checked} commands were found");
    none("commands", &wrong);
}

/// The arguments for the sandbox's own journal and Afterbay, if the command only looks at these.
fn harmless(arguments: &[String]) -> Option<Vec<&str>> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_harmless = match words[..] {
        ["journal", "tail", ..] => !words.contains(&"-f"),
        // The sandbox has no keys.
        ["journal", "verify", ..] if words.contains(&"--seal") => false,
        ["journal", "ls" | "show" | "export" | "verify", ..] | ["plugins" | "reload"] => true,
        ["plugins", "--json"] | ["check", ..] => true,
        ["plugin", "check", plugin, ..] => plugin.starts_with("builtin:"),
        _ => false,
    };
    // The sandbox's configuration stands in for the user's.
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word {
            "--from" | "--config" | "--stream" => drop(words.next()),
            "substituted" => kept.push("5b0c1f0a"),
            word => kept.push(word),
        }
    }
    is_harmless.then_some(kept)
}

#[test]
fn the_commands_that_only_look_do_so_and_the_addresses_answer() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config();
    let running = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for rid in ["5b0c1f0a9e3779b97f4a7c15", "chatcmpl-7"] {
        let mut request = SynthRequest::new(rid);
        sender.send(&batch(Msgpack, vec![request.row(&[1, 2])]));
        sender.send(&batch(Msgpack, vec![request.last(&[3])]));
        reader.take(2);
    }
    let toml = sandbox.write(&config);
    let (mut wrong, mut ran) = (Vec::new(), BTreeSet::new());
    for document in documents() {
        for (line, text) in commands(&document.text) {
            for words in simple_commands(&text) {
                let (program, arguments) = words.split_first().unwrap();
                let is_afterbay = program == "afterbay" || program == "target/release/afterbay";
                if let Some(arguments) = harmless(arguments).filter(|_| is_afterbay)
                    && ran.insert(arguments.join(" "))
                {
                    let mut command = afterbay_command(&arguments);
                    command.env("AFTERBAY_CONFIG", &toml).current_dir(sandbox.path(""));
                    let done = run_command(&mut command);
                    if done.code != 0 {
                        let why = format!("exit code {}: {}{}", done.code, done.stdout, done.stderr);
                        wrong.push(format!("{}:{line}: {text:?}: {why}", document.name));
                    }
                }
                let looks = program == "curl" && words.len() == 2;
                if let Some((_, path)) = words[words.len() - 1].split_once(":9464").filter(|_| looks)
                    && ran.insert(path.to_owned())
                    && running.get(path).status != 200
                {
                    wrong.push(format!("{}:{line}: {path} does not answer 200", document.name));
                }
            }
        }
    }
    assert!(ran.len() > 20, "only {} commands were run: {ran:?}", ran.len());
    none("commands that were run", &wrong);
    assert_eq!(running.stop(), 0);
}

#[test]
fn every_path_of_the_repository_that_a_document_names_exists() {
    let mut wrong = Vec::new();
    for document in documents() {
        // The changelog names removed files.
        if document.name == "CHANGELOG.md" {
            continue;
        }
        let dir = document.path.parent().unwrap();
        for (line, text) in prose(&document.text) {
            for code in text.split('`').skip(1).step_by(2) {
                let is_path = DIRECTORIES.iter().any(|dir| code.starts_with(dir))
                    && !code.contains([' ', '*', '{', '<', '…'])
                    && !code.contains("NAME");
                let exists = |base: &Path| base.join(code.trim_end_matches('/')).exists();
                if is_path && !exists(&root()) && !exists(dir) {
                    wrong.push(format!("{}:{line}: no {code}", document.name));
                }
            }
        }
    }
    none("paths", &wrong);
}

#[test]
fn every_decision_has_its_five_parts_and_the_two_first_pages_are_short() {
    let mut wrong = Vec::new();
    for document in documents() {
        let words = document.text.split_whitespace().count();
        let is_decision =
            document.name.starts_with("docs/decisions/") && !document.name.ends_with("index.md");
        let words_max = match document.name.as_str() {
            "README.md" => 900,
            "ARCHITECTURE.md" => 1600,
            _ if is_decision => 300,
            _ => usize::MAX,
        };
        if words > words_max {
            wrong.push(format!("{}: {words} words, at most {words_max}", document.name));
        }
        let parts =
            ["Problem", "Choice", "Alternatives", "Cost", "Number"].map(|part| format!("**{part}.**"));
        let missing = parts.iter().filter(|part| is_decision && !document.text.contains(*part));
        wrong.extend(missing.map(|part| format!("{}: no {part}", document.name)));
    }
    none("documents", &wrong);
}

#[test]
fn the_code_map_names_every_crate_of_the_host() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let named: BTreeSet<&str> = map.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let directories = |path: PathBuf| {
        let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut unnamed = Vec::new();
    for group in directories(root().join("host")) {
        let crates = directories(group.clone()).into_iter().filter(|path| path.join("Cargo.toml").exists());
        let names = crates.map(|path| name(&path)).chain([format!("{}/", name(&group))]);
        unnamed.extend(names.filter(|name| !named.contains(name.as_str())));
    }
    none("ARCHITECTURE.md does not name these of host/", &unnamed);
}

#[test]
fn the_walk_of_a_frame_is_short_and_its_functions_exist() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let walk = map.split("## The walk of a frame").nth(1).unwrap().split("\n## ").next().unwrap();
    let (mut wrong, mut entered, mut back) = (Vec::new(), BTreeSet::new(), 0);
    let is_step = |line: &&str| line.starts_with(|letter: char| letter.is_ascii_digit());
    for step in walk.lines().filter(is_step) {
        let mut names = step.split('`').skip(1).step_by(2);
        let (file, function) = (names.next().unwrap(), names.next().unwrap());
        back += usize::from(!entered.insert(file));
        let (of, name) = function.split_once("::").unwrap();
        let code = std::fs::read_to_string(root().join("host/path").join(file)).unwrap_or_default();
        let has_type = code.lines().any(|line| line.starts_with("impl") && line.contains(of));
        if !has_type || !code.contains(&format!("fn {name}(")) {
            wrong.push(format!("{file} has no {function}"));
        }
    }
    none("ARCHITECTURE.md", &wrong);
    assert!((15..20).contains(&entered.len()) && back < 3, "{} files, {back} steps back", entered.len());
}

#[test]
fn a_line_of_shell_is_read_as_a_shell_reads_it() {
    let line =
        r#"A=1 B='x y' afterbay plugin check . --settings '{"stop": [2]}' > out.txt && cd a | b # why"#;
    let read = simple_commands(line);
    assert_eq!(simple_commands(r#"x "$(sed -n "s/a (b)/c d/p" f)" e"#)[0], ["x", "substituted", "e"]);
    assert_eq!(read[0], ["afterbay", "plugin", "check", ".", "--settings", r#"{"stop": [2]}"#]);
    assert_eq!(read[1..], [vec!["cd".to_owned(), "a".to_owned()], vec!["b".to_owned()]]);
    assert_eq!(commands("```sh\na \\\n  b\nc\n```\nd"), [(2, "a b".to_owned()), (4, "c".to_owned())]);
    assert_eq!(anchor(" What is `this`, then? "), "what-is-this-then");
    assert_eq!(links("[a](b.md#c) and `[d](e)` ![f](g.svg)"), ["b.md#c", "g.svg"]);
}

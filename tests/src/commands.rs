//! Commands that run to their end: their output and exit code, and what the journal's commands print.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::PATIENCE;
use crate::binary::{binary, environment};
use crate::sandbox::Sandbox;

/// The output of a command that has ended.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// The exit code; 128 + N if signal N ended the command.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl CommandOutput {
    /// Standard output. The exit code must be 0.
    #[track_caller]
    pub fn success(self) -> String {
        assert_eq!(self.code, 0, "exit {}\n{}{}", self.code, self.stdout, self.stderr);
        self.stdout
    }

    /// Standard output as JSON lines. The exit code must be 0.
    #[track_caller]
    pub fn json_lines(self) -> Vec<Value> {
        json_lines(&self.success())
    }

    /// Standard output as exactly N JSON lines. The exit code must be `code`.
    #[track_caller]
    pub fn json_lines_of<const N: usize>(self, code: i32) -> [Value; N] {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        let lines = json_lines(&self.stdout);
        lines.try_into().unwrap_or_else(|lines| panic!("not {N} lines: {lines:?}"))
    }
}

/// Parses JSON lines.
#[track_caller]
pub fn json_lines(text: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(parse).collect()
}

/// A command of the binary, not yet started. The user's own settings do not reach it.
pub fn afterbay_command(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    environment(&mut command);
    command.args(args);
    command
}

/// Runs `afterbay ARGS` to its end.
#[track_caller]
pub fn run_afterbay(args: &[&str]) -> CommandOutput {
    run_command(&mut afterbay_command(args))
}

/// Runs any command to its end.
#[track_caller]
pub fn run_command(command: &mut Command) -> CommandOutput {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let read = |mut stream: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        })
    };
    let stdout = read(Box::new(child.stdout.take().unwrap()));
    let stderr = read(Box::new(child.stderr.take().unwrap()));
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= end {
            child.kill().unwrap();
            panic!("{command:?} did not end in {PATIENCE:?}\n{}", stderr.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    CommandOutput { code: code(status), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Runs `afterbay journal ARGS` on the sandbox's journal.
#[track_caller]
pub fn journal(sandbox: &Sandbox, args: &[&str]) -> CommandOutput {
    let (command, rest) = args.split_first().unwrap();
    run_afterbay(&[&["journal", command, "--from", &sandbox.text("journal")], rest].concat())
}

/// The output of `afterbay journal show --json` for a request.
#[track_caller]
pub fn show(sandbox: &Sandbox, rid: &str) -> Value {
    let [shown] = journal(sandbox, &["show", rid, "--json"]).json_lines_of(0);
    shown
}

/// The reasons and notes of the plugins' actions on a request's rows, in order.
#[track_caller]
pub fn notes(sandbox: &Sandbox, rid: &str) -> Vec<String> {
    let seen = show(sandbox, rid)["rows_seen"].take();
    let actions = seen.as_array().unwrap().iter().flat_map(|row| row["actions"].as_array().unwrap());
    actions.map(|action| action["text"].as_str().unwrap().to_owned()).collect()
}

/// Runs `afterbay journal verify --json`. Returns the exit code and the report of the only stream.
#[track_caller]
pub fn verify(sandbox: &Sandbox) -> (i32, Value) {
    let verified = journal(sandbox, &["verify", "--json"]);
    let [report] = json_lines(&verified.stdout).try_into().unwrap_or_else(|_| panic!("{verified:?}"));
    (verified.code, report)
}

pub(crate) fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap()
}

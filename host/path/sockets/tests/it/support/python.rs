//! A Python process with pyzmq that runs the commands of `peer.py`. The black-box tests use this file too.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

pub struct PythonPeer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl PythonPeer {
    pub fn start() -> PythonPeer {
        let script = Path::new("host/path/sockets/tests/it/support/peer.py");
        let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|dir| dir.join(script));
        let script = above.find(|script| script.exists()).expect("the repository is above");
        let mut child = Command::new(python())
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        PythonPeer { child, stdin, stdout }
    }

    /// Sends a command. Take its answer with [`PythonPeer::answer`].
    pub fn send_command(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let line = line.trim_end();
        assert!(line.starts_with("ok"), "{line}");
        line[2..].trim().to_owned()
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.send_command(command);
        self.answer()
    }

    /// The received messages, in the notation of `describe`.
    pub fn received(&mut self) -> Vec<(u64, u64, usize)> {
        let number = |text: &str| text.parse::<u64>().unwrap();
        let answer = self.answer();
        let words = answer.split_whitespace().map(|word| word.split(':').map(number).collect::<Vec<_>>());
        words.map(|word| (word[0], word[1], word[2] as usize)).collect()
    }

    /// The received messages, byte for byte, in their parts.
    pub fn received_parts(&mut self) -> Vec<Vec<Vec<u8>>> {
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let answer = self.answer();
        let part = |hex: &str| hex.as_bytes().chunks(2).map(byte).collect();
        answer.split_whitespace().map(|word| word[1..].split(',').map(part).collect()).collect()
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for PythonPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Python of AFTERBAY_TEST_PYTHON, of the SGLang environment, or of a new environment made once.
pub fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let sglang = home.map(|home| home.join(".cache/afterbay-sglang/venv/bin/python"));
        let given = std::env::var_os("AFTERBAY_TEST_PYTHON").map(PathBuf::from);
        if let Some(given) = &given {
            assert!(has_zmq(given), "AFTERBAY_TEST_PYTHON={} has no pyzmq", given.display());
        }
        given.into_iter().chain(sglang).find(|python| has_zmq(python)).unwrap_or_else(make)
    })
}

fn has_zmq(python: &Path) -> bool {
    Command::new(python)
        .args(["-c", "import zmq"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Test processes of one build may run at once: the first one to take the lock makes the environment.
fn make() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pyzmq");
    let lock = std::fs::File::create(dir.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let python = dir.join("bin/python");
    if !has_zmq(&python) {
        let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
        run(Command::new("python3").args(["-m", "venv"]).arg(&dir));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "pyzmq"]));
    }
    python
}

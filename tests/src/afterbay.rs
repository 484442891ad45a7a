//! The binary: built where it is older than its sources, run as a user runs it, watched through its log and its admin address.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;

use crate::admin::{self, Address, Answer, Metrics};
use crate::stage::{Config, Stage};
use crate::sync_gate::SyncGate;
use crate::{PATIENCE, repository, until, wait_for};

/// A running `afterbay run`. Killed when it is dropped; its log is printed where the test fails.
pub struct Afterbay {
    child: Child,
    log: Log,
    /// The Unix socket, where there is one.
    admin: Address,
}

/// The lines of a process's standard error: JSON, or text as it is.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Value>>>);

/// A command that has ended.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its exit code; that of a shell where a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Afterbay {
    /// Starts it and waits until its streams receive.
    #[track_caller]
    pub fn run(stage: &Stage, config: &Config) -> Afterbay {
        Afterbay::run_with(stage, config, &[])
    }

    /// The same with further arguments.
    #[track_caller]
    pub fn run_with(stage: &Stage, config: &Config, args: &[&str]) -> Afterbay {
        Afterbay::start(afterbay(&["run"]), stage, config, args)
    }

    /// The same with panics on purpose (`AFTERBAY_PANIC`, `host/stream/src/fault.rs`).
    #[track_caller]
    pub fn run_panicking(stage: &Stage, config: &Config, when: &str) -> Afterbay {
        let mut command = afterbay(&["run"]);
        command.env("AFTERBAY_PANIC", when);
        Afterbay::start(command, stage, config, &[])
    }

    /// The same as the author of a plugin runs it, with this in place of cargo.
    #[track_caller]
    pub fn run_dev(stage: &Stage, config: &Config, cargo: &Path) -> Afterbay {
        let mut command = afterbay(&["run", "--dev"]);
        command.env("CARGO", cargo);
        Afterbay::start(command, stage, config, &[])
    }

    /// The same with a configuration as text.
    #[track_caller]
    pub fn run_toml(stage: &Stage, config: &str, args: &[&str]) -> Afterbay {
        Afterbay::start_toml(afterbay(&["run"]), stage, config, args)
    }

    /// Starts it, to die at a place on the path (`AFTERBAY_PANIC=abort:SEED:ONE_IN`), or by kill -9 if it does not in time.
    pub fn run_to_die(stage: &Stage, config: &Config, seed: u64, one_in: u64, within: Duration) {
        let mut command = afterbay(&["run"]);
        command.env("AFTERBAY_PANIC", format!("abort:{seed}:{one_in}"));
        command.arg("--config").arg(stage.write(config)).stderr(Stdio::null()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < within && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The same as a process that is told of a file that grows past its limit, not killed: see [`Afterbay::limit_files`].
    #[track_caller]
    pub fn run_limitable(stage: &Stage, config: &Config) -> Afterbay {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$0\" run \"$@\""]).arg(binary());
        environment(&mut shell);
        Afterbay::start(shell, stage, config, &[])
    }

    /// The same with at most so many file descriptors, and a umask that takes nothing away.
    #[track_caller]
    pub fn run_confined(stage: &Stage, config: &Config, descriptors: u64) -> Afterbay {
        let mut shell = Command::new("sh");
        let script = format!("umask 0; ulimit -n {descriptors}; exec \"$0\" run \"$@\"");
        shell.args(["-c", &script]).arg(binary());
        environment(&mut shell);
        Afterbay::start(shell, stage, config, &[])
    }

    /// The same with its syncs behind a gate.
    #[track_caller]
    pub fn run_gated(stage: &Stage, config: &Config, gate: &SyncGate) -> Afterbay {
        let mut command = afterbay(&["run"]);
        gate.put_before(&mut command);
        Afterbay::start(command, stage, config, &[])
    }

    #[track_caller]
    fn start(command: Command, stage: &Stage, config: &Config, args: &[&str]) -> Afterbay {
        Afterbay::start_toml(command, stage, &config.to_toml(), args)
    }

    #[track_caller]
    fn start_toml(mut command: Command, stage: &Stage, config: &str, args: &[&str]) -> Afterbay {
        let file = stage.replace("afterbay.toml", config);
        command.arg("--config").arg(file).args(["--log-format", "json"]).args(args);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Log::follow(child.stderr.take().unwrap());
        let mut this = Afterbay { child, log, admin: Address::Unix(PathBuf::new()) };
        this.admin = wait_for("afterbay run is ready", || {
            if let Some(status) = this.child.try_wait().unwrap() {
                panic!("afterbay run did not start: {status}\n{}", this.log.text());
            }
            this.log.events("StreamStarted").first()?;
            this.addresses().into_iter().next_back()
        });
        this
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// GET of its admin address.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        admin::get(&self.admin, path)
    }

    /// POST to its admin address, with these headers.
    #[track_caller]
    pub fn post(&self, path: &str, headers: &[&str], body: &str) -> Answer {
        admin::ask(&self.admin, &format!("POST {path}"), headers, body)
    }

    /// Any request to its admin address: `METHOD PATH`.
    #[track_caller]
    pub fn ask(&self, line: &str, headers: &[&str], body: &str) -> Answer {
        admin::ask(&self.admin, line, headers, body)
    }

    /// Its Unix socket for admin calls, as `--admin` takes it.
    pub fn admin(&self) -> &Address {
        &self.admin
    }

    /// Every admin address that it has told of, in the order of its log: the Unix socket is the last at a start.
    pub fn addresses(&self) -> Vec<Address> {
        let lines = self.log.lines();
        lines.iter().filter_map(|line| admin::told(line["message"].as_str()?)).collect()
    }

    /// Its first TCP address for admin calls.
    #[track_caller]
    pub fn tcp(&self) -> Address {
        self.addresses().into_iter().find(|address| matches!(address, Address::Tcp(_))).unwrap()
    }

    /// `afterbay abort` of a request of it.
    #[track_caller]
    pub fn abort(&self, rid: &str, args: &[&str]) -> Done {
        done(&[&["abort", rid, "--admin", &self.admin.to_string()], args].concat())
    }

    /// The same, once it has seen that the scheduler is connected: who connects is told so a moment before.
    #[track_caller]
    pub fn abort_connected(&self, rid: &str, args: &[&str]) -> String {
        let is_told = |done: &Done| !done.stderr.contains("no scheduler is connected");
        wait_for("the scheduler is told", || Some(self.abort(rid, args)).filter(is_told)).good()
    }

    /// `/v1/plugins`.
    #[track_caller]
    pub fn plugins(&self) -> Value {
        let answer = self.get("/v1/plugins");
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// `/metrics`.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200, "{}", answer.body);
        Metrics::new(answer.body)
    }

    /// Waits until its metrics say so. The figures of a page are not of one instant: these are of a page after that, if it
    /// says so, too.
    #[track_caller]
    pub fn until_metrics(&self, what: &str, is_so: impl Fn(&Metrics) -> bool) -> Metrics {
        let said = wait_for(what, || Some(self.metrics()).filter(&is_so));
        Some(self.metrics()).filter(is_so).unwrap_or(said)
    }

    /// Waits for `/readyz` to answer with this status; what it says.
    #[track_caller]
    pub fn until_ready(&self, status: u16) -> String {
        wait_for(&format!("/readyz answers {status}"), || {
            Some(self.get("/readyz")).filter(|answer| answer.status == status).map(|answer| answer.body)
        })
    }

    /// Waits for `/readyz` to answer 200 and to list a degraded condition with this key; the condition's line.
    #[track_caller]
    pub fn until_degraded(&self, key: &str) -> String {
        wait_for(&format!("/readyz lists {key} as degraded"), || {
            let answer = Some(self.get("/readyz")).filter(|answer| answer.status == 200)?;
            let start = format!("degraded: {key}: ");
            answer.body.lines().find(|line| line.starts_with(&start)).map(str::to_owned)
        })
    }

    /// Waits for `/readyz` to answer 200 without any condition; most tests leave open who reads, which is none of theirs.
    #[track_caller]
    pub fn until_well(&self) {
        until("/readyz lists nothing", || self.is_well());
    }

    /// `/readyz` answers 200 without any condition, but for who reads.
    pub fn is_well(&self) -> bool {
        let Answer { status, body } = self.get("/readyz");
        let mut lines = body.lines().filter(|line| !line.starts_with("degraded: joins:"));
        status == 200 && lines.next() == Some("ready") && lines.next().is_none()
    }

    /// The events of a kind so far, as far as the log's rate limit let them through.
    pub fn events(&self, event: &str) -> Vec<Value> {
        self.log.events(event)
    }

    /// Waits for an event; the first of them.
    #[track_caller]
    pub fn event(&self, event: &str) -> Value {
        self.event_where(event, |_| true)
    }

    /// Waits for an event of which this is so; the first of them.
    #[track_caller]
    pub fn event_where(&self, event: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("event {event}"), || self.log.events(event).into_iter().find(|event| is_so(event)))
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Memory that it has in use.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// No file of it can grow past so many bytes from now on: a write that would is cut short or fails, as on a full
    /// disk. `None`: any may, again.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let pid = Pid::from_raw(self.pid() as i32);
        let maximum = getrlimit(Resource::Fsize).maximum;
        prlimit(pid, Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), Signal::TERM).unwrap();
    }

    /// SIGHUP.
    pub fn hang_up(&self) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), Signal::HUP).unwrap();
    }

    /// SIGTERM, and waits for its end; the exit code.
    #[track_caller]
    pub fn stop(mut self) -> i32 {
        self.terminate();
        self.wait()
    }

    /// Waits for its end; the exit code.
    #[track_caller]
    pub fn wait(&mut self) -> i32 {
        let status = wait_for("afterbay run ends", || self.child.try_wait().unwrap());
        code(status)
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Afterbay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("afterbay run said:\n{}", self.log.text());
        }
        // It may have ended.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Log {
    fn follow(stderr: impl Read + Send + 'static) -> Log {
        let log = Log::default();
        let lines = log.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                lines.0.lock().unwrap().push(line);
            }
        });
        log
    }

    fn lines(&self) -> Vec<Value> {
        self.0.lock().unwrap().clone()
    }

    fn events(&self, event: &str) -> Vec<Value> {
        let mut lines = self.lines();
        lines.retain(|line| line["event"] == event);
        lines
    }

    fn text(&self) -> String {
        self.lines().iter().map(|line| format!("{line}\n")).collect()
    }
}

impl Done {
    /// Its standard output, of a command that must have worked.
    #[track_caller]
    pub fn good(self) -> String {
        assert_eq!(self.code, 0, "exit {}\n{}{}", self.code, self.stdout, self.stderr);
        self.stdout
    }

    /// Standard output as JSON lines, of a command that must have worked.
    #[track_caller]
    pub fn json_lines(self) -> Vec<Value> {
        json_lines(&self.good())
    }

    /// The same of one that must have ended with this exit code; so many lines.
    #[track_caller]
    pub fn json_lines_of<const N: usize>(self, code: i32) -> [Value; N] {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        let lines = json_lines(&self.stdout);
        lines.try_into().unwrap_or_else(|lines| panic!("not {N} lines: {lines:?}"))
    }
}

/// JSON lines.
#[track_caller]
pub fn json_lines(text: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(parse).collect()
}

/// A command of the binary, to be started. Nothing of the user's own settings reaches it.
pub fn afterbay(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    environment(&mut command);
    command.args(args);
    command
}

/// Runs a command of the binary to its end.
#[track_caller]
pub fn done(args: &[&str]) -> Done {
    ended(&mut afterbay(args))
}

/// Runs any command to its end.
#[track_caller]
pub fn ended(command: &mut Command) -> Done {
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
    Done { code: code(status), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// `afterbay journal COMMAND --dir` of a stage's journal.
#[track_caller]
pub fn journal(stage: &Stage, args: &[&str]) -> Done {
    let (command, rest) = args.split_first().unwrap();
    done(&[&["journal", command, "--dir", &stage.text("journal")], rest].concat())
}

/// What `afterbay journal show --json` says of a request.
#[track_caller]
pub fn show(stage: &Stage, rid: &str) -> Value {
    let [shown] = journal(stage, &["show", rid, "--json"]).json_lines_of(0);
    shown
}

/// The texts of what was done with a request's rows, in order: reasons, and notes.
#[track_caller]
pub fn notes(stage: &Stage, rid: &str) -> Vec<String> {
    let seen = show(stage, rid)["rows_seen"].take();
    let actions = seen.as_array().unwrap().iter().flat_map(|row| row["actions"].as_array().unwrap());
    actions.map(|action| action["text"].as_str().unwrap().to_owned()).collect()
}

/// `afterbay journal verify --json` of a stage's journal: its exit code and what it says of the stream.
#[track_caller]
pub fn verify(stage: &Stage) -> (i32, Value) {
    let verified = journal(stage, &["verify", "--json"]);
    let [report] = json_lines(&verified.stdout).try_into().unwrap_or_else(|_| panic!("{verified:?}"));
    (verified.code, report)
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap()
}

fn environment(command: &mut Command) {
    let tmp = target_dir().join("tmp");
    // Compiled plugins are shared by all tests, and by the next run of them.
    command.env("XDG_CACHE_HOME", tmp.join("cache")).env("XDG_STATE_HOME", tmp.join("state"));
    command.env_remove("AFTERBAY_CONFIG").env_remove("AFTERBAY_LOG").env("NO_COLOR", "1");
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    profile_dir().parent().unwrap().to_owned()
}

/// `target/debug` for tests, `target/release` for benches.
fn profile_dir() -> PathBuf {
    let mut dir = std::env::current_exe().unwrap();
    dir.pop();
    if dir.ends_with("deps") {
        dir.pop();
    }
    dir
}

/// The binary of the same profile. `cargo test --workspace` has built it; where a single test is run it may be old.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let binary = profile_dir().join("afterbay");
        if !is_fresh(&binary) {
            build();
        }
        binary
    })
}

fn build() {
    let profile = profile_dir();
    let profile = match profile.file_name().and_then(OsStr::to_str) {
        Some("debug") => "dev",
        name => name.unwrap(),
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "afterbay", "--profile", profile, "--target-dir"]);
    let built = build.arg(target_dir()).current_dir(repository()).status().unwrap();
    assert!(built.success(), "{build:?}");
}

/// Whether it is younger than everything it could be made of. (Cargo lists its sources only beside a binary that it was
/// asked for, and `cargo test` asks for tests.)
fn is_fresh(binary: &Path) -> bool {
    fn is_older(path: &Path, built: SystemTime) -> bool {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
            // Neither tests nor what builds leave.
            let left_out = ["tests", "target", "__pycache__"].map(OsStr::new);
            let mut entries = entries.filter(|path| !left_out.contains(&path.file_name().unwrap()));
            return entries.all(|path| is_older(&path, built));
        }
        std::fs::metadata(path).and_then(|file| file.modified()).is_ok_and(|changed| changed <= built)
    }
    let Ok(built) = std::fs::metadata(binary).and_then(|file| file.modified()) else { return false };
    let sources = ["Cargo.toml", "Cargo.lock", "host", "plugins", "wit"];
    sources.iter().all(|source| is_older(&repository().join(source), built))
}

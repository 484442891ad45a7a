//! A running `afterbay run`, observed through its log and its admin addresses.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, prlimit, waitpid,
};
use serde_json::Value;

use crate::admin::{self, Address, Answer, Metrics};
use crate::binary::{binary, environment};
use crate::commands::{CommandOutput, afterbay_command, code, run_afterbay};
use crate::sandbox::{Config, Sandbox};
use crate::sync_gate::SyncGate;
use crate::{until, wait_for};

/// A running `afterbay run`. Dropping it kills the process, and prints the log if the test has failed.
pub struct Afterbay {
    child: Child,
    /// The process that took over, a child of this one by adoption.
    successor: Option<Pid>,
    log: Log,
    /// The Unix socket, or the TCP address if there is no socket.
    admin: Address,
}

/// The lines of standard error: JSON values, or strings for other lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Value>>>);

impl Afterbay {
    /// Starts Afterbay and waits until a stream has started and the admin addresses are logged.
    #[track_caller]
    pub fn run(sandbox: &Sandbox, config: &Config) -> Afterbay {
        Afterbay::run_with(sandbox, config, &[])
    }

    /// [`Afterbay::run`] with more arguments.
    #[track_caller]
    pub fn run_with(sandbox: &Sandbox, config: &Config, args: &[&str]) -> Afterbay {
        Afterbay::start(afterbay_command(&["run"]), sandbox, config, args)
    }

    /// [`Afterbay::run`] with injected panics: `when` is the value of `AFTERBAY_PANIC`.
    #[track_caller]
    pub fn run_panicking(sandbox: &Sandbox, config: &Config, when: &str) -> Afterbay {
        let mut command = afterbay_command(&["run"]);
        command.env("AFTERBAY_PANIC", when);
        Afterbay::start(command, sandbox, config, &[])
    }

    /// [`Afterbay::run`] with more variables of the environment.
    #[track_caller]
    pub fn run_in(sandbox: &Sandbox, config: &Config, variables: &[(&str, &str)]) -> Afterbay {
        let mut command = afterbay_command(&["run"]);
        command.envs(variables.iter().copied());
        Afterbay::start(command, sandbox, config, &[])
    }

    /// [`Afterbay::run`] with `--dev`, and with `cargo` in place of cargo.
    #[track_caller]
    pub fn run_dev(sandbox: &Sandbox, config: &Config, cargo: &Path) -> Afterbay {
        let mut command = afterbay_command(&["run", "--dev"]);
        command.env("CARGO", cargo);
        Afterbay::start(command, sandbox, config, &[])
    }

    /// [`Afterbay::run`] with a configuration in TOML.
    #[track_caller]
    pub fn run_toml(sandbox: &Sandbox, config: &str, args: &[&str]) -> Afterbay {
        Afterbay::start_toml(afterbay_command(&["run"]), sandbox, config, args)
    }

    /// Starts Afterbay so that it aborts at a random place of the pipeline (`AFTERBAY_PANIC=abort:SEED:ONE_IN`). Kills it after `within`.
    pub fn run_to_die(sandbox: &Sandbox, config: &Config, seed: u64, one_in: u64, within: Duration) {
        let mut command = afterbay_command(&["run"]);
        command.env("AFTERBAY_PANIC", format!("abort:{seed}:{one_in}"));
        command.arg("--config").arg(sandbox.write(config)).stderr(Stdio::null()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < within && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// [`Afterbay::run`] for [`Afterbay::limit_files`]: a write past the limit is an error instead of a fatal signal.
    #[track_caller]
    pub fn run_limitable(sandbox: &Sandbox, config: &Config) -> Afterbay {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$0\" run \"$@\""]).arg(binary());
        environment(&mut shell);
        Afterbay::start(shell, sandbox, config, &[])
    }

    /// [`Afterbay::run`] with a limit of `descriptors` open files and with umask 0.
    #[track_caller]
    pub fn run_confined(sandbox: &Sandbox, config: &Config, descriptors: u64) -> Afterbay {
        let mut shell = Command::new("sh");
        let script = format!("umask 0; ulimit -n {descriptors}; exec \"$0\" run \"$@\"");
        shell.args(["-c", &script]).arg(binary());
        environment(&mut shell);
        Afterbay::start(shell, sandbox, config, &[])
    }

    /// [`Afterbay::run`] with its syncs behind a gate.
    #[track_caller]
    pub fn run_gated(sandbox: &Sandbox, config: &Config, gate: &SyncGate) -> Afterbay {
        let mut command = afterbay_command(&["run"]);
        gate.put_before(&mut command);
        Afterbay::start(command, sandbox, config, &[])
    }

    #[track_caller]
    fn start(command: Command, sandbox: &Sandbox, config: &Config, args: &[&str]) -> Afterbay {
        Afterbay::start_toml(command, sandbox, &config.to_toml(), args)
    }

    #[track_caller]
    fn start_toml(mut command: Command, sandbox: &Sandbox, config: &str, args: &[&str]) -> Afterbay {
        let file = sandbox.replace("afterbay.toml", config);
        command.arg("--config").arg(file).args(["--log-format", "json"]).args(args);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Log::follow(child.stderr.take().unwrap());
        let mut this = Afterbay { child, successor: None, log, admin: Address::Unix(PathBuf::new()) };
        this.admin = wait_for("afterbay run is ready", || {
            if let Some(status) = this.child.try_wait().unwrap() {
                panic!("afterbay run did not start: {status}\n{}", this.log.text());
            }
            this.log.events("StreamStarted").first()?;
            this.addresses().into_iter().next_back()
        });
        this
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.successor.map_or(self.child.id(), |pid| pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Runs `afterbay upgrade`. After a success, the other methods are for the new process. Its log goes on in the same place.
    #[track_caller]
    pub fn upgrade(&mut self, args: &[&str]) -> CommandOutput {
        // The new process is a child of the earlier one, and becomes a child of this process when the earlier one ends.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let admin = self.admin.to_string();
        let done = run_afterbay(&[&["upgrade", "--json", "--admin", &admin], args].concat());
        if done.code == 0 {
            let upgraded: Value = serde_json::from_str(&done.stdout).unwrap();
            assert_eq!(upgraded["from_pid"], self.pid(), "{upgraded}");
            assert_eq!(self.wait(), 0, "the earlier process hands over\n{}", self.log.text());
            self.successor = Pid::from_raw(upgraded["to_pid"].as_i64().unwrap() as i32);
        }
        done
    }

    /// Sends a GET to the admin address.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        admin::get(&self.admin, path)
    }

    /// Sends a POST to the admin address.
    #[track_caller]
    pub fn post(&self, path: &str, headers: &[&str], body: &str) -> Answer {
        admin::ask(&self.admin, &format!("POST {path}"), headers, body)
    }

    /// Sends any request to the admin address: `line` is `METHOD PATH`.
    #[track_caller]
    pub fn ask(&self, line: &str, headers: &[&str], body: &str) -> Answer {
        admin::ask(&self.admin, line, headers, body)
    }

    /// The admin address for `--admin`.
    pub fn admin(&self) -> &Address {
        &self.admin
    }

    /// The admin addresses in the order of the log. At a start, the Unix socket is the last.
    pub fn addresses(&self) -> Vec<Address> {
        let lines = self.log.lines();
        lines.iter().filter_map(|line| admin::logged_address(line["message"].as_str()?)).collect()
    }

    /// The first TCP admin address.
    #[track_caller]
    pub fn tcp(&self) -> Address {
        self.addresses().into_iter().find(|address| matches!(address, Address::Tcp(_))).unwrap()
    }

    /// Runs `afterbay abort`.
    #[track_caller]
    pub fn abort(&self, rid: &str, args: &[&str]) -> CommandOutput {
        run_afterbay(&[&["abort", rid, "--admin", &self.admin.to_string()], args].concat())
    }

    /// Runs `afterbay abort` until the scheduler is connected. A scheduler's handshake ends a moment before Afterbay sees the connection.
    #[track_caller]
    pub fn abort_connected(&self, rid: &str, args: &[&str]) -> String {
        let is_sent = |done: &CommandOutput| !done.stderr.contains("no scheduler is connected");
        wait_for("the abort is sent to the scheduler", || Some(self.abort(rid, args)).filter(is_sent))
            .success()
    }

    /// The answer of `/v1/plugins`.
    #[track_caller]
    pub fn plugins(&self) -> Value {
        let answer = self.get("/v1/plugins");
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// The page `/metrics`.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200, "{}", answer.body);
        Metrics::new(answer.body)
    }

    /// Waits until `is_so` holds for the metrics. The values of one page are not of one instant, so the returned page is the next one
    /// if `is_so` holds for it too.
    #[track_caller]
    pub fn until_metrics(&self, what: &str, is_so: impl Fn(&Metrics) -> bool) -> Metrics {
        let first = wait_for(what, || Some(self.metrics()).filter(&is_so));
        Some(self.metrics()).filter(is_so).unwrap_or(first)
    }

    /// Waits until `/readyz` answers with this status and returns its body.
    #[track_caller]
    pub fn until_ready(&self, status: u16) -> String {
        wait_for(&format!("/readyz answers {status}"), || {
            Some(self.get("/readyz")).filter(|answer| answer.status == status).map(|answer| answer.body)
        })
    }

    /// Waits until `/readyz` answers 200 with a degraded condition of this key and returns the condition's line.
    #[track_caller]
    pub fn until_degraded(&self, key: &str) -> String {
        wait_for(&format!("/readyz lists {key} as degraded"), || {
            let answer = Some(self.get("/readyz")).filter(|answer| answer.status == 200)?;
            let start = format!("degraded: {key}: ");
            answer.body.lines().find(|line| line.starts_with(&start)).map(str::to_owned)
        })
    }

    /// Waits until [`Afterbay::is_healthy`].
    #[track_caller]
    pub fn until_healthy(&self) {
        until("/readyz lists no condition", || self.is_healthy());
    }

    /// Whether `/readyz` answers 200 without a condition. Most configurations of tests do not name the kind of reader, so that condition
    /// does not count.
    pub fn is_healthy(&self) -> bool {
        let Answer { status, body } = self.get("/readyz");
        let mut lines = body.lines().filter(|line| !line.starts_with("degraded: joins:"));
        status == 200 && lines.next() == Some("ready") && lines.next().is_none()
    }

    /// The events of a kind that are in the log so far. The log's rate limit may have left out some.
    pub fn events(&self, event: &str) -> Vec<Value> {
        self.log.events(event)
    }

    /// Waits until there are `count` events of a kind and returns them. More than that fails.
    #[track_caller]
    pub fn all_events(&self, event: &str, count: usize) -> Vec<Value> {
        self.all_events_where(event, count, |_| true)
    }

    /// Waits until there are `count` events of a kind for which `is_so` holds and returns them. More
    /// than that fails.
    #[track_caller]
    pub fn all_events_where(&self, event: &str, count: usize, is_so: impl Fn(&Value) -> bool) -> Vec<Value> {
        let events = wait_for(&format!("{count} events {event}"), || {
            let events: Vec<Value> = self.log.events(event).into_iter().filter(&is_so).collect();
            Some(events).filter(|events| events.len() >= count)
        });
        assert_eq!(events.len(), count, "{event}: {}", self.log());
        events
    }

    /// Waits for an event of a kind and returns the first.
    #[track_caller]
    pub fn event(&self, event: &str) -> Value {
        self.event_where(event, |_| true)
    }

    /// Waits for an event of a kind for which `is_so` holds and returns the first.
    #[track_caller]
    pub fn event_where(&self, event: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("event {event}"), || self.log.events(event).into_iter().find(|event| is_so(event)))
    }

    /// The log so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// The resident memory of the process.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Limits the size of the files that Afterbay writes: a write past the limit is cut short or fails, like on a full disk. `None` removes
    /// the limit.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let pid = Pid::from_raw(self.pid() as i32);
        let maximum = getrlimit(Resource::Fsize).maximum;
        prlimit(pid, Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), Signal::TERM).unwrap();
    }

    /// Sends SIGHUP.
    pub fn hang_up(&self) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), Signal::HUP).unwrap();
    }

    /// Sends SIGTERM, waits for the end and returns the exit code.
    #[track_caller]
    pub fn stop(mut self) -> i32 {
        self.terminate();
        self.wait()
    }

    /// Waits for the end and returns the exit code.
    #[track_caller]
    pub fn wait(&mut self) -> i32 {
        let Some(successor) = self.successor else {
            return code(wait_for("afterbay run ends", || self.child.try_wait().unwrap()));
        };
        let status = wait_for("afterbay run ends", || waitpid(Some(successor), WaitOptions::NOHANG).unwrap());
        let (_, status) = status;
        self.successor = None;
        status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap()
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(mut self) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), Signal::KILL).unwrap();
        self.wait();
    }
}

impl Drop for Afterbay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of afterbay run:\n{}", self.log.text());
        }
        // The processes may have ended.
        let _ended = self.child.kill();
        let _status = self.child.wait();
        if let Some(successor) = self.successor {
            let _ended = kill_process(successor, Signal::KILL);
            let _status = waitpid(Some(successor), WaitOptions::empty());
        }
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

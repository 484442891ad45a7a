//! The keeper's loop: one poll over signals and messages of the worker.

use crate::fdstore::{DESCRIPTORS_MAX, NotifySocket, State, StoredFds, Supervisor};
use crate::keeper::backoff::Backoff;
use crate::keeper::process;
use crate::keeper::worker::Start;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, WaitStatus, getpid, getrlimit, setrlimit};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The command line is wrong (`EX_USAGE`): a worker that exits with it would do so again.
const EXIT_USAGE: u8 = 64;
/// Descriptors of the keeper beside the stored ones.
const OWN_DESCRIPTORS: u64 = 32;
/// The signals that the worker gets as the keeper does.
const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// The reason why the keeper cannot start.
#[derive(Debug, thiserror::Error)]
#[error("keeper: {what}: {error}")]
pub struct KeeperError {
    what: &'static str,
    error: io::Error,
}

/// The worker of a keeper.
pub struct Worker {
    /// The arguments of this program that make it the worker.
    pub arguments: Vec<OsString>,
    /// The process whose output the worker forwards, if a launcher started it.
    pub engine: Option<Engine>,
}

/// The process that a launcher started with the keeper.
pub struct Engine {
    /// Whether the process has ended. No worker is started after that.
    pub has_ended: Box<dyn Fn() -> bool>,
    /// A directory for the notify socket, which the launcher or the last worker removes.
    pub directory: PathBuf,
}

/// Runs this program as the worker, and restarts it after a crash. Returns the exit code of the last worker; 128 and the signal's
/// number if a signal ended it.
///
/// The keeper ends with its worker if the worker exits with 0 or with 64 (the command line or the configuration is wrong), and after
/// SIGTERM or SIGINT. With an engine it also ends with its worker after the engine's end, and if
/// no worker has ever been ready, because the launcher waits for that. `stage` is the command of this program that calls
/// [`become_worker`](crate::keeper::become_worker) with all further arguments.
///
/// # Errors
///
/// The system refuses a socket, a directory or a signal descriptor. Call it before the process has a second thread that
/// takes signals.
pub fn run(stage: &OsStr, worker: Worker) -> Result<u8, KeeperError> {
    let mut keeper = Keeper::new(stage, worker)?;
    loop {
        let status = keeper.run_worker();
        match keeper.next(status) {
            Next::End(code) => return Ok(code),
            Next::StartIn(delay) => {
                if let Some(code) = keeper.wait(delay, status) {
                    return Ok(code);
                }
            }
        }
    }
}

struct Keeper<'a> {
    stage: &'a OsStr,
    program: PathBuf,
    worker: Worker,
    signals: SignalFd,
    notify: NotifySocket,
    /// Removed at the end.
    _directory: tempfile::TempDir,
    stored: StoredFds,
    stored_max: usize,
    /// The supervisor of the keeper itself.
    supervisor: Option<Supervisor>,
    backoff: Backoff,
    /// The worker: the child, or the process that took its place in a hand-over.
    main: Option<Pid>,
    started: Instant,
    ready: Option<Instant>,
    /// Whether a worker was ready.
    was_ready: bool,
    /// Set by SIGTERM and SIGINT.
    is_stopping: bool,
}

/// The end of a worker. `None`: it could not be started.
type Ended = Option<WaitStatus>;

/// The step after a worker's end.
enum Next {
    End(u8),
    StartIn(Duration),
}

impl<'a> Keeper<'a> {
    fn new(stage: &'a OsStr, worker: Worker) -> Result<Keeper<'a>, KeeperError> {
        let failed = |what: &'static str| move |error: io::Error| KeeperError { what, error };
        let program = std::env::current_exe().map_err(failed("the program's file"))?;
        let mut handled: SigSet = FORWARDED.into_iter().collect();
        handled.add(Signal::SIGCHLD);
        let blocked = handled.thread_block().map_err(io::Error::from);
        blocked.map_err(failed("signals cannot be blocked"))?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = SignalFd::with_flags(&handled, flags).map_err(io::Error::from);
        let signals = signals.map_err(failed("the descriptor of signals"))?;
        // Processes that a hand-over leaves become children of the keeper.
        let reaper = rustix::process::set_child_subreaper(Some(getpid())).map_err(io::Error::from);
        reaper.map_err(failed("the adoption of orphans"))?;
        let stored_max = raise_descriptors();
        let engine_dir = worker.engine.as_ref().map(|engine| engine.directory.as_path());
        let directory =
            private_directory(engine_dir).map_err(failed("the directory of the notify socket"))?;
        let notify = NotifySocket::bind(directory.path().join("notify"));
        let notify = notify.map_err(failed("the notify socket"))?;
        let supervisor = Supervisor::from_env().map_err(failed("the supervisor"))?;
        let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Keeper {
            stage,
            program,
            worker,
            signals,
            notify,
            _directory: directory,
            stored: StoredFds::new(stored_max),
            stored_max,
            supervisor,
            backoff: Backoff::new(u64::from(seed.subsec_nanos())),
            main: None,
            started: Instant::now(),
            ready: None,
            was_ready: false,
            is_stopping: false,
        })
    }

    /// Starts a worker and waits for the end of it or of the process that took its place.
    fn run_worker(&mut self) -> Ended {
        (self.started, self.ready) = (Instant::now(), None);
        let start = Start {
            stage: self.stage,
            program: &self.program,
            arguments: &self.worker.arguments,
            notify_socket: self.notify.path(),
            stored_max: self.stored_max,
        };
        match start.spawn(&self.stored) {
            Ok(pid) => self.main = Some(pid),
            Err(error) => {
                tracing::error!(target: "afterbay", "keeper: the worker cannot be started: {error}");
                return None;
            }
        }
        loop {
            self.poll(None);
            self.obey_messages();
            self.obey_signals();
            if let Some(status) = self.reap() {
                // The worker may have stored descriptors just before its end.
                self.obey_messages();
                self.main = None;
                return Some(status);
            }
        }
    }

    fn next(&mut self, ended: Ended) -> Next {
        let code = exit_code(ended);
        let is_final = [0, EXIT_USAGE].contains(&code);
        let is_over = |engine: &Engine| !self.was_ready || (engine.has_ended)();
        if self.is_stopping || is_final || self.worker.engine.as_ref().is_some_and(is_over) {
            return Next::End(code);
        }
        let delay = self.backoff.after_crash(self.ready.map(|ready| ready.elapsed()));
        let how = describe(ended);
        let (lived, kept) = (self.started.elapsed().as_secs_f64(), self.stored.len());
        let delay_ms = delay.as_millis();
        let line = format!(
            "the worker {how} after {lived:.1} s, starts again in {delay_ms} ms with {kept} kept descriptors"
        );
        tracing::error!(target: "afterbay", "keeper: {line}");
        self.relay(&format!("STATUS={line}"));
        Next::StartIn(delay)
    }

    /// Waits before the next start. Returns the exit code if a signal requests a stop meanwhile.
    fn wait(&mut self, delay: Duration, ended: Ended) -> Option<u8> {
        let due = Instant::now() + delay;
        loop {
            let left = due.saturating_duration_since(Instant::now());
            self.poll(Some(left));
            self.obey_messages();
            self.obey_signals();
            let _orphan = self.reap();
            if self.is_stopping {
                return Some(exit_code(ended));
            }
            if Instant::now() >= due {
                return None;
            }
        }
    }

    /// Waits for a signal or a message.
    fn poll(&self, longest: Option<Duration>) {
        let mut fds = [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.notify, PollFlags::IN)];
        let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
        // An interruption is a turn without work.
        let _ready = poll(&mut fds, longest.as_ref());
    }

    fn obey_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let Some(signal) = i32::try_from(info.ssi_signo).ok().and_then(|it| Signal::try_from(it).ok())
            else {
                continue;
            };
            if signal == Signal::SIGCHLD {
                continue;
            }
            self.is_stopping |= matches!(signal, Signal::SIGTERM | Signal::SIGINT);
            if let (Some(main), Some(signal)) = (self.main, forwarded(signal)) {
                // It fails only if the worker has just ended.
                let _sent = rustix::process::kill_process(main, signal);
            }
        }
    }

    fn obey_messages(&mut self) {
        loop {
            let mut message = match self.notify.receive() {
                Ok(Some(message)) => message,
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(target: "afterbay", "keeper: the notify socket cannot be read: {error}");
                    return;
                }
            };
            let refused = self.stored.apply(&mut message);
            if refused > 0 {
                tracing::warn!(target: "afterbay", "keeper: no room for {refused} descriptors, {} are kept", self.stored.len());
            }
            if let Some(pid) = message.value("MAINPID").and_then(|pid| Pid::from_raw(pid.parse().ok()?)) {
                self.follow(pid);
            }
            if message.says("READY") {
                self.ready.get_or_insert_with(Instant::now);
                self.was_ready = true;
            }
            self.relay(&message.to_relay());
        }
    }

    /// Follows a hand-over: `pid` is the worker from now on, and its program the one to restart.
    fn follow(&mut self, pid: Pid) {
        if self.main == Some(pid) || self.main.is_none() {
            return;
        }
        if !process::is_descendant(pid) {
            let pid = pid.as_raw_pid();
            tracing::warn!(target: "afterbay", "keeper: process {pid} is no descendant and cannot be the worker");
            return;
        }
        self.main = Some(pid);
        (self.started, self.ready) = (Instant::now(), None);
        if let Some(program) = process::program(pid) {
            self.program = program;
        }
    }

    /// Reaps every child that has ended. Returns the end of the worker, if the worker is among them.
    fn reap(&self) -> Ended {
        let mut ended = None;
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if Some(pid) == self.main {
                ended = Some(status);
            }
        }
        ended
    }

    /// Passes lines on to the keeper's own supervisor.
    fn relay(&self, lines: &str) {
        if let Some(supervisor) = self.supervisor.as_ref().filter(|_| !lines.is_empty()) {
            // The next message may get through.
            let _sent = supervisor.send(&[State::Custom(lines)]);
        }
    }
}

fn forwarded(signal: Signal) -> Option<rustix::process::Signal> {
    use rustix::process::Signal as To;
    Some(match signal {
        Signal::SIGTERM => To::TERM,
        Signal::SIGINT => To::INT,
        Signal::SIGHUP => To::HUP,
        Signal::SIGQUIT => To::QUIT,
        Signal::SIGUSR1 => To::USR1,
        Signal::SIGUSR2 => To::USR2,
        _ => return None,
    })
}

fn exit_code(ended: Ended) -> u8 {
    let Some(status) = ended else { return 1 };
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn describe(ended: Ended) -> String {
    let Some(status) = ended else { return "could not be started".to_owned() };
    let signal = status.terminating_signal();
    match (status.exit_status(), signal, signal.and_then(|signal| Signal::try_from(signal).ok())) {
        (Some(code), ..) => format!("exited with {code}"),
        (None, Some(_), Some(signal)) => format!("was ended by {signal}"),
        (None, Some(signal), None) => format!("was ended by signal {signal}"),
        (None, None, _) => "ended".to_owned(),
    }
}

/// Raises the limit of descriptors as far as allowed. Returns how many the keeper stores: a start needs three of each for a
/// moment.
fn raise_descriptors() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    let limit = if raised { maximum } else { current }.unwrap_or(u64::MAX);
    usize::try_from(limit.saturating_sub(OWN_DESCRIPTORS) / 3).unwrap_or(usize::MAX).min(DESCRIPTORS_MAX)
}

/// A directory that only this user may enter. `TMPDIR` may be too long for the name of a socket.
fn private_directory(base: Option<&Path>) -> io::Result<tempfile::TempDir> {
    let make = |base: &Path| tempfile::Builder::new().prefix("afterbay-keeper-").tempdir_in(base);
    match base {
        Some(base) => make(base),
        None => make(Path::new("/dev/shm")).or_else(|_| make(Path::new("/tmp"))),
    }
}

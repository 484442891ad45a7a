//! `POST /v1/upgrade`: starts a new binary in this process's place, and waits for the outcome of its hand-over.
//!
//! The new process is a child of this one, so it stays in the same service, control group and container. It gets the arguments,
//! the working directory, the environment and the output of this process.

use afterbay_http::ClientAddress;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Time for the new process to check, compile and ask. The exchange of the admin address takes at most 150 s.
const ASK_MAX: Duration = Duration::from_secs(110);
/// Time for the outcome if the new process has ended, and is not known to have asked.
const ASKED_MAX: Duration = Duration::from_secs(1);
/// Time for the outcome of a hand-over whose new process has ended.
const OUTCOME_MAX: Duration = Duration::from_secs(10);
/// The flag that makes a new process take over.
const TAKE_OVER: &str = "--take-over";
/// Variables that are for one process: descriptors and the watchdog of a supervisor.
pub(crate) const OF_ONE_PROCESS: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// The body of a request to upgrade.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpgradeRequest {
    /// The new binary. Without one, the file that this process was started from.
    binary: Option<PathBuf>,
}

/// A finished upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Upgraded {
    /// The version of this process.
    pub(crate) from: String,
    /// The version of the new process.
    pub(crate) to: String,
    pub(crate) from_pid: u32,
    pub(crate) to_pid: u32,
    /// The time from the stop of the streams until the new process ran them.
    pub(crate) stood_still_ms: u64,
}

/// The reason why nothing was upgraded. This process goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotUpgraded {
    #[error("an upgrade starts a program, so it needs the Unix socket of the admin address, not TCP")]
    Tcp,
    #[error("the caller runs as user {uid}, must be user {ours} as this process")]
    User { uid: u32, ours: u32 },
    #[error("{}", WHY_PID_1)]
    Pid1,
    #[error("another upgrade is under way")]
    Busy,
    #[error("the binary's path {0:?} is not absolute")]
    Relative(PathBuf),
    #[error("{binary}: cannot be started: {error}")]
    Start { binary: String, error: std::io::Error },
    #[error("{0}")]
    Failed(String),
}

/// The reason why process 1 of a container hands nothing over.
pub(crate) const WHY_PID_1: &str = "this Afterbay is process 1 of its container, and its end would end the container: run it with \
                                    --keep, then its keeper is process 1";

/// The upgrades of a process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Upgrades(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    launch: Launch,
    /// The upgrade under way.
    current: Mutex<Option<Current>>,
}

/// The new process of an upgrade, and the channel of its outcome.
#[derive(Debug)]
struct Current {
    pid: u32,
    /// Whether the new process has asked to take over, or was refused.
    has_asked: bool,
    outcome: Option<oneshot::Sender<Result<Upgraded, String>>>,
}

/// The way in which this process was started.
#[derive(Debug)]
pub(crate) struct Launch {
    binary: std::io::Result<PathBuf>,
    arguments: Vec<OsString>,
}

/// Forgets the upgrade under way at its drop.
struct Forget<'a>(&'a Upgrades);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl Launch {
    /// The launch of this process. Must be called before the binary's file is replaced, after which the kernel knows no path.
    pub(crate) fn of_process() -> Launch {
        Launch { binary: std::env::current_exe(), arguments: std::env::args_os().skip(1).collect() }
    }

    fn command(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.args(self.arguments.iter().filter(|argument| *argument != TAKE_OVER)).arg(TAKE_OVER);
        OF_ONE_PROCESS.iter().for_each(|name| _ = command.env_remove(name));
        command
    }
}

impl Upgrades {
    pub(crate) fn new(launch: Launch) -> Upgrades {
        Upgrades(Arc::new(Shared { launch, current: Mutex::default() }))
    }

    /// Starts the new binary and waits until it has taken over, or has failed.
    pub(crate) async fn upgrade(
        &self,
        caller: ClientAddress,
        request: UpgradeRequest,
    ) -> Result<Upgraded, NotUpgraded> {
        let ClientAddress::Unix { uid } = caller else { return Err(NotUpgraded::Tcp) };
        let ours = rustix::process::geteuid().as_raw();
        if uid != ours && uid != 0 {
            return Err(NotUpgraded::User { uid, ours });
        }
        if std::process::id() == 1 {
            return Err(NotUpgraded::Pid1);
        }
        let (mut outcome, mut ended, pid) = self.start(request)?;
        // Also if the caller goes away.
        let _forget = Forget(self);
        let is_silent = async {
            tokio::time::sleep(ASK_MAX).await;
            if self.has_asked(pid) {
                std::future::pending::<()>().await;
            }
        };
        let result = tokio::select! {
            outcome = &mut outcome => outcome,
            status = &mut ended => {
                // It may have asked a moment ago, and the reason is more than its exit code.
                let within = if self.has_asked(pid) { OUTCOME_MAX } else { ASKED_MAX };
                let late = tokio::time::timeout(within, &mut outcome).await;
                late.unwrap_or_else(|_| Ok(Err(ended_words(status.ok()))))
            }
            () = is_silent => {
                end(pid);
                let seconds = ASK_MAX.as_secs();
                Ok(Err(format!("the new process has not asked to take over in {seconds} s, and was ended")))
            }
        };
        let result = result.unwrap_or_else(|_| Err("this process is stopping".to_owned()));
        result.map_err(NotUpgraded::Failed)
    }

    /// Whether an upgrade has started this process.
    pub(crate) fn is_child(&self, pid: u32) -> bool {
        self.lock().as_ref().is_some_and(|current| current.pid == pid)
    }

    /// Notes that the new process has asked to take over.
    pub(crate) fn asked(&self, pid: u32) {
        if let Some(current) = self.lock().as_mut().filter(|current| current.pid == pid) {
            current.has_asked = true;
        }
    }

    /// Reports the outcome of a hand-over. `pid` is `None` if it was refused before the new process was known.
    pub(crate) fn end(&self, pid: Option<u32>, outcome: &Result<Upgraded, String>) {
        let mut current = self.lock();
        let is_it = |current: &&mut Current| pid.is_none_or(|pid| pid == current.pid);
        if let Some(current) = current.as_mut().filter(is_it) {
            current.has_asked = true;
            // The send fails if nobody waits any more.
            _ = current.outcome.take().map(|waits| waits.send(outcome.clone()));
        }
    }

    fn has_asked(&self, pid: u32) -> bool {
        self.lock().as_ref().is_some_and(|current| current.pid == pid && current.has_asked)
    }

    #[expect(clippy::type_complexity, reason = "two channels and a pid")]
    fn start(
        &self,
        request: UpgradeRequest,
    ) -> Result<(oneshot::Receiver<Result<Upgraded, String>>, oneshot::Receiver<ExitStatus>, u32), NotUpgraded>
    {
        let mut current = self.lock();
        if current.is_some() {
            return Err(NotUpgraded::Busy);
        }
        let launch = &self.0.launch;
        let binary = match (request.binary, &launch.binary) {
            (Some(binary), _) if binary.is_relative() => return Err(NotUpgraded::Relative(binary)),
            (Some(binary), _) => binary,
            (None, Ok(binary)) => binary.clone(),
            (None, Err(error)) => {
                let binary = "the file of this process".to_owned();
                return Err(NotUpgraded::Start { binary, error: std::io::Error::other(error.to_string()) });
            }
        };
        let started = check_binary(&binary).and_then(|()| launch.command(&binary).spawn());
        let child =
            started.map_err(|error| NotUpgraded::Start { binary: binary.display().to_string(), error })?;
        let pid = child.id();
        let ended = wait(child);
        let (sender, outcome) = oneshot::channel();
        *current = Some(Current { pid, has_asked: false, outcome: Some(sender) });
        Ok((outcome, ended, pid))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that a path can be a binary. The kernel says "permission denied" of a directory and of a file that is not executable.
fn check_binary(binary: &Path) -> std::io::Result<()> {
    let metadata = binary.metadata()?;
    let mode = metadata.permissions().mode() & 0o7777;
    match (metadata.is_dir(), mode & 0o111) {
        (true, _) => Err(std::io::Error::other("it is a directory")),
        (false, 0) => Err(std::io::Error::other(format!("it is not executable, its mode is {mode:04o}"))),
        (false, _) => Ok(()),
    }
}

/// Waits for the end of the child on a thread.
fn wait(mut child: Child) -> oneshot::Receiver<ExitStatus> {
    let (sender, ended) = oneshot::channel();
    // If no thread starts, nobody collects the child, and the outcome comes by the hand-over alone.
    let _started = std::thread::Builder::new().name("upgrade".into()).spawn(move || {
        if let Ok(status) = child.wait() {
            let _sent = sender.send(status);
        }
    });
    ended
}

/// Ends a child that has not asked yet.
fn end(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        // The child may have ended.
        let _sent = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn ended_words(status: Option<ExitStatus>) -> String {
    let status = status.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
    format!("the new process ended before it took over ({status}): the log of this process has its messages")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upgrades(binary: &str, arguments: &[&str]) -> Upgrades {
        let arguments = arguments.iter().map(OsString::from).collect();
        Upgrades::new(Launch { binary: Ok(binary.into()), arguments })
    }

    fn us() -> ClientAddress {
        ClientAddress::Unix { uid: rustix::process::geteuid().as_raw() }
    }

    fn refused(upgrades: &Upgrades, caller: ClientAddress, binary: Option<&str>) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let request = UpgradeRequest { binary: binary.map(PathBuf::from) };
        runtime.block_on(upgrades.upgrade(caller, request)).unwrap_err().to_string()
    }

    #[test]
    fn the_new_process_gets_the_arguments_of_this_one_and_take_over_once() {
        let upgrades = upgrades("/old", &["run", "--take-over", "--config", "a.toml"]);
        let command = upgrades.0.launch.command(Path::new("/new"));
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["run", "--config", "a.toml", "--take-over"]);
        assert_eq!(command.get_program(), "/new");
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        assert_eq!(removed.len(), OF_ONE_PROCESS.len());
    }

    #[test]
    fn an_upgrade_over_tcp_or_by_another_user_starts_nothing() {
        let upgrades = upgrades("/nonexistent", &[]);
        let tcp = ClientAddress::Tcp("127.0.0.1:1".parse().unwrap());
        assert!(refused(&upgrades, tcp, None).contains("needs the Unix socket"));
        let other = ClientAddress::Unix { uid: 12345 };
        assert!(refused(&upgrades, other, None).starts_with("the caller runs as user 12345, must be user"));
    }

    #[test]
    fn a_binary_that_cannot_be_started_or_ends_at_its_start_is_named() {
        let upgrades = upgrades("/nonexistent", &[]);
        assert!(refused(&upgrades, us(), None).starts_with("/nonexistent: cannot be started: No such file"));
        assert!(refused(&upgrades, us(), Some("afterbay")).contains("is not absolute"));
        assert_eq!(refused(&upgrades, us(), Some("/tmp")), "/tmp: cannot be started: it is a directory");
        let plain = tempfile::NamedTempFile::new().unwrap();
        let why = refused(&upgrades, us(), plain.path().to_str());
        assert!(why.ends_with("cannot be started: it is not executable, its mode is 0600"), "{why}");
        let why = refused(&upgrades, us(), Some("/bin/false"));
        assert!(why.starts_with("the new process ended before it took over (exit status: 1)"), "{why}");
        // Nothing is left of the failed ones.
        let why = refused(&upgrades, us(), Some("/bin/false"));
        assert!(why.contains("exit status: 1"), "{why}");
    }
}

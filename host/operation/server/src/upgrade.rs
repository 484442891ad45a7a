//! `POST /v1/upgrade`: starts a new binary in this process's place, and waits for the outcome of its hand-over.
//!
//! The new process is a child of this one, so it stays in the same service, control group and container. It gets the arguments,
//! the working directory, the environment and the output of this process.

use crate::refusal::Refusal;
use afterbay_http::ClientAddress;
use afterbay_supervision::hand_over::{ASK_MAX, HandOverError, Successor};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Mutex, mpsc, oneshot};

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

/// A new process that asks to take over.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) successor: Successor,
    /// The version of the new process.
    pub(crate) version: String,
    /// The version of each of its formats, in words.
    pub(crate) formats: String,
    pub(crate) outcome: oneshot::Sender<Result<Upgraded, String>>,
}

/// The upgrades of a process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Upgrades(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    launch: Launch,
    /// Locked by the upgrade under way.
    current: Mutex<()>,
    asked: mpsc::Sender<Asked>,
}

/// The way in which this process was started.
#[derive(Debug)]
struct Launch {
    binary: std::io::Result<PathBuf>,
    arguments: Vec<OsString>,
}

impl Launch {
    fn command(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.args(self.arguments.iter().filter(|argument| *argument != TAKE_OVER)).arg(TAKE_OVER);
        OF_ONE_PROCESS.iter().for_each(|name| _ = command.env_remove(name));
        command
    }
}

impl Upgrades {
    /// Must be called before the binary's file is replaced, after which the kernel knows no path. Also returns the new processes that
    /// ask.
    pub(crate) fn new() -> (Upgrades, mpsc::Receiver<Asked>) {
        let launch =
            Launch { binary: std::env::current_exe(), arguments: std::env::args_os().skip(1).collect() };
        Upgrades::with(launch)
    }

    fn with(launch: Launch) -> (Upgrades, mpsc::Receiver<Asked>) {
        let (asked, receiver) = mpsc::channel(1);
        (Upgrades(Arc::new(Shared { launch, current: Mutex::default(), asked })), receiver)
    }

    /// Starts the new binary and waits until it has taken over, or has failed. A caller that goes away ends a new process that has
    /// not asked yet.
    pub(crate) async fn upgrade(
        &self,
        caller: ClientAddress,
        request: UpgradeRequest,
    ) -> Result<Upgraded, Refusal> {
        let ClientAddress::Unix { uid } = caller else {
            let why =
                "an upgrade starts a program, so it needs the Unix socket of the admin address, not TCP";
            return Err(Refusal::forbidden("unix_socket", why));
        };
        let ours = rustix::process::geteuid().as_raw();
        if uid != ours && uid != 0 {
            let why = format!("the caller runs as user {uid}, must be user {ours} as this process");
            return Err(Refusal::forbidden("unix_socket", why));
        }
        if std::process::id() == 1 {
            let why = "this Afterbay is process 1 of its container, and its end would end the container: run it with --keep, then its \
                       keeper is process 1";
            return Err(Refusal::conflict("pid_1", why));
        }
        let _current = self.0.current.try_lock();
        let _current = _current.map_err(|_| Refusal::conflict("busy", "another upgrade is under way"))?;
        let mut successor = self.start(request)?;
        let waiting = tokio::task::spawn_blocking(move || -> Result<_, HandOverError> {
            let (version, formats) = successor.wait_until_asked(Instant::now() + ASK_MAX)?;
            Ok((successor, version, formats))
        });
        let failed = |why: String| Refusal::conflict("failed", why);
        let waited = waiting.await.map_err(|error| failed(error.to_string()))?;
        let (successor, version, formats) = waited.map_err(|error| failed(error.to_string()))?;
        let (sender, outcome) = oneshot::channel();
        let stopping = || failed("this process is stopping".to_owned());
        let asked = Asked { successor, version, formats, outcome: sender };
        self.0.asked.send(asked).await.map_err(|_| stopping())?;
        outcome.await.map_err(|_| stopping())?.map_err(failed)
    }

    fn start(&self, request: UpgradeRequest) -> Result<Successor, Refusal> {
        let launch = &self.0.launch;
        let (binary, known) = match (request.binary, &launch.binary) {
            (Some(binary), _) if binary.is_relative() => {
                let why = format!("the binary's path {binary:?} is not absolute");
                return Err(Refusal::bad_request("binary", why));
            }
            (Some(binary), _) => (binary, Ok(())),
            (None, Ok(binary)) => (binary.clone(), Ok(())),
            (None, Err(error)) => {
                ("the file of this process".into(), Err(std::io::Error::other(error.to_string())))
            }
        };
        let started = known.and_then(|()| check_binary(&binary));
        let started = started.and_then(|()| Successor::start(launch.command(&binary)));
        started.map_err(|error| {
            Refusal::conflict("start", format!("{}: cannot be started: {error}", binary.display()))
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn upgrades(binary: &str, arguments: &[&str]) -> Upgrades {
        let arguments = arguments.iter().map(OsString::from).collect();
        Upgrades::with(Launch { binary: Ok(binary.into()), arguments }).0
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

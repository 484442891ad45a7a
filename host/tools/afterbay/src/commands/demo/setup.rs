//! The demo's temporary directory with its configuration, and the `afterbay run` in it. Both are removed however the demo ends.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use afterbay_sim::Stop;
use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use afterbay_config::Engine;
use afterbay_terminal::seconds;

/// The names of the streams: for a reader that handles every chunk, and for one that handles the last chunk that it finds.
pub(super) const EVERY_CHUNK: &str = "every-chunk";
pub(super) const LAST_CHUNK: &str = "last-chunk";
const CONFIG: &str = "afterbay.toml";
/// Time for Afterbay to become ready, and to end.
const READY_WITHIN: Duration = Duration::from_secs(30);
const END_WITHIN: Duration = Duration::from_secs(15);
/// How long a stopped demo tries to remove its directory: the simulated ends make and remove their sockets meanwhile.
const REMOVE_WITHIN: Duration = Duration::from_secs(5);
/// Lines of Afterbay's log that are shown if it fails.
const LAST_LINES: usize = 10;

/// The directories of the demo. Dropping it removes the temporary one.
pub(super) struct DemoDirs {
    /// The sockets and the credit page.
    temporary: tempfile::TempDir,
    /// The configuration, the journal and the log; the same directory without --keep.
    dir: PathBuf,
    engine: Engine,
}

/// A running `afterbay run`. Dropping it kills the process.
pub(super) struct Afterbay {
    child: Child,
    log: PathBuf,
}

impl DemoDirs {
    pub(super) fn create(keep: Option<&Path>, engine: Engine) -> anyhow::Result<DemoDirs> {
        let temporary = tempfile::Builder::new().prefix("afterbay-demo-").tempdir()?;
        let dir = match keep {
            None => temporary.path().to_owned(),
            Some(keep) => {
                std::fs::create_dir_all(keep).with_context(|| keep.display().to_string())?;
                let dir = keep.canonicalize().with_context(|| keep.display().to_string())?;
                if dir.join("journal").exists() {
                    bail!("{}: a journal is there already", dir.display());
                }
                dir
            }
        };
        Ok(DemoDirs { temporary, dir, engine })
    }

    pub(super) fn ipc(&self, name: &str) -> String {
        format!("ipc://{}", self.temporary.path().join(name).display())
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.dir.join("journal")
    }

    /// The streams: one for each act.
    pub(super) fn streams(&self) -> &'static [&'static str] {
        if self.engine.traits().counts_tokens { &[EVERY_CHUNK, LAST_CHUNK] } else { &[EVERY_CHUNK] }
    }

    /// The endpoint where Afterbay listens for a stream's scheduler.
    pub(super) fn scheduler(&self, stream: &str) -> String {
        self.ipc(&format!("{stream}-scheduler"))
    }

    /// The endpoint where a stream's reader listens for Afterbay.
    pub(super) fn reader(&self, stream: &str) -> String {
        self.ipc(&format!("{stream}-reader"))
    }

    pub(super) fn credit(&self, stream: &str) -> PathBuf {
        self.temporary.path().join(format!("{stream}-credit"))
    }

    /// Writes the configuration and returns its text.
    pub(super) fn write_config(&self) -> anyhow::Result<String> {
        let (file, config) = (self.dir.join(CONFIG), self.config());
        std::fs::write(&file, &config).with_context(|| file.display().to_string())?;
        Ok(config)
    }

    fn config(&self) -> String {
        let engine = format!("engine = {:?}\n", self.engine.word());
        let reader = match self.engine.traits().joins_anywhere {
            true => "",
            false => "reader  = \"tokenizer\"   # rows may be joined anywhere: nobody detokenizes after it\n",
        };
        let stream = |name: &str| {
            format!(
                "[[stream]]\nname   = \"{name}\"\n{engine}\
                 listen = {:?}   # Afterbay binds here, the scheduler connects\n\
                 [[stream.sink]]\nname    = \"reader\"\n{reader}\
                 connect = {:?}    # the reader binds here, Afterbay connects\n\
                 credit  = {:?}   # the reader counts here what it has finished\n",
                self.scheduler(name),
                self.reader(name),
                self.credit(name),
            )
        };
        let plugin =
            "[[stream.plugin]]\nname      = \"cumulative\"\ncomponent = \"builtin:delta-to-cumulative\"\n";
        let streams: Vec<String> = self
            .streams()
            .iter()
            .map(|name| match *name {
                LAST_CHUNK => stream(name) + plugin,
                name => stream(name),
            })
            .collect();
        format!(
            "{}\n[journal]\ndir = {:?}\n\n[admin]\nlisten = \"none\"\n",
            streams.join("\n"),
            self.journal(),
        )
    }
}

impl Afterbay {
    pub(super) fn start(dirs: &DemoDirs) -> anyhow::Result<Afterbay> {
        let log = dirs.dir.join("afterbay.log");
        let out = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
        let child = afterbay()
            .args([
                "run",
                "--log-format",
                "plain",
                "--until-pid",
                &std::process::id().to_string(),
                "--config",
            ])
            .arg(dirs.dir.join(CONFIG))
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            // Ctrl-C ends the demo, which then ends Afterbay.
            .process_group(0)
            .spawn()
            .context("afterbay run")?;
        Ok(Afterbay { child, log })
    }

    pub(super) fn wait_until_ready(&mut self, dirs: &DemoDirs, stop: &Stop) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        let is_bound = |stream: &str| {
            let socket = dirs.scheduler(stream);
            std::fs::metadata(socket.trim_start_matches("ipc://")).is_ok_and(|it| it.file_type().is_socket())
        };
        while !dirs.streams().iter().all(|stream| is_bound(stream)) {
            if let Some(status) = self.child.try_wait()? {
                bail!("afterbay run did not start: {status}{}", self.last_words());
            }
            end_where_stopped(stop)?;
            if Instant::now() >= deadline {
                bail!("afterbay run was not ready within {}{}", seconds(READY_WITHIN), self.last_words());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Ends Afterbay by SIGTERM and waits while it drains. Returns whether it ended in time without an error.
    pub(super) fn end(&mut self, stop: &Stop) -> anyhow::Result<bool> {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM).context("SIGTERM to afterbay run")?;
        }
        let deadline = Instant::now() + END_WITHIN;
        while Instant::now() < deadline {
            end_where_stopped(stop)?;
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(false)
    }

    /// The exit status, if Afterbay has ended.
    pub(super) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The last lines of the log, to append to a message.
    pub(super) fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| format!("\n  {line}"));
        last.collect()
    }
}

impl Drop for DemoDirs {
    fn drop(&mut self) {
        let deadline = Instant::now() + REMOVE_WITHIN;
        while std::fs::remove_dir_all(self.temporary.path()).is_err()
            && self.temporary.path().exists()
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Afterbay {
    fn drop(&mut self) {
        // An error means that Afterbay has already ended.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// The error that a signal ended the demo.
#[derive(Debug, thiserror::Error)]
#[error("stopped by a signal")]
pub(super) struct Stopped;

/// Returns an error if a signal was received.
pub(super) fn end_where_stopped(stop: &Stop) -> Result<(), Stopped> {
    if stop.is_stopped() { Err(Stopped) } else { Ok(()) }
}

/// Does long work on a thread, and abandons it at a signal. The work must be safe to abandon.
pub(super) fn unless_stopped<T: Send + 'static>(
    stop: &Stop,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let working = thread::Builder::new().name("demo".to_owned()).spawn(work)?;
    while !working.is_finished() {
        end_where_stopped(stop)?;
        thread::sleep(Duration::from_millis(10));
    }
    working.join().map_err(|_| anyhow::anyhow!("the demo's work panicked"))?
}

/// A command that runs this program, even if its file was replaced or removed meanwhile.
pub(super) fn afterbay() -> Command {
    let mut command = Command::new("/proc/self/exe");
    // The demo does not use the user's configuration.
    command.arg0("afterbay").env_remove("AFTERBAY_CONFIG");
    command
}

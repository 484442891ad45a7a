//! What stands between the sender and the reader.

use anyhow::{Context, ensure};
use rustix::fs::statvfs;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a proxy may take to come up: one that builds a plugin for the first time compiles what it is made of.
const START_MAX: Duration = Duration::from_secs(180);
/// How long an answer of its admin address may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A libzmq forwarder: PULL to PUSH in C, without a journal and without looking at what it carries.
const LIBZMQ: &str = "
import sys, zmq
context = zmq.Context()
pull = context.socket(zmq.PULL); pull.setsockopt(zmq.RCVHWM, 1000); pull.bind(sys.argv[1])
push = context.socket(zmq.PUSH); push.setsockopt(zmq.SNDHWM, 1000); push.connect(sys.argv[2])
zmq.proxy(pull, push)
";

/// A case.
pub(crate) enum Between {
    /// The sender connects to the reader.
    Nothing,
    /// pyzmq's proxy.
    Libzmq,
    /// `afterbay run`, journal on.
    Afterbay {
        /// Which.
        binary: PathBuf,
        /// A plugin in the chain.
        plugin: Option<PathBuf>,
        /// Where its journal is.
        kept: Kept,
    },
}

/// Where journals are kept, and how much of them.
#[derive(Clone, Copy)]
pub(crate) enum Kept {
    /// As a user has it.
    OnDisk,
    /// In memory, no more than a machine has at hand: memory that is new to it costs more than all that is measured.
    InMemory,
}

impl Kept {
    /// The directory in which directories are made: of a disk, too, where the system has no 512 MiB of memory there.
    pub(crate) fn within(self) -> &'static Path {
        const MEMORY: &str = "/dev/shm";
        let free = || statvfs(MEMORY).map_or(0, |found| found.f_bavail * found.f_frsize);
        Path::new(if matches!(self, Kept::InMemory) && free() >= 512 << 20 { MEMORY } else { "/tmp" })
    }

    fn settings(self) -> &'static str {
        match self {
            Kept::OnDisk => "retain = { bytes = \"2GiB\" }",
            Kept::InMemory => "segment = \"32MiB\"\nretain = { bytes = \"128MiB\" }",
        }
    }
}

/// A proxy that runs.
pub(crate) struct Running {
    child: Option<Child>,
    /// What it logs, which would stand between the figures.
    log: PathBuf,
    afterbay: Option<(SocketAddr, Kept)>,
    /// Where the sender connects to.
    pub(crate) ingress: String,
}

impl Between {
    /// The directory in which it is given one of its own.
    pub(crate) fn within(&self) -> &'static Path {
        match self {
            Between::Nothing | Between::Libzmq => Kept::OnDisk.within(),
            Between::Afterbay { kept, .. } => kept.within(),
        }
    }

    /// Starts it between `ingress` and the reader.
    pub(crate) fn start(&self, dir: &Path, reader: &str) -> anyhow::Result<Running> {
        let ingress = format!("ipc://{}/ingress", dir.display());
        let log = dir.join("log");
        let child = match self {
            Between::Nothing => {
                return Ok(Running { child: None, log, afterbay: None, ingress: reader.to_owned() });
            }
            Between::Libzmq => {
                let python = std::env::var("AFTERBAY_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
                Command::new(python).args(["-c", LIBZMQ, &ingress, reader]).spawn().context("python")?
            }
            Between::Afterbay { binary, plugin, kept } => {
                let plugin = plugin.as_deref().map_or_else(String::new, |file| {
                    format!("[[stream.plugin]]\nname = \"nothing\"\ncomponent = {file:?}\n")
                });
                let stream = stream("bench", &ingress, reader, &plugin);
                return Running::afterbay(&mut run(binary), dir, *kept, &stream, &ingress);
            }
        };
        let mut running = Running { child: Some(child), log, afterbay: None, ingress };
        running.wait(&dir.join("ingress"))?;
        Ok(running)
    }
}

/// A stream of a configuration.
pub(crate) fn stream(name: &str, listen: &str, reader: &str, plugins: &str) -> String {
    format!(
        "[[stream]]\nname = {name:?}\nlisten = {listen:?}\n[[stream.sink]]\nname = \"reader\"\nconnect = {reader:?}\n{plugins}"
    )
}

/// An address that was free a moment ago.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// `afterbay run`.
pub(crate) fn run(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    command.arg("run");
    command
}

impl Running {
    /// `afterbay run` with these streams, journal on, as a user runs it.
    pub(crate) fn afterbay(
        run: &mut Command,
        dir: &Path,
        kept: Kept,
        streams: &str,
        ingress: &str,
    ) -> anyhow::Result<Running> {
        let admin = free_address()?;
        let log = dir.join("log");
        write_configuration(dir, kept, streams, admin)?;
        let child = run
            .args(["--log", "warn", "--config"])
            .arg(dir.join(CONFIGURATION))
            // Compiled code of components that nobody has again.
            .env("XDG_CACHE_HOME", dir.join("cache"))
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).context("the proxy's log")?)
            .spawn()
            .context("afterbay")?;
        let mut running =
            Running { child: Some(child), log, afterbay: Some((admin, kept)), ingress: ingress.to_owned() };
        let started = running.wait(Path::new(ingress.trim_start_matches("ipc://")));
        running.explain(started)?;
        Ok(running)
    }

    /// Other streams in its configuration, which it reads again.
    pub(crate) fn reconfigure(&self, dir: &Path, streams: &str) -> anyhow::Result<()> {
        let (admin, kept) = self.afterbay.context("it is no Afterbay")?;
        write_configuration(dir, kept, streams, admin)
    }

    /// A figure of `/metrics`: its name with its labels.
    pub(crate) fn figure(&self, series: &str) -> anyhow::Result<f64> {
        let page = self.metrics()?;
        let found = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        found
            .and_then(|figure| figure.trim().parse().ok())
            .with_context(|| format!("no {series} on /metrics"))
    }

    /// A histogram's bounds, ascending, and how many are within each. A series is what stands before the bound and after it.
    pub(crate) fn buckets(&self, before: &str, after: &str) -> anyhow::Result<Vec<(f64, f64)>> {
        let page = self.metrics()?;
        let bucket = |line: &str| {
            let (bound, count) = line.strip_prefix(before)?.split_once(after)?;
            Some((bound.replace("+Inf", "inf").parse().ok()?, count.trim().parse().ok()?))
        };
        let buckets: Vec<_> = page.lines().filter_map(bucket).collect();
        ensure!(!buckets.is_empty(), "no {before}…{after} on /metrics");
        Ok(buckets)
    }

    fn metrics(&self) -> anyhow::Result<String> {
        let (address, _) = self.afterbay.context("it is no Afterbay")?;
        let mut socket = TcpStream::connect_timeout(&address, ANSWER_MAX).context("admin")?;
        socket.set_read_timeout(Some(ANSWER_MAX))?;
        write!(socket, "GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        socket.read_to_string(&mut page).context("/metrics")?;
        Ok(page)
    }

    /// Memory that it has in use.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let child = self.child.as_ref().context("it is no process")?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        let figure = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(figure.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
    }

    /// SIGTERM, and its end.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let child = self.child.as_mut().context("it is no process")?;
        kill_process(Pid::from_child(child), Signal::TERM)?;
        let ended = child.wait()?;
        if !ended.success() {
            return self.explain(Err(anyhow::anyhow!("the proxy ended with {ended}")));
        }
        Ok(())
    }
}

const CONFIGURATION: &str = "afterbay.toml";

/// Whole at once, as an editor saves it.
fn write_configuration(dir: &Path, kept: Kept, streams: &str, admin: SocketAddr) -> anyhow::Result<()> {
    let journal = dir.join("journal");
    let text = format!(
        "{streams}[journal]\ndir = {journal:?}\n{}\n[admin]\nlisten = \"{admin}\"\n",
        kept.settings()
    );
    let aside = dir.join("aside.toml");
    std::fs::write(&aside, text)?;
    std::fs::rename(aside, dir.join(CONFIGURATION)).context(CONFIGURATION)
}

impl Running {
    fn wait(&mut self, socket: &Path) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !socket.exists() {
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            ensure!(ended.is_none(), "the proxy ended at once: {ended:?}");
            ensure!(begun.elapsed() < START_MAX, "the proxy is not there after {START_MAX:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Adds what it has logged to an error.
    pub(crate) fn explain<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        result.map_err(|error| match std::fs::read_to_string(&self.log) {
            Ok(log) if !log.is_empty() => error.context(format!("the proxy said:\n{log}")),
            _ => error,
        })
    }

    /// CPU that it has used, user and system, of all its threads.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let Some(child) = &self.child else { return Ok(Duration::ZERO) };
        // Each thread's time in nanoseconds; /proc/PID/stat has only hundredths of a second.
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", child.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            nanos += text.split(' ').next().unwrap_or_default().trim().parse::<u64>().context("schedstat")?;
        }
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Its journal is thrown away with the directory.
            let _killed = child.kill();
            let _reaped = child.wait();
        }
    }
}

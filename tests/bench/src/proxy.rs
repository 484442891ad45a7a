//! The proxies that are measured between the sender and the reader.

use anyhow::{Context, ensure};
use rustix::fs::statvfs;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest start of a proxy. The first build of a plugin compiles its dependencies.
const START_MAX: Duration = Duration::from_secs(180);
/// The longest time of an answer from the admin address.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A libzmq forwarder: PULL to PUSH in C, without a journal and without decoding.
const LIBZMQ: &str = "
import sys, zmq
context = zmq.Context()
pull = context.socket(zmq.PULL); pull.setsockopt(zmq.RCVHWM, 1000); pull.bind(sys.argv[1])
push = context.socket(zmq.PUSH); push.setsockopt(zmq.SNDHWM, 1000); push.connect(sys.argv[2])
zmq.proxy(pull, push)
";

/// A proxy to measure.
pub(crate) enum ProxyCase {
    /// The sender connects to the reader.
    Nothing,
    /// pyzmq's proxy.
    Libzmq,
    /// `afterbay run`, journal on.
    Afterbay {
        /// The `afterbay` binary.
        binary: PathBuf,
        /// The engine of the stream: "sglang" or "vllm".
        engine: &'static str,
        /// A plugin in the chain.
        plugin: Option<PathBuf>,
        /// The storage of its journal.
        journal: JournalStorage,
    },
}

/// The storage of a journal and its size.
#[derive(Clone, Copy)]
pub(crate) enum JournalStorage {
    /// A directory in `/tmp`.
    OnDisk,
    /// A small journal in memory. A larger one would need fresh memory pages, which cost more than what is measured.
    InMemory,
}

impl JournalStorage {
    /// The parent directory. [`JournalStorage::InMemory`] falls back to the disk if `/dev/shm` has less than 512 MiB free.
    pub(crate) fn within(self) -> &'static Path {
        const MEMORY: &str = "/dev/shm";
        let free = || statvfs(MEMORY).map_or(0, |found| found.f_bavail * found.f_frsize);
        Path::new(if matches!(self, JournalStorage::InMemory) && free() >= 512 << 20 {
            MEMORY
        } else {
            "/tmp"
        })
    }

    fn settings(self) -> &'static str {
        match self {
            // Two segments for each of 8 streams.
            JournalStorage::OnDisk => "segment = \"128MiB\"\nretain = { bytes = \"2GiB\" }",
            JournalStorage::InMemory => "segment = \"32MiB\"\nretain = { bytes = \"128MiB\" }",
        }
    }
}

/// A running proxy.
pub(crate) struct RunningProxy {
    child: Option<Child>,
    /// The file of its log, so that the log does not mix with the printed figures.
    log: PathBuf,
    afterbay: Option<(SocketAddr, JournalStorage)>,
    /// The endpoint that the sender connects to.
    pub(crate) ingress: String,
}

impl ProxyCase {
    /// The parent of the case's directory.
    pub(crate) fn within(&self) -> &'static Path {
        match self {
            ProxyCase::Nothing | ProxyCase::Libzmq => JournalStorage::OnDisk.within(),
            ProxyCase::Afterbay { journal, .. } => journal.within(),
        }
    }

    /// Starts the proxy in front of the reader.
    pub(crate) fn start(&self, dir: &Path, reader: &str) -> anyhow::Result<RunningProxy> {
        let ingress = format!("ipc://{}/ingress", dir.display());
        let log = dir.join("log");
        let child = match self {
            ProxyCase::Nothing => {
                return Ok(RunningProxy { child: None, log, afterbay: None, ingress: reader.to_owned() });
            }
            ProxyCase::Libzmq => {
                let python = std::env::var("AFTERBAY_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
                Command::new(python).args(["-c", LIBZMQ, &ingress, reader]).spawn().context("python")?
            }
            ProxyCase::Afterbay { binary, engine, plugin, journal } => {
                let plugin = plugin.as_deref().map_or_else(String::new, |file| {
                    format!("[[stream.plugin]]\nname = \"nothing\"\ncomponent = {file:?}\n")
                });
                let stream = stream_of(engine, "bench", &ingress, reader, &plugin);
                return RunningProxy::afterbay(&mut run(binary), dir, *journal, &stream, &ingress);
            }
        };
        let mut running = RunningProxy { child: Some(child), log, afterbay: None, ingress };
        running.wait(&dir.join("ingress"))?;
        Ok(running)
    }
}

/// The configuration of a stream of SGLang, in TOML.
pub(crate) fn stream(name: &str, listen: &str, reader: &str, plugins: &str) -> String {
    stream_of("sglang", name, listen, reader, plugins)
}

fn stream_of(engine: &str, name: &str, listen: &str, reader: &str, plugins: &str) -> String {
    // The bench counts frames, and its reader gives no credit. Without a connector, SGLang's rows are never joined; vLLM's are.
    format!(
        "[[stream]]\nname = {name:?}\nengine = {engine:?}\nlisten = {listen:?}\njoin = {{ when = \"never\" }}\n[[stream.sink]]\nname = \"reader\"\nconnect = {reader:?}\n{plugins}"
    )
}

/// A TCP address that is free now.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// `afterbay run`.
pub(crate) fn run(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    command.arg("run");
    command
}

impl RunningProxy {
    /// Starts `afterbay run` with these streams and a journal.
    pub(crate) fn afterbay(
        run: &mut Command,
        dir: &Path,
        journal: JournalStorage,
        streams: &str,
        ingress: &str,
    ) -> anyhow::Result<RunningProxy> {
        let admin = free_address()?;
        let log = dir.join("log");
        write_configuration(dir, journal, streams, admin)?;
        let child = run
            .args(["--log", "warn", "--config"])
            .arg(dir.join(CONFIGURATION))
            // An own cache: each run compiles its plugins.
            .env("XDG_CACHE_HOME", dir.join("cache"))
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).context("the proxy's log")?)
            .spawn()
            .context("afterbay")?;
        let mut running = RunningProxy {
            child: Some(child),
            log,
            afterbay: Some((admin, journal)),
            ingress: ingress.to_owned(),
        };
        let started = running.wait(Path::new(ingress.trim_start_matches("ipc://")));
        running.explain(started)?;
        Ok(running)
    }

    /// Writes other streams to the configuration, which Afterbay then reloads.
    pub(crate) fn reconfigure(&self, dir: &Path, streams: &str) -> anyhow::Result<()> {
        let (admin, journal) = self.afterbay.context("it is no Afterbay")?;
        write_configuration(dir, journal, streams, admin)
    }

    /// A value of `/metrics`, by its name with labels.
    pub(crate) fn figure(&self, series: &str) -> anyhow::Result<f64> {
        let page = self.metrics()?;
        let found = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        found
            .and_then(|figure| figure.trim().parse().ok())
            .with_context(|| format!("no {series} on /metrics"))
    }

    /// A histogram's bounds in ascending order, each with its cumulative count. `before` and `after` surround the bound in the series' name.
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

    /// Resident memory of the process.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let child = self.child.as_ref().context("it is no process")?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        let figure = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(figure.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
    }

    /// Sends SIGTERM and waits for the end.
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

/// Replaces the file atomically, like an editor.
fn write_configuration(
    dir: &Path,
    journal: JournalStorage,
    streams: &str,
    admin: SocketAddr,
) -> anyhow::Result<()> {
    let path = dir.join("journal");
    let text = format!(
        "{streams}[journal]\ndir = {path:?}\n{}\n[admin]\nlisten = \"{admin}\"\n",
        journal.settings()
    );
    let aside = dir.join("aside.toml");
    std::fs::write(&aside, text)?;
    std::fs::rename(aside, dir.join(CONFIGURATION)).context(CONFIGURATION)
}

impl RunningProxy {
    fn wait(&mut self, socket: &Path) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !socket.exists() {
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            ensure!(ended.is_none(), "the proxy ended at its start: {ended:?}");
            ensure!(begun.elapsed() < START_MAX, "the proxy does not listen after {START_MAX:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Adds the proxy's log to an error.
    pub(crate) fn explain<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        result.map_err(|error| match std::fs::read_to_string(&self.log) {
            Ok(log) if !log.is_empty() => error.context(format!("the proxy logged:\n{log}")),
            _ => error,
        })
    }

    /// User and system CPU time of all threads of the proxy.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let Some(child) = &self.child else { return Ok(Duration::ZERO) };
        cpu_of(child.id())
    }
}

/// User and system CPU time of all threads that a process has.
pub(crate) fn cpu_of(pid: u32) -> anyhow::Result<Duration> {
    // schedstat counts nanoseconds; /proc/PID/stat counts only hundredths of a second.
    let mut nanos = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += text.split(' ').next().unwrap_or_default().trim().parse::<u64>().context("schedstat")?;
    }
    Ok(Duration::from_nanos(nanos))
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Its journal is removed with the directory, so no drain is needed.
            let _killed = child.kill();
            let _reaped = child.wait();
        }
    }
}

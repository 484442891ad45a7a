//! What stands between the sender and the reader.

use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a proxy may take to come up.
const START_MAX: Duration = Duration::from_secs(20);

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
    },
}

/// A proxy that runs.
pub(crate) struct Running {
    child: Option<Child>,
    /// What it logs, which would stand between the figures.
    log: PathBuf,
    /// Where the sender connects to.
    pub(crate) ingress: String,
}

impl Between {
    /// Starts it between `ingress` and the reader.
    pub(crate) fn start(&self, dir: &Path, reader: &str) -> anyhow::Result<Running> {
        let ingress = format!("ipc://{}/ingress", dir.display());
        let log = dir.join("log");
        let child = match self {
            Between::Nothing => return Ok(Running { child: None, log, ingress: reader.to_owned() }),
            Between::Libzmq => {
                let python = std::env::var("AFTERBAY_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
                Command::new(python).args(["-c", LIBZMQ, &ingress, reader]).spawn().context("python")?
            }
            Between::Afterbay { binary, plugin } => {
                let config = dir.join("afterbay.toml");
                std::fs::write(&config, configuration(dir, &ingress, reader, plugin.as_deref()))?;
                Command::new(binary)
                    .args(["run", "--log", "warn", "--config"])
                    .arg(&config)
                    .stdin(Stdio::null())
                    .stderr(std::fs::File::create(&log).context("the proxy's log")?)
                    .spawn()
                    .context("afterbay")?
            }
        };
        let mut running = Running { child: Some(child), log, ingress };
        let started = running.wait(&dir.join("ingress"));
        running.explain(started)?;
        Ok(running)
    }
}

fn configuration(dir: &Path, ingress: &str, reader: &str, plugin: Option<&Path>) -> String {
    let plugin = plugin.map_or_else(String::new, |file| {
        format!("[[stream.plugin]]\nname = \"nothing\"\ncomponent = {file:?}\n")
    });
    format!(
        "[[stream]]\nname = \"bench\"\nlisten = {ingress:?}\n[[stream.sink]]\nname = \"reader\"\nconnect = {reader:?}\n{plugin}\
         [journal]\ndir = {:?}\nretain = {{ bytes = \"2GiB\" }}\n[admin]\nlisten = \"none\"\n",
        dir.join("journal")
    )
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

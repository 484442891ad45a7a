//! A copy of the journals of all instances, made of the messages in NATS by `afterbay-follow`.

use afterbay_journal_view::follower::{CopyOfJournals, follow_binary};
use anyhow::{Context, bail};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The process that makes the copy. It ends with this value.
pub(crate) struct Mirror {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The copy after the last answer.
    pub(crate) copy: CopyOfJournals,
}

impl Mirror {
    /// Fills a directory with what the servers have now.
    ///
    /// # Errors
    /// The servers have nothing, cannot be reached or refuse, or the disk refuses the files.
    pub(crate) fn open(
        servers: &str,
        stream: Option<&str>,
        since_unix_ns: Option<u64>,
        dir: &Path,
    ) -> anyhow::Result<Mirror> {
        let binary = follow_binary().map_err(anyhow::Error::msg)?;
        let mut command = Command::new(&binary);
        command.arg("copy").arg("--from").arg(servers);
        command.args(stream.iter().flat_map(|stream| ["--stream", stream]));
        command
            .args(since_unix_ns.iter().flat_map(|since| ["--since-unix-ns".to_owned(), since.to_string()]));
        let spawned = command.arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.with_context(|| binary.display().to_string())?;
        let stdin = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("no output")?);
        let mut mirror = Mirror { child, stdin, answers, copy: CopyOfJournals::default() };
        match mirror.answer()? {
            None => Ok(mirror),
            Some(why) => bail!(why),
        }
    }

    /// Adds what NATS gets in this time. Returns the reason if NATS cannot be reached.
    ///
    /// # Errors
    /// The disk refuses the copy.
    pub(crate) fn follow(&mut self, time: Duration) -> anyhow::Result<Option<String>> {
        let stdin = self.stdin.as_mut().context("the copy has ended")?;
        writeln!(stdin, "{}", time.as_millis()).context("the copy has ended")?;
        self.answer()
    }

    fn answer(&mut self) -> anyhow::Result<Option<String>> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        self.copy = serde_json::from_str(&line).context("afterbay-follow gave no answer")?;
        match self.copy.error.take() {
            Some(error) => bail!(error),
            None => Ok(self.copy.outage.take()),
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.stdin = None;
        // It reads from the network, and its directory goes away.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

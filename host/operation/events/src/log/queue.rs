//! The queue between the threads that log and standard error, which a thread of its own writes: a pipe that nobody reads
//! stops no stream. Lines past the queue's bound are dropped and counted.
//!
//! Not `tracing-appender`: it prints to standard output at its end, which may be the same full pipe, and it does not say when
//! the pipe takes lines again.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};
use tracing_subscriber::fmt::MakeWriter;

/// Bytes of the lines that wait. A further line is dropped.
pub const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Time between two looks of [`LogQueue::flush`].
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Takes lines without blocking. Clones share the queue.
#[derive(Clone, Debug)]
pub struct LogQueue {
    lines: Sender<Vec<u8>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes of lines that the writer has not written whole.
    waiting_bytes: AtomicUsize,
    dropped: AtomicU64,
    /// Dropped lines that [`LogQueue::take_dropped`] has returned.
    reported: AtomicU64,
}

impl LogQueue {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(writer: impl Write + Send + 'static) -> io::Result<LogQueue> {
        let (lines, receiver) = channel();
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        // The thread inherits the mask: signals of the process go to its other threads, which expect them.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let started = std::thread::Builder::new()
            .name("afterbay-log".to_owned())
            .spawn(move || write_lines(&receiver, writer, &of_thread));
        mask.thread_set_mask()?;
        started?;
        Ok(LogQueue { lines, shared })
    }

    /// Lines dropped so far, because standard error took none.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// The dropped lines that no call has returned yet, once every earlier line is written. One thread calls it.
    pub(crate) fn take_dropped(&self) -> Option<u64> {
        let dropped = self.dropped();
        let unreported = dropped - self.shared.reported.load(Ordering::Relaxed);
        if unreported == 0 || self.waiting_bytes() > 0 {
            return None;
        }
        self.shared.reported.store(dropped, Ordering::Relaxed);
        Some(unreported)
    }

    /// Waits until every line is written, at most `timeout`.
    pub(crate) fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while self.waiting_bytes() > 0 && Instant::now() < deadline {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn waiting_bytes(&self) -> usize {
        self.shared.waiting_bytes.load(Ordering::Acquire)
    }
}

fn write_lines(lines: &Receiver<Vec<u8>>, mut writer: impl Write, shared: &Shared) {
    for line in lines {
        // A closed pipe takes no line, and nothing is left that could say so.
        let _ = writer.write_all(&line).and_then(|()| writer.flush());
        shared.waiting_bytes.fetch_sub(line.len(), Ordering::Release);
    }
}

/// One call is one line.
impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let waiting = self.shared.waiting_bytes.fetch_add(line.len(), Ordering::Relaxed);
        if waiting + line.len() > QUEUE_BYTES_MAX || self.lines.send(line.to_vec()).is_err() {
            self.shared.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for LogQueue {
    type Writer = &'w LogQueue;

    fn make_writer(&'w self) -> &'w LogQueue {
        self
    }
}

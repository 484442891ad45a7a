//! The thread of a part that follows the journal, off the path of batches.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A thread that is asked to stop and gets time for it. Dropping it asks the thread to stop, too.
pub struct FollowerThread {
    /// Dropped to ask.
    stop: Sender<()>,
    thread: JoinHandle<()>,
    /// Disconnected at the thread's end.
    done: Receiver<()>,
}

/// Says to a thread whether it is to stop.
pub struct Stopped(Receiver<()>);

impl Stopped {
    /// Whether the thread is to stop.
    pub fn now(&self) -> bool {
        self.0.try_recv() != Err(TryRecvError::Empty)
    }

    /// Waits for this time. Returns early, and true, once the thread is to stop.
    pub fn within(&self, time: Duration) -> bool {
        self.0.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
    }

    /// Calls `look` until the thread is to stop, with this pause between two calls, and then once more, with true.
    pub fn look_every(&self, pause: Duration, mut look: impl FnMut(bool)) {
        loop {
            look(false);
            if self.within(pause) {
                return look(true);
            }
        }
    }
}

impl FollowerThread {
    /// Starts a thread, which ends by itself soon after it is to stop.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub fn spawn(name: &str, run: impl FnOnce(&Stopped) + Send + 'static) -> io::Result<FollowerThread> {
        let (stop, stopped) = channel();
        let (is_done, done) = channel();
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            run(&Stopped(stopped));
            drop(is_done);
        })?;
        Ok(FollowerThread { stop, thread, done })
    }

    /// Asks the thread to stop, and waits for at most this time. Returns false if the time was over: the thread ends by itself.
    pub fn stop(self, within: Duration) -> bool {
        drop(self.stop);
        if self.done.recv_timeout(within) != Err(RecvTimeoutError::Disconnected) {
            return false;
        }
        // A panic has nobody to be reported to but the log.
        let _ = self.thread.join();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_in_time_was_waited_for_and_another_one_was_asked() {
        let (says, heard) = channel();
        let ends = FollowerThread::spawn("ends", move |stopped| {
            says.send(stopped.now() || stopped.within(Duration::ZERO)).unwrap();
            while !stopped.within(Duration::from_secs(60)) {}
            says.send(stopped.now()).unwrap();
        });
        let ends = ends.unwrap();
        assert_eq!(heard.recv(), Ok(false));
        assert!(ends.stop(Duration::from_secs(60)));
        assert_eq!(heard.try_recv(), Ok(true));
        let (release, waits) = channel::<()>();
        let slow = FollowerThread::spawn("slow", move |_| {
            let _ = waits.recv();
        });
        let slow = slow.unwrap();
        assert!(!slow.stop(Duration::from_millis(1)));
        drop(release);
    }
}

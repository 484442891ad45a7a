//! A part that follows the journal on a thread of its own, as a table of the configuration says.

use crate::mutex::lock;
use afterbay_journal::FollowerThread;
use std::sync::Mutex;
use std::time::Duration;

/// Starts and stops with the process, and at a reload that changes the table.
pub(crate) struct JournalFollower<C> {
    /// The time that the thread gets at a stop.
    stop_max: Duration,
    /// The thread, and the table that it runs with.
    running: Mutex<Option<(C, FollowerThread)>>,
}

impl<C: Clone + PartialEq> JournalFollower<C> {
    pub(crate) fn new(stop_max: Duration) -> JournalFollower<C> {
        JournalFollower { stop_max, running: Mutex::default() }
    }

    /// Follows the table: starts a thread for one that is new or changed, and then stops the thread before.
    ///
    /// # Errors
    /// The thread does not start. The one before continues.
    pub(crate) fn follow<E>(
        &self,
        table: Option<&C>,
        start: impl FnOnce(&C) -> Result<FollowerThread, E>,
    ) -> Result<(), E> {
        let mut running = lock(&self.running);
        if running.as_ref().map(|(table, _)| table) == table {
            return Ok(());
        }
        let next = match table {
            Some(table) => Some((table.clone(), start(table)?)),
            None => None,
        };
        if let Some((_, before)) = std::mem::replace(&mut *running, next) {
            // Nobody waits for it: the next one continues where it ends.
            let stop_max = self.stop_max;
            drop(std::thread::spawn(move || before.stop(stop_max)));
        }
        Ok(())
    }

    /// Lets the thread do what is left, for at most its time, and stops it.
    pub(crate) fn stop(&self) {
        if let Some((_, thread)) = lock(&self.running).take() {
            thread.stop(self.stop_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A thread that says which table it ends with.
    fn thread(table: u32, ended: &Sender<u32>) -> std::io::Result<FollowerThread> {
        let ended = ended.clone();
        FollowerThread::spawn("test", move |stopped| {
            while !stopped.within(PATIENCE) {}
            ended.send(table).unwrap();
        })
    }

    #[test]
    fn a_changed_table_gets_a_thread_and_one_that_cannot_start_leaves_the_thread_before() {
        let follower = JournalFollower::new(PATIENCE);
        let (ended, ends) = channel();
        follower.follow(Some(&1), |table| thread(*table, &ended)).unwrap();
        follower.follow(Some(&1), |_| Err("it is not started again")).unwrap();
        assert_eq!(follower.follow(Some(&2), |_| Err("refused")), Err("refused"));
        assert!(ends.try_recv().is_err(), "the first one runs");
        follower.follow(Some(&3), |table| thread(*table, &ended)).unwrap();
        assert_eq!(ends.recv_timeout(PATIENCE), Ok(1));
        follower.stop();
        assert_eq!(ends.try_recv(), Ok(3));
        follower.follow(Some(&4), |table| thread(*table, &ended)).unwrap();
        follower.follow(None, |_| Err("there is no table")).unwrap();
        assert_eq!(ends.recv_timeout(PATIENCE), Ok(4));
    }
}

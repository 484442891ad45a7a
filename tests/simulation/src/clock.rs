//! The simulated time: the same for the stream, the journal and the peers.

use afterbay_batch::Timestamp;
use afterbay_sim_disk::SimDisk;
use afterbay_stream::Clock;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The Unix time at the beginning of every simulation.
const BEGIN_UNIX_NS: u64 = 1_700_000_000_000_000_000;

thread_local! {
    static ON_SLEEP: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// A clock that moves only when it is told to.
pub struct SimClock {
    begin: Instant,
    ns: AtomicU64,
    disk: SimDisk,
}

impl SimClock {
    pub fn new(disk: SimDisk) -> SimClock {
        disk.pass_time(BEGIN_UNIX_NS);
        SimClock { begin: Instant::now(), ns: AtomicU64::new(0), disk }
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.disk.pass_time(ns);
    }

    /// The time since the beginning.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.ns.load(Ordering::Relaxed))
    }
}

/// Sets the function that runs whenever the stream sleeps: others work meanwhile.
pub fn set_on_sleep(function: Option<Box<dyn FnMut()>>) {
    ON_SLEEP.set(function);
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let elapsed = self.elapsed();
        Timestamp { instant: self.begin + elapsed, unix_ns: BEGIN_UNIX_NS + elapsed.as_nanos() as u64 }
    }

    fn sleep(&self, time: Duration) {
        self.pass(time);
        ON_SLEEP.with_borrow_mut(|function| {
            if let Some(function) = function {
                function();
            }
        });
    }
}

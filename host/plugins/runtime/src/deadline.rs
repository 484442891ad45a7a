//! A call's deadline: a ticker that makes running guests check it, and the clock that they check.
//!
//! The deadline counts CPU time: a call is not stopped because its thread waits for a processor. A guest cannot sleep (no
//! import blocks), so a CPU deadline is as strict as one of wall time. Reading the thread's clock costs a system call, so
//! only a call that the ticker finds running reads it. The ticker looks for calls every [`LOOK`], and every [`TICK`] once it
//! found one. A busy guest is found at every tick, so the time between two ticks counts for at most the length of one tick.
//! A paused virtual machine gives its threads CPU time that they did not use (measured: in a pause of 4.1 ms, the thread's
//! clock moved by 2.3 ms).
//!
//! A machine that is slow for some milliseconds looks like a guest that computes. An instance that stays within its
//! deadlines therefore earns a credit ([`SAVED_SHARE`]), and a call uses it up before it is stopped. An instance that never
//! stays within its deadlines has no credit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use wasmtime::Engine;

use crate::limits::{
    BYTE_COST, FREE_BYTES_MAX, LOOK, LOOKS_IDLE_MAX, SAVED_MAX, SAVED_SHARE, TICK, WAIT_MAX,
};

/// The reason why the host stopped a guest. wasmtime carries it as its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    #[error("the deadline has passed")]
    Deadline,
    #[error("{wanted} bytes of memory are over the limit")]
    Memory { wanted: u64 },
}

/// The CPU time of an instance's calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallClock {
    /// The time since which no call has exceeded its deadline.
    kept_since: Instant,
    deadline: Duration,
    began: Instant,
    used: Duration,
    /// The thread's CPU time at the last check.
    cpu_last: Option<Duration>,
}

impl CallClock {
    /// The deadline of an instance's first call.
    pub(crate) fn start(deadline: Duration) -> Self {
        let now = Instant::now();
        Self { kept_since: now, deadline, began: now, used: Duration::ZERO, cpu_last: None }
    }

    /// Starts the deadline of the next call.
    pub(crate) fn restart(&mut self, deadline: Duration) {
        let (has_kept, kept_since) = (self.used < self.deadline, self.kept_since);
        *self = Self::start(deadline);
        if has_kept {
            self.kept_since = kept_since;
        }
    }

    /// Checks the deadline. The ticker has it called at every tick that finds the call running.
    pub(crate) fn check(&mut self) -> Result<(), Stop> {
        self.judge(self.began.elapsed(), processor_time())
    }

    /// Runs host code on the guest's behalf. No tick finds the guest meanwhile, so the time counts in full.
    ///
    /// # Errors
    /// If the call is past its deadline afterwards.
    pub(crate) fn charge<R>(&mut self, work: impl FnOnce() -> R) -> Result<R, Stop> {
        let begun = processor_time();
        self.count(self.began.elapsed(), begun);
        let done = work();
        let now = processor_time();
        self.used += now.saturating_sub(begun);
        self.cpu_last = Some(now);
        self.check_used().map(|()| done)
    }

    /// Charges the guest for bytes that the host read in a call of an import. The price is fixed, because reading the clock
    /// would cost more than most of these calls. The first [`FREE_BYTES_MAX`] bytes are free, since ticks find a guest that
    /// makes many short calls.
    ///
    /// # Errors
    /// If the call is past its deadline afterwards.
    pub(crate) fn charge_bytes(&mut self, bytes: usize) -> Result<(), Stop> {
        if bytes <= FREE_BYTES_MAX {
            return Ok(());
        }
        self.charge_bytes_in_full(bytes)
    }

    /// Charges for one part of a call with many parts.
    ///
    /// # Errors
    /// If the call is past its deadline afterwards.
    pub(crate) fn charge_bytes_in_full(&mut self, bytes: usize) -> Result<(), Stop> {
        self.used += BYTE_COST * u32::try_from(bytes).unwrap_or(u32::MAX);
        self.check_used()
    }

    fn check_used(&self) -> Result<(), Stop> {
        match self.used >= self.deadline.saturating_add(self.saved()) {
            true => Err(Stop::Deadline),
            false => Ok(()),
        }
    }

    /// The CPU time of the guest since the last check.
    fn count(&mut self, wall: Duration, cpu: Duration) {
        self.used += match self.cpu_last.replace(cpu) {
            Some(last) => cpu.saturating_sub(last).min(TICK),
            // On average the tick found the call after half a look. More time may not have been this thread's.
            None => wall.min(LOOK / 2),
        };
    }

    /// The time by which the call may exceed its deadline.
    fn saved(&self) -> Duration {
        (self.began.saturating_duration_since(self.kept_since) / SAVED_SHARE).min(SAVED_MAX)
    }

    fn judge(&mut self, wall: Duration, cpu: Duration) -> Result<(), Stop> {
        self.count(wall, cpu);
        match wall >= self.deadline.saturating_add(WAIT_MAX) {
            true => Err(Stop::Deadline),
            false => self.check_used(),
        }
    }
}

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// A thread that advances the engine's epoch while calls run, and sleeps otherwise.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    under_way: AtomicUsize,
    /// The number of calls so far.
    entered: AtomicU64,
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// A running call. It ends when this is dropped.
pub(crate) struct UnderWay<'a>(&'a Shared);

impl Ticker {
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new().name("plugin-ticker".into()).spawn({
            let shared = Arc::clone(&shared);
            move || tick(&engine, &shared)
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(crate) fn enter(&self) -> UnderWay<'_> {
        // Sequentially consistent, as on the ticker's side. The ticker announces its sleep and then looks for calls; a call
        // is counted and then looks for a sleeping ticker. So one of the two sees the other.
        self.shared.under_way.fetch_add(1, Ordering::SeqCst);
        self.shared.entered.fetch_add(1, Ordering::Relaxed);
        if self.shared.asleep.load(Ordering::SeqCst)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
        UnderWay(&self.shared)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread holds no lock and cannot panic. An error needs no action.
            let _ = thread.join();
        }
    }
}

fn tick(engine: &Engine, shared: &Shared) {
    let (mut idle, mut entered) = (0, 0);
    while !shared.stop.load(Ordering::SeqCst) {
        let is_found = shared.under_way.load(Ordering::SeqCst) > 0;
        let before = std::mem::replace(&mut entered, shared.entered.load(Ordering::Relaxed));
        idle = if is_found || entered != before { 0 } else { idle + 1 };
        if idle > LOOKS_IDLE_MAX {
            shared.asleep.store(true, Ordering::SeqCst);
            if shared.under_way.load(Ordering::SeqCst) == 0 && !shared.stop.load(Ordering::SeqCst) {
                std::thread::park();
            }
            shared.asleep.store(false, Ordering::SeqCst);
            idle = 0;
        }
        if is_found {
            // Most calls end before a tick finds them. They need not read the clock.
            engine.increment_epoch();
        }
        std::thread::sleep(if is_found { TICK } else { LOOK });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn clock() -> CallClock {
        CallClock::start(2 * MS)
    }

    #[test]
    fn a_call_that_computes_is_stopped_at_its_deadline() {
        let mut clock = clock();
        let before = 700 * MS;
        for tick in 1..8 {
            assert_eq!(clock.judge(tick * TICK, before + tick * TICK), Ok(()));
        }
        assert_eq!(clock.judge(2 * MS, before + 2 * MS), Err(Stop::Deadline));
    }

    #[test]
    fn a_call_whose_thread_did_not_run_is_not_stopped() {
        let mut clock = clock();
        assert_eq!(clock.judge(30 * MS, 700 * MS + TICK), Ok(()));
        assert_eq!(clock.judge(900 * MS, 701 * MS), Ok(()));
    }

    #[test]
    fn time_that_a_paused_machine_gives_a_call_does_not_count() {
        let mut clock = clock();
        let before = 700 * MS;
        assert_eq!(clock.judge(TICK, before + TICK), Ok(()));
        for tick in 1..7 {
            assert_eq!(clock.judge(tick * 20 * MS, before + tick * 20 * MS), Ok(()));
        }
        // A call that as many ticks found as make up its deadline has computed.
        assert_eq!(clock.judge(121 * MS, before + 121 * MS), Err(Stop::Deadline));
    }

    #[test]
    fn host_work_for_a_call_counts_in_full() {
        let mut clock = clock();
        assert_eq!(clock.check(), Ok(()));
        let begun = processor_time();
        let charged = clock.charge(|| while processor_time() < begun + 2 * MS {});
        assert_eq!((charged, clock.check()), (Err(Stop::Deadline), Err(Stop::Deadline)));
    }

    #[test]
    fn a_call_pays_for_many_bytes_at_a_fixed_price_and_not_for_few() {
        let mut clock = clock();
        assert!((0..10_000).all(|_| clock.charge_bytes(FREE_BYTES_MAX).is_ok()));
        assert_eq!(clock.charge_bytes(1_999_999), Ok(()));
        assert_eq!(clock.charge_bytes_in_full(1), Err(Stop::Deadline), "two million ns are 2 ms");
    }

    #[test]
    fn an_instance_may_exceed_a_deadline_by_its_credit() {
        for (kept, more) in [(128 * MS, 2 * MS), (Duration::from_secs(3600), SAVED_MAX)] {
            let mut clock = clock();
            clock.began = clock.kept_since + kept;
            let before = 700 * MS;
            let ticks = (2 * MS + more).div_duration_f64(TICK) as u32;
            for tick in 1..ticks {
                assert_eq!(clock.judge(tick * TICK, before + tick * TICK), Ok(()));
            }
            assert_eq!(clock.judge(2 * MS + more, before + 2 * MS + more), Err(Stop::Deadline));
            clock.restart(2 * MS);
            assert_eq!(clock.saved(), Duration::ZERO, "it is spent");
            assert_eq!(clock.judge(ticks * TICK, before + ticks * TICK), Ok(()), "the first look");
        }
    }

    #[test]
    fn a_call_within_its_deadline_keeps_the_credit() {
        let mut clock = clock();
        let since = clock.kept_since;
        assert_eq!(clock.judge(TICK, 700 * MS), Ok(()));
        clock.restart(2 * MS);
        assert_eq!(clock.kept_since, since);
    }

    #[test]
    fn a_call_is_stopped_after_the_longest_wait_whatever_it_used() {
        let mut clock = clock();
        assert_eq!(clock.judge(2 * MS + WAIT_MAX - TICK, 700 * MS), Ok(()));
        assert_eq!(clock.judge(2 * MS + WAIT_MAX, 700 * MS), Err(Stop::Deadline));
    }
}

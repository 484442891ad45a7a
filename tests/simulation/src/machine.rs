//! The simulated machine under a stream: it shortens reads and writes, and ends the process at a chosen system call.

use afterbay_batch::failpoint::{self, Crash};
use afterbay_sim_disk::{DiskCall, Random, SimDisk};
use afterbay_sockets::injected::{self, SocketCall};
use afterbay_supervision::fdstore::{FdName, FdStore};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The stream's name.
pub const STREAM: &str = "s";
/// The journal's directory on the simulated disk.
pub const JOURNAL: &str = "/journal";

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

struct Machine {
    disk: SimDisk,
    random: Random,
    /// One in this many reads and writes of sockets is short; 0 for none.
    short_one_in: u64,
    /// The number of calls after which the process ends.
    crash_after: Option<u64>,
    calls: u64,
    /// The last four calls, each as a byte.
    recent: u32,
    /// The calls at which a process ended, each with the three calls before it.
    crash_points: BTreeSet<u32>,
    /// The descriptors that outlive the process, if there is a supervisor.
    kept: Option<FdStore>,
    /// The descriptors that the last process left.
    left: Vec<Left>,
}

/// A name, and its descriptors.
pub type Left = (FdName, Vec<OwnedFd>);

/// Sets the machine of this thread up.
pub fn set_up(disk: &SimDisk, seed: u64, short_one_in: u64) {
    tear_down();
    let machine = Machine {
        disk: disk.clone(),
        random: Random(seed),
        short_one_in,
        crash_after: None,
        calls: 0,
        recent: 0,
        crash_points: BTreeSet::new(),
        kept: None,
        left: Vec::new(),
    };
    MACHINE.set(Some(machine));
    injected::set_dead(false);
    injected::set_hook(Some(Box::new(on_socket_call)));
    disk.set_hook(Some(Box::new(on_disk_call)));
}

/// Removes the machine of this thread.
pub fn tear_down() {
    injected::set_hook(None);
    injected::set_dead(false);
    failpoint::panic_at_one_in(0, 0);
    if let Some(machine) = MACHINE.take() {
        machine.disk.set_hook(None);
    }
}

/// Ends the process after this many further calls. `None`: it lives.
pub fn crash_after(calls: Option<u64>) {
    with(|machine| machine.crash_after = calls);
}

/// The system calls of all processes so far.
pub fn calls() -> u64 {
    with(|machine| machine.calls)
}

/// The calls at which a process ended so far, each with the three calls before it.
pub fn crash_points() -> BTreeSet<u32> {
    with(|machine| machine.crash_points.clone())
}

/// The descriptors for a process that starts, and the store that it uses.
pub fn begin_process(has_supervisor: bool) -> (FdStore, Vec<Left>) {
    let store = FdStore::new();
    with(|machine| {
        machine.kept = has_supervisor.then(|| store.clone());
        let copy =
            |(name, fds): &Left| (name.clone(), fds.iter().map(|fd| fd.try_clone().unwrap()).collect());
        (store, machine.left.iter().map(copy).collect())
    })
}

/// The process that this store belongs to has taken over: its descriptors outlive it, if there is a supervisor.
pub fn taken_over(store: &FdStore, has_supervisor: bool) {
    with(|machine| machine.kept = has_supervisor.then(|| store.clone()));
}

/// Keeps the process from dying until [`crash_after`] is set. Returns what was set.
pub fn suspend_crash() -> Option<u64> {
    with(|machine| machine.crash_after.take())
}

/// The process has started: it has taken what it wants of the descriptors.
pub fn started() {
    with(|machine| machine.left.clear());
}

/// Runs the process. `Err`: it ended at a system call, or by a panic that nothing caught, with the panic's message.
pub fn run_process<T>(run: impl FnOnce() -> T) -> Result<T, Option<String>> {
    let result = catch_unwind(AssertUnwindSafe(run));
    result.map_err(|panic| {
        if failpoint::is_crash(&*panic) {
            return None;
        }
        kill();
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Some(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
    })
}

/// Ends the process: what it still does has no effect. Call [`bury`] once nothing of it is left.
pub fn kill() {
    injected::set_dead(true);
    with(|machine| {
        machine.disk.kill();
        machine.crash_after = None;
        machine.crash_points.insert(machine.recent);
        // A process that dies while it starts leaves also what it has not taken yet.
        let kept = machine.kept.take().map(|store| store.entries().unwrap()).unwrap_or_default();
        machine.left.retain(|(name, _)| kept.iter().all(|(other, _)| other != name));
        machine.left.extend(kept);
    });
}

/// Allows the next process.
pub fn bury() {
    injected::set_dead(false);
}

fn with<T>(use_it: impl FnOnce(&mut Machine) -> T) -> T {
    MACHINE.with_borrow_mut(|machine| use_it(machine.as_mut().expect("the machine is set up")))
}

/// Prints a line if the environment variable `AFTERBAY_TRACE` is set.
pub fn trace(line: impl FnOnce() -> String) {
    static IS_ON: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var("AFTERBAY_TRACE").is_ok());
    if *IS_ON {
        eprintln!("{}", line());
    }
}

/// Counts a call. Unwinds if the process ends here.
fn at(call: u8) {
    let ends = with(|machine| {
        machine.calls += 1;
        machine.recent = machine.recent << 8 | u32::from(call);
        let left = machine.crash_after.as_mut()?;
        *left = left.saturating_sub(1);
        (*left == 0).then_some(())
    });
    // A drop during an unwinding must not unwind, too.
    if ends.is_some() && !std::thread::panicking() {
        trace(|| "    dies".to_owned());
        kill();
        resume_unwind(Box::new(Crash));
    }
}

/// A short length, one in some times.
fn shorten(bytes: usize) -> usize {
    with(|machine| {
        let is_short = machine.short_one_in > 0 && machine.random.once_in(machine.short_one_in);
        if is_short { 1 + machine.random.below(bytes as u64) as usize } else { usize::MAX }
    })
}

fn on_socket_call(call: SocketCall) -> usize {
    trace(|| format!("    {call:?}"));
    let (code, bytes) = match call {
        SocketCall::Read(bytes) => (1, bytes),
        SocketCall::HasRead(bytes) => (2, bytes),
        SocketCall::Write(bytes) => (3, bytes),
        SocketCall::HasWritten(bytes) => (4, bytes),
    };
    at(code);
    shorten(bytes)
}

fn on_disk_call(call: DiskCall) -> usize {
    trace(|| format!("    disk {call:?}"));
    match call {
        DiskCall::Before(name) => {
            at(16 + name.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte)) % 200);
            usize::MAX
        }
        DiskCall::Write(bytes) => {
            at(5);
            // A write that the process does not survive may be torn.
            let is_last = with(|machine| machine.crash_after == Some(1));
            if is_last { with(|machine| machine.random.below(bytes as u64 + 1) as usize) } else { usize::MAX }
        }
        DiskCall::HasWritten(_) => {
            at(6);
            usize::MAX
        }
    }
}

//! Schedules as data: settings and a list of actions, both from a seed.

use afterbay_sim_disk::Random;
use afterbay_types::Engine;
use afterbay_wire::Layouts;
use afterbay_wire::synth::SynthWire;

/// Senders of a schedule at most.
pub const SENDERS_MAX: u64 = 3;

/// Seeds with this bit make schedules with hand-overs. The rest of the seed means the same schedule as without.
pub const HAND_OVER_SEEDS: u64 = 1 << 62;

/// Seeds with this bit make schedules of a vLLM stream, which has one reader. The rest of the seed means the same schedule otherwise.
pub const VLLM_SEEDS: u64 = 1 << 61;

/// Seeds with this bit make schedules in which rids come again after their last rows. Not for vLLM, whose rows have no counts
/// that tell one request from the next. The rest of the seed means the same schedule otherwise.
pub const RIDS_AGAIN_SEEDS: u64 = 1 << 60;

/// Seeds with this bit make schedules of one engine that dies and begins again, and whose requests go on. The rest of the seed means the
/// same schedule otherwise.
pub const ENGINE_SEEDS: u64 = 1 << 59;

/// A schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The seed that the schedule was made from.
    pub made_from: u64,
    /// The seed of the choices within an action.
    pub seed: u64,
    /// The settings of the world.
    pub settings: Settings,
    /// The actions, each with its number in the schedule that the seed gives.
    pub actions: Vec<(usize, Action)>,
}

/// The settings of a world.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The encoding of all frames.
    pub wire: SynthWire,
    /// The number of requests of each sender.
    pub senders: Vec<u64>,
    /// The number of different rids of each sender.
    pub rids: Vec<u64>,
    /// For each reader whether it counts finished frames.
    pub readers: Vec<bool>,
    /// `join.when`.
    pub join: &'static str,
    /// `join.max_rows`.
    pub max_rows: u64,
    /// The bound of a sink's queue, in frames.
    pub queue_frames: u64,
    /// The bound of a sink's queue, in bytes.
    pub queue_bytes: u64,
    /// The memory limit of all queues, in bytes.
    pub memory: u64,
    /// Bytes that may wait in the journal for one sink.
    pub spill_max: u64,
    /// Whether a frame is forwarded only when it is durable.
    pub sync_always: bool,
    /// The size of a segment.
    pub segment_bytes: u64,
    /// The kernel's buffer for a reader, in bytes; `None` for the kernel's default.
    pub send_buffer: Option<usize>,
    /// Whether a supervisor keeps the descriptors of a dead process.
    pub supervisor: bool,
    /// One in this many reads and writes of a socket is short; 0 for none.
    pub short_one_in: u64,
    /// Whether the one sender is an engine that dies and begins again. It dies where another sender closes.
    pub is_engine: bool,
}

/// One step of the world. Numbers of senders and readers are taken modulo their count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A sender connects, if it is not connected.
    Connect(u64),
    /// A sender puts this many frames on the wire.
    Send(u64, usize),
    /// A sender puts this many bytes of its next frames on the wire.
    SendPart(u64, usize),
    /// A sender sends a PING.
    Ping(u64),
    /// A sender sends garbage and closes.
    Garbage(u64),
    /// A sender closes, in the middle of a frame if one is on its way.
    Close(u64),
    /// A reader starts, if it is not there.
    StartReader(u64),
    /// A reader finishes up to this many frames.
    Read(u64, usize),
    /// A reader dies.
    KillReader(u64),
    /// The stream makes this many turns.
    Turns(u64),
    /// Time passes, in microseconds.
    Time(u64),
    /// The journal's background threads make a pass.
    Tend,
    /// The disk has room for this many more bytes.
    DiskFull(usize),
    /// One in this many writes, truncations, creations, removals and renames fails.
    DiskFaults(u64),
    /// The disk is whole, and has room.
    DiskHeals,
    /// The process ends after this many further system calls.
    Crash(u64),
    /// The stream's thread panics at one in this many failpoints; 0 for none.
    Panics(u64),
    /// The process stops as by SIGTERM, and starts again.
    Restart,
    /// The process hands the stream over to another one.
    HandOver,
    /// The process hands the stream over, and the other process fails before it confirms.
    FailedHandOver,
}

impl Schedule {
    /// The schedule of a seed.
    pub fn new(seed: u64) -> Schedule {
        let base = seed & (ENGINE_SEEDS - 1);
        let mut random = Random(base.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        let mut settings = Settings::new(&mut random);
        if seed & VLLM_SEEDS != 0 {
            settings.wire = SynthWire::EngineCore;
            settings.readers.truncate(1);
        }
        if seed & RIDS_AGAIN_SEEDS != 0 {
            // Many more requests run than a composed frame has room for, so that some always wait.
            let mut random = Random(base ^ 0xa6a1);
            settings.senders = (0..SENDERS_MAX).map(|_| 30 + random.below(30)).collect();
            settings.rids = (0..SENDERS_MAX).map(|_| 8 + random.below(12)).collect();
            (settings.join, settings.max_rows) = ("backpressure", 3);
        }
        if seed & ENGINE_SEEDS != 0 {
            settings.is_engine = true;
            settings.wire = SynthWire::Pickle;
            // Without one, a dead process loses what the kernel had for it.
            settings.supervisor = true;
        }
        let count = 20 + random.below(120) as usize;
        let mut actions = Vec::new();
        let can = Faults {
            crash: random.once_in(2),
            panic: random.once_in(3),
            disk: random.once_in(3),
            readers: random.once_in(2),
            restart: random.once_in(4),
        };
        while actions.len() < count {
            actions.extend(Action::some(&mut random, &can));
        }
        if seed & HAND_OVER_SEEDS != 0 {
            for _ in 0..1 + random.below(6) {
                let at = random.below(actions.len() as u64) as usize;
                let action = if random.once_in(3) { Action::FailedHandOver } else { Action::HandOver };
                actions.splice(at..at, [action, Action::Turns(random.below(4))]);
            }
        }
        Schedule { made_from: seed, seed: base, settings, actions: actions.into_iter().enumerate().collect() }
    }

    /// The same schedule with the actions of these numbers alone.
    pub fn only(&self, numbers: &[usize]) -> Schedule {
        let actions = self.actions.iter().filter(|(number, _)| numbers.contains(number)).copied();
        Schedule { actions: actions.collect(), ..self.clone() }
    }
}

/// The kinds of faults of a schedule.
struct Faults {
    crash: bool,
    panic: bool,
    disk: bool,
    readers: bool,
    restart: bool,
}

impl Settings {
    /// Whether the stream is vLLM's.
    pub fn is_vllm(&self) -> bool {
        self.wire == SynthWire::EngineCore
    }

    /// The layouts of all frames.
    pub fn layouts(&self) -> Layouts {
        if self.is_vllm() { Layouts::of(Engine::Vllm) } else { Layouts::builtin() }
    }

    fn new(random: &mut Random) -> Settings {
        let queue = if random.once_in(2) { 6 } else { 60 };
        let (memory, spill) = (random.below(8), random.below(8));
        let senders: Vec<u64> = (0..1 + random.below(SENDERS_MAX)).map(|_| 1 + random.below(12)).collect();
        let readers = (0..[1, 1, 2, 3][random.below(4) as usize]).map(|_| !random.once_in(3)).collect();
        Settings {
            wire: if random.once_in(2) { SynthWire::Msgpack } else { SynthWire::Pickle },
            rids: vec![u64::MAX; senders.len()],
            senders,
            readers,
            join: ["backpressure", "backpressure", "backpressure", "never"][random.below(4) as usize],
            max_rows: 16 + random.below(20),
            queue_frames: 1 + random.below(queue),
            queue_bytes: 64 << 10,
            memory: 1 << (16 + memory),
            spill_max: 1 << (16 + spill),
            sync_always: random.once_in(4),
            segment_bytes: 4096 + random.below(60_000),
            send_buffer: random.once_in(2).then(|| 4608 + random.below(20_000) as usize),
            supervisor: random.once_in(2),
            short_one_in: [0, 2, 5, 20][random.below(4) as usize],
            is_engine: false,
        }
    }
}

impl Action {
    /// The next actions.
    fn some(random: &mut Random, can: &Faults) -> Vec<Action> {
        let (which, few) = (random.below(8), 1 + random.below(8) as usize);
        let turns = Action::Turns(1 + random.below(6));
        let calls = 1 << random.below(9);
        match random.below(32) {
            0..8 => vec![Action::Send(which, few), turns],
            8 => vec![Action::SendPart(which, 1 + random.below(600) as usize), turns],
            9 => vec![Action::Connect(which)],
            10 => vec![Action::Ping(which)],
            11 if random.once_in(3) => vec![Action::Garbage(which), turns],
            12 if random.once_in(2) => vec![Action::Close(which), turns],
            13..19 => vec![Action::StartReader(which), Action::Read(which, few), turns],
            19 if can.readers => vec![Action::KillReader(which), turns],
            20..23 => vec![Action::Time(1 << random.below(22)), turns],
            23 => vec![Action::Tend],
            24 if can.disk => vec![Action::DiskFull(random.below(6000) as usize), turns],
            25 if can.disk => vec![Action::DiskFaults(2 + random.below(12)), turns],
            26 if can.disk => vec![Action::DiskHeals, turns],
            27..29 if can.crash => vec![Action::Crash(1 + random.below(calls)), turns],
            29 if can.panic => vec![Action::Panics(10 + random.below(200)), turns],
            30 if can.panic => vec![Action::Panics(0), turns],
            31 if can.restart && random.once_in(3) => vec![Action::Restart],
            _ => vec![turns],
        }
    }
}

//! The world: it runs a schedule's actions against the stream, and brings everything to its end.

use crate::clock::{self, SimClock};
use crate::machine;
use crate::peers::{Clients, Engine, Reader, Sender, Waiting};
use crate::process::{self, Machine, Process, page_path, reader_path};
use crate::schedule::{Action, Schedule, Settings};
use afterbay_batch::failpoint;
use afterbay_events::event::{FrameNotUnderstood, RequestMigrated, StreamPanicked};
use afterbay_events::{Events, Recorder};
use afterbay_sim::frames::Encoding;
use afterbay_sim::load::{Endings, Lengths, Load};
use afterbay_sim_disk::{Faults, Random, SimDisk};
use afterbay_sockets::bounds::CREDIT_STALL_MAX;
use afterbay_sockets::injected;
use afterbay_stream::{Clock, Ended, StreamState};
use afterbay_wire::BatchKind;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

/// Turns without an end after which the stream counts as stuck.
const TURNS_MAX: u64 = 20_000;
/// Turns in a row without a wait and without work for any peer after which the stream counts as spinning.
const IDLE_TURNS_MAX: u64 = 2000;
/// Simulated time after which a stream that should end counts as stuck.
const SETTLE_MAX: Duration = Duration::from_secs(300);
/// The time that a stream gets for its last drain. A missing credit may stop a reader's connection for 30 seconds.
const LAST_DRAIN: Duration = Duration::from_secs(80);
/// The time that a stream gets for another drain.
const DRAIN: Duration = Duration::from_secs(2);

/// The result of a schedule that kept all promises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The digest of everything that peers got, of the events and of the system calls.
    pub digest: u64,
    /// System calls of the process.
    pub calls: u64,
    /// Deaths of the process.
    pub crashes: u64,
    /// Panics of the stream's thread.
    pub panics: u64,
    /// Hand-overs, also those that failed.
    pub hand_overs: u64,
    /// Requests that went on in another engine.
    pub migrated: u64,
    /// Frames in the journal.
    pub frames: u64,
    /// The calls at which the process died, each with the three calls before it.
    pub crash_points: BTreeSet<u32>,
}

/// The world of one schedule.
pub struct World {
    pub machine: Machine,
    pub recorder: Recorder,
    pub senders: Vec<Sender>,
    /// The engine whose frames the one sender sends, and the clients of its requests.
    pub engine: Option<(Engine, Clients)>,
    pub readers: Rc<RefCell<Vec<Reader>>>,
    process: Option<Process>,
    /// The number of the process, which begins with 1.
    pub life: u64,
    /// The lives that died.
    pub crashed: BTreeSet<u64>,
    /// The lives that may have lost frames of senders: their stop named losses, or they died without a supervisor.
    pub lossy: BTreeSet<u64>,
    /// Whether a process stopped while the disk failed: it may have been unable to record what readers have.
    pub stopped_on_faults: bool,
    /// The readers that were away while a start waited in vain for their counts. Afterbay cannot know that they were dead.
    pub waited_out: BTreeSet<usize>,
    random: Random,
    /// Hand-overs, also those that failed.
    hand_overs: u64,
    /// Turns in a row after which the stream did not wait although no peer had anything to do.
    idle_turns: u64,
}

impl World {
    /// The world before the first action.
    pub fn new(schedule: &Schedule) -> World {
        let Settings { senders, rids, readers, .. } = &schedule.settings;
        let disk = SimDisk::new(schedule.seed ^ 0xd15c);
        disk.set_reserves(!schedule.seed.is_multiple_of(3));
        machine::set_up(&disk, schedule.seed ^ 0x5047, schedule.settings.short_one_in);
        injected::set_send_buffer(schedule.settings.send_buffer);
        let dir = scratch();
        let (events, recorder) = Events::recorded();
        let clock = Arc::new(SimClock::new(disk.clone()));
        let config = process::config(&dir, &schedule.settings);
        let wire = schedule.settings.wire;
        let kind = if schedule.settings.is_vllm() { BatchKind::Outputs } else { BatchKind::TokenId };
        let encoding = Encoding { kind, wire };
        let mut random = Random(schedule.seed ^ 0x10ad);
        let senders = (0..).zip(senders.iter().zip(rids)).map(|(index, (requests, rids))| {
            let mut load = load(schedule.seed, index, *requests, &mut random);
            if *rids < *requests {
                (load.rids, load.max_running) = (*rids, 8);
            }
            Sender::new(&dir.join("in"), &load, encoding)
        });
        let mut senders: Vec<Sender> = senders.collect();
        let engine = schedule.settings.is_engine.then(|| Engine::new(schedule.seed));
        if engine.is_some() {
            senders = vec![Sender::without_frames(&dir.join("in"))];
        }
        let waiting = engine.as_ref().map_or(Waiting::default(), |engine| engine.waiting.clone());
        let engine = engine.map(|engine| {
            let clients = Clients::new(&engine.requests, &disk, schedule.seed);
            (engine, clients)
        });
        let readers = readers.iter().enumerate().map(|(index, counts)| {
            let page = counts.then(|| page_path(&dir, index));
            Reader::new(reader_path(&dir, index), page, &schedule.settings)
        });
        let readers = Rc::new(RefCell::new(readers.collect::<Vec<_>>()));
        clock::set_on_sleep(Some({
            let readers = readers.clone();
            Box::new(move || {
                // The next read of the reader reports a promise that is broken here.
                readers.borrow_mut().iter_mut().for_each(|reader| drop(reader.read(1)));
            })
        }));
        let settings = schedule.settings.clone();
        let machine = Machine { dir, disk, clock, events, config, settings, waiting };
        World {
            machine,
            recorder,
            senders,
            engine,
            readers,
            process: None,
            life: 0,
            crashed: BTreeSet::new(),
            lossy: BTreeSet::new(),
            stopped_on_faults: false,
            waited_out: BTreeSet::new(),
            random: Random(schedule.seed ^ 0xac7),
            hand_overs: 0,
            idle_turns: 0,
        }
    }

    /// Runs all actions, and brings everything to its end.
    pub fn run(&mut self, schedule: &Schedule) -> Result<Ended, String> {
        for (number, action) in &schedule.actions {
            machine::trace(|| format!("{number}: {action:?}"));
            self.act(*action)?;
        }
        let ended = self.settle()?;
        let is_whole = self.is_whole();
        if let Some((_, clients)) = self.engine.as_mut().filter(|_| is_whole) {
            clients.end()?;
        }
        Ok(ended)
    }

    fn act(&mut self, action: Action) -> Result<(), String> {
        let (senders, readers) = (self.senders.len() as u64, self.readers.borrow().len() as u64);
        let sender = |which: u64| (which % senders) as usize;
        let reader = |which: u64| (which % readers) as usize;
        if let Some((engine, _)) = &mut self.engine {
            let sender = &mut self.senders[0];
            match action {
                Action::Send(_, frames) => engine.steps(sender, frames),
                Action::Close(_) | Action::Garbage(_) => {
                    engine.die(sender);
                    return Ok(());
                }
                _ => {}
            }
        }
        if matches!(action, Action::Read(..)) {
            self.clients()?;
        }
        match action {
            Action::Connect(which) => {
                self.senders[sender(which)].connect(self.life);
            }
            Action::Send(which, frames) => {
                self.senders[sender(which)].send(frames, self.life);
            }
            Action::SendPart(which, bytes) => {
                let at = sender(which);
                let sender = &mut self.senders[at];
                if sender.connect(self.life) {
                    sender.put(1);
                    sender.flush(bytes);
                }
            }
            Action::Ping(which) => self.senders[sender(which)].ping(),
            Action::Garbage(which) => self.senders[sender(which)].send_garbage(),
            Action::Close(which) => self.senders[sender(which)].close(),
            Action::StartReader(which) => self.readers.borrow_mut()[reader(which)].start(),
            Action::Read(which, frames) => {
                let at = reader(which);
                self.readers.borrow_mut()[at].read(frames)?;
            }
            Action::KillReader(which) => self.readers.borrow_mut()[reader(which)].die(),
            Action::Turns(turns) => {
                for _ in 0..turns {
                    if let Some(ended) = self.turn()? {
                        return Err(format!("the stream ended without a command: {ended:?}"));
                    }
                }
            }
            Action::Time(us) => self.machine.clock.pass(Duration::from_micros(us)),
            Action::Tend => self.tend()?,
            Action::DiskFull(room) => self.machine.disk.set_capacity(self.machine.disk.used() + room),
            Action::DiskFaults(one_in) => {
                // A failed sync may lose bytes, which the journal's own simulation tests.
                self.machine.disk.set_faults(Faults {
                    write: one_in,
                    truncate: one_in,
                    create: one_in,
                    rename: one_in,
                    remove: one_in,
                    sync: 0,
                });
            }
            Action::DiskHeals => self.heal_disk(),
            Action::Crash(calls) => machine::crash_after(Some(calls)),
            Action::Panics(one_in) => failpoint::panic_at_one_in(self.random.next(), one_in),
            Action::HandOver => self.hand_over(false)?,
            Action::FailedHandOver => self.hand_over(true)?,
            Action::Restart => {
                let had_faults = self.machine.disk.has_faults();
                self.stopped_on_faults |= had_faults;
                let ended = self.stop(DRAIN)?;
                // A stop on a disk that refuses frames loses the frames that it names, also if the process dies in its last words.
                let names_losses =
                    ended.map_or(had_faults, |ended| ended.unpersisted > 0 || ended.unread_bytes > 0);
                if names_losses {
                    self.lossy.insert(self.life);
                }
            }
        }
        Ok(())
    }

    /// Clients of an engine come and go, unless the stream has lost tokens or passed some unread: then nobody has them.
    fn clients(&mut self) -> Result<(), String> {
        let is_whole = self.is_whole();
        match &mut self.engine {
            Some((_, clients)) if is_whole => clients.come_and_go(),
            _ => Ok(()),
        }
    }

    fn is_whole(&self) -> bool {
        let is_lossy = !self.lossy.is_empty() || self.stopped_on_faults;
        !is_lossy && self.recorder.of::<FrameNotUnderstood>().is_empty()
    }

    fn heal_disk(&self) {
        self.machine.disk.set_faults(Faults::default());
        self.machine.disk.set_capacity(usize::MAX);
    }

    /// One turn of the stream, which starts first if the process is dead. `Some`: the stream has ended.
    fn turn(&mut self) -> Result<Option<Ended>, String> {
        if self.process.is_none() && !self.start()? {
            return Ok(None);
        }
        let Some(mut process) = self.process.take() else { return Ok(None) };
        machine::trace(|| format!("  turn at {:?}", self.machine.clock.elapsed()));
        let result = machine::run_process(|| {
            let ended = process.stream.turn();
            (process, ended)
        });
        match result {
            Ok((process, None)) => {
                self.process = Some(process);
                Ok(None)
            }
            Ok((process, Some(ended))) => {
                drop(process);
                self.readers.borrow_mut().iter_mut().for_each(Reader::orphan);
                Ok(Some(ended))
            }
            Err(why) => self.died(why).map(|()| None),
        }
    }

    /// Starts the process. Returns whether it runs.
    fn start(&mut self) -> Result<bool, String> {
        self.life += 1;
        machine::trace(|| format!("  life {}", self.life));
        let machine = &self.machine;
        let begin = machine.clock.elapsed();
        let result = machine::run_process(|| machine.start());
        self.note_wait(begin);
        match result {
            Ok(Ok(process)) => {
                self.process = Some(process);
                Ok(true)
            }
            // A failing disk may refuse a start. The supervisor tries again.
            Ok(Err(why)) if self.machine.disk.has_faults() => {
                self.machine.clock.pass(Duration::from_millis(100));
                let _ = why;
                Ok(false)
            }
            Ok(Err(why)) => Err(format!("the process does not start: {why}")),
            Err(why) => self.died(why).map(|()| false),
        }
    }

    /// Notes the readers that are away, if a start that began at this time has waited for them in vain.
    fn note_wait(&mut self, begin: Duration) {
        if self.machine.clock.elapsed() - begin >= CREDIT_STALL_MAX {
            let readers = self.readers.borrow();
            let away = readers.iter().enumerate().filter(|(_, reader)| !reader.is_alive());
            self.waited_out.extend(away.map(|(index, _)| index));
        }
    }

    /// Notes the death of the process at a system call, or by repeated panics.
    fn died(&mut self, why: Option<String>) -> Result<(), String> {
        machine::bury();
        self.crashed.insert(self.life);
        // A stream that panics repeatedly ends and closes its connections.
        if !self.machine.settings.supervisor || why.is_some() {
            self.readers.borrow_mut().iter_mut().for_each(Reader::orphan);
            self.lossy.insert(self.life);
        }
        match why {
            Some(why) if !why.starts_with("injected at") => Err(format!("the process panicked: {why}")),
            _ => Ok(()),
        }
    }

    fn tend(&mut self) -> Result<(), String> {
        let Some(process) = self.process.take() else { return Ok(()) };
        let result = machine::run_process(|| {
            process.stream.tend_journal();
            process.directory.tend();
            process
        });
        match result {
            Ok(process) => {
                self.process = Some(process);
                Ok(())
            }
            Err(why) => self.died(why),
        }
    }

    /// Hands the stream over to another process. `fails`: that process ends before it confirms.
    fn hand_over(&mut self, fails: bool) -> Result<(), String> {
        let Some(mut old) = self.process.take() else { return Ok(()) };
        // Each process may die as well, but which of the two owns what is the matter of `host/operation/supervision/src/hand_over`.
        let (crash, one_in) = (machine::suspend_crash(), failpoint::one_in());
        failpoint::panic_at_one_in(0, 0);
        let (reply, answer) = channel();
        old.stream.handle().hand_over(move |state| drop(reply.send(state)));
        // A hand-over that has failed ends in the turn before.
        let mut answered = Err(TryRecvError::Empty);
        for _ in 0..3 {
            if let Some(ended) = old.stream.turn() {
                return Err(format!("the stream ended at a hand-over: {ended:?}"));
            }
            answered = answer.try_recv();
            if answered != Err(TryRecvError::Empty) {
                break;
            }
        }
        let result = match answered {
            Err(_) => Err("the stream did not answer a hand-over".to_owned()),
            // The disk refuses what must be recorded before.
            Ok(Err(why)) if self.machine.disk.has_faults() || why.contains("the disk") => {
                self.process = Some(old);
                Ok(())
            }
            Ok(Err(why)) => Err(format!("the stream refuses a hand-over: {why}")),
            Ok(Ok(state)) => self.end_hand_over(old, &state, fails),
        };
        machine::crash_after(crash);
        failpoint::panic_at_one_in(self.random.next(), one_in);
        result
    }

    fn end_hand_over(&mut self, mut old: Process, state: &StreamState, fails: bool) -> Result<(), String> {
        old.store.release();
        let begin = self.machine.clock.elapsed();
        let taken = self.machine.take_over(&old, state);
        self.note_wait(begin);
        match taken {
            Ok((prepared, store)) if !fails => {
                old.stream.handle().leave();
                if old.stream.turn() != Some(Ended::default()) {
                    return Err("a released stream does not end".to_owned());
                }
                let directory = old.directory.clone();
                drop(old);
                store.reclaim();
                machine::taken_over(&store, self.machine.settings.supervisor);
                self.process = Some(Process { stream: prepared.drive(), directory, store });
                self.hand_overs += 1;
            }
            prepared => {
                if let Err(why) = &prepared
                    && !self.machine.disk.has_faults()
                {
                    return Err(format!("the next process cannot take over: {why}"));
                }
                drop(prepared);
                old.store.reclaim();
                old.stream.handle().resume();
                self.process = Some(old);
                self.hand_overs += 1;
            }
        }
        Ok(())
    }

    /// The work of all peers until none has more to do. Returns whether anything happened.
    fn peers(&mut self, frames: usize) -> Result<bool, String> {
        let mut has_worked = false;
        if let Some((engine, _)) = self.engine.as_mut().filter(|_| frames > 0) {
            engine.steps(&mut self.senders[0], 1);
        }
        self.clients()?;
        for sender in &mut self.senders {
            sender.notice_end();
            if !sender.is_done() {
                has_worked |= sender.send(frames, self.life);
            }
        }
        for reader in self.readers.borrow_mut().iter_mut() {
            reader.start();
            has_worked |= reader.read(usize::MAX)?;
        }
        Ok(has_worked)
    }

    /// Stops the process as by SIGTERM. `None`: it died meanwhile.
    fn stop(&mut self, drain: Duration) -> Result<Option<Ended>, String> {
        if self.process.is_none() && !self.start()? {
            return Ok(None);
        }
        let life = self.life;
        // A sender sees the end of a draining stream and connects again. If the process then died and its connections continued,
        // the sender's frames would come on two connections, which have no order.
        let crash = if self.machine.settings.supervisor { machine::suspend_crash() } else { None };
        let ended = self.drain(life, drain);
        if crash.is_some() {
            machine::crash_after(crash);
        }
        ended
    }

    fn drain(&mut self, life: u64, drain: Duration) -> Result<Option<Ended>, String> {
        let deadline = self.machine.clock.now().instant + drain;
        if let Some(process) = &self.process {
            process.stream.handle().stop(deadline);
        }
        let begin = self.machine.clock.elapsed();
        for _ in 0..TURNS_MAX {
            let ended = self.turn()?;
            if ended.is_some() || self.life != life || self.process.is_none() {
                return Ok(ended);
            }
            for sender in &mut self.senders {
                sender.notice_end();
                sender.flush(usize::MAX);
            }
            let mut has_worked = false;
            for reader in self.readers.borrow_mut().iter_mut() {
                has_worked |= reader.read(4)?;
            }
            self.wait(has_worked)?;
            if self.machine.clock.elapsed() - begin > SETTLE_MAX {
                break;
            }
        }
        Err("the stream does not stop".to_owned())
    }

    /// Lets time pass until the stream's next turn, if nothing else happens.
    fn wait(&mut self, has_worked: bool) -> Result<(), String> {
        let Some(process) = &self.process else { return Ok(()) };
        let wait = process.stream.wait();
        self.idle_turns = if has_worked || !wait.is_zero() { 0 } else { self.idle_turns + 1 };
        if self.idle_turns > IDLE_TURNS_MAX {
            return Err("the stream spins: it never waits, and nothing happens".to_owned());
        }
        if !has_worked && !wait.is_zero() {
            self.machine.clock.pass(wait);
            self.tend()?;
        }
        Ok(())
    }

    /// Ends all faults, lets every sender send its rest and every reader read, and stops.
    fn settle(&mut self) -> Result<Ended, String> {
        self.heal_disk();
        failpoint::panic_at_one_in(0, 0);
        machine::crash_after(None);
        let begin = self.machine.clock.elapsed();
        for _ in 0..TURNS_MAX {
            if let Some(ended) = self.turn()? {
                return Err(format!("the stream ended without a command: {ended:?}"));
            }
            let has_worked = self.peers(4)?;
            let is_asked = self.engine.as_ref().is_some_and(|(engine, _)| !engine.is_done());
            // An introduction that was lost is never read.
            let has_engine_work = is_asked && self.is_whole();
            if !has_worked && !has_engine_work && self.senders.iter().all(Sender::is_done) {
                let ended = self.stop(LAST_DRAIN)?.ok_or("the process died while it stopped")?;
                for _ in 0..1000 {
                    if !self.peers(0)? {
                        return Ok(ended);
                    }
                }
                return Err("a reader never comes to an end".to_owned());
            }
            self.wait(has_worked)?;
            if self.machine.clock.elapsed() - begin > SETTLE_MAX {
                break;
            }
        }
        let left = |sender: &Sender| format!("{:?}", sender.states);
        let left: Vec<String> = self.senders.iter().map(left).collect();
        Err(format!("the stream is stuck: {left:?}"))
    }

    /// The result, with the number of frames in the journal.
    pub fn summary(&self, frames: u64) -> Summary {
        let mut digest = machine::calls();
        let mut add = |value: u64| digest = (digest ^ value).wrapping_mul(0x0000_0100_0000_01b3);
        for reader in self.readers.borrow().iter() {
            add(reader.digest);
        }
        for (index, (_, count)) in self.machine.events.counts().enumerate() {
            add(index as u64);
            add(count);
        }
        add(self.machine.clock.elapsed().as_nanos() as u64);
        Summary {
            digest,
            calls: machine::calls(),
            crashes: self.crashed.len() as u64,
            panics: self.recorder.of::<StreamPanicked>().len() as u64,
            hand_overs: self.hand_overs,
            migrated: self.recorder.of::<RequestMigrated>().len() as u64,
            frames,
            crash_points: machine::crash_points(),
        }
    }

    /// Removes everything.
    pub fn end(mut self) {
        self.process = None;
        clock::set_on_sleep(None);
        injected::set_send_buffer(None);
        machine::tear_down();
        let _ = std::fs::remove_dir_all(&self.machine.dir);
    }
}

/// A new directory in memory for sockets and credit pages.
fn scratch() -> std::path::PathBuf {
    let builder = || tempfile::Builder::new().prefix("ab-sim-").tempdir_in("/dev/shm");
    builder().or_else(|_| tempfile::tempdir()).unwrap().keep()
}

fn load(seed: u64, sender: u64, requests: u64, random: &mut Random) -> Load {
    let mut load = Load::new(requests, 20);
    load.seed = seed.wrapping_mul(16) + sender;
    load.lengths = Lengths { low: 1, high: 1 + random.below(30) as u32 };
    load.tokens_per_step = 1 + random.below(4) as u32;
    load.max_running = 1 + random.below(8) as u32;
    load.endings = Endings::MIXED;
    load.prompt_tail = random.below(6) as u32;
    load.health_every = random.once_in(3).then(|| 2 + random.below(6));
    load.idle_every = random.once_in(3).then(|| 2 + random.below(6));
    load.control_every = random.once_in(3).then(|| 2 + random.below(9));
    load
}

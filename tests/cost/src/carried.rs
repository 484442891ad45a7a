//! Frames that are carried through a stream on this thread, and rows that are joined and taken.

use crate::traffic::Traffic;
use afterbay_batch::{Joins, Timestamp};
use afterbay_config as config;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::storage::{Disk, Storage};
use afterbay_journal::{Background, JournalDirectory, JournalOptions, SyncPolicy};
use afterbay_sim_disk::AlmostDisk;
use afterbay_sockets::{OutgoingFrame, Pull, PullOptions, Push, PushOptions, TokenRange};
use afterbay_stream::{
    Budget, CallDone, CallHandle, CallOutcome, CallService, Clock, DrivenStream, JournalPolicy, PluginSetup,
    RecordLinks, ServiceResponse, Setup, SinkSetup, SystemClock,
};
use afterbay_supervision::fdstore::{FdStore, Inherited};
use afterbay_wire::{Batch, BatchPart, DecodedFrame, Layouts, decode};
use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The frames whose rows are joined, as if they had waited for a reader.
pub const JOINED_FRAMES: usize = 16;
/// The time between two frames of a scheduler.
const STEP: Duration = Duration::from_millis(25);
/// Turns without the frame's arrival after which the stream counts as stuck.
const TURNS_MAX: usize = 10_000;

/// Carries every frame from a scheduler through a stream to a reader. The next frame is sent when the one before has arrived.
pub fn carry(traffic: &Traffic, engine: &str) -> anyhow::Result<()> {
    let mut world = World::start(engine, &traffic.layouts, Vec::new())?;
    for frame in &traffic.frames {
        world.send(frame)?;
        let number = world.sent;
        for _ in 0..TURNS_MAX {
            if let Some(bytes) = world.turn()? {
                ensure!(bytes == *frame, "frame {number} was changed");
                break;
            }
        }
        ensure!(world.arrived == number, "frame {number} did not arrive");
    }
    Ok(())
}

/// A scheduler, a stream with a journal on disk and one sink, and a reader, all on this thread.
pub struct World {
    /// The stream.
    pub stream: DrivenStream,
    scheduler: Scheduler,
    reader: Reader,
    clock: Arc<StepClock>,
    sent: u64,
    arrived: u64,
    _dir: tempfile::TempDir,
}

impl World {
    /// Starts a stream with these plugins.
    pub fn start(engine: &str, layouts: &Layouts, plugins: Vec<PluginSetup>) -> anyhow::Result<World> {
        let dir = tempfile::tempdir()?;
        let clock = Arc::new(StepClock::default());
        // The reader listens before the stream connects: the clock stands still, so a second try would never come.
        let reader = Reader::bind(dir.path())?;
        let stream = start(dir.path(), engine, layouts.clone(), plugins, clock.clone())?;
        let scheduler = Scheduler::connect(dir.path())?;
        Ok(World { stream, scheduler, reader, clock, sent: 0, arrived: 0, _dir: dir })
    }

    /// Sends the scheduler's next frame.
    fn send(&mut self, frame: &Bytes) -> anyhow::Result<()> {
        self.clock.steps.fetch_add(1, Ordering::Relaxed);
        self.sent += 1;
        self.scheduler.send(self.sent, frame)
    }

    /// Lets each socket and the stream make one turn. Returns a frame that arrived.
    fn turn(&mut self) -> anyhow::Result<Option<Bytes>> {
        self.scheduler.turn()?;
        ensure!(self.stream.turn().is_none(), "the stream ended before frame {}", self.sent);
        self.arrived()
    }

    fn arrived(&mut self) -> anyhow::Result<Option<Bytes>> {
        let bytes = self.reader.turn()?;
        self.arrived += u64::from(bytes.is_some());
        Ok(bytes)
    }

    /// Sends a frame, and lets the stream carry everything that is due. Returns the CPU time of the stream.
    pub fn settle(&mut self, frame: &Bytes) -> anyhow::Result<Duration> {
        self.send(frame)?;
        let (mut idle, mut cpu) = (0, Duration::ZERO);
        for _ in 0..TURNS_MAX {
            self.scheduler.turn()?;
            let begun = cpu_time();
            ensure!(self.stream.turn().is_none(), "the stream ended before frame {}", self.sent);
            cpu += cpu_time() - begun;
            let is_idle = self.arrived()?.is_none()
                && self.scheduler.push.pending().frames == 0
                && self.stream.wait() > Duration::ZERO;
            idle = if is_idle { idle + 1 } else { 0 };
            if idle > 2 {
                return Ok(cpu);
            }
        }
        bail!("frame {} is without end", self.sent)
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The number of rows that [`join_and_take`] joins and takes.
pub fn joined_and_taken(rows_per_frame: u64) -> (u64, u64) {
    let frames = JOINED_FRAMES as u64;
    (frames * rows_per_frame, frames * rows_per_frame.div_ceil(2))
}

/// Joins the rows of [`JOINED_FRAMES`] frames, and takes every second row out of each.
pub fn join_and_take(traffic: &Traffic) -> anyhow::Result<()> {
    let frames = traffic.frames.get(1..=JOINED_FRAMES).context("too few frames")?;
    let batches = frames.iter().map(|frame| match decode(frame.clone(), &traffic.layouts) {
        DecodedFrame::Batch(batch) => Ok(batch),
        DecodedFrame::Barrier(barrier) => bail!("a frame is not understood: {}", barrier.kind),
    });
    let batches = batches.collect::<anyhow::Result<Vec<Batch>>>()?;
    let parts: Vec<BatchPart<'_>> = batches.iter().map(BatchPart::from).collect();
    black_box(Batch::join(&parts)?);
    let half: Vec<u32> = (0..traffic.rows_per_frame as u32).step_by(2).collect();
    for batch in &batches {
        black_box(batch.take(&half)?);
    }
    Ok(())
}

/// Ends a part of a run: callgrind writes what it counted since the last one.
#[inline(never)]
pub fn part_ends() {
    black_box(());
}

/// A clock that moves by [`STEP`] with each frame.
struct StepClock {
    begin: Timestamp,
    steps: AtomicU64,
}

impl Default for StepClock {
    fn default() -> StepClock {
        StepClock { begin: SystemClock.now(), steps: AtomicU64::new(0) }
    }
}

impl Clock for StepClock {
    fn now(&self) -> Timestamp {
        let passed = STEP * self.steps.load(Ordering::Relaxed) as u32;
        let Timestamp { instant, unix_ns } = self.begin;
        Timestamp { instant: instant + passed, unix_ns: unix_ns + passed.as_nanos() as u64 }
    }

    fn sleep(&self, _: Duration) {}
}

/// A service that answers at once.
struct Answers;

impl CallService for Answers {
    fn send(&self, _endpoint: &str, _body: Bytes, done: CallDone) -> CallHandle {
        let response = ServiceResponse { status: 200, body: Vec::new() };
        done(CallOutcome { result: Ok(response), place: Box::new(()) });
        Box::new(())
    }
}

/// Starts a stream with a journal on disk and one sink.
fn start(
    dir: &Path,
    engine: &str,
    layouts: Layouts,
    plugins: Vec<PluginSetup>,
    clock: Arc<StepClock>,
) -> anyhow::Result<DrivenStream> {
    let text = format!(
        "[journal]\ndir = {:?}\n[[stream]]\nname = \"s\"\nengine = {engine:?}\nlisten = \"ipc://{dir}/in\"\n\
         [[stream.sink]]\nname = \"r\"\nconnect = \"ipc://{dir}/out\"\n",
        dir.join("journal"),
        dir = dir.display(),
    );
    let config = config::Config::parse(&text, &dir.join("afterbay.toml"), &config::Env::EMPTY);
    let config = config.map_err(|problems| anyhow::anyhow!("{problems}"))?.streams.remove(0);
    // Nothing runs beside this thread.
    let options = JournalOptions { sync: SyncPolicy::None, ..JournalOptions::default() };
    let journal = JournalDirectory::open_on(
        // valgrind hides the kernel's page from which rustix reads the clock since boot.
        Arc::new(AlmostDisk { create: |path: &Path| Disk.create(path), has_boot_clock: false }),
        &dir.join("journal"),
        options,
        Background::Caller,
    )?;
    let journal = Arc::new(journal);
    let (events, health, store) = (Events::new(), Health::default(), FdStore::new());
    let sinks = config.sinks.iter().map(|sink| {
        let connect = sink.connect.clone().context("a sink without an endpoint")?;
        Ok(SinkSetup { config: sink.clone(), connect, reader_id: None, joins: Joins::default() })
    });
    let setup = Setup {
        listen: config.listen.clone(),
        sinks: sinks.collect::<anyhow::Result<_>>()?,
        config,
        inherited: Inherited::from_entries(&store, Vec::new()),
        fdstore: store,
        handed_over: None,
        layouts,
        journal: journal.stream("s")?,
        reopen: Box::new(move || journal.stream("s")),
        journal_policy: JournalPolicy::default(),
        spill_max: u64::MAX,
        budget: Budget::new(u64::MAX),
        abandon_after: Duration::from_secs(3600),
        plugins,
        attributes: Box::new(|_, _| None),
        records: RecordLinks::default(),
        calls: Arc::new(Answers),
        scheduler: Box::new(|| None),
        leases: None,
        interrupted: None,
        frame_loads: None,
        connector: None,
        upstream: None,
        clock,
        background: Background::Caller,
        metrics: Metrics::new(events.clone(), health.clone()),
        events,
        health,
    };
    DrivenStream::start(setup).map_err(|error| anyhow::anyhow!("the stream does not start: {error}"))
}

/// The scheduler's socket.
struct Scheduler {
    poll: mio::Poll,
    events: mio::Events,
    push: Push,
}

impl Scheduler {
    fn connect(dir: &Path) -> anyhow::Result<Scheduler> {
        let poll = mio::Poll::new()?;
        let (tokens, endpoint) = (TokenRange { first: 0, count: 1 }, format!("ipc://{}/in", dir.display()));
        let push = Push::connect(
            poll.registry(),
            tokens,
            &endpoint.parse()?,
            PushOptions::default(),
            Instant::now(),
        )?;
        Ok(Scheduler { poll, events: mio::Events::with_capacity(16), push })
    }

    fn send(&mut self, sequence: u64, bytes: &Bytes) -> anyhow::Result<()> {
        let frame = OutgoingFrame { sequence, bytes: bytes.clone(), counted: false };
        ensure!(self.push.send(frame).is_ok(), "the scheduler's queue is full");
        Ok(())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.poll.poll(&mut self.events, Some(Duration::ZERO))?;
        let now = Instant::now();
        self.events.iter().for_each(|event| self.push.ready(event, now));
        self.push.tick(now);
        self.push.flush(now);
        Ok(())
    }
}

/// The reader's socket.
struct Reader {
    poll: mio::Poll,
    events: mio::Events,
    pull: Pull,
}

impl Reader {
    fn bind(dir: &Path) -> anyhow::Result<Reader> {
        let (poll, options) = (mio::Poll::new()?, PullOptions::default());
        let tokens = TokenRange { first: 0, count: 1 + options.max_peers };
        let endpoint = format!("ipc://{}/out", dir.display());
        let pull = Pull::bind(poll.registry(), tokens, &endpoint.parse()?, options, None)?;
        Ok(Reader { poll, events: mio::Events::with_capacity(16), pull })
    }

    fn turn(&mut self) -> anyhow::Result<Option<Bytes>> {
        self.poll.poll(&mut self.events, Some(Duration::ZERO))?;
        let now = Instant::now();
        self.events.iter().for_each(|event| self.pull.ready(event, now));
        Ok(self.pull.receive().map(|message| message.bytes))
    }
}

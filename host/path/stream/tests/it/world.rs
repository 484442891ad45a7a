//! A stream, its sender and its reader, on one thread. A process is a [`DrivenStream`]: it ends, and the next one continues.

use afterbay_batch::{Joins, Timestamp};
use afterbay_config as config;
use afterbay_events::{Events, Health, Metrics, Recorder};
use afterbay_journal::{Background, JournalDirectory, JournalOptions};
use afterbay_runtime::{Component, Grants, Host, HostOptions, Limits, Terms};
use afterbay_sim_disk::SimDisk;
use afterbay_sockets::{OutgoingFrame, Pull, PullOptions, Push, PushOptions, TokenRange};
use afterbay_stream::{
    Budget, CallDone, CallHandle, CallOutcome, CallService, Clock, DrivenStream, Ended, JournalPolicy,
    PluginSetup, PluginStatus, PreparedStream, RecordLinks, ServiceResponse, Setup, SinkSetup, Stream,
    StreamState, SystemClock,
};
use afterbay_supervision::fdstore::{FdStore, Inherited};
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{BatchKind, DecodedFrame, Layouts};
use bytes::Bytes;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

pub const STREAM: &str = "s";
const TURNS_MAX: usize = 20_000;

/// A row that the reader got: the rid, the ids, and whether it is the last.
pub type ReaderRow = (String, Vec<i64>, bool);

/// A plugin as it is configured.
#[derive(Clone)]
pub struct PluginOf {
    pub config: config::Plugin,
    pub guest: &'static str,
    pub settings: String,
    pub grants: Grants,
}

impl PluginOf {
    pub fn new(name: &str, guest: &'static str, settings: &str) -> PluginOf {
        let config = config::Plugin::new(name.parse().unwrap(), config::Component::File(guest.into()));
        PluginOf { config, guest, settings: settings.to_owned(), grants: Grants::default() }
    }

    pub fn setup(&self) -> PluginSetup {
        let component = component(self.guest, &self.grants);
        let instance = component.instantiate(&self.settings).unwrap();
        PluginSetup { config: self.config.clone(), settings: self.settings.clone(), instance, awaits: None }
    }
}

fn component(guest: &'static str, grants: &Grants) -> Component {
    static HOST: OnceLock<Host> = OnceLock::new();
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    static LOADED: OnceLock<Mutex<HashMap<&'static str, Component>>> = OnceLock::new();
    let host = HOST.get_or_init(|| {
        let cache_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache/afterbay/compiled");
        Host::new(HostOptions { cache_dir: Some(cache_dir), ..HostOptions::default() }).unwrap()
    });
    let built = BUILT.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/guests");
        let target_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
        afterbay_plugin_build::build(&sources, &target_dir).unwrap()
    });
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().unwrap();
    let load = || {
        let bytes = std::fs::read(built.join("examples").join(format!("{guest}.wasm"))).unwrap();
        let limits =
            Limits { deadline: Duration::from_secs(10), hold: Duration::from_secs(600), ..Limits::default() };
        host.load(guest, &bytes, Terms { limits, grants: grants.clone(), digest: None, allowed: None })
            .unwrap()
    };
    loaded.entry(guest).or_insert_with(load).clone()
}

/// A call's body, and its end until the test answers.
type Asked = (Bytes, Option<CallDone>);

/// A service that answers when the test says so.
#[derive(Clone, Default)]
pub struct Service(Arc<Mutex<Vec<Asked>>>);

impl CallService for Service {
    fn send(&self, _endpoint: &str, body: Bytes, done: CallDone) -> CallHandle {
        self.0.lock().unwrap().push((body, Some(done)));
        Box::new(())
    }
}

impl Service {
    /// The bodies of all calls so far.
    pub fn bodies(&self) -> Vec<Bytes> {
        self.0.lock().unwrap().iter().map(|(body, _)| body.clone()).collect()
    }

    /// Answers the call with this index.
    pub fn answer(&self, index: usize) {
        let done = self.0.lock().unwrap()[index].1.take().unwrap();
        let response = ServiceResponse { status: 200, body: Vec::new() };
        done(CallOutcome { result: Ok(response), place: Box::new(()) });
    }
}

/// A clock that stands still but for the time that a test lets pass.
pub struct DrivenClock(Mutex<Timestamp>);

impl Default for DrivenClock {
    fn default() -> DrivenClock {
        DrivenClock(Mutex::new(SystemClock.now()))
    }
}

impl DrivenClock {
    pub fn pass(&self, time: Duration) {
        let mut now = self.0.lock().unwrap();
        now.instant += time;
        now.unix_ns += time.as_nanos() as u64;
    }
}

impl Clock for DrivenClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The world outside of the process.
pub struct World {
    dir: tempfile::TempDir,
    pub plugins: Vec<PluginOf>,
    disk: SimDisk,
    journal: Arc<JournalDirectory>,
    /// The reader's credit page, if it has one.
    pub credit: Option<PathBuf>,
    pub clock: Arc<DrivenClock>,
    pub health: Health,
    pub metrics: Metrics,
    events: Events,
    pub recorder: Recorder,
    pub service: Service,
    poll: mio::Poll,
    sender: Push,
    reader: Option<Pull>,
    sent: u64,
    pub received: Vec<Bytes>,
}

/// One life of the process.
pub struct Process {
    pub stream: DrivenStream,
    store: FdStore,
}

fn open_journal(disk: &SimDisk) -> Arc<JournalDirectory> {
    let options = JournalOptions::default();
    let journal =
        JournalDirectory::open_on(disk.process(), Path::new("/journal"), options, Background::Caller);
    Arc::new(journal.unwrap())
}

impl World {
    pub fn new(plugins: Vec<PluginOf>) -> World {
        let (dir, disk) = (tempfile::tempdir().unwrap(), SimDisk::new(1));
        let journal = open_journal(&disk);
        let poll = mio::Poll::new().unwrap();
        let (events, recorder) = Events::recorded();
        let health = Health::default();
        let now = Instant::now();
        let tokens = TokenRange { first: 100, count: 1 };
        let endpoint = format!("ipc://{}", dir.path().join("in").display()).parse().unwrap();
        let sender = Push::connect(poll.registry(), tokens, &endpoint, PushOptions::default(), now).unwrap();
        let mut world = World {
            dir,
            plugins,
            disk,
            journal,
            credit: None,
            clock: Arc::default(),
            health: health.clone(),
            metrics: Metrics::new(events.clone(), health),
            events,
            recorder,
            service: Service::default(),
            poll,
            sender,
            reader: None,
            sent: 0,
            received: Vec::new(),
        };
        world.bind_reader();
        world
    }

    pub fn bind_reader(&mut self) {
        let tokens = TokenRange { first: 0, count: 10 };
        let endpoint = self.endpoint("out");
        let bound = Pull::bind(self.poll.registry(), tokens, &endpoint, PullOptions::default(), None);
        self.reader = Some(bound.unwrap());
    }

    /// The reader ends.
    pub fn end_reader(&mut self) {
        self.reader = None;
    }

    fn endpoint(&self, name: &str) -> config::Endpoint {
        format!("ipc://{}", self.dir.path().join(name).display()).parse().unwrap()
    }

    fn setup(&self, store: &FdStore, inherited: Inherited, handed_over: Option<StreamState>) -> Setup {
        let mut config =
            config::Stream::new(STREAM.parse().unwrap(), self.endpoint("in"), self.endpoint("out"));
        config.join.when = config::JoinWhen::Never;
        config.plugins = self.plugins.iter().map(|plugin| plugin.config.clone()).collect();
        config.sinks[0].credit = self.credit.clone();
        let sinks = config.sinks.iter().map(|sink| SinkSetup {
            config: sink.clone(),
            connect: self.endpoint("out"),
            reader_id: None,
            joins: Joins::default(),
        });
        Setup {
            sinks: sinks.collect(),
            listen: config.listen.clone(),
            fdstore: store.clone(),
            inherited,
            handed_over,
            layouts: Layouts::builtin(),
            journal: self.journal.stream(STREAM).unwrap(),
            reopen: {
                let journal = self.journal.clone();
                Box::new(move || journal.stream(STREAM))
            },
            journal_policy: JournalPolicy::default(),
            spill_max: u64::MAX,
            budget: Budget::new(1 << 30),
            abandon_after: Duration::from_secs(3600),
            plugins: self.plugins.iter().map(PluginOf::setup).collect(),
            attributes: Box::new(|_, _| None),
            records: RecordLinks::default(),
            calls: Arc::new(self.service.clone()),
            scheduler: Box::new(|| None),
            leases: None,
            interrupted: None,
            frame_loads: None,
            connector: None,
            upstream: None,
            clock: self.clock.clone(),
            background: Background::Caller,
            events: self.events.clone(),
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            config,
        }
    }

    /// Starts the first process.
    pub fn start(&self) -> Process {
        let store = FdStore::new();
        let stream = DrivenStream::start(self.setup(&store, Inherited::default(), None)).unwrap();
        Process { stream, store }
    }

    /// The process dies. Its descriptors and its journal live on.
    pub fn kill(&mut self, process: Process) -> Process {
        let Process { stream, store } = process;
        let entries = store.entries().unwrap();
        store.release();
        // A killed process writes nothing more, and shuts down and unlinks nothing.
        std::mem::forget(stream);
        self.disk.kill();
        self.journal = open_journal(&self.disk);
        let store = FdStore::new();
        let inherited = Inherited::from_entries(&store, entries);
        let stream = DrivenStream::start(self.setup(&store, inherited, None)).unwrap();
        Process { stream, store }
    }

    /// Stops the process between two frames, and prepares the next one.
    pub fn prepare_next(&self, old: &mut Process) -> (PreparedStream, FdStore, StreamState) {
        let state = hand_over(old).unwrap();
        let text = serde_json::to_string(&state).unwrap();
        old.store.release();
        let store = FdStore::new();
        store.release();
        let inherited = Inherited::from_entries(&store, old.store.entries().unwrap());
        let read: StreamState = serde_json::from_str(&text).unwrap();
        assert_eq!(read, state);
        let prepared = Stream::prepare(self.setup(&store, inherited, Some(read))).unwrap();
        (prepared, store, state)
    }

    /// Hands the stream over to the next process.
    pub fn hand_over(&self, mut old: Process) -> Process {
        let (prepared, store, _) = self.prepare_next(&mut old);
        old.stream.handle().leave();
        assert_eq!(old.stream.turn(), Some(Ended::default()));
        drop(old);
        store.reclaim();
        Process { stream: prepared.drive(), store }
    }

    /// Begins a hand-over to a process that fails, and lets the old process go on.
    pub fn fail_hand_over(&self, old: &mut Process) {
        let (prepared, store, _) = self.prepare_next(old);
        drop((prepared, store));
        old.store.reclaim();
        old.stream.handle().resume();
        assert!(old.stream.turn().is_none());
    }

    /// Sends a frame, and lets the stream carry it to the reader's socket.
    pub fn send(&mut self, process: &mut Process, frame: &Bytes) {
        self.send_unread(frame);
        self.settle(process);
    }

    /// Sends a frame that the stream does not read yet.
    pub fn send_unread(&mut self, frame: &Bytes) {
        self.sent += 1;
        let frame = OutgoingFrame { sequence: self.sent, bytes: frame.clone(), counted: true };
        self.sender.send(frame).unwrap();
        self.sender.flush(Instant::now());
    }

    /// Runs the stream and its peers until none of them has anything to do.
    pub fn settle(&mut self, process: &mut Process) {
        let mut idle = 0;
        for _ in 0..TURNS_MAX {
            let received = self.received.len();
            let before = self.sender.pending().frames;
            assert!(process.stream.turn().is_none(), "the stream has ended");
            self.peers();
            let is_idle = received == self.received.len()
                && before == 0
                && self.sender.is_connected()
                && process.stream.wait() > Duration::ZERO;
            idle = if is_idle { idle + 1 } else { 0 };
            if idle > 3 {
                return;
            }
            if !self.sender.is_connected() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        panic!("the stream is busy without end");
    }

    /// Runs the stream until the reader has this many frames.
    pub fn await_frames(&mut self, process: &mut Process, frames: usize) {
        for _ in 0..TURNS_MAX {
            if self.received.len() >= frames {
                return;
            }
            assert!(process.stream.turn().is_none(), "the stream has ended");
            self.peers();
            // A connection is tried again after some time.
            self.clock.pass(Duration::from_micros(500));
            std::thread::sleep(Duration::from_micros(500));
        }
        panic!("the reader has {} of {frames} frames", self.received.len());
    }

    fn peers(&mut self) {
        let mut events = mio::Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        let now = Instant::now();
        for event in &events {
            match &mut self.reader {
                Some(reader) if reader.owns(event.token()) => reader.ready(event, now),
                _ => self.sender.ready(event, now),
            }
        }
        self.sender.tick(now);
        if let Some(reader) = &mut self.reader {
            reader.tick(now);
            while let Some(message) = reader.receive() {
                self.received.push(message.bytes);
            }
        }
    }

    /// The rows that the reader got.
    pub fn rows(&self) -> Vec<ReaderRow> {
        self.received.iter().flat_map(rows).collect()
    }
}

/// Asks the stream to stop between two frames.
pub fn hand_over(process: &mut Process) -> Result<StreamState, String> {
    let (sender, receiver) = channel();
    process.stream.handle().hand_over(move |state| sender.send(state).unwrap());
    assert!(process.stream.turn().is_none());
    receiver.try_recv().unwrap()
}

/// The status of each plugin.
pub fn statuses(process: &mut Process) -> Vec<PluginStatus> {
    let (sender, receiver) = channel();
    process.stream.handle().statuses(move |statuses| sender.send(statuses).unwrap());
    assert!(process.stream.turn().is_none());
    receiver.try_recv().unwrap()
}

fn rows(frame: &Bytes) -> Vec<ReaderRow> {
    let DecodedFrame::Batch(batch) = afterbay_wire::decode(frame.clone(), &Layouts::builtin()) else {
        panic!("no batch")
    };
    let row = |row| {
        let mut ids = Vec::new();
        batch.row_ids(row, &mut ids);
        let is_last = !matches!(batch.finish(row), afterbay_wire::Finish::Running);
        (batch.rid(row).to_owned(), ids, is_last)
    };
    (0..batch.rows()).map(row).collect()
}

/// Frames of the scheduler, which counts the tokens of each request.
#[derive(Default)]
pub struct Scheduler {
    tokens: HashMap<String, u64>,
}

impl Scheduler {
    /// A frame with these rows: the rid, the ids, and whether it is the last.
    pub fn frame(&mut self, rows: &[(&str, &[i64], bool)]) -> Bytes {
        let rows = rows.iter().map(|(rid, ids, is_last)| {
            let tokens = self.tokens.entry((*rid).to_owned()).or_default();
            *tokens += ids.len() as u64;
            SynthRow {
                rid: (*rid).to_owned(),
                ids: ids.to_vec(),
                text: "x".repeat(ids.len()),
                finish: is_last.then(|| SynthFinish::Length(*tokens)),
                completion_tokens: *tokens,
                prompt_tokens: 3,
                ..SynthRow::default()
            }
        });
        SynthBatch { rows: rows.collect() }.encode(BatchKind::Str, SynthWire::Msgpack).unwrap()
    }
}

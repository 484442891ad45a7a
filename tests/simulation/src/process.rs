//! One life of the simulated process: the stream, and its journal on the simulated disk.

use crate::clock::SimClock;
use crate::machine::{self, JOURNAL, STREAM};
use crate::peers::Waiting;
use crate::schedule::Settings;
use afterbay_batch::Joins;
use afterbay_config as config;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::{Background, JournalDirectory, JournalOptions, OpenError, SyncPolicy};
use afterbay_sim_disk::SimDisk;
use afterbay_stream::{
    Budget, CallDone, CallHandle, CallService, DrivenStream, JournalPolicy, PreparedStream, RecordLinks,
    Setup, SinkSetup, Stream, StreamState,
};
use afterbay_supervision::fdstore::{FdStore, Inherited};
use bytes::Bytes;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The parts that outlive a process.
pub struct Machine {
    pub dir: PathBuf,
    pub disk: SimDisk,
    pub clock: Arc<SimClock>,
    pub events: Events,
    pub config: config::Stream,
    pub settings: Settings,
    /// The requests that wait for an engine.
    pub waiting: Waiting,
}

/// One life of the process.
pub struct Process {
    pub stream: DrivenStream,
    pub directory: Arc<JournalDirectory>,
    /// The descriptors that may outlive the process.
    pub store: FdStore,
}

/// No service is configured.
struct NoCalls;

impl CallService for NoCalls {
    fn send(&self, _endpoint: &str, _body: Bytes, _done: CallDone) -> CallHandle {
        Box::new(())
    }
}

/// The path of a reader's socket.
pub fn reader_path(dir: &Path, reader: usize) -> PathBuf {
    dir.join(format!("out{reader}"))
}

/// The path of a reader's credit page.
pub fn page_path(dir: &Path, reader: usize) -> PathBuf {
    dir.join(format!("page{reader}"))
}

/// The stream's checked configuration.
pub fn config(dir: &Path, settings: &Settings) -> config::Stream {
    let mut text = format!(
        "[journal]\ndir = {:?}\n[[stream]]\nname = {STREAM:?}\nengine = {:?}\nlisten = \"ipc://{}\"\njoin = {{ when = {:?}, max_rows = {} }}\n",
        dir.join("journal"),
        if settings.is_vllm() { "vllm" } else { "sglang" },
        dir.join("in").display(),
        settings.join,
        settings.max_rows.max(config::bounds::JOIN_ROWS.0),
    );
    if settings.readers.len() > 1 {
        text += "route = \"crc32\"\n";
    }
    // The front end of vLLM is of one kind.
    let reader = if settings.is_vllm() { "" } else { "reader = \"tokenizer\"\n" };
    for (index, counts) in settings.readers.iter().enumerate() {
        let path = reader_path(dir, index);
        let _ = write!(
            text,
            "[[stream.sink]]\nname = \"r{index}\"\nconnect = \"ipc://{}\"\n{reader}queue = {{ frames = {}, bytes = {} }}\n",
            path.display(),
            settings.queue_frames,
            settings.queue_bytes,
        );
        if *counts {
            let _ = writeln!(text, "credit = {:?}", page_path(dir, index));
        }
    }
    let config = config::Config::parse(&text, &dir.join("afterbay.toml"), &config::Env::EMPTY);
    let mut stream = config.unwrap_or_else(|problems| panic!("{problems}\n{text}")).streams.remove(0);
    stream.join.max_rows = settings.max_rows as usize;
    if settings.is_engine {
        let front_end = "127.0.0.1:1".to_owned();
        stream.migration = Some(config::Migration { front_end, api_key_file: None, resample: false });
    }
    stream
}

impl Machine {
    /// Starts the process. `Err`: the journal or the stream does not start.
    pub fn start(&self) -> Result<Process, String> {
        let sync = if self.settings.sync_always { SyncPolicy::Always } else { SyncPolicy::None };
        let options = JournalOptions {
            sync,
            segment_bytes: self.settings.segment_bytes,
            abandon_after: Duration::from_secs(3600),
            ..JournalOptions::default()
        };
        let journal = Path::new(JOURNAL);
        let directory = JournalDirectory::open_on(self.disk.process(), journal, options, Background::Caller);
        let directory = Arc::new(directory.map_err(|error| format!("journal: {error}"))?);
        let (store, left) = machine::begin_process(self.settings.supervisor);
        let inherited = Inherited::from_entries(&store, left);
        let stream = self.prepare(&directory, &store, inherited, None)?.drive();
        machine::started();
        Ok(Process { stream, directory, store })
    }

    /// Prepares the process that takes over from `old`, which has stopped with this state.
    pub fn take_over(&self, old: &Process, state: &StreamState) -> Result<(PreparedStream, FdStore), String> {
        let text = serde_json::to_string(state).map_err(|error| error.to_string())?;
        let state = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let store = FdStore::new();
        store.release();
        let inherited = Inherited::from_entries(&store, old.store.entries().unwrap());
        Ok((self.prepare(&old.directory, &store, inherited, Some(state))?, store))
    }

    /// Builds the stream. Nobody runs it yet.
    fn prepare(
        &self,
        directory: &Arc<JournalDirectory>,
        fdstore: &FdStore,
        inherited: Inherited,
        handed_over: Option<StreamState>,
    ) -> Result<PreparedStream, String> {
        let settings = &self.settings;
        let open = |directory: &Arc<JournalDirectory>| {
            let mut journal = directory.stream(STREAM)?;
            journal.0.set_attributes(Box::new(|_, of_engine| of_engine.to_vec()));
            Ok::<_, OpenError>(journal)
        };
        let journal = open(directory).map_err(|error| format!("journal: {error}"))?;
        machine::trace(|| format!("  {:?}", journal.1));
        let health = Health::default();
        let metrics = Metrics::new(self.events.clone(), health.clone());
        let sinks = self.config.sinks.iter().map(|sink| SinkSetup {
            config: sink.clone(),
            connect: sink.connect.clone().unwrap(),
            reader_id: None,
            joins: Joins::default(),
        });
        let setup = Setup {
            fdstore: fdstore.clone(),
            inherited,
            handed_over,
            config: self.config.clone(),
            listen: self.config.listen.clone(),
            sinks: sinks.collect(),
            layouts: settings.layouts(),
            journal,
            reopen: {
                let directory = directory.clone();
                Box::new(move || open(&directory))
            },
            journal_policy: JournalPolicy {
                on_error: config::OnError::Stop,
                durable_first: settings.sync_always,
                ..JournalPolicy::default()
            },
            spill_max: settings.spill_max,
            budget: Budget::new(settings.memory),
            abandon_after: Duration::from_secs(3600),
            plugins: Vec::new(),
            attributes: Box::new(|_, _| None),
            records: RecordLinks::default(),
            calls: Arc::new(NoCalls),
            scheduler: Box::new(|| None),
            leases: None,
            interrupted: {
                let waiting = self.waiting.clone();
                Some(Box::new(move |change| waiting.change(change)))
            },
            frame_loads: None,
            connector: {
                let waiting = self.waiting.clone();
                Some(Box::new(move |message| waiting.hear(message)))
            },
            upstream: None,
            clock: self.clock.clone(),
            background: Background::Caller,
            events: self.events.clone(),
            metrics,
            health,
        };
        Stream::prepare(setup).map_err(|error| format!("start: {error}"))
    }
}

//! One stream: the path of a batch from the scheduler's socket to its reader's.
//!
//! Owns a thread per stream and everything on the path; `path.rs` shows it on one screen. Knows nothing of the command
//! line, of HTTP, or of other streams.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod decode;
mod judge;
mod keep;
mod ledger;
mod path;
mod receive;
mod report;
mod requests;
mod resume;
mod seat;
mod send;
mod spill;
mod telemetry;
mod thread;

pub use thread::Ended;

use crate::resume::Resume;
use afterbay_config as config;
use afterbay_events::event::SinkSettled;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::{FrameNo, Recovered, Writer};
use afterbay_outbox::{Joins, Options as OutboxOptions, Outbox, When};
use afterbay_runtime::{Plugin, ReloadError};
use afterbay_sockets::{
    BindError, CreditOptions, Endpoint, Pull, PullOptions, Push, PushError, PushOptions, TokenRange,
};
use afterbay_wire::Layouts;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Frames that the socket itself may hold beside the outbox: enough for one system call to take many.
const PUSH_QUEUE_FRAMES: usize = 64;
/// Bytes likewise.
const PUSH_QUEUE_BYTES: usize = 8 << 20;

/// The longest wait before connecting to a reader again. Short: a try is two system calls, and first tokens wait for it.
const RECONNECT_MAX: Duration = Duration::from_millis(100);

/// What a stream is made of. Everything that could be refused has been: only binding is left.
pub struct Setup {
    /// The checked configuration of the stream.
    pub config: config::Stream,
    /// Where the scheduler connects to.
    pub listen: Endpoint,
    /// Where the reader is.
    pub connect: Endpoint,
    /// The layouts of its msgpack frames.
    pub layouts: Layouts,
    /// Its journal, and what was found in it.
    pub journal: (Writer, Recovered),
    /// What a failing journal means.
    pub on_error: config::OnError,
    /// A frame goes on only when it is on the disk (`sync = "always"`).
    pub durable_first: bool,
    /// Bytes of frames that may wait in the journal for the sink; then nothing more is received.
    pub spill_max: u64,
    /// A request without a row for so long is given up.
    pub abandon_after: Duration,
    /// Which reader it is, where a new one must not get what an earlier one has left: SGLang that was started anew.
    pub reader_id: Option<String>,
    /// Where joined rows may end, as its reader wants it.
    pub joins: Joins,
    /// The plugins, configured, in the order of the config, each with its settings as JSON.
    pub plugins: Vec<(String, String, Plugin)>,
    /// Where its events go.
    pub events: Events,
    /// Where its counters are.
    pub metrics: Metrics,
    /// Where it says what is wrong.
    pub health: Health,
}

/// Why a stream did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its listen name could not be bound.
    #[error("stream {stream:?}: {error}")]
    Bind {
        /// The stream.
        stream: String,
        /// Why.
        error: BindError,
    },
    /// Its socket could not be registered.
    #[error("stream {stream:?}: {error}")]
    Connect {
        /// The stream.
        stream: String,
        /// Why.
        error: PushError,
    },
    /// The system refused a poll or a thread.
    #[error("stream {stream:?}: {error}")]
    System {
        /// The stream.
        stream: String,
        /// Why.
        error: std::io::Error,
    },
}

/// A stream that runs on its own thread.
pub struct Stream {
    name: String,
    listen: Endpoint,
    control: Control,
    thread: std::thread::JoinHandle<Ended>,
}

/// Tells a running stream things, from any thread.
#[derive(Clone)]
pub struct Control {
    sender: Sender<thread::Control>,
    waker: Arc<mio::Waker>,
}

impl Control {
    /// Hands over what became of a changed component.
    pub fn reload(&self, plugin: &str, result: Result<Plugin, ReloadError>) {
        self.tell(thread::Control::Reload { plugin: plugin.to_owned(), result: Box::new(result) });
    }

    /// Sends what was received, then ends; gives up at the deadline.
    pub fn stop(&self, deadline: Instant) {
        self.tell(thread::Control::Stop { deadline });
    }

    fn tell(&self, control: thread::Control) {
        // Both fail only where the stream has ended already.
        let _told = self.sender.send(control);
        let _woken = self.waker.wake();
    }
}

impl Stream {
    /// Binds, connects and starts the thread.
    pub fn start(setup: Setup) -> Result<Stream, StartError> {
        let name = setup.config.name.to_string();
        let system = |error| StartError::System { stream: name.clone(), error };
        let poll = mio::Poll::new().map_err(system)?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), thread::WAKER).map_err(system)?);
        let abandon_after = setup.abandon_after;
        let (path, report) = build(setup, poll.registry(), &waker)?;
        let listen = path.receive.socket().endpoint().clone();
        let (sender, control) = channel();
        let thread = thread::Thread { poll, path, control, report, abandon_after };
        let thread = std::thread::Builder::new()
            .name(format!("stream {name}"))
            .spawn(move || thread.run())
            .map_err(|error| StartError::System { stream: name.clone(), error })?;
        Ok(Stream { name, listen, control: Control { sender, waker }, thread })
    }

    /// Its name in the config.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens; with the real port where the config said 0.
    pub fn listen(&self) -> &Endpoint {
        &self.listen
    }

    /// To tell it things.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Whether its thread has ended, which it does only when told to, or in a panic.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its end. `Err`: its thread panicked, with this message.
    pub fn join(self) -> Result<Ended, String> {
        self.thread.join().map_err(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            text.or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned())
        })
    }
}

/// Binds, connects, and puts the stages in their order.
fn build(
    setup: Setup,
    registry: &mio::Registry,
    waker: &Arc<mio::Waker>,
) -> Result<(path::Path, report::Report), StartError> {
    let now = Instant::now();
    let Setup {
        config,
        listen,
        connect,
        layouts,
        journal,
        on_error,
        durable_first,
        spill_max,
        reader_id,
        joins,
        plugins,
        ..
    } = setup;
    let stream = config.name.to_string();
    // The checked configuration has exactly one.
    let (sink_name, queue, credit) = match config.sinks.first() {
        Some(sink) => (sink.name.to_string(), sink.queue, sink.credit.clone()),
        None => ("reader".to_owned(), config::Queue::default(), None),
    };
    let outbox_options = OutboxOptions {
        when: match config.coalesce.when {
            config::CoalesceWhen::Never => When::Never,
            config::CoalesceWhen::Backpressure => When::Backpressure,
            config::CoalesceWhen::Window => When::Window(config.coalesce.window),
        },
        joins,
        max_rows: config.coalesce.max_rows,
        max_frames: queue.frames,
        max_bytes: queue.bytes,
    };
    let pull_tokens = TokenRange { first: thread::WAKER.0 + 1, count: 1 + config.max_peers };
    let push_tokens = TokenRange { first: pull_tokens.first + pull_tokens.count, count: 1 };
    let pull_options = PullOptions {
        max_message_bytes: usize::try_from(config.max_message_bytes).unwrap_or(usize::MAX),
        listen_mode: config.listen_mode,
        max_peers: config.max_peers,
        ..PullOptions::default()
    };
    let Setup { events, metrics, health, .. } = setup;
    let telemetry =
        telemetry::Telemetry { stream: stream.as_str().into(), events, counters: metrics.stream(&stream) };
    let (mut writer, recovered) = journal;
    writer.on_change(Box::new({
        let waker = waker.clone();
        // It fails only where the stream has ended.
        move || drop(waker.wake())
    }));
    let mut decode = decode::Decode::new(layouts);
    // A reader that is another has a name of its own in the journal; what is kept for the one before is let go.
    let kept_name = match &reader_id {
        Some(id) => format!("{sink_name}@{id}"),
        None => sink_name.clone(),
    };
    let resume = resume(&kept_name, credit.as_deref(), &recovered, &mut writer, &mut decode, &telemetry);
    let push_options = PushOptions {
        max_queue_frames: PUSH_QUEUE_FRAMES,
        max_queue_bytes: PUSH_QUEUE_BYTES,
        backoff_max: RECONNECT_MAX,
        taken: resume.as_ref().map_or(0, Resume::last_sent),
        credit: credit.map(CreditOptions::new),
        ..PushOptions::default()
    };
    let pull = Pull::bind(registry, pull_tokens, &listen, pull_options)
        .map_err(|error| StartError::Bind { stream: stream.clone(), error })?;
    let push = Push::connect(registry, push_tokens, &connect, push_options, now)
        .map_err(|error| StartError::Connect { stream: stream.clone(), error })?;

    let ledger = ledger::Ledger::new(&recovered.live, telemetry.clone(), now);
    let mut keep =
        keep::Keep::new(writer, on_error, durable_first, spill_max, telemetry.clone(), health.clone());
    let seats = plugins.into_iter().map(|(name, settings, plugin)| {
        let counters = metrics.plugin(&stream, &name);
        seat::Seat::new(&name, settings, plugin, telemetry.clone(), counters, &ledger)
    });
    let chain = judge::Chain::new(seats.collect());
    let sink_counters = metrics.sink(&stream, &sink_name);
    let report = report::Report::new(telemetry.clone(), &sink_name, sink_counters, health.clone(), now);
    if let Some(resume) = &resume {
        keep.resume(resume);
    }
    let last_sent = resume.as_ref().map_or(0, Resume::last_sent);
    let done = resume.as_ref().map_or(recovered.last_frame, Resume::done);
    let path = path::Path {
        receive: receive::Receive::new(pull),
        keep,
        decode,
        ledger,
        chain,
        outbox: Outbox::new(outbox_options, last_sent, done.0),
        send: send::Send::new(kept_name, push, now),
        settled: done,
        taken: (last_sent, done, None),
        resume,
    };
    Ok((path, report))
}

/// What the reader has of what the last run sent it, and what is left for it in the journal. `None`: a new sink.
fn resume(
    sink: &str,
    credit: Option<&std::path::Path>,
    recovered: &Recovered,
    writer: &mut Writer,
    decode: &mut decode::Decode,
    telemetry: &telemetry::Telemetry,
) -> Option<Resume> {
    // One that is no more holds back nothing.
    recovered.sinks.iter().filter(|known| known.name() != sink).for_each(|gone| writer.forget(gone.name()));
    let Some(known) = recovered.sinks.iter().find(|known| known.name() == sink) else {
        writer.taken_sent(sink, 0, recovered.last_frame, None);
        let done = FrameNo(recovered.unfinished.first()?.0.saturating_sub(1));
        return Some(Resume::of_another(done, recovered.last_frame));
    };
    let resume = Resume::new(known.clone(), recovered, credit, writer, decode);
    if resume.unconfirmed() > 0 {
        let (stream, sink, unconfirmed_frames) =
            (telemetry.stream.clone(), sink.into(), resume.unconfirmed());
        telemetry.publish(SinkSettled { stream, sink, resent_frames: 0, unconfirmed_frames });
    }
    Some(resume)
}

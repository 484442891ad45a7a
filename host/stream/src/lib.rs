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
mod route;
mod seat;
mod send;
mod sink;
mod spill;
mod telemetry;
mod thread;

pub use thread::Ended;

use crate::resume::Resume;
use afterbay_config as config;
use afterbay_events::event::SinkSettled;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::{Recovered, Writer};
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
    /// Its readers, in the order of the config.
    pub sinks: Vec<SinkSetup>,
    /// The layouts of its msgpack frames.
    pub layouts: Layouts,
    /// Its journal, and what was found in it.
    pub journal: (Writer, Recovered),
    /// What a failing journal means.
    pub on_error: config::OnError,
    /// A frame goes on only when it is on the disk (`sync = "always"`).
    pub durable_first: bool,
    /// Bytes of frames that may wait in the journal for a sink; then nothing more is received.
    pub spill_max: u64,
    /// A request without a row for so long is given up.
    pub abandon_after: Duration,
    /// The plugins, configured, in the order of the config, each with its settings as JSON.
    pub plugins: Vec<(String, String, Plugin)>,
    /// Where its events go.
    pub events: Events,
    /// Where its counters are.
    pub metrics: Metrics,
    /// Where it says what is wrong.
    pub health: Health,
}

/// One reader of a stream.
pub struct SinkSetup {
    /// The checked configuration of the sink.
    pub config: config::Sink,
    /// Where the reader is.
    pub connect: Endpoint,
    /// Which reader it is, where a new one must not get what an earlier one has left: SGLang that was started anew.
    pub reader_id: Option<String>,
    /// Where joined rows may end, as the reader wants it.
    pub joins: Joins,
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
    let Setup { config, listen, sinks, layouts, journal, plugins, events, metrics, health, .. } = setup;
    let stream = config.name.to_string();
    let telemetry =
        telemetry::Telemetry { stream: stream.as_str().into(), events, counters: metrics.stream(&stream) };
    let (mut writer, recovered) = journal;
    writer.on_change(Box::new({
        let waker = waker.clone();
        // It fails only where the stream has ended.
        move || drop(waker.wake())
    }));
    let mut decode = decode::Decode::new(layouts);
    let names: Vec<String> = sinks.iter().map(SinkSetup::kept_name).collect();
    // What is kept for one that is no more is let go.
    let gone = recovered.sinks.iter().filter(|known| !names.iter().any(|name| name == known.name()));
    gone.for_each(|gone| writer.forget(gone.name()));
    let tells_all = sinks.len() > 1;
    let known = |name: &String| recovered.sinks.iter().find(|known| known.name() == name);
    let pages = sinks.iter().zip(&names).map(|(sink, name)| (known(name), sink.config.credit.as_deref()));
    let counts = resume::counts(&pages.collect::<Vec<_>>(), &recovered);
    let resumed = names.iter().zip(counts).map(|(name, count)| {
        let resume = match known(name) {
            Some(known) => Resume::new(known, &recovered, count, tells_all, &mut writer, &mut decode),
            None => {
                writer.taken_sent(name, 0, recovered.last_frame, None);
                Resume::of_another(name, recovered.last_frame)
            }
        };
        if resume.unconfirmed() > 0 {
            let (stream, sink) = (telemetry.stream.clone(), name.as_str().into());
            let unconfirmed_frames = resume.unconfirmed();
            telemetry.publish(SinkSettled { stream, sink, resent_frames: 0, unconfirmed_frames });
        }
        resume
    });
    let resumed: Vec<Resume> = resumed.collect();

    let pull_tokens = TokenRange { first: thread::WAKER.0 + 1, count: 1 + config.max_peers };
    let pull_options = PullOptions {
        max_message_bytes: usize::try_from(config.max_message_bytes).unwrap_or(usize::MAX),
        listen_mode: config.listen_mode,
        max_peers: config.max_peers,
        ..PullOptions::default()
    };
    let pull = Pull::bind(registry, pull_tokens, &listen, pull_options)
        .map_err(|error| StartError::Bind { stream: stream.clone(), error })?;
    let keep = keep::Keep::new(
        writer,
        setup.on_error,
        setup.durable_first,
        &recovered,
        telemetry.clone(),
        health.clone(),
    );
    let mut report = report::Report::new(telemetry.clone(), health.clone(), now);
    let mut connected = Vec::new();
    for (place, ((sink, name), resume)) in sinks.into_iter().zip(names).zip(resumed).enumerate() {
        let last_sent = resume.last_sent();
        let options = PushOptions {
            max_queue_frames: PUSH_QUEUE_FRAMES,
            max_queue_bytes: PUSH_QUEUE_BYTES,
            backoff_max: RECONNECT_MAX,
            taken: last_sent,
            credit: sink.config.credit.clone().map(CreditOptions::new),
            ..PushOptions::default()
        };
        let tokens = TokenRange { first: pull_tokens.first + pull_tokens.count + place, count: 1 };
        let push = Push::connect(registry, tokens, &sink.connect, options, now)
            .map_err(|error| StartError::Connect { stream: stream.clone(), error })?;
        let outbox_options = outbox_options(&config, sink.config.queue, sink.joins);
        let outbox = Outbox::new(outbox_options, last_sent, resume.done().0);
        let send = send::Send::new(push, now);
        let parts = sink::Parts { name, place, outbox, send, resume, tells_all };
        connected.push(sink::Sink::new(parts, &keep));
        let name = sink.config.name.as_str();
        report.add_sink(name, metrics.sink(&stream, name));
    }
    let ledger = ledger::Ledger::new(&recovered.live, telemetry.clone(), now);
    let seats = plugins.into_iter().map(|(name, settings, plugin)| {
        let counters = metrics.plugin(&stream, &name);
        seat::Seat::new(&name, settings, plugin, telemetry.clone(), counters, &ledger)
    });
    let chain = judge::Chain::new(seats.collect());
    let path = path::Path {
        receive: receive::Receive::new(pull),
        keep,
        decode,
        ledger,
        chain,
        route: route::Route::new(connected.len(), telemetry),
        sinks: connected,
        spill_max: setup.spill_max,
        shares: Vec::new(),
        keeps: None,
    };
    Ok((path, report))
}

impl SinkSetup {
    /// What the journal calls it: a reader that is another has a name of its own.
    fn kept_name(&self) -> String {
        match &self.reader_id {
            Some(id) => format!("{}@{id}", self.config.name),
            None => self.config.name.to_string(),
        }
    }
}

fn outbox_options(config: &config::Stream, queue: config::Queue, joins: Joins) -> OutboxOptions {
    OutboxOptions {
        when: match config.coalesce.when {
            config::CoalesceWhen::Never => When::Never,
            config::CoalesceWhen::Backpressure => When::Backpressure,
            config::CoalesceWhen::Window => When::Window(config.coalesce.window),
        },
        joins,
        max_rows: config.coalesce.max_rows,
        max_frames: queue.frames,
        max_bytes: queue.bytes,
    }
}

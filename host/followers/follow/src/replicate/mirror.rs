//! Makes a journal's directory of the messages of all instances, which journal readers read like any journal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use afterbay_config as config;
use afterbay_journal::IoError;
use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::Stream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::runtime::Runtime;

use crate::replicate::copied::{Copied, Hole};
use crate::replicate::nats::{Credentials, Nats, STREAM};
use crate::replicate::range::{self, Range};

/// Most messages that a server sends before they are placed.
const BATCH: i64 = 16;
/// Time without a message after which a server is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Time by which the clock of the NATS servers may be behind the clock of an instance.
const CLOCKS_APART_NS: u64 = 60_000_000_000;

/// The messages that a copy is made of.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only this instance.
    pub instance: Option<String>,
    /// Only the streams of this name.
    pub stream: Option<String>,
    /// Only the segments that were published, wholly or in part, since this time, Unix nanoseconds.
    pub since_unix_ns: Option<u64>,
}

impl Filter {
    /// Only one stream, by its name in a copy: the instance, a dot, and the stream.
    pub fn of_copied_stream(name: &str) -> Filter {
        let parts = name.split_once('.').map(|(instance, stream)| (instance.to_owned(), stream.to_owned()));
        let (instance, stream) = parts.unzip();
        Filter { instance, stream, since_unix_ns: None }
    }

    fn subject(&self) -> String {
        let token = |name: &Option<String>| name.as_deref().map_or_else(|| "*".to_owned(), range::token);
        format!("afterbay.{}.{}", token(&self.instance), token(&self.stream))
    }
}

/// The reason why no copy can be made.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// The servers cannot be reached, or refuse.
    #[error("{servers}: {why}")]
    Nats {
        /// The servers.
        servers: String,
        /// The reason.
        why: String,
    },
    /// The servers have no messages that match.
    #[error("{servers}: stream {STREAM:?} has no message of {subject:?}")]
    Nothing {
        /// The servers.
        servers: String,
        /// The subject, with `*` for every name.
        subject: String,
    },
    /// The disk refuses the copy.
    #[error(transparent)]
    Disk(#[from] IoError),
    /// The system refuses a runtime.
    #[error("no runtime: {0}")]
    Runtime(#[from] std::io::Error),
}

/// A copy of the journals of all instances. Each stream's directory has the name of the instance, a dot, and the name of the stream.
pub struct Mirror {
    dir: PathBuf,
    from: config::Replicate,
    filter: Filter,
    streams: BTreeMap<String, Copied>,
    /// Sequence in the JetStream stream of the next message.
    next_sequence: u64,
    /// Messages on our subjects that are not Afterbay's.
    foreign: u64,
    /// The connection, and the messages that follow. Dropped before the runtime.
    following: Option<(Nats, Ordered)>,
    runtime: Runtime,
}

/// Fills a directory with what the servers have now. The directory exists and is empty. Without a credentials file, the environment
/// has the credentials: `NATS_CREDS`, `NATS_USER` and `NATS_PASSWORD`, or `NATS_TOKEN`.
///
/// # Errors
/// The servers have nothing, cannot be reached or refuse, or the disk refuses the files.
pub fn mirror(from: &config::Replicate, filter: Filter, dir: &Path) -> Result<Mirror, MirrorError> {
    let mut mirror = Mirror {
        dir: dir.to_owned(),
        from: from.clone(),
        filter,
        streams: BTreeMap::new(),
        next_sequence: 0,
        foreign: 0,
        following: None,
        runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    mirror.fetch()?;
    match mirror.streams.is_empty() {
        true => Err(MirrorError::Nothing { servers: mirror.shown(), subject: mirror.filter.subject() }),
        false => Ok(mirror),
    }
}

impl Mirror {
    /// The bytes of the journals that are in no message: messages were deleted, or never published.
    pub fn holes(&self) -> Vec<Hole> {
        self.streams.values().flat_map(Copied::holes).collect()
    }

    /// Facts about the copy that are no holes, as sentences.
    pub fn notes(&self) -> Vec<String> {
        let replaced = |copied: &Copied| {
            let name = copied.name().to_owned();
            let replaced = copied.replaced().to_vec();
            replaced.into_iter().map(move |segment| {
                format!("{name}: segment {segment} was published again with other bytes, or left out: its disk lost records")
            })
        };
        let foreign =
            (self.foreign > 0).then(|| format!("{} messages are not Afterbay's: ignored", self.foreign));
        self.streams.values().flat_map(replaced).chain(foreign).collect()
    }

    /// Adds what is published, for this time.
    ///
    /// # Errors
    /// The connection is lost: the next call connects again. Or the disk refuses the files.
    pub fn follow(&mut self, within: Duration) -> Result<(), MirrorError> {
        let until = Instant::now() + within;
        let mut following = match self.following.take() {
            Some(following) => following,
            None => {
                let connect = connect_and_follow(&self.from, &self.filter, self.next_sequence);
                let (following, from) = self.runtime.block_on(connect).map_err(|why| self.refused(why))?;
                self.next_sequence = from;
                following
            }
        };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let next = self.runtime.block_on(async {
                let (nats, messages) = &mut following;
                tokio::select! {
                    biased;
                    () = nats.lost.notified() => Some(None),
                    message = messages.next() => Some(message),
                    () = tokio::time::sleep(left) => None,
                }
            });
            let message = match next {
                None => {
                    self.following = Some(following);
                    return Ok(());
                }
                Some(None) => return Err(self.refused("the connection was lost".to_owned())),
                Some(Some(message)) => message.map_err(|error| self.refused(error.to_string()))?,
            };
            self.take(&message)?;
        }
    }

    /// Removes the segments that nothing was published of since this time, Unix nanoseconds, but each stream's newest.
    ///
    /// # Errors
    /// The disk refuses the change.
    pub fn forget_before(&mut self, unix_ns: u64) -> Result<(), MirrorError> {
        for copied in self.streams.values_mut() {
            copied.forget_before(unix_ns)?;
        }
        Ok(())
    }

    fn shown(&self) -> String {
        self.from.nats.join(",")
    }

    fn refused(&self, why: String) -> MirrorError {
        MirrorError::Nats { servers: self.shown(), why }
    }

    fn fetch(&mut self) -> Result<(), MirrorError> {
        let (from, subject) = (self.from.clone(), self.filter.subject());
        let opened = self.runtime.block_on(async {
            let nats = connect(&from).await?;
            let stream = nats.stream().await?;
            let with_subjects =
                stream.info_with_subjects(&subject).await.map_err(|error| error.to_string())?;
            let last = with_subjects.info.state.last_sequence;
            let subjects: Vec<(String, usize)> =
                with_subjects.try_collect().await.map_err(|error| error.to_string())?;
            Ok((nats, stream, last, subjects))
        });
        let (nats, stream, last, subjects) = opened.map_err(|why| self.refused(why))?;
        for (subject, _) in subjects {
            self.fetch_subject(&nats, &stream, &subject, last)?;
        }
        self.next_sequence = last + 1;
        Ok(())
    }

    /// Fetches the messages of one stream of one instance, up to this sequence.
    fn fetch_subject(
        &mut self,
        nats: &Nats,
        stream: &Stream,
        subject: &str,
        last: u64,
    ) -> Result<(), MirrorError> {
        let mut is_at_segment = self.filter.since_unix_ns.is_none();
        let mut from = match self.filter.since_unix_ns {
            Some(since) => since_time(since).map_err(|why| self.refused(why))?,
            None => DeliverPolicy::All,
        };
        loop {
            let begun = self.runtime.block_on(messages(stream, subject, from));
            let begun = begun.map_err(|why| self.refused(nats.explain(why)))?;
            let Some(mut messages) = begun else { return Ok(()) };
            let begins = loop {
                let next =
                    self.runtime.block_on(async { tokio::time::timeout(SILENCE_MAX, messages.next()).await });
                let message = match next {
                    Err(_) => return Err(self.refused(format!("no message in {SILENCE_MAX:?}"))),
                    Ok(None) => return Err(self.refused("the connection was lost".to_owned())),
                    Ok(Some(message)) => message.map_err(|error| self.refused(error.to_string()))?,
                };
                if !std::mem::replace(&mut is_at_segment, true)
                    && let Some(range) = read(&message).filter(|range| range.offset > 0)
                {
                    // The segment began before.
                    break range.begun_unix_ns.saturating_sub(CLOCKS_APART_NS);
                }
                self.take(&message)?;
                let info = message.info().map_err(|error| self.refused(error.to_string()))?;
                if info.pending == 0 || info.stream_sequence >= last {
                    return Ok(());
                }
            };
            from = since_time(begins).map_err(|why| self.refused(why))?;
        }
    }

    /// Places a message.
    fn take(&mut self, message: &Message) -> Result<(), MirrorError> {
        let mut published_unix_ns = 0;
        if let Ok(info) = message.info() {
            self.next_sequence = self.next_sequence.max(info.stream_sequence + 1);
            published_unix_ns = u64::try_from(info.published.unix_timestamp_nanos()).unwrap_or(0);
        }
        let named = range::parse_subject(&message.subject);
        let Some(((instance, stream), range)) = named.zip(read(message)) else {
            self.foreign += 1;
            return Ok(());
        };
        let subject = message.subject.to_string();
        if !self.streams.contains_key(&subject) {
            self.streams.insert(subject.clone(), Copied::make(&self.dir, &instance, &stream)?);
        }
        match self.streams.get_mut(&subject) {
            Some(copied) => Ok(copied.place(&range, published_unix_ns)?),
            None => Ok(()),
        }
    }
}

fn read(message: &Message) -> Option<Range> {
    Range::from_message(message.headers.as_ref()?, message.payload.clone())
}

fn since_time(unix_ns: u64) -> Result<DeliverPolicy, String> {
    let start_time =
        async_nats::datetime::from_nanos(i128::from(unix_ns)).map_err(|error| error.to_string())?;
    Ok(DeliverPolicy::ByStartTime { start_time })
}

async fn connect(from: &config::Replicate) -> Result<Nats, String> {
    Nats::connect(&from.nats, &Credentials::load(from.credentials.as_deref())?).await
}

/// Connects, and follows the messages from this sequence on. Returns the connection with the messages, and the sequence.
async fn connect_and_follow(
    from: &config::Replicate,
    filter: &Filter,
    next_sequence: u64,
) -> Result<((Nats, Ordered), u64), String> {
    let nats = connect(from).await?;
    let stream = nats.stream().await?;
    // A server that has lost its newest messages gives their numbers to others.
    let start_sequence = next_sequence.min(stream.cached_info().state.last_sequence + 1);
    let from = DeliverPolicy::ByStartSequence { start_sequence };
    let consumed = consume(&stream, &filter.subject(), from).await;
    let (messages, _) = consumed.map_err(|why| nats.explain(why))?;
    Ok(((nats, messages), start_sequence))
}

/// The messages of a subject, in order. `None` if there is none now.
async fn messages(stream: &Stream, subject: &str, from: DeliverPolicy) -> Result<Option<Ordered>, String> {
    let (messages, pending) = consume(stream, subject, from).await?;
    Ok((pending > 0).then_some(messages))
}

/// The messages of a subject in order, and the number of those that the server has now.
async fn consume(stream: &Stream, subject: &str, from: DeliverPolicy) -> Result<(Ordered, u64), String> {
    let config = OrderedConfig {
        filter_subject: subject.to_owned(),
        deliver_policy: from,
        max_batch: BATCH,
        ..OrderedConfig::default()
    };
    let consumer = stream.create_consumer(config).await.map_err(|error| error.to_string())?;
    let pending = consumer.cached_info().num_pending;
    Ok((consumer.messages().await.map_err(|error| error.to_string())?, pending))
}

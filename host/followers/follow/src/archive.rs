//! Requests of the journal as Parquet files in an object store.
//!
//! [`tables::SegmentTables`] turns the segments of one stream into rows of local Parquet files: requests that have ended, and
//! batches. [`Archive`] uploads the files, and needs their segments until then.

pub mod schema;

pub(crate) mod columns;

pub mod tables;

mod manifest;
mod names;

mod objects;
mod progress;

mod stream;

mod location;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use afterbay_config::FollowerConfig;
use afterbay_events::ArchiveCounters;
use afterbay_journal::reader::{JournalReader, StreamReader};
use afterbay_journal::{Follower, SegmentId};
use tokio::runtime::Runtime;

use crate::consumer::{Consumer, Failure, Look, Streams};
use crate::following::Telemetry;

use objects::Objects;
use stream::{Context, StreamArchive};

/// The name of the consumer.
pub const NAME: &str = "archive";
/// Directory in the journal's directory for files that are not uploaded yet.
const SCRATCH: &str = ".archive";

/// Archives the requests of a journal.
pub struct Archive {
    url: String,
    objects: Objects,
    runtime: Runtime,
    telemetry: Telemetry,
    counters: Arc<ArchiveCounters>,
    journal: PathBuf,
    instance: String,
    /// The streams of the configuration, which are or will be written.
    configured: Vec<String>,
    /// Idle time after which a stream that nobody writes is over.
    abandon_after: Duration,
    /// Bytes that the journal may take.
    retain_bytes: Option<u64>,
    /// Whether the segments that are not archived take more than half of that: files do not wait for more.
    is_pressed: bool,
}

impl Archive {
    /// Archives to this URL.
    ///
    /// # Errors
    /// The environment lacks a variable for the client of the object store, or the system refuses a runtime.
    pub fn new(url: &str, config: &FollowerConfig, telemetry: &Telemetry) -> Result<Archive, String> {
        let (store, prefix) = location::open(url)?;
        Archive::with(url, Objects::new(store, prefix), config, telemetry)
    }

    fn with(
        url: &str,
        objects: Objects,
        config: &FollowerConfig,
        telemetry: &Telemetry,
    ) -> Result<Archive, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Archive {
            url: url.to_owned(),
            objects,
            runtime: runtime.map_err(|error| error.to_string())?,
            telemetry: telemetry.clone(),
            counters: telemetry.metrics.archive(),
            journal: config.journal.dir.clone(),
            instance: String::new(),
            configured: config.streams.iter().map(|stream| stream.name.to_string()).collect(),
            abandon_after: config.journal.abandon_after,
            retain_bytes: config.journal.retain.bytes,
            is_pressed: false,
        })
    }

    fn context(&self, look: Look) -> Context<'_> {
        Context {
            url: &self.url,
            objects: &self.objects,
            counters: &self.counters,
            telemetry: &self.telemetry,
            instance: &self.instance,
            now_unix_ns: look.now_unix_ns,
            is_due: look.is_last || self.is_pressed,
            configured: &self.configured,
            abandon_after: self.abandon_after,
        }
    }
}

/// The follower that archives to this URL.
#[must_use]
pub fn follower(url: &str) -> Follower {
    Follower { name: NAME, copy: url.to_owned(), needs_ended_segments: true }
}

impl Consumer for Archive {
    type Stream = StreamArchive;

    const LOOK_EVERY: Duration = Duration::from_secs(2);

    fn follower(&self) -> Follower {
        follower(&self.url)
    }

    fn open(&mut self, journal: &JournalReader) -> Result<(), Failure> {
        self.instance =
            journal.instance()?.ok_or_else(|| Failure::outside("the journal has no identity yet"))?;
        Ok(())
    }

    fn begin(
        &mut self,
        reader: StreamReader,
        _from: Option<SegmentId>,
    ) -> Result<Option<StreamArchive>, Failure> {
        let dir = self.journal.join(SCRATCH).join(reader.name());
        let context = self.context(Look { is_last: false, now_unix_ns: 0 });
        self.runtime.block_on(StreamArchive::begin(&context, reader, dir)).map(Some)
    }

    fn step(&mut self, stream: &mut StreamArchive, look: Look) -> Result<bool, Failure> {
        self.runtime.block_on(stream.advance(&self.context(look)))
    }

    fn commit(&mut self, streams: &mut Streams<StreamArchive>, _look: Look) -> Result<(), Failure> {
        let Some(retain_bytes) = self.retain_bytes else { return Ok(()) };
        let mut unconfirmed = 0;
        for stream in streams.values().flatten() {
            unconfirmed += stream.unconfirmed_bytes()?;
        }
        self.is_pressed = unconfirmed > retain_bytes / 2;
        Ok(())
    }

    fn needed(&mut self, stream: &mut StreamArchive) -> Option<SegmentId> {
        stream.needed()
    }

    fn lag(&self, stream: &StreamArchive, look: Look) -> Duration {
        stream.lag(look.now_unix_ns)
    }
}

#[cfg(test)]
mod tests;

//! Follows all streams of a journal for one consumer.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use afterbay_events::event::{FollowerFailed, FollowerMissed, FollowerRecovered};
use afterbay_events::{Events, FollowerCounters, Health, Metrics};
use afterbay_journal::reader::JournalReader;
use afterbay_journal::storage::Storage;
use afterbay_journal::{Confirmed, Follower, SegmentId};

use crate::consumer::{Consumer, Failure, Look, Streams};
use crate::stop::Stop;

/// Time at a stop to do what is left. The next start does the rest.
pub(crate) const STOP_MAX: Duration = Duration::from_secs(5);
/// Shortest and longest pause after a failure. Each pause is twice the one before, and half of it is random.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// Most characters of a reason in an event and in a condition.
const WHY_CHARS_MAX: usize = 600;

/// The receivers of what a consumer reports.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// The receiver of events.
    pub events: Events,
    /// The receiver of the condition while a consumer cannot go on: its key is the consumer's name.
    pub health: Health,
    /// The counters.
    pub metrics: Metrics,
}

impl Telemetry {
    /// Reports segments that were removed from the journal before a consumer had read them. `before`: the next one that is there.
    pub(crate) fn missed(&self, follower: &str, stream: &str, segments: u32, before: SegmentId) {
        self.metrics.follower(follower).segments_missed.add(segments.into());
        self.events.publish(FollowerMissed {
            follower: follower.to_owned(),
            stream: stream.into(),
            segments: segments.into(),
            before: before.to_string(),
        });
    }
}

/// A consumer and the streams that it follows.
pub struct Following<C: Consumer> {
    consumer: C,
    follower: Follower,
    storage: Arc<dyn Storage>,
    journal: PathBuf,
    streams: Streams<C::Stream>,
    /// The places in the follower's file. `None` before the file was read.
    confirmed: Option<Confirmed>,
    is_open: bool,
    report: Report,
}

impl<C: Consumer> Following<C> {
    /// Follows the journal in this directory.
    pub fn new(
        consumer: C,
        storage: Arc<dyn Storage>,
        journal: &Path,
        telemetry: &Telemetry,
    ) -> Following<C> {
        let follower = consumer.follower();
        let report = Report::new(&follower, telemetry);
        Following {
            consumer,
            follower,
            storage,
            journal: journal.to_owned(),
            streams: Streams::new(),
            confirmed: None,
            is_open: false,
            report,
        }
    }

    #[cfg(test)]
    pub(crate) fn consumer(&self) -> &C {
        &self.consumer
    }

    /// Follows until the stop. Then does what is left, for `STOP_MAX`.
    pub fn run(mut self, stop: &Stop) {
        loop {
            let is_last = stop.is_requested();
            let begun = Instant::now();
            let pause = loop {
                match self.look(is_last) {
                    Ok(true) if is_last && begun.elapsed() < STOP_MAX => {}
                    Ok(true) if !is_last && !stop.is_requested() => {}
                    Ok(_) => break C::LOOK_EVERY,
                    Err(_) => break self.report.pause(),
                }
            };
            if is_last {
                return;
            }
            stop.within(pause);
        }
    }

    /// Does one step of each stream, commits, and confirms. Returns whether the journal has more.
    ///
    /// # Errors
    /// The first failure. It was reported. Call it again later.
    pub fn look(&mut self, is_last: bool) -> Result<bool, Failure> {
        self.look_at(Look { is_last, now_unix_ns: self.storage.now_unix_ns() })
    }

    pub(crate) fn look_at(&mut self, look: Look) -> Result<bool, Failure> {
        let looked = self.advance(look);
        self.is_open &= looked.is_ok();
        self.report.looked(&looked);
        let lags = self.streams.values().flatten().map(|stream| self.consumer.lag(stream, look));
        self.report.lag(lags.max().unwrap_or_default());
        looked
    }

    fn advance(&mut self, look: Look) -> Result<bool, Failure> {
        let journal = JournalReader::open_on(self.storage.clone(), &self.journal)?;
        if self.confirmed.is_none() {
            self.confirmed = Some(Confirmed::read(&*self.storage, &self.journal, &self.follower)?);
        }
        if !self.is_open {
            self.consumer.open(&journal)?;
            self.is_open = true;
        }
        let (mut has_more, mut failed) = (false, None);
        for name in journal.streams()? {
            match self.step(&journal, &name, look) {
                Ok(more) => has_more |= more,
                Err(failure) => {
                    if failure.begins_again {
                        self.streams.remove(&name);
                    }
                    failed = failed.or(Some(failure));
                }
            }
        }
        self.consumer.commit(&mut self.streams, look)?;
        self.confirm(&journal)?;
        failed.map_or(Ok(has_more), Err)
    }

    fn step(&mut self, journal: &JournalReader, name: &str, look: Look) -> Result<bool, Failure> {
        if !self.streams.contains_key(name) {
            let reader = journal.stream(name)?;
            // The streams before it are known before its first segment.
            if reader.segments()?.is_empty() {
                return Ok(false);
            }
            let from = self.confirmed.as_ref().and_then(|confirmed| confirmed.oldest_needed(name));
            let begun = self.consumer.begin(reader, from)?;
            self.streams.insert(name.to_owned(), begun);
        }
        match self.streams.get_mut(name) {
            Some(Some(stream)) => self.consumer.step(stream, look),
            _ => Ok(false),
        }
    }

    /// Lets retention remove the segments that no start needs.
    fn confirm(&mut self, journal: &JournalReader) -> Result<(), Failure> {
        let Some(confirmed) = &mut self.confirmed else { return Ok(()) };
        for (name, stream) in &mut self.streams {
            let needed: Option<SegmentId> = match stream {
                Some(stream) => self.consumer.needed(stream),
                None => journal.stream(name)?.segments()?.pop(),
            };
            if let Some(needed) = needed {
                confirmed.confirm(name, needed);
            }
        }
        Ok(confirmed.write(&*self.storage, &self.journal, &self.follower)?)
    }
}

/// Reports what a consumer does.
struct Report {
    name: &'static str,
    copy: String,
    events: Events,
    health: Health,
    counters: Arc<FollowerCounters>,
    /// The last time at which the consumer had everything.
    whole_at: Instant,
    /// The failure that lasts: its begin, and the pause after the next attempt.
    failing: Option<(Instant, Duration)>,
}

impl Report {
    fn new(follower: &Follower, telemetry: &Telemetry) -> Report {
        Report {
            name: follower.name,
            copy: follower.copy.clone(),
            events: telemetry.events.clone(),
            health: telemetry.health.clone(),
            counters: telemetry.metrics.follower(follower.name),
            whole_at: Instant::now(),
            failing: None,
        }
    }

    fn looked(&mut self, looked: &Result<bool, Failure>) {
        let (follower, copy) = (self.name.to_owned(), self.copy.clone());
        match looked {
            Ok(has_more) => {
                if !has_more {
                    self.whole_at = Instant::now();
                }
                self.counters.failing.set(0);
                self.health.clear(self.name);
                if let Some((since, _)) = self.failing.take() {
                    let failing_s = since.elapsed().as_secs();
                    self.events.publish(FollowerRecovered { follower, copy, failing_s });
                }
            }
            Err(failure) => {
                self.counters.failures.add(1);
                let why = failure.why.split_whitespace().collect::<Vec<_>>().join(" ");
                let why: String = why.chars().take(WHY_CHARS_MAX).collect();
                self.health.degraded(self.name, format!("{copy}: {why}"), SystemTime::now());
                if self.failing.is_none() {
                    self.counters.failing.set(1);
                    self.failing = Some((Instant::now(), PAUSES.0));
                    self.events.publish(FollowerFailed { follower, copy, why });
                }
            }
        }
    }

    fn lag(&self, lag: Duration) {
        self.counters.lag_seconds.set(self.whole_at.elapsed().max(lag));
    }

    /// The pause until the next attempt.
    fn pause(&mut self) -> Duration {
        let Some((_, pause)) = &mut self.failing else { return PAUSES.0 };
        let now = *pause;
        *pause = (now * 2).min(PAUSES.1);
        let random = RandomState::new().build_hasher().finish() as u32;
        now / 2 + (now / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }
}

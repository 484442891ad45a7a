//! The background thread: an event loop of its own, with one task for each source.

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use afterbay_http::HttpTarget;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::bounds::LOOK_AT_AGE_EVERY;
use crate::config::{Error, LoadConfig, SnapshotPlace, target};
use crate::hub::{Hub, Now, Refusal, SourceReport, Told, lock};
use crate::notices::Notice;
use crate::shm::SnapshotFile;
use crate::snapshot::{Load, SourceKind};
use crate::{exposition, latch, load_stat, metrics};

/// Reads the scheduler's load in the background. Ends its thread when it is dropped; what [`Load`]s read then grows stale.
pub struct LoadReader {
    load: Load,
    told: Arc<Mutex<Told>>,
    /// The path of the LoadSnapshot file. Closed: the thread ends.
    place: Option<watch::Sender<Option<PathBuf>>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for LoadReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadReader").field("load", &self.load).field("sources", &self.sources()).finish()
    }
}

impl LoadReader {
    /// Starts the thread. Sources need not be there yet: they are waited for.
    ///
    /// # Errors
    /// The first of [`LoadConfig::problems`], or that there can be no thread.
    pub fn start(config: LoadConfig) -> Result<LoadReader, Error> {
        if let Some(problem) = config.problems().into_iter().next() {
            return Err(problem);
        }
        let target = config.metrics.as_deref().map(target).transpose()?;
        let (writer, words) = latch::latch();
        let (epoch, told) = (Instant::now(), Arc::new(Mutex::new(Told::default())));
        let hub = Hub::new(writer, epoch, config.stale_after, Arc::clone(&told));
        let load = Load::new(words, epoch, config.stale_after);
        let (place, placed) = watch::channel(config.load_snapshot.as_ref().map(SnapshotPlace::path));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
        let thread = std::thread::Builder::new()
            .name("scheduler-load".to_owned())
            .spawn(move || run(runtime, &config, target.as_ref(), placed, hub))
            .map_err(Error::Thread)?;
        Ok(LoadReader { load, told, place: Some(place), thread: Some(thread) })
    }

    /// The end for the path; clone it for each stream.
    pub fn handle(&self) -> Load {
        self.load.clone()
    }

    /// What changed about the sources since this was last asked, oldest first: for events and logs. The queue holds
    /// [`crate::bounds::NOTICES_MAX`].
    pub fn notices(&self) -> Vec<Notice> {
        lock(&self.told).notices.take()
    }

    /// How each configured source stands, for `/metrics` and `/v1/signals`.
    pub fn sources(&self) -> Vec<SourceReport> {
        lock(&self.told).reports.clone()
    }

    /// Reads another LoadSnapshot file from now on: a restarted server has another instance id. Handles go on; what the
    /// file before said is forgotten.
    ///
    /// # Errors
    /// If the place is empty.
    pub fn follow(&self, place: &SnapshotPlace) -> Result<(), Error> {
        if let Some(problem) = place.problem() {
            return Err(problem);
        }
        if let Some(sender) = &self.place {
            let path = Some(place.path());
            sender.send_if_modified(|before| {
                let other = *before != path;
                *before = path;
                other
            });
        }
        Ok(())
    }
}

impl Drop for LoadReader {
    fn drop(&mut self) {
        self.place = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was printed; the load is stale from then on.
            let _ = thread.join();
        }
    }
}

/// Both clocks.
pub(crate) fn now() -> Now {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { instant: Instant::now(), unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX) }
}

fn run(
    runtime: Runtime,
    config: &LoadConfig,
    target: Option<&HttpTarget>,
    placed: watch::Receiver<Option<PathBuf>>,
    hub: Hub,
) {
    let hub = RefCell::new(hub);
    let mut stop = placed.clone();
    runtime.block_on(async {
        let stopped = async { while stop.changed().await.is_ok() {} };
        tokio::select! {
            () = stopped => {}
            _ = async { tokio::join!(
                look_at_file(config, placed, &hub),
                listen(config, &hub),
                scrape(config, target, &hub),
                look_at_ages(&hub),
            ) } => {}
        }
    });
    // A name that is being resolved would hold it up.
    runtime.shutdown_background();
}

async fn look_at_file(config: &LoadConfig, mut placed: watch::Receiver<Option<PathBuf>>, hub: &RefCell<Hub>) {
    let kind = SourceKind::LoadSnapshot;
    loop {
        let place = placed.borrow_and_update().clone();
        let Some(path) = place else {
            if placed.changed().await.is_err() {
                return;
            }
            continue;
        };
        hub.borrow_mut().await_source(kind, path.display().to_string());
        let mut file = SnapshotFile::new(path, config.dp_rank);
        let mut last = (0, Instant::now());
        while matches!(placed.has_changed(), Ok(false)) {
            let (looked, now) = (file.look(), now());
            match looked {
                Ok(Some(measured)) => {
                    if last.0 != measured.unix_ns {
                        last = (measured.unix_ns, now.instant);
                    } else if now.instant.duration_since(last.1) > config.stale_after {
                        // Then it is lost at the next look, unless another has its name.
                        file.let_go_if_unlinked();
                    }
                    hub.borrow_mut().reading(kind, measured.values, measured.unix_ns, now);
                }
                Ok(None) => {}
                Err(refusal) => hub.borrow_mut().refused(kind, refusal, now),
            }
            tokio::select! {
                () = sleep(config.load_snapshot_every) => {}
                _ = placed.changed() => break,
            }
        }
        if placed.has_changed().is_err() {
            return;
        }
    }
}

async fn listen(config: &LoadConfig, hub: &RefCell<Hub>) {
    let Some(endpoint) = &config.load_stat else { return };
    hub.borrow_mut().await_source(SourceKind::LoadStat, endpoint.clone());
    // One that is alive sends every second.
    let silent_after = config.stale_after.max(Duration::from_secs(2));
    load_stat::follow(endpoint, config.dp_rank, silent_after, hub).await;
}

async fn scrape(config: &LoadConfig, target: Option<&HttpTarget>, hub: &RefCell<Hub>) {
    let (Some(target), Some(url)) = (target, &config.metrics) else { return };
    let kind = SourceKind::Metrics;
    hub.borrow_mut().await_source(kind, url.clone());
    let mut every = interval(config.metrics_every);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let asked = now();
        let answer = match timeout(config.metrics_timeout, metrics::scrape(target)).await {
            Ok(answer) => answer.and_then(|body| exposition::parse(&body, config.dp_rank)),
            Err(_) => {
                let limit = config.metrics_timeout.as_secs_f64();
                Err(Refusal::Lost(format!("no answer within {limit} s")))
            }
        };
        match answer {
            // As old as the question: the values may be of any moment since.
            Ok(values) => hub.borrow_mut().reading(kind, values, asked.unix_ns, now()),
            Err(refusal) => hub.borrow_mut().refused(kind, refusal, now()),
        }
    }
}

async fn look_at_ages(hub: &RefCell<Hub>) {
    let mut every = interval(LOOK_AT_AGE_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        hub.borrow_mut().tick(Instant::now());
    }
}

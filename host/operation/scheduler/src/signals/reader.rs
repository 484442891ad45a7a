//! The background thread: an event loop with one task for each source.

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use afterbay_http::HttpTarget;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::signals::bounds::{CHECK_AGE_EVERY, IDLE_EVERY};
use crate::signals::config::{Error, LoadConfig, SnapshotLocation, target};
use crate::signals::hub::{Hub, Moment, ReadFailure, SourceReport, SourceStatus, lock};
use crate::signals::notices::SourceNotice;
use crate::signals::shm::SnapshotFile;
use crate::signals::snapshot::{LoadHandle, SourceKind};
use crate::signals::values::LoadValues;
use crate::signals::{exposition, latch, load_stat, metrics};

/// Reads the scheduler's load in the background. Dropping it ends the thread, and the load of its
/// [`LoadHandle`]s becomes stale.
pub struct LoadReader {
    load: LoadHandle,
    status: Arc<Mutex<SourceStatus>>,
    /// The path of the LoadSnapshot file. Closing it ends the thread.
    path: Option<watch::Sender<Option<PathBuf>>>,
    frames: FrameLoad,
    thread: Option<JoinHandle<()>>,
}

/// Takes the load that the frames of a stream state. Clones share it.
#[derive(Clone, Debug)]
pub struct FrameLoad(watch::Sender<Option<FrameReading>>);

#[derive(Clone, Copy, Debug)]
struct FrameReading {
    values: LoadValues,
    at: Moment,
}

impl FrameLoad {
    /// Takes the values of a frame that was received now. Never waits. The values do not change if nobody reads them.
    pub fn send(&self, values: LoadValues) {
        self.0.send_replace(Some(FrameReading { values, at: Moment::now() }));
    }
}

impl fmt::Debug for LoadReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadReader").field("load", &self.load).field("sources", &self.sources()).finish()
    }
}

impl LoadReader {
    /// Starts the thread. Sources need not exist yet.
    ///
    /// # Errors
    /// The first of [`LoadConfig::problems`], or the error of starting a thread.
    pub fn start(config: LoadConfig) -> Result<LoadReader, Error> {
        if let Some(problem) = config.problems().into_iter().next() {
            return Err(problem);
        }
        let target = config.metrics.as_deref().map(target).transpose()?;
        let (writer, words) = latch::latch();
        let (epoch, status) = (Instant::now(), Arc::new(Mutex::new(SourceStatus::default())));
        let hub = Hub::new(writer, epoch, config.stale_after, Arc::clone(&status));
        let load = LoadHandle::new(words, epoch, config.stale_after);
        let (sender, paths) = watch::channel(config.load_snapshot.as_ref().map(SnapshotLocation::path));
        let (frames, of_frames) = watch::channel(None);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
        let thread = std::thread::Builder::new()
            .name("scheduler-load".to_owned())
            .spawn(move || run(runtime, &config, target.as_ref(), paths, of_frames, hub))
            .map_err(Error::Thread)?;
        let frames = FrameLoad(frames);
        Ok(LoadReader { load, status, path: Some(sender), frames, thread: Some(thread) })
    }

    /// A handle for the pipeline. Clone it for each stream.
    pub fn handle(&self) -> LoadHandle {
        self.load.clone()
    }

    /// The place for the load in a stream's frames, of [`LoadConfig::frames`].
    pub fn frames(&self) -> FrameLoad {
        self.frames.clone()
    }

    /// Returns and removes the changes of the sources, oldest first, for events and logs. At most
    /// [`crate::signals::bounds::NOTICES_MAX`] wait.
    pub fn notices(&self) -> Vec<SourceNotice> {
        lock(&self.status).notices.take()
    }

    /// The status of each configured source, for `/metrics` and `/v1/signals`.
    pub fn sources(&self) -> Vec<SourceReport> {
        lock(&self.status).reports.clone()
    }

    /// Reads another LoadSnapshot file from now on, because a restarted server has another instance id.
    /// Handles stay valid. The previous file's readings are dropped.
    ///
    /// # Errors
    /// If the location is empty.
    pub fn follow(&self, location: &SnapshotLocation) -> Result<(), Error> {
        if let Some(problem) = location.problem() {
            return Err(problem);
        }
        if let Some(sender) = &self.path {
            let path = Some(location.path());
            sender.send_if_modified(|previous| {
                let is_other = *previous != path;
                *previous = path;
                is_other
            });
        }
        Ok(())
    }
}

impl Drop for LoadReader {
    fn drop(&mut self) {
        self.path = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed, and the load is stale from then on.
            let _ = thread.join();
        }
    }
}

fn run(
    runtime: Runtime,
    config: &LoadConfig,
    target: Option<&HttpTarget>,
    paths: watch::Receiver<Option<PathBuf>>,
    frames: watch::Receiver<Option<FrameReading>>,
    hub: Hub,
) {
    let hub = RefCell::new(hub);
    let mut stop = paths.clone();
    runtime.block_on(async {
        let stopped = async { while stop.changed().await.is_ok() {} };
        tokio::select! {
            () = stopped => {}
            _ = async { tokio::join!(
                read_file(config, paths, &hub),
                listen(config, &hub),
                scrape(config, target, &hub),
                take(config, frames, &hub),
                check_ages(&hub),
            ) } => {}
        }
    });
    // A name resolution in progress would block a normal shutdown.
    runtime.shutdown_background();
}

async fn read_file(config: &LoadConfig, mut paths: watch::Receiver<Option<PathBuf>>, hub: &RefCell<Hub>) {
    let kind = SourceKind::LoadSnapshot;
    loop {
        let path = paths.borrow_and_update().clone();
        let Some(path) = path else {
            if paths.changed().await.is_err() {
                return;
            }
            continue;
        };
        hub.borrow_mut().await_source(kind, path.display().to_string());
        let mut file = SnapshotFile::new(path, config.dp_rank);
        let mut last = (0, Instant::now());
        while matches!(paths.has_changed(), Ok(false)) {
            let (result, now) = (file.read(), Moment::now());
            match result {
                Ok(Some(measured)) => {
                    if last.0 != measured.unix_ns {
                        last = (measured.unix_ns, now.instant);
                    } else if now.instant.duration_since(last.1) > config.stale_after {
                        // The next read then fails, unless another file has the name.
                        file.close_if_unlinked();
                    }
                    hub.borrow_mut().reading(kind, measured.values, measured.unix_ns, now);
                }
                Ok(None) => {}
                Err(failure) => hub.borrow_mut().failure(kind, failure, now),
            }
            tokio::select! {
                () = sleep(config.load_snapshot_every) => {}
                _ = paths.changed() => break,
            }
        }
        if paths.has_changed().is_err() {
            return;
        }
    }
}

async fn listen(config: &LoadConfig, hub: &RefCell<Hub>) {
    let Some(endpoint) = &config.load_stat else { return };
    hub.borrow_mut().await_source(SourceKind::LoadStat, endpoint.clone());
    // A live publisher sends every second.
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
        let request_time = Moment::now();
        let answer = match timeout(config.metrics_timeout, metrics::scrape(target)).await {
            Ok(answer) => answer.and_then(|body| exposition::parse(&body, config.dp_rank)),
            Err(_) => {
                let limit = config.metrics_timeout.as_secs_f64();
                Err(ReadFailure::Unavailable(format!("no answer within {limit} s")))
            }
        };
        match answer {
            // The values may be of any moment since the request, so they get its time.
            Ok(values) => hub.borrow_mut().reading(kind, values, request_time.unix_ns, Moment::now()),
            Err(failure) => hub.borrow_mut().failure(kind, failure, Moment::now()),
        }
    }
}

async fn take(config: &LoadConfig, mut frames: watch::Receiver<Option<FrameReading>>, hub: &RefCell<Hub>) {
    if !config.frames {
        return;
    }
    let kind = SourceKind::Frames;
    hub.borrow_mut().await_source(kind, "the stream's frames".to_owned());
    loop {
        let Some(FrameReading { values, at }) = *frames.borrow_and_update() else {
            if frames.changed().await.is_err() {
                return;
            }
            continue;
        };
        hub.borrow_mut().reading(kind, values, at.unix_ns, Moment::now());
        loop {
            tokio::select! {
                changed = frames.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                // An idle engine sends no frames, and its last load stays true.
                () = sleep(IDLE_EVERY), if is_idle(&values) => {
                    let now = Moment::now();
                    hub.borrow_mut().reading(kind, values, now.unix_ns, now);
                }
            }
        }
    }
}

fn is_idle(values: &LoadValues) -> bool {
    (values.num_running_reqs, values.num_waiting_reqs) == (Some(0), Some(0))
}

async fn check_ages(hub: &RefCell<Hub>) {
    let mut every = interval(CHECK_AGE_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        hub.borrow_mut().tick(Instant::now());
    }
}

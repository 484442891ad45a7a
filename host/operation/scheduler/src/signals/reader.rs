//! The background thread: an event loop that reads the source and looks at its age.

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::signals::bounds::{CHECK_AGE_EVERY, IDLE_EVERY};
use crate::signals::config::{LoadConfig, LoadSource};
use crate::signals::hub::{Hub, Moment, SourceReport, SourceStatus, lock};
use crate::signals::notices::SourceNotice;
use crate::signals::shm::SnapshotFile;
use crate::signals::snapshot::{LoadHandle, SourceKind};
use crate::signals::values::LoadValues;

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
        f.debug_struct("LoadReader").field("load", &self.load).field("source", &self.source()).finish()
    }
}

impl LoadReader {
    /// Starts the thread. The source need not exist yet.
    ///
    /// # Errors
    /// The thread or its event loop cannot start.
    pub fn start(config: LoadConfig) -> std::io::Result<LoadReader> {
        let status = Arc::<Mutex<SourceStatus>>::default();
        let (kind, path) = match &config.source {
            LoadSource::File(path) => (SourceKind::LoadSnapshot, Some(path.clone())),
            LoadSource::Frames => (SourceKind::Frames, None),
        };
        let hub = Hub::new(kind, config.stale_after, status.clone());
        let load = LoadHandle { status: status.clone(), stale_after: config.stale_after };
        let (sender, paths) = watch::channel(path);
        let (frames, of_frames) = watch::channel(None);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new()
            .name("scheduler-load".to_owned())
            .spawn(move || run(&runtime, &config, paths, of_frames, hub))?;
        let frames = FrameLoad(frames);
        Ok(LoadReader { load, status, path: Some(sender), frames, thread: Some(thread) })
    }

    /// A handle for the pipeline. Clone it for each stream.
    pub fn handle(&self) -> LoadHandle {
        self.load.clone()
    }

    /// The place for the load in a stream's frames, of [`LoadSource::Frames`].
    pub fn frames(&self) -> FrameLoad {
        self.frames.clone()
    }

    /// Returns and removes the changes of the source, oldest first, for events and logs. At most
    /// [`crate::signals::bounds::NOTICES_MAX`] wait.
    pub fn notices(&self) -> Vec<SourceNotice> {
        lock(&self.status).notices.take()
    }

    /// The status of the source, for `/metrics` and `/v1/status`. `None` before the thread has begun.
    pub fn source(&self) -> Option<SourceReport> {
        lock(&self.status).report.clone()
    }

    /// Reads another LoadSnapshot file from now on, because a restarted server has another instance id.
    /// Handles stay valid. The previous file's readings are dropped.
    pub fn follow(&self, path: PathBuf) {
        if let Some(sender) = &self.path {
            sender.send_if_modified(|previous| previous.replace(path.clone()).as_ref() != Some(&path));
        }
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
    runtime: &Runtime,
    config: &LoadConfig,
    paths: watch::Receiver<Option<PathBuf>>,
    frames: watch::Receiver<Option<FrameReading>>,
    hub: Hub,
) {
    let hub = RefCell::new(hub);
    let mut stop = paths.clone();
    runtime.block_on(async {
        let stopped = async { while stop.changed().await.is_ok() {} };
        let read = async {
            match config.source {
                LoadSource::File(_) => read_file(config, paths, &hub).await,
                LoadSource::Frames => take(frames, &hub).await,
            }
        };
        tokio::select! {
            () = stopped => {}
            _ = async { tokio::join!(read, check_ages(&hub)) } => {}
        }
    });
}

async fn read_file(config: &LoadConfig, mut paths: watch::Receiver<Option<PathBuf>>, hub: &RefCell<Hub>) {
    loop {
        let path = paths.borrow_and_update().clone();
        let Some(path) = path else {
            if paths.changed().await.is_err() {
                return;
            }
            continue;
        };
        hub.borrow_mut().await_source(path.display().to_string());
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
                    hub.borrow_mut().reading(measured.values, measured.unix_ns, now);
                }
                Ok(None) => {}
                Err(failure) => hub.borrow_mut().failure(failure, now),
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

async fn take(mut frames: watch::Receiver<Option<FrameReading>>, hub: &RefCell<Hub>) {
    hub.borrow_mut().await_source("the stream's frames".to_owned());
    loop {
        let Some(FrameReading { values, at }) = *frames.borrow_and_update() else {
            if frames.changed().await.is_err() {
                return;
            }
            continue;
        };
        hub.borrow_mut().reading(values, at.unix_ns, Moment::now());
        loop {
            tokio::select! {
                changed = frames.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                // An idle engine sends no frames, and its last load stays true.
                () = sleep(IDLE_EVERY), if is_idle(&values) => {
                    let now = Moment::now();
                    hub.borrow_mut().reading(values, now.unix_ns, now);
                }
            }
        }
    }
}

fn is_idle(values: &LoadValues) -> bool {
    (values.running, values.waiting) == (Some(0), Some(0))
}

async fn check_ages(hub: &RefCell<Hub>) {
    let mut every = interval(CHECK_AGE_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        hub.borrow_mut().update_age(Instant::now());
    }
}

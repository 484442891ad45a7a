//! The input of the simulated scheduler: a PULL that connects, like SGLang with the connector, or vLLM's DEALER, and
//! receives aborts.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use afterbay_types::parts;
use afterbay_wire::read_abort;
use afterbay_wire::synth::SynthWire;
use bytes::Bytes;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};
use zeromq::{DealerSocket, PullSocket, Socket, SocketRecv};

use crate::Stop;
use crate::bounds::{MAX_ABORTS, STOP_NOTICED_WITHIN};

/// The time between two attempts to connect: Afterbay may start later.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(50);

/// The received aborts. Beyond [`MAX_ABORTS`] they wait at their sender.
pub(crate) struct Aborts {
    rids: Receiver<String>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Aborts {
    /// Receives aborts from an endpoint until it is dropped. It has its own thread, because the sender's
    /// runtime must see its own tasks end.
    pub(crate) fn follow(endpoint: String, wire: SynthWire) -> io::Result<Aborts> {
        let (sender, rids) = sync_channel(MAX_ABORTS);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let stop = Stop::new();
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("sim aborts".to_owned()).spawn(move || {
            runtime.block_on(async {
                match wire {
                    SynthWire::EngineCore => follow::<DealerSocket>(&endpoint, &sender, &stopped).await,
                    _ => follow::<PullSocket>(&endpoint, &sender, &stopped).await,
                }
            });
        })?;
        Ok(Aborts { rids, stop, thread: Some(thread) })
    }

    /// The next received abort.
    pub(crate) fn next(&mut self) -> Option<String> {
        self.rids.try_recv().ok()
    }
}

async fn follow<S: Socket + SocketRecv>(endpoint: &str, sender: &SyncSender<String>, stop: &Stop) {
    while !stop.is_stopped() {
        let mut socket = S::new();
        if !matches!(timeout(STOP_NOTICED_WITHIN, socket.connect(endpoint)).await, Ok(Ok(()))) {
            sleep(BETWEEN_ATTEMPTS).await;
            continue;
        }
        while !stop.is_stopped() {
            let message = match timeout(STOP_NOTICED_WITHIN, socket.recv()).await {
                Ok(Ok(message)) => parts::join(&message.into_vec()),
                Ok(Err(_)) => break,
                Err(_) => Bytes::new(),
            };
            // An empty rid would abort all requests, which is not allowed here.
            let abort = read_abort(&message).filter(|(rid, aborts_all)| !aborts_all && !rid.is_empty());
            if let Some((rid, _)) = abort
                && sender.send(rid).is_err()
            {
                return;
            }
        }
    }
}

impl Drop for Aborts {
    fn drop(&mut self) {
        self.stop.stop();
        // A thread that is sending an abort then sees that nobody takes it.
        drop(std::mem::replace(&mut self.rids, sync_channel(0).1));
        if let Some(thread) = self.thread.take() {
            // A panic needs no handling here: its requests are not aborted, which is visible.
            let _ended = thread.join();
        }
    }
}

//! A bound socket for aborts. The scheduler's own input socket connects to it, as it does to the front end's socket: SGLang's
//! PULL to a PUSH, vLLM's DEALER to a ROUTER.
//!
//! It uses Afterbay's ZMTP over tokio: the `zeromq` crate's PUSH does not read from its schedulers. So that PUSH does not
//! notice when a scheduler disconnects, and reports a message as sent that nobody receives.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use afterbay_sockets::zmtp::{Conversation, Role, on_wire};
use afterbay_sockets::{BindError, Endpoint, Listener};
use afterbay_wire::{AbortForm, FinishReason};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::upstream::bounds::{HANDSHAKE_MAX, PEERS_MAX, QUEUE_MAX, READY_BYTES_MAX, TAKEN_MAX};
use crate::upstream::error::UpstreamError;

/// The mode of an ipc name: another user who connects would take aborts away from the scheduler.
const MODE: u32 = 0o600;
/// After its handshake a PULL sends only a PING now and then, and a DEALER of vLLM one message.
const READ_BYTES: usize = 512;

/// The socket with which a scheduler connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerSocket {
    /// A PULL.
    Pull,
    /// A DEALER. Its first message says that the engine is ready; nothing in it is needed here.
    Dealer,
}

impl SchedulerSocket {
    fn conversation(self) -> Conversation {
        match self {
            SchedulerSocket::Pull => Conversation::new(Role::Push, 0),
            SchedulerSocket::Dealer => Conversation::new(Role::Router, READY_BYTES_MAX),
        }
    }
}

/// The bound socket. Dropping it closes its connections.
#[derive(Debug)]
pub struct SocketUpstream {
    endpoint: String,
    peer: SchedulerSocket,
    schedulers: Arc<Schedulers>,
    listener: SharedListener,
    accepting: JoinHandle<()>,
}

/// The listening socket, which the accepting task keeps open.
type SharedListener = Arc<Mutex<Listener>>;

/// The connected schedulers.
#[derive(Debug, Default)]
struct Schedulers {
    ready: Mutex<ReadySchedulers>,
    connections: AtomicUsize,
}

#[derive(Debug, Default)]
struct ReadySchedulers {
    queues: BTreeMap<u64, mpsc::Sender<QueuedAbort>>,
    /// Set when the socket is dropped: a scheduler that becomes ready later is closed.
    is_closed: bool,
}

/// A message, and the channel that reports whether the kernel took it.
#[derive(Debug)]
struct QueuedAbort {
    message: Bytes,
    taken: oneshot::Sender<io::Result<()>>,
}

enum TokioListener {
    Ipc(UnixListener),
    Tcp(TcpListener),
}

impl SocketUpstream {
    /// Binds and listens. Must be called on a tokio runtime.
    pub fn bind(endpoint: &Endpoint, peer: SchedulerSocket) -> Result<SocketUpstream, BindError> {
        SocketUpstream::serve(Listener::bind(endpoint, MODE, None)?, peer)
    }

    /// Continues the listening socket of an earlier process, or binds if that socket has another endpoint. The earlier process
    /// may go on with the socket until [`SocketUpstream::claim`]. Must be called on a tokio runtime.
    pub fn adopt(
        endpoint: &Endpoint,
        peer: SchedulerSocket,
        listener: OwnedFd,
    ) -> Result<SocketUpstream, BindError> {
        if let Ok(mut listener) = Listener::adopt(listener)
            && listener.serves(endpoint, MODE)
        {
            return SocketUpstream::serve(listener, peer);
        }
        SocketUpstream::bind(endpoint, peer)
    }

    fn serve(bound: Listener, peer: SchedulerSocket) -> Result<SocketUpstream, BindError> {
        let named = bound.endpoint().clone();
        let io = |error| BindError::Io { endpoint: named.clone(), call: "listen", error };
        let fd = bound.descriptor().map_err(io)?;
        let listener = TokioListener::new(&named, fd).map_err(io)?;
        let (schedulers, bound) = (Arc::<Schedulers>::default(), Arc::new(Mutex::new(bound)));
        let accepting = tokio::spawn(accept(bound.clone(), listener, peer, schedulers.clone()));
        Ok(SocketUpstream { endpoint: named.to_string(), peer, schedulers, listener: bound, accepting })
    }

    /// From now on the socket's name is this process's, and is given back at the end.
    pub fn claim(&self) {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).claim();
    }

    /// A further descriptor of the listening socket, for a later process.
    ///
    /// # Errors
    /// There is no room for a descriptor.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).descriptor()
    }

    /// The bound endpoint, with the real port.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Asks the scheduler to end `rid`, with a message of this form. Returns when the kernel has taken the message.
    pub async fn abort(
        &self,
        rid: &str,
        reason: Option<&FinishReason>,
        form: &AbortForm,
    ) -> Result<(), UpstreamError> {
        self.send(form.encode(rid, reason)?).await
    }

    /// Sends a message to the one connected scheduler, or to each of vLLM's engines, which ignore the ids of others. Returns when
    /// the kernel has taken the message.
    async fn send(&self, message: Bytes) -> Result<(), UpstreamError> {
        let queues: Vec<_> = self.schedulers.lock().queues.values().cloned().collect();
        let (endpoint, schedulers) = (self.endpoint.clone(), queues.len());
        match (schedulers, self.peer) {
            (0, _) => return Err(UpstreamError::NotConnected { endpoint }),
            (2.., SchedulerSocket::Pull) => return Err(UpstreamError::Several { endpoint, schedulers }),
            _ => {}
        }
        for queue in queues {
            self.send_to(&queue, message.clone()).await?;
        }
        Ok(())
    }

    async fn send_to(&self, queue: &mpsc::Sender<QueuedAbort>, message: Bytes) -> Result<(), UpstreamError> {
        let endpoint = self.endpoint.clone();
        let (taken, is_taken) = oneshot::channel();
        match queue.try_send(QueuedAbort { message, taken }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Err(UpstreamError::Full { endpoint, waiting: QUEUE_MAX });
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                return Err(UpstreamError::NotConnected { endpoint });
            }
        }
        let why = match timeout(TAKEN_MAX, is_taken).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(_)) => "it went away".to_owned(),
            Err(_) => format!("not in {} s", TAKEN_MAX.as_secs()),
        };
        Err(UpstreamError::NotTaken { endpoint, why })
    }
}

impl Drop for SocketUpstream {
    fn drop(&mut self) {
        self.accepting.abort();
        let mut ready = self.schedulers.lock();
        ready.is_closed = true;
        // A connection ends with its queue.
        ready.queues.clear();
    }
}

impl Schedulers {
    fn lock(&self) -> MutexGuard<'_, ReadySchedulers> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokioListener {
    fn new(endpoint: &Endpoint, fd: OwnedFd) -> io::Result<TokioListener> {
        Ok(match endpoint {
            Endpoint::Ipc(_) => TokioListener::Ipc(UnixListener::from_std(fd.into())?),
            Endpoint::Tcp { .. } => TokioListener::Tcp(TcpListener::from_std(fd.into())?),
        })
    }
}

/// Accepts connections until the task is aborted. Dropping `_bound` gives the name back.
async fn accept(
    _bound: SharedListener,
    listener: TokioListener,
    peer: SchedulerSocket,
    schedulers: Arc<Schedulers>,
) {
    for id in 0.. {
        let accepted = match &listener {
            TokioListener::Ipc(listener) => {
                listener.accept().await.map(|(socket, _)| spawn(id, socket, peer, &schedulers))
            }
            TokioListener::Tcp(listener) => {
                listener.accept().await.map(|(socket, _)| spawn(id, socket, peer, &schedulers))
            }
        };
        if accepted.is_err() {
            // Usually there is no free descriptor. The next try may have one.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
}

fn spawn(
    id: u64,
    socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: SchedulerSocket,
    schedulers: &Arc<Schedulers>,
) {
    if schedulers.connections.fetch_add(1, Ordering::AcqRel) >= PEERS_MAX {
        schedulers.connections.fetch_sub(1, Ordering::AcqRel);
        return;
    }
    let schedulers = schedulers.clone();
    tokio::spawn(async move {
        // The peer and the reason of its end are not reported. A send without a scheduler fails and says so.
        let _ended = connection(id, socket, peer.conversation(), &schedulers).await;
        schedulers.lock().queues.remove(&id);
        schedulers.connections.fetch_sub(1, Ordering::AcqRel);
    });
}

/// Serves one scheduler, from its greeting to its end.
async fn connection(
    id: u64,
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    mut peer: Conversation,
    schedulers: &Schedulers,
) -> io::Result<()> {
    let mut bytes = [0; READ_BYTES];
    let handshake = async {
        while !peer.is_ready() {
            answer(&mut peer, &mut socket).await?;
            let read = socket.read(&mut bytes).await?;
            feed(&mut peer, &bytes[..read])?;
        }
        answer(&mut peer, &mut socket).await
    };
    timeout(HANDSHAKE_MAX, handshake).await??;
    let (queue, mut outgoing) = mpsc::channel(QUEUE_MAX);
    {
        let mut ready = schedulers.lock();
        if ready.is_closed {
            return Ok(());
        }
        ready.queues.insert(id, queue);
    }
    loop {
        tokio::select! {
            read = socket.read(&mut bytes) => {
                feed(&mut peer, &bytes[..read?])?;
                answer(&mut peer, &mut socket).await?;
            }
            next = outgoing.recv() => {
                let Some(QueuedAbort { message, taken }) = next else { return Ok(()) };
                // The sender gave up. Sent now, the abort could end a later request of the same rid.
                if taken.is_closed() {
                    continue;
                }
                let written = write(&message, &mut socket).await;
                let failed = written.is_err();
                // The send fails if the sender gave up.
                let _sent = taken.send(written);
                if failed {
                    return Ok(());
                }
            }
        }
    }
}

/// Feeds received bytes. No bytes mean that the peer closed.
fn feed(peer: &mut Conversation, mut bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    while !bytes.is_empty() {
        // A PULL sends no message, and that of a DEALER is not needed.
        let (used, _) = peer.feed(bytes).map_err(io::Error::other)?;
        bytes = &bytes[used..];
    }
    Ok(())
}

async fn answer(peer: &mut Conversation, socket: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let output = peer.output().len();
    socket.write_all(peer.output()).await?;
    peer.sent(output);
    Ok(())
}

async fn write(message: &Bytes, socket: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let (header, rest) = on_wire(message);
    socket.write_all(&[header.as_bytes(), &rest].concat()).await
}

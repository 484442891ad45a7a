//! The server half: accepts connections, and answers one request on each.

mod places;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{sleep, timeout};
use tower_service::Service;

use places::{Place, Places};

/// The pause after an accept that failed, for example without a free descriptor.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// Bytes of a request's head, and of a connection's buffer.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A listening socket.
#[derive(Debug)]
pub enum HttpListener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// The client's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientAddress {
    /// A client on TCP.
    Tcp(SocketAddr),
    /// A client on a Unix socket.
    Unix {
        /// The user that the client runs as.
        uid: u32,
    },
}

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ServerBounds {
    /// Connections of one listener at once. Further ones wait in the kernel and use no descriptor. A quarter of them is for
    /// probes: past that, other requests get 503. While all places are taken, a connection without a request is closed after
    /// 20 ms, and a probe after a second.
    pub connections: usize,
    /// Whether a request is a probe. Its answer is made at once.
    pub is_probe: fn(&Request<Incoming>) -> bool,
    /// The time until a request's head is whole. A slower connection is closed.
    pub head: Duration,
    /// The time for the whole exchange. A slower connection is closed.
    pub exchange: Duration,
    /// The time for the whole exchange, if the response has the extension [`Lasting`].
    pub lasting: Duration,
}

/// An extension of a response whose body goes on for as long as there is something to send, such as server-sent events.
#[derive(Clone, Copy, Debug)]
pub struct Lasting;

impl HttpListener {
    async fn accept(&self) -> std::io::Result<(Stream, ClientAddress)> {
        Ok(match self {
            HttpListener::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                (Box::new(stream), ClientAddress::Tcp(address))
            }
            HttpListener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred()?.uid();
                (Box::new(stream), ClientAddress::Unix { uid })
            }
        })
    }
}

/// A connection of either kind.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}
type Stream = Box<dyn Connection>;

/// Answers requests until this future is dropped. Requests received by then are still answered. `service` makes the
/// handler for a client.
pub async fn serve<S, B>(listener: HttpListener, bounds: ServerBounds, service: impl Fn(ClientAddress) -> S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Default + Send + 'static,
{
    let mut places = Places::new(bounds.connections);
    loop {
        let place = places.next().await;
        match listener.accept().await {
            Ok((stream, peer)) => {
                let stage = place.stage();
                let task = tokio::spawn(exchange(stream, bounds, service(peer), place));
                places.taken(stage, task.abort_handle());
            }
            Err(_) => sleep(ACCEPT_RETRY).await,
        }
    }
}

async fn exchange<S, B>(stream: Stream, bounds: ServerBounds, service: S, place: Place)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send,
    S::Future: Send,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Default + Send + 'static,
{
    let is_lasting = Arc::new(AtomicBool::new(false));
    let (service, answers_last) = (TowerToHyperService::new(service), is_lasting.clone());
    let service = service_fn(move |request| {
        let is_taken = place.request((bounds.is_probe)(&request));
        let (answer, is_lasting) = (is_taken.then(|| service.call(request)), answers_last.clone());
        async move {
            let Some(answer) = answer else {
                let mut refused = Response::new(B::default());
                *refused.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                return Ok(refused);
            };
            let response = answer.await?;
            is_lasting.store(response.extensions().get::<Lasting>().is_some(), Ordering::Relaxed);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_buf_size(HEAD_BYTES_MAX)
        // One exchange per connection: a client that stays connected would use up a permit.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // A client's errors concern only the client.
    let ended = timeout(bounds.exchange, connection.as_mut()).await;
    if ended.is_err() && is_lasting.load(Ordering::Relaxed) {
        let _ended = timeout(bounds.lasting.saturating_sub(bounds.exchange), connection).await;
    }
}

#[cfg(test)]
mod tests;

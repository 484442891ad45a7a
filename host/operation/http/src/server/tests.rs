//! Connections that ask nothing, and requests that take long, beside a probe.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::Empty;
use hyper::body::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const BOUNDS: ServerBounds = ServerBounds {
    connections: 4,
    is_probe: |request| request.uri().path() == "/healthz",
    head: Duration::from_secs(600),
    exchange: Duration::from_secs(600),
    lasting: Duration::from_secs(600),
};

/// Answers `/healthz`, and nothing else for ever.
#[derive(Clone)]
struct Routes;

impl Service<Request<Incoming>> for Routes {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let is_probe = (BOUNDS.is_probe)(&request);
        Box::pin(async move {
            if !is_probe {
                std::future::pending::<()>().await;
            }
            Ok(Response::new(Empty::new()))
        })
    }
}

/// Serves while the test runs. A test that hangs fails after 30 s.
fn beside_a_server<F: Future<Output = ()>>(test: impl FnOnce(SocketAddr) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(serve(HttpListener::Tcp(listener), BOUNDS, |_| Routes));
        timeout(Duration::from_secs(30), test(address)).await.unwrap();
        served.abort();
    });
}

/// Sends a request and returns the first line of its answer.
async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_probe_is_answered_while_silent_connections_that_come_back_take_every_place() {
    beside_a_server(|address| async move {
        for _ in 0..32 {
            tokio::spawn(async move {
                while let Ok(mut silent) = TcpStream::connect(address).await {
                    let _closed = silent.read(&mut [0]).await;
                }
            });
        }
        for _ in 0..3 {
            assert_eq!(get(address, "/healthz").await, "HTTP/1.1 200 OK");
        }
    });
}

#[test]
fn a_probe_is_answered_while_requests_that_take_long_have_every_place_that_they_may_have() {
    beside_a_server(|address| async move {
        let (answers, mut refused) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..4 {
            let answers = answers.clone();
            tokio::spawn(async move { answers.send(get(address, "/v1/reload").await) });
        }
        assert_eq!(refused.recv().await.unwrap(), "HTTP/1.1 503 Service Unavailable");
        assert_eq!(get(address, "/healthz").await, "HTTP/1.1 200 OK");
        assert!(refused.try_recv().is_err(), "three requests wait on");
    });
}

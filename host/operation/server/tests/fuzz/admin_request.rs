//! The entry for fuzzers: any request to an admin address is answered or refused as the rules of the address say.

use super::access::{Access, TokenFile};
use super::{AdminState, Gate, routes};
use crate::aborts::Aborts;
use crate::attributes::Attributes;
use crate::erasures::Erasures;
use crate::follower::FollowerProcess;
use crate::leases::Leases;
use crate::plugins::Plugins;
use crate::reload_queue::ReloadQueue;
use crate::requests::Requests;
use crate::signals::Signals;
use crate::sinks::Sinks;
use crate::status::{Status, StatusSource};
use crate::upgrade::Upgrades;
use afterbay_config::AdminAddress;
use afterbay_events::{Events, Health, Metrics};
use afterbay_http::ClientAddress;
use afterbay_journal::{JournalDirectory, JournalOptions, Outcome, Passage, SyncPolicy};
use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use axum::response::Response;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tower_service::Service;

/// The longest time of one input. It only catches an input that is never answered.
const INPUT_TIME_MAX: Duration = Duration::from_secs(60);
/// Bytes of an answer's body.
const BODY_BYTES_MAX: usize = 16 << 20;
const TOKEN: &str = "s3cret";
/// A rid in the journal.
const RID: &str = "private-rid";
/// The addresses that a request may arrive on. A letter chooses one, and whether there is a token.
const ADDRESSES: [&str; 3] = ["127.0.0.1:9464", "unix:/run/afterbay.sock", "0.0.0.0:9464"];

thread_local! {
    static PROCESS: Process = Process::new();
}

/// The parts of a process that all inputs share.
struct Process {
    runtime: tokio::runtime::Runtime,
    requests: Requests,
    directory: Arc<JournalDirectory>,
    token_file: PathBuf,
    _dir: tempfile::TempDir,
}

impl Process {
    fn new() -> Process {
        let dir = tempfile::Builder::new().prefix("ab-fuzz-").tempdir_in("/dev/shm").expect("a directory");
        let token_file = dir.path().join("token");
        std::fs::write(&token_file, TOKEN).expect("a file");
        let journal = dir.path().join("journal");
        // The journal preallocates a whole segment, which on tmpfs is memory.
        let options =
            JournalOptions { sync: SyncPolicy::None, segment_bytes: 64 << 10, ..JournalOptions::default() };
        let directory = Arc::new(JournalDirectory::open(&journal, options).expect("a journal"));
        let (mut writer, _) = directory.stream("s").expect("a stream");
        let frame = writer.append(b"no batch", 1).expect("a frame is stored").frame;
        let request = writer.open(RID);
        writer.outcome(&Outcome {
            requests: (&[request]).into(),
            tokens: (&[3]).into(),
            ..Outcome::new(frame, 1, Passage::Unchanged)
        });
        writer.finish().expect("it ends");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Process {
            runtime: runtime.expect("a runtime"),
            requests: Requests::new(&journal, &Arc::default()),
            directory,
            token_file,
            _dir: dir,
        }
    }

    fn state(&self) -> AdminState {
        let (events, health) = (Events::default(), Health::default());
        let metrics = Metrics::new(events.clone(), health.clone());
        let plugins = Plugins::default();
        let leases = Leases::new(&Attributes::default(), &events, &metrics);
        let telemetry = (&events, &health, &metrics);
        let source = StatusSource {
            metrics: metrics.clone(),
            health: health.clone(),
            signals: Signals::default(),
            sinks: Sinks::new(&Arc::default(), &events, &health),
            plugins: plugins.clone(),
            directory: self.directory.clone(),
            follower: FollowerProcess::new(&self.directory, Vec::new(), telemetry, &leases),
            retain_bytes: None,
        };
        AdminState {
            aborts: Aborts::new(&events, &metrics),
            attributes: Attributes::default(),
            leases,
            erasures: Erasures::new(&self.directory, &self.requests, &events),
            reloads: ReloadQueue::new().0,
            upgrades: Upgrades::new().0,
            status: Status::new(source, 64, ""),
            requests: self.requests.clone(),
            gate: Gate::default(),
            metrics,
            health,
            plugins,
        }
    }
}

/// The parts of a request that the rules are about.
struct Asked {
    address: &'static str,
    has_token: bool,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

/// Takes the first byte as the address, and the rest as a request: a line with method and path, lines with headers, an empty line,
/// and the body. Lines end with a line feed. A request that HTTP does not allow is ignored, because it reaches no route.
///
/// Asserts that the answer is no failure of the server, that a refusal names its reason, and that the address keeps its rules: who may
/// change something, and who may read the rids of requests.
///
/// # Panics
/// An assertion fails.
pub fn admin_request(bytes: &[u8]) {
    let Some((mode, text)) = bytes.split_first() else { return };
    let Some((request, asked)) = parse(*mode, text) else { return };
    PROCESS.with(|process| {
        let answer = process
            .runtime
            .block_on(async { tokio::time::timeout(INPUT_TIME_MAX, answer(process, request, &asked)).await });
        let (status, body) = answer.expect("the request is answered in time");
        check(&asked, status, &body);
    });
}

fn parse(mode: u8, text: &[u8]) -> Option<(Request<Body>, Asked)> {
    let end = text.windows(2).position(|two| two == b"\n\n");
    let (head, body) = end.map_or((text, &b""[..]), |end| (&text[..end], &text[end + 2..]));
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut words = lines.next()?.split(|byte| *byte == b' ');
    let (method, path) = (words.next()?, words.next()?);
    let mut request = Request::builder().method(method).uri(path);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        request = request.header(&line[..colon], line[colon + 1..].trim_ascii());
    }
    let request = request.body(Body::from(body.to_vec())).ok()?;
    let asked = Asked {
        address: ADDRESSES[usize::from(mode) % ADDRESSES.len()],
        has_token: mode & 0x80 != 0,
        method: request.method().clone(),
        uri: request.uri().clone(),
        headers: request.headers().clone(),
    };
    Some((request, asked))
}

/// The status and the body. Server-sent events have no end, so they count as an empty body.
async fn answer(process: &Process, request: Request<Body>, asked: &Asked) -> (StatusCode, Vec<u8>) {
    let token_file = TokenFile::default();
    token_file.set(asked.has_token.then(|| process.token_file.clone()));
    let address: AdminAddress = asked.address.parse().expect("an address");
    let peer = match &address {
        AdminAddress::Tcp(tcp) => ClientAddress::Tcp(*tcp),
        // Another user, for whom no upgrade starts a program.
        AdminAddress::Unix(_) => {
            ClientAddress::Unix { uid: rustix::process::geteuid().as_raw().wrapping_add(1).max(1) }
        }
    };
    let access = Access { address, token_file, socket: None };
    let mut routes = routes(process.state(), access).layer(Extension(peer));
    let Ok(answer): Result<Response, std::convert::Infallible> = routes.call(request).await;
    let status = answer.status();
    let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        return (status, Vec::new());
    }
    let is_json = kind == Some("application/json");
    let body = to_bytes(answer.into_body(), BODY_BYTES_MAX).await.expect("a bounded body").to_vec();
    if is_json && (status.is_client_error() || status.is_server_error()) {
        let said: serde_json::Value = serde_json::from_slice(&body).expect("a refusal is JSON");
        let is_reason = |name: &str| said[name].as_str().is_some_and(|text| !text.is_empty());
        assert!(asked.method == Method::HEAD || is_reason("code") && is_reason("error"), "{said}");
    }
    (status, body)
}

fn check(asked: &Asked, status: StatusCode, body: &[u8]) {
    assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{}", String::from_utf8_lossy(body));
    if !status.is_success() {
        return;
    }
    let Asked { address, has_token, method, uri, headers } = asked;
    let text = |name| headers.get(name).map_or("", |value| value.to_str().unwrap_or("no text"));
    let is_tcp = !address.starts_with("unix:");
    let is_known = *has_token && text(header::AUTHORIZATION) == format!("Bearer {TOKEN}");
    let (host, origin) = (text(header::HOST), text(header::ORIGIN));
    if *address == ADDRESSES[0] {
        let is_number = host.chars().all(|it| it.is_ascii_hexdigit() || "[]:.".contains(it));
        let name = host.to_ascii_lowercase();
        let is_here = name == "localhost" || name.starts_with("localhost:");
        assert!(is_here || is_number, "answered to the host {host:?}");
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        assert!(is_known || !is_tcp && !has_token, "a change without the token: {method} {uri}");
        let is_dashboard =
            origin.to_ascii_lowercase().ends_with(&format!("://{}", host.to_ascii_lowercase()));
        assert!(!headers.contains_key(header::ORIGIN) || is_known && is_dashboard, "a change by {origin:?}");
        assert_ne!(uri.path(), "/v1/upgrade", "an upgrade by another user");
    }
    if is_tcp && !is_known {
        let is_of_requests =
            ["/v1/requests", "/v1/steps"].contains(&uri.path()) || uri.path().starts_with("/v1/requests/");
        assert!(!is_of_requests, "requests without the token: {uri}");
        let shows_rid = body.windows(RID.len()).any(|part| part == RID.as_bytes());
        assert!(!shows_rid || uri.to_string().contains(RID), "a rid without the token: {uri}");
    }
}

#[cfg(test)]
mod tests;

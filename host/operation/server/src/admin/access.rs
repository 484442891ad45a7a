//! The access rules of an admin address. Every request passes [`check`] before its route.
//!
//! Everybody who reaches an address can read figures. The rids, ids and texts of requests, and each change, need the Unix
//! socket, whose mode keeps other users out, or the token of `admin.token_file`. If there is a token, a change over the Unix
//! socket needs the token, too. Of all pages in a browser, only the dashboard of the same address may change something.

use crate::attributes;
use crate::refusal::Refusal;
use afterbay_config::AdminAddress;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use subtle::ConstantTimeEq;

/// Time to receive a request's body.
const BODY_MAX: Duration = Duration::from_secs(5);
/// Most bytes of a token file.
const TOKEN_BYTES_MAX: u64 = 4096;

/// The path of the token file, which a reload may change. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenFile(Arc<Mutex<Option<PathBuf>>>);

/// The checks of one address.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) address: AdminAddress,
    pub(crate) token_file: TokenFile,
    /// The Unix socket, which takes changes without a token.
    pub(crate) socket: Option<AdminAddress>,
}

impl TokenFile {
    pub(crate) fn set(&self, file: Option<PathBuf>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }

    fn get(&self) -> Option<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads the token in a file, without white space at its ends. The error continues a sentence that begins with the file's name.
pub fn token(file: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    // Checked first, because opening a FIFO waits for a writer.
    if !std::fs::metadata(file).map_err(unreadable)?.is_file() {
        return Err("is not a file".to_owned());
    }
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    opened.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    let token = text.trim();
    if text.len() as u64 > TOKEN_BYTES_MAX {
        return Err(format!("has more than {TOKEN_BYTES_MAX} bytes"));
    }
    if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        return Err("holds no token: it must be visible ASCII characters without spaces".to_owned());
    }
    Ok(token.to_owned())
}

/// Passes an allowed request on, with its whole body.
pub(crate) async fn check(State(access): State<Access>, request: Request, next: Next) -> Response {
    if let Some(refused) = access.refuses(request.method(), request.headers()) {
        return refused.into_response();
    }
    let (head, body) = request.into_parts();
    let max = attributes::BODY_BYTES_MAX;
    match tokio::time::timeout(BODY_MAX, to_bytes(body, max)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(head, Body::from(body))).await,
        Ok(Err(error)) => {
            let why = format!("the body: {error}, at most {max} bytes are taken");
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body", why).into_response()
        }
        Err(_) => {
            let why = format!("the body is not whole after {} s", BODY_MAX.as_secs());
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "slow", why).into_response()
        }
    }
}

/// Passes a request for the contents of requests on if its sender may read them.
pub(crate) async fn check_contents(State(access): State<Access>, request: Request, next: Next) -> Response {
    match access.refuses_contents(request.headers()) {
        Some(refused) => refused.into_response(),
        None => next.run(request).await,
    }
}

/// Whether the answer may have contents of requests.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    /// The reason why the sender may not read them.
    pub(crate) refused: Option<String>,
}

/// Passes a request on with [`Contents`], for an answer that has more than the contents of requests.
pub(crate) async fn find_contents(
    State(access): State<Access>,
    mut request: Request,
    next: Next,
) -> Response {
    let refused = access.refuses_contents(request.headers()).map(|refusal| refusal.why);
    request.extensions_mut().insert(Contents { refused });
    next.run(request).await
}

impl Access {
    /// Refuses to show the contents of requests over TCP without the token: the journal's files are its user's alone.
    fn refuses_contents(&self, headers: &HeaderMap) -> Option<Refusal> {
        match &self.address {
            AdminAddress::Unix(_) => None,
            AdminAddress::Tcp(_) => self.refuses_tcp(headers, "shows requests only with a token"),
        }
    }

    fn refuses(&self, method: &Method, headers: &HeaderMap) -> Option<Refusal> {
        if let AdminAddress::Tcp(address) = &self.address
            && address.ip().is_loopback()
            && !names_this_host(headers.get(header::HOST))
        {
            // A name of a page's own site may lead here: the browser then lets the page read the answer.
            let why = format!(
                "the Host header is {:?}, must be localhost or a loopback address",
                headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
            );
            return Some(Refusal::forbidden("host", why));
        }
        if matches!(*method, Method::GET | Method::HEAD) {
            return None;
        }
        // A browser says where a page is from. The dashboard may ask with the token; another site's page may not.
        if let Some(origin) = headers.get(header::ORIGIN) {
            let is_dashboard = is_of_host(origin, headers.get(header::HOST));
            let is_socket = matches!(self.address, AdminAddress::Unix(_));
            if !is_dashboard || (is_socket && self.token_file.get().is_none()) {
                let why = "a page in a browser may not ask for this, except the dashboard of this address with a token";
                return Some(Refusal::forbidden("origin", why));
            }
        }
        match (self.token_file.get(), &self.address) {
            (None, AdminAddress::Unix(_)) => None,
            (Some(file), AdminAddress::Unix(_)) => refuses_token(&file, headers.get(header::AUTHORIZATION)),
            (_, AdminAddress::Tcp(_)) => self.refuses_tcp(headers, "is read-only without a token"),
        }
    }

    /// Refuses a call over TCP without the token. `rule` continues a sentence that begins with the address.
    fn refuses_tcp(&self, headers: &HeaderMap, rule: &str) -> Option<Refusal> {
        if let Some(file) = self.token_file.get() {
            return refuses_token(&file, headers.get(header::AUTHORIZATION));
        }
        let socket = self.socket.as_ref().map(|socket| format!("ask over {socket}, or ")).unwrap_or_default();
        let why = format!("{} {rule}: {socket}set token_file = \"FILE\" under [admin]", self.address);
        Some(Refusal::forbidden("read_only", why))
    }
}

fn refuses_token(file: &Path, given: Option<&HeaderValue>) -> Option<Refusal> {
    let token = match token(file) {
        Ok(token) => token,
        Err(why) => {
            let why = format!("admin.token_file: {} {why}", file.display());
            return Some(Refusal::unavailable("token_file", why));
        }
    };
    let given = given.and_then(|given| given.as_bytes().strip_prefix(b"Bearer "));
    if given.is_some_and(|given| given.ct_eq(token.as_bytes()).into()) {
        return None;
    }
    let why = match given {
        None => "this call needs the token of admin.token_file: Authorization: Bearer TOKEN",
        Some(_) => "the token is not that of admin.token_file",
    };
    Some(Refusal::new(StatusCode::UNAUTHORIZED, "token", why))
}

/// Whether an Origin header names the host and the port of the Host header.
fn is_of_host(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let (Ok(origin), Some(Ok(host))) = (origin.to_str(), host.map(|host| host.to_str())) else {
        return false;
    };
    let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    site.is_some_and(|site| site.eq_ignore_ascii_case(host))
}

/// Whether a Host header is `localhost` or a loopback address, with or without a port.
fn names_this_host(host: Option<&HeaderValue>) -> bool {
    let Some(host) = host.and_then(|host| host.to_str().ok()) else { return false };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => name,
        _ => host,
    };
    let inside = name.strip_prefix('[').and_then(|inside| inside.strip_suffix(']')).unwrap_or(name);
    inside.eq_ignore_ascii_case("localhost")
        || inside.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(address: &str) -> Access {
        let socket = Some(AdminAddress::Unix("/run/a.sock".into()));
        Access { address: address.parse().unwrap(), token_file: TokenFile::default(), socket }
    }

    fn headers(each: &[(header::HeaderName, &str)]) -> HeaderMap {
        each.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn status(refused: Option<Refusal>) -> u16 {
        refused.map_or(200, |refused| refused.status.as_u16())
    }

    #[test]
    fn a_loopback_address_answers_only_to_names_of_this_host() {
        for (host, is_good) in [
            ("localhost", true),
            ("LocalHost:9464", true),
            ("127.0.0.1:9464", true),
            ("127.8.8.8", true),
            ("[::1]:9464", true),
            ("[::1]", true),
            ("", false),
            ("evil.test", false),
            ("localhost.evil.test:9464", false),
            ("127.0.0.1.evil.test", false),
            ("192.168.1.1:9464", false),
            ("127.0.0.1:9464:9464", false),
        ] {
            let refused = access("127.0.0.1:9464").refuses(&Method::GET, &headers(&[(header::HOST, host)]));
            assert_eq!(status(refused), if is_good { 200 } else { 403 }, "{host:?}");
        }
        assert_eq!(status(access("127.0.0.1:9464").refuses(&Method::GET, &HeaderMap::new())), 403);
        // Other hosts reach this address by other names.
        let named = headers(&[(header::HOST, "afterbay-0.afterbay.svc:9464")]);
        assert_eq!(status(access("0.0.0.0:9464").refuses(&Method::GET, &named)), 200);
        assert_eq!(status(access("unix:/run/a.sock").refuses(&Method::GET, &HeaderMap::new())), 200);
    }

    #[test]
    fn without_a_token_only_the_unix_socket_takes_changes() {
        let here = headers(&[(header::HOST, "localhost")]);
        assert_eq!(status(access("unix:/run/a.sock").refuses(&Method::POST, &here)), 200);
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            assert_eq!(status(access("127.0.0.1:9464").refuses(&method, &here)), 403, "{method}");
            assert_eq!(status(access("0.0.0.0:9464").refuses(&method, &here)), 403, "{method}");
        }
    }

    #[test]
    fn over_tcp_the_contents_of_requests_need_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "s3cret").unwrap();
        let reads = |address: &str, has_file: bool, authorization: &str| {
            let access = access(address);
            access.token_file.set(has_file.then(|| file.clone()));
            status(access.refuses_contents(&headers(&[(header::AUTHORIZATION, authorization)])))
        };
        for address in ["127.0.0.1:9464", "0.0.0.0:9464"] {
            assert_eq!(reads(address, false, "Bearer s3cret"), 403, "{address}");
            assert_eq!(reads(address, true, ""), 401, "{address}");
            assert_eq!(reads(address, true, "Bearer wrong"), 401, "{address}");
            assert_eq!(reads(address, true, "Bearer s3cret"), 200, "{address}");
        }
        assert_eq!([reads("unix:/run/a.sock", false, ""), reads("unix:/run/a.sock", true, "")], [200, 200]);
    }

    #[test]
    fn only_the_page_of_this_address_may_ask_and_only_with_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "s3cret").unwrap();
        let asks = |address: &str, host: &str, origin: &str, has_file: bool| {
            let access = access(address);
            access.token_file.set(has_file.then(|| file.clone()));
            let sent =
                [(header::HOST, host), (header::ORIGIN, origin), (header::AUTHORIZATION, "Bearer s3cret")];
            status(access.refuses(&Method::POST, &headers(&sent)))
        };
        assert_eq!(asks("127.0.0.1:9464", "localhost:9464", "http://localhost:9464", true), 200);
        assert_eq!(asks("0.0.0.0:9464", "ops.test", "https://ops.test", true), 200);
        assert_eq!(asks("unix:/run/a.sock", "ops.test", "https://ops.test", true), 200);
        for origin in [
            "http://evil.test",
            "http://localhost",
            "http://localhost:9465",
            "null",
            "",
            "file://",
            "http://localhost:9464.evil.test",
            "http://localhost:9464/",
        ] {
            assert_eq!(asks("127.0.0.1:9464", "localhost:9464", origin, true), 403, "{origin:?}");
        }
        // A name of another site may lead to a proxy of the socket.
        assert_eq!(asks("unix:/run/a.sock", "evil.test", "http://evil.test", false), 403);
        assert_eq!(asks("127.0.0.1:9464", "localhost:9464", "http://localhost:9464", false), 403);
    }

    #[test]
    fn with_a_token_every_address_asks_for_it_and_a_rotated_one_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "s3cret\n").unwrap();
        for address in ["unix:/run/a.sock", "127.0.0.1:9464", "0.0.0.0:9464"] {
            let access = access(address);
            access.token_file.set(Some(file.clone()));
            let asks = |authorization: Option<&str>| {
                let mut headers = headers(&[(header::HOST, "localhost")]);
                if let Some(text) = authorization {
                    headers.insert(header::AUTHORIZATION, text.parse().unwrap());
                }
                status(access.refuses(&Method::POST, &headers))
            };
            std::fs::write(&file, "s3cret\n").unwrap();
            assert_eq!(asks(None), 401);
            for wrong in ["Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret"] {
                assert_eq!(asks(Some(wrong)), 401, "{wrong}");
            }
            assert_eq!(asks(Some("Bearer s3cret")), 200);
            std::fs::write(&file, "another").unwrap();
            assert_eq!((asks(Some("Bearer s3cret")), asks(Some("Bearer another"))), (401, 200));
            std::fs::remove_file(&file).unwrap();
            assert_eq!(asks(Some("Bearer another")), 503, "an unreadable token lets nobody in");
        }
    }

    #[test]
    fn a_token_file_holds_one_token_of_bounded_size() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let of = |text: &str| {
            std::fs::write(&file, text).unwrap();
            token(&file)
        };
        assert_eq!(of(" abc \n"), Ok("abc".to_owned()));
        for bad in ["", " \n", "two words", "naïve"] {
            assert!(of(bad).unwrap_err().contains("holds no token"), "{bad:?}");
        }
        assert!(of(&"a".repeat(4096)).is_ok());
        assert!(of(&"a".repeat(4097)).unwrap_err().contains("4096"));
        assert_eq!(token(dir.path()).unwrap_err(), "is not a file");
    }
}

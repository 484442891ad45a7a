//! An HTTP client of the admin addresses, and the values of `/metrics`.

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::PATIENCE;
use crate::sandbox::{SINK, STREAM};

/// The header that a request with a body needs.
pub const JSON: &str = "Content-Type: application/json";

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// A page of `/metrics`.
#[derive(Clone, Debug)]
pub struct Metrics(String);

/// An admin address. `Display` writes it in the form of `--admin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Sends a GET.
pub fn get(address: &Address, path: &str) -> Answer {
    ask(address, &format!("GET {path}"), &[], "")
}

/// Sends a request: `line` is a method and a path, and each header is one line.
pub fn ask(address: &Address, line: &str, headers: &[&str], body: &str) -> Answer {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let host = match headers.contains("Host: ") {
        true => "",
        false => "Host: localhost\r\n",
    };
    let length = body.len();
    let head = format!("{line} HTTP/1.1\r\n{host}Connection: close\r\n{headers}Content-Length: {length}");
    let text = match address {
        Address::Tcp(address) => {
            let socket = TcpStream::connect(address).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            exchange(socket, &head, body)
        }
        Address::Unix(path) => {
            let socket = UnixStream::connect(path).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            exchange(socket, &head, body)
        }
    };
    answer(line, &text)
}

fn exchange(mut socket: impl Read + Write, head: &str, body: &str) -> String {
    write!(socket, "{head}\r\n\r\n{body}").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

/// The admin address that a line of the log names.
pub(crate) fn logged_address(line: &str) -> Option<Address> {
    let address = line.strip_prefix("admin: ")?;
    match address.strip_prefix("unix:") {
        Some(path) => Some(Address::Unix(Path::new(path).to_owned())),
        None => address.strip_prefix("http://")?.split(',').next()?.parse().ok().map(Address::Tcp),
    }
}

fn answer(asked: &str, text: &str) -> Answer {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{asked}: answered {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer { status: status.unwrap_or_else(|| panic!("{asked}: answered {head:?}")), body: body.to_owned() }
}

impl Metrics {
    pub(crate) fn new(text: String) -> Metrics {
        Metrics(text)
    }

    /// A value of the stream. `name` lacks `afterbay_` and has the `_total` of a counter.
    #[track_caller]
    pub fn stream(&self, name: &str) -> u64 {
        self.find(&format!("afterbay_{name}{{stream={STREAM:?}}}"))
    }

    /// The number of the stream's requests that have ended, by any cause.
    pub fn requests_ended(&self) -> u64 {
        let series = format!("afterbay_requests_ended_total{{stream={STREAM:?},");
        let of_stream = self.0.lines().filter(|line| line.starts_with(&series));
        of_stream.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// A value of the process, which has no labels.
    #[track_caller]
    pub fn process(&self, name: &str) -> u64 {
        let series = format!("afterbay_{name}");
        // The process that follows the journal says how it is a moment after its start.
        let is_of_follower =
            ["archive_", "replicate_", "traces_", "usage_"].iter().any(|it| name.starts_with(it));
        if is_of_follower && !self.0.contains(&format!("\n{series}")) { 0 } else { self.find(&series) }
    }

    /// A value of a consumer of the journal.
    #[track_caller]
    pub fn follower(&self, follower: &str, name: &str) -> u64 {
        let series = format!("afterbay_follower_{name}{{follower={follower:?}}}");
        if self.0.contains(&format!("\n{series}")) { self.find(&series) } else { 0 }
    }

    /// A value of another stream.
    #[track_caller]
    pub fn stream_named(&self, stream: &str, name: &str) -> u64 {
        self.find(&format!("afterbay_{name}{{stream={stream:?}}}"))
    }

    /// A value of the stream with one more label.
    #[track_caller]
    pub fn stream_by(&self, name: &str, label: &str, value: &str) -> u64 {
        self.find(&format!("afterbay_{name}{{stream={STREAM:?},{label}={value:?}}}"))
    }

    /// A value of the stream's first sink. `name` lacks `afterbay_sink_`.
    #[track_caller]
    pub fn sink(&self, name: &str) -> u64 {
        self.find(&format!("afterbay_sink_{name}{{stream={STREAM:?},sink={SINK:?}}}"))
    }

    /// A value of the stream's first sink with one more label.
    #[track_caller]
    pub fn sink_by(&self, name: &str, label: &str, value: &str) -> u64 {
        self.find(&format!("afterbay_sink_{name}{{stream={STREAM:?},sink={SINK:?},{label}={value:?}}}"))
    }

    /// A value of another sink of the stream.
    #[track_caller]
    pub fn sink_named(&self, sink: &str, name: &str) -> u64 {
        self.find(&format!("afterbay_sink_{name}{{stream={STREAM:?},sink={sink:?}}}"))
    }

    /// A value of the tap.
    #[track_caller]
    pub fn tap(&self, name: &str) -> u64 {
        self.find(&format!("afterbay_tap_{name}"))
    }

    /// A value of a plugin. `name` lacks `afterbay_plugin_`.
    #[track_caller]
    pub fn plugin(&self, plugin: &str, name: &str) -> u64 {
        self.find(&format!("afterbay_plugin_{name}{{stream={STREAM:?},plugin={plugin:?}}}"))
    }

    /// A value of a plugin with one more label.
    #[track_caller]
    pub fn plugin_by(&self, plugin: &str, name: &str, label: &str, value: &str) -> u64 {
        let labels = format!("stream={STREAM:?},plugin={plugin:?},{label}={value:?}");
        self.find(&format!("afterbay_plugin_{name}{{{labels}}}"))
    }

    /// The number of barriers of a kind.
    #[track_caller]
    pub fn barriers(&self, kind: &str) -> u64 {
        self.find(&format!("afterbay_barriers_total{{stream={STREAM:?},kind={kind:?}}}"))
    }

    /// The number of times that an event was published.
    #[track_caller]
    pub fn events(&self, event: &str) -> u64 {
        self.find(&format!("afterbay_events_total{{event={event:?}}}"))
    }

    #[track_caller]
    fn find(&self, series: &str) -> u64 {
        let found = self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        let value = found.unwrap_or_else(|| panic!("no series {series} in\n{}", self.0));
        value.trim().parse::<f64>().unwrap_or_else(|_| panic!("{series} is {value:?}")) as u64
    }
}

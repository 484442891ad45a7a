//! Endpoints as an operator writes them, in ZeroMQ's notation. Nothing is resolved, bound or connected here.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::bounds::IPC_PATH_BYTES_MAX;

/// Where a socket is bound or connected. `Display` writes it as ZeroMQ does, and [`FromStr`] reads that again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `ipc:///run/afterbay/decode-0`: an absolute path of at most 107 bytes.
    Ipc(PathBuf),
    /// `tcp://127.0.0.1:5557`, `tcp://[::1]:5557`, `tcp://*:5557` (every address, only to listen on).
    Tcp {
        /// A host name, an address, or `*`; an IPv6 address without its brackets.
        host: String,
        /// 0 listens on a free port.
        port: u16,
    },
}

impl Endpoint {
    /// True where nothing can be reached by connecting: every address, or no port.
    pub(crate) fn is_listen_only(&self) -> bool {
        matches!(self, Endpoint::Tcp { host, port } if *port == 0 || is_every_address(host))
    }

    /// True where connecting to this ends at `listen`, as far as the text says.
    pub(crate) fn reaches(&self, listen: &Endpoint) -> bool {
        match (self, listen) {
            (Endpoint::Tcp { host, port }, Endpoint::Tcp { host: every, port: listen_port }) => {
                port == listen_port && (host == every || is_every_address(every) && is_this_host(host))
            }
            (connect, listen) => connect == listen,
        }
    }

    /// True where both cannot be bound at once.
    pub(crate) fn collides(&self, other: &Endpoint) -> bool {
        match (self, other) {
            (Endpoint::Ipc(a), Endpoint::Ipc(b)) => a == b,
            (Endpoint::Tcp { host: a, port: p }, Endpoint::Tcp { host: b, port: q }) => {
                p == q && *p != 0 && (a == b || is_every_address(a) || is_every_address(b))
            }
            _ => false,
        }
    }
}

fn is_every_address(host: &str) -> bool {
    matches!(host, "*" | "0.0.0.0" | "::")
}

fn is_this_host(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Why a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Neither of the two transports.
    #[error("endpoint {0:?} has no known transport, must begin with ipc:/// or tcp://")]
    Transport(String),
    /// A relative path means another file in every directory a process is started in; `@` names are Linux's abstract ones.
    #[error("endpoint {0:?} has no absolute path, must be like ipc:///run/afterbay/decode-0")]
    Relative(String),
    /// Too long for a socket's name, or with a zero in it.
    #[error("ipc path {path:?} has {bytes} bytes, the most is {IPC_PATH_BYTES_MAX}")]
    Long {
        /// The path.
        path: String,
        /// Its length.
        bytes: usize,
    },
    /// Not `HOST:PORT`.
    #[error("endpoint {0:?} has no host and port, must be like tcp://127.0.0.1:5557")]
    HostPort(String),
    /// Past 65535, or not a number.
    #[error("port {0:?} must be 0 to 65535")]
    Port(String),
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        if let Some(path) = text.strip_prefix("ipc://") {
            return ipc(text, path);
        }
        let Some(address) = text.strip_prefix("tcp://") else {
            return Err(EndpointError::Transport(text.to_owned()));
        };
        let host_port = || EndpointError::HostPort(text.to_owned());
        let (host, port) = address.rsplit_once(':').ok_or_else(host_port)?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').filter(|h| h.parse::<std::net::Ipv6Addr>().is_ok()),
            None => Some(host).filter(|h| !h.contains([':', ']', '/', ' '])),
        };
        let host = host.filter(|h| !h.is_empty()).ok_or_else(host_port)?.to_owned();
        let digits = Some(port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        let port =
            digits.and_then(|port| port.parse().ok()).ok_or_else(|| EndpointError::Port(port.to_owned()))?;
        Ok(Endpoint::Tcp { host, port })
    }
}

fn ipc(text: &str, path: &str) -> Result<Endpoint, EndpointError> {
    if !path.starts_with('/') || path.ends_with('/') {
        return Err(EndpointError::Relative(text.to_owned()));
    }
    if path.len() > IPC_PATH_BYTES_MAX || path.contains('\0') {
        return Err(EndpointError::Long { path: path.to_owned(), bytes: path.len() });
    }
    Ok(Endpoint::Ipc(PathBuf::from(path)))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Ipc(path) => write!(f, "ipc://{}", path.display()),
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn an_endpoint_is_shown_as_it_was_written() {
        for text in
            ["ipc:///run/a", "tcp://127.0.0.1:5557", "tcp://[::1]:1", "tcp://reader.local:65535", "tcp://*:0"]
        {
            assert_eq!(endpoint(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for text in [
            "",
            "ipc://",
            "ipc://a",
            "ipc://@a",
            "ipc:///a/",
            "tcp://",
            "tcp://a",
            "tcp://:1",
            "tcp://a:",
            "tcp://a:+1",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
        for text in ["tcp://[a]:1", "tcp://[::1:1", "tcp://::1:1", "udp://a:1", "/run/a", "ipc:///a\0b"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_ipc_path_has_at_most_107_bytes() {
        let path = |bytes: usize| format!("ipc:///{}", "a".repeat(bytes - 1)).parse::<Endpoint>();
        assert!(path(107).is_ok());
        assert!(matches!(path(108), Err(EndpointError::Long { bytes: 108, .. })));
    }

    #[test]
    fn every_address_collides_with_each_on_its_port_but_not_without_a_port() {
        let collide = |a, b| endpoint(a).collides(&endpoint(b)) && endpoint(b).collides(&endpoint(a));
        assert!(collide("tcp://*:1", "tcp://127.0.0.1:1"));
        assert!(collide("tcp://a:1", "tcp://a:1"));
        assert!(!collide("tcp://a:1", "tcp://b:1"));
        assert!(!collide("tcp://*:1", "tcp://*:2"));
        assert!(!collide("tcp://*:0", "tcp://*:0"));
        assert!(!collide("ipc:///a", "ipc:///b"));
    }

    #[test]
    fn another_hosts_port_is_not_ones_own_listen() {
        let reaches = |connect, listen| endpoint(connect).reaches(&endpoint(listen));
        assert!(reaches("tcp://localhost:1", "tcp://*:1"));
        assert!(!reaches("tcp://reader:1", "tcp://*:1"));
    }
}

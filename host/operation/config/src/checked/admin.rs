//! The addresses on which a running Afterbay answers, and the token that changes need.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use afterbay_types::IPC_PATH_BYTES_MAX;

/// The beginning of a Unix socket's address.
const UNIX: &str = "unix:";
/// The file name of the default Unix socket, in the journal's directory. No stream can have this name, because it has
/// capital letters.
const SOCKET: &str = "ADMIN.sock";

/// The admin addresses: `/metrics`, `/healthz`, `/readyz`, `/v1/…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// The addresses on which Afterbay listens. Empty for `"none"`; otherwise exactly one of them is a Unix socket.
    pub listen: Vec<AdminAddress>,
    /// A file with the bearer token that every change needs. Without a token file, changes are accepted on the Unix socket
    /// only.
    pub token_file: Option<PathBuf>,
}

/// An admin address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// `ADDRESS:PORT`.
    Tcp(SocketAddr),
    /// `unix:/PATH`, a socket with mode 0600.
    Unix(PathBuf),
}

impl Admin {
    /// The defaults: a TCP address on this host, and a Unix socket in the journal's directory.
    pub(crate) fn in_dir(journal: &Path) -> Admin {
        Admin {
            listen: vec![AdminAddress::default_tcp(), AdminAddress::of_journal(journal)],
            token_file: None,
        }
    }

    /// The path of the Unix socket. `None` if Afterbay listens nowhere.
    pub fn unix_socket(&self) -> Option<&Path> {
        self.listen.iter().find_map(|address| match address {
            AdminAddress::Unix(path) => Some(path.as_path()),
            AdminAddress::Tcp(_) => None,
        })
    }
}

impl AdminAddress {
    /// The default Unix socket of the Afterbay that has its journal in `dir`.
    pub fn of_journal(dir: &Path) -> AdminAddress {
        AdminAddress::Unix(dir.join(SOCKET))
    }

    /// The default TCP address.
    pub(crate) fn default_tcp() -> AdminAddress {
        AdminAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 9464)))
    }
}

impl std::str::FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<AdminAddress, String> {
        let Some(path) = text.strip_prefix(UNIX) else {
            let address = text.replacen("localhost:", "127.0.0.1:", 1).parse();
            let like = "must be ADDRESS:PORT, like \"127.0.0.1:9464\", or \"unix:/PATH\"";
            return address.map(AdminAddress::Tcp).map_err(|_| format!("{text:?} {like}"));
        };
        if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
            return Err(format!(
                "{text:?} has no absolute path, must be like \"unix:/run/afterbay/admin.sock\""
            ));
        }
        if path.len() > IPC_PATH_BYTES_MAX {
            let bytes = path.len();
            return Err(format!("{text:?} has a path of {bytes} bytes, the limit is {IPC_PATH_BYTES_MAX}"));
        }
        Ok(AdminAddress::Unix(PathBuf::from(path)))
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminAddress::Tcp(address) => write!(f, "{address}"),
            AdminAddress::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

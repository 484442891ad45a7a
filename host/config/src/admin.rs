//! Checks `[admin]`: the addresses on which a running Afterbay answers, and the token that changes need.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use afterbay_types::IPC_PATH_BYTES_MAX;

use crate::bounds::ADMIN_LISTEN_MAX;
use crate::check::{Check, value};
use crate::location::{Located, Location};
use crate::{disk, written};

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
        Admin { listen: vec![default_tcp(), AdminAddress::of_journal(journal)], token_file: None }
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
}

fn default_tcp() -> AdminAddress {
    AdminAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 9464)))
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

impl Check<'_> {
    /// Returns `None` where `journal` is `None`: the default socket's directory and the key that names it.
    pub(crate) fn admin(
        &self,
        written: &written::Admin,
        journal: Option<(&Path, &Location)>,
    ) -> Option<Admin> {
        let token_file = self.path(&written.token_file);
        let listen = match &written.listen[..] {
            [] => vec![default_tcp()],
            [Located { value, .. }] if value == "none" => {
                return Some(Admin { listen: Vec::new(), token_file });
            }
            addresses => self.addresses(addresses, value(&written.allow_remote) == Some(true)),
        };
        let (dir, location) = journal?;
        let mut admin = Admin { listen, token_file };
        if admin.unix_socket().is_none() {
            let socket = AdminAddress::of_journal(dir);
            // The default path has the bound of a configured one.
            if let Err(why) = socket.to_string().parse::<AdminAddress>() {
                self.source.report(location, format!("{why}: set a shorter unix: path in admin.listen"));
            }
            admin.listen.push(socket);
        }
        Some(admin)
    }

    fn addresses(&self, written: &[Located<String>], allow_remote: bool) -> Vec<AdminAddress> {
        self.most(written.len(), ADMIN_LISTEN_MAX, "addresses", written.last().map(|last| &last.location));
        let mut addresses: Vec<AdminAddress> = Vec::new();
        for Located { value: text, location } in written {
            let address: AdminAddress = match text.parse() {
                Ok(address) => address,
                Err(why) => {
                    let alone = if text == "none" { ", \"none\" must be the only address" } else { "" };
                    self.source.report(location, format!("{why}{alone}"));
                    continue;
                }
            };
            let why = match &address {
                AdminAddress::Tcp(tcp) if !tcp.ip().is_loopback() && !allow_remote => {
                    Err(format!("{text:?} can be reached from other hosts: set allow_remote = true"))
                }
                AdminAddress::Tcp(_) if addresses.contains(&address) => {
                    Err(format!("{text:?} is given twice"))
                }
                AdminAddress::Unix(_)
                    if addresses.iter().any(|known| matches!(known, AdminAddress::Unix(_))) =>
                {
                    Err(format!("{text:?} is a second Unix socket, must be one"))
                }
                AdminAddress::Tcp(_) => Ok(()),
                AdminAddress::Unix(path) => path.parent().map_or(Ok(()), disk::writable_dir),
            };
            if let Err(why) = why {
                self.source.report(location, why);
            }
            addresses.push(address);
        }
        addresses
    }
}

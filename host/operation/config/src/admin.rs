//! Checks `[admin]`.

use std::path::Path;

use crate::bounds::ADMIN_LISTEN_MAX;
use crate::check::{Check, value};
use crate::checked::{Admin, AdminAddress};
use crate::location::{Located, Location};
use crate::{disk, written};

impl Check<'_> {
    /// Returns `None` where `journal` is `None`: the default socket's directory and the key that names it.
    pub(crate) fn admin(
        &self,
        written: &written::Admin,
        journal: Option<(&Path, &Location)>,
    ) -> Option<Admin> {
        let token_file = self.path(&written.token_file);
        let listen = match &written.listen[..] {
            [] => vec![AdminAddress::default_tcp()],
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

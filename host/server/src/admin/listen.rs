//! Binds and serves the admin addresses, and changes them at a reload.

use super::access::{Access, TokenFile};
use super::{AdminState, routes};
use crate::descriptors;
use afterbay_config as config;
use afterbay_config::AdminAddress;
use afterbay_http::{HttpListener, ServerBounds, serve};
use afterbay_sockets::{BindError, Endpoint};
use anyhow::{Context, anyhow, ensure};
use axum::Extension;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;

/// The mode of the Unix socket: only the user of this process may connect.
const SOCKET_MODE: u32 = 0o600;
/// Time to receive a request's head.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// Time for a whole exchange. A reload compiles plugins before its answer.
const EXCHANGE_MAX: Duration = Duration::from_secs(150);

/// The served addresses. Dropping it closes them; requests that were received are still answered.
#[derive(Default)]
pub(crate) struct Admin {
    served: Vec<Served>,
    token_file: TokenFile,
}

struct Served {
    address: AdminAddress,
    accepting: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// An address that is bound and not yet served.
pub(crate) struct Bound {
    address: AdminAddress,
    listener: HttpListener,
    /// The name of a Unix socket, which is removed when this is dropped.
    name: Option<afterbay_sockets::Listener>,
}

impl Admin {
    /// Binds the addresses of a configuration that are not served yet.
    pub(crate) async fn bind(&self, config: &config::Admin) -> anyhow::Result<Vec<Bound>> {
        let mut bound = Vec::new();
        for address in &config.listen {
            if self.served.iter().all(|served| served.address != *address) {
                let listener = bind(address).await;
                bound.push(listener.with_context(|| format!("admin.listen: {address}"))?);
            }
        }
        Ok(bound)
    }

    /// Serves the addresses of the configuration: `bound` ones, and those that were served before. Closes the others.
    pub(crate) fn serve(
        &mut self,
        config: &config::Admin,
        state: &AdminState,
        bound: Vec<Bound>,
    ) -> anyhow::Result<()> {
        let (listen, token_file) = (config.listen.clone(), config.token_file.clone());
        let socket = config.unix_socket().map(|path| AdminAddress::Unix(path.to_owned()));
        self.token_file.set(token_file.clone());
        self.served.retain(|served| listen.contains(&served.address));
        let limit = descriptors::limit();
        for Bound { address, listener, name } in bound {
            let shown = match &listener {
                HttpListener::Tcp(tcp) if token_file.is_none() => {
                    format!("http://{}, read-only", tcp.local_addr()?)
                }
                HttpListener::Tcp(tcp) => format!("http://{}", tcp.local_addr()?),
                HttpListener::Unix(_) => address.to_string(),
            };
            tracing::info!(target: "afterbay", "admin: {shown}");
            let token_file = self.token_file.clone();
            let routes = routes(
                state.clone(),
                Access { address: address.clone(), token_file, socket: socket.clone() },
            );
            let bounds = ServerBounds {
                connections: descriptors::for_admin(limit),
                head: HEAD_MAX,
                exchange: EXCHANGE_MAX,
            };
            let accepting = tokio::spawn(async move {
                serve(listener, bounds, |peer| routes.clone().layer(Extension(peer))).await;
                drop(name);
            });
            self.served.push(Served { address, accepting });
        }
        Ok(())
    }
}

async fn bind(address: &AdminAddress) -> anyhow::Result<Bound> {
    let (listener, name) = match address {
        AdminAddress::Tcp(tcp) => (HttpListener::Tcp(TcpListener::bind(tcp).await?), None),
        AdminAddress::Unix(path) => {
            let (listener, name) = bind_socket(path)?;
            (HttpListener::Unix(listener), Some(name))
        }
    };
    Ok(Bound { address: address.clone(), listener, name })
}

/// Binds a Unix socket. Replaces a socket that nobody listens on, but no other file.
fn bind_socket(path: &Path) -> anyhow::Result<(UnixListener, afterbay_sockets::Listener)> {
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    ensure!(!is_file, "is a file, and not a socket");
    let name = afterbay_sockets::Listener::bind(&Endpoint::Ipc(path.to_owned()), SOCKET_MODE, None);
    let name = name.map_err(|error| match error {
        BindError::InUse { .. } => anyhow!("another process listens there"),
        error => error.into(),
    })?;
    let descriptor: OwnedFd = name.descriptor()?;
    let listener = UnixListener::from_std(descriptor.into())?;
    Ok((listener, name))
}

//! Binds and serves the admin addresses, and changes them at a reload.

use super::access::{Access, TokenFile};
use super::{AdminState, routes};
use crate::descriptors;
use afterbay_config as config;
use afterbay_config::AdminAddress;
use afterbay_http::{HttpListener, ServerBounds, serve};
use afterbay_sockets::{BindError, Endpoint};
use afterbay_supervision::fdstore::{FdName, FdStore, Inherited, Kept};
use anyhow::{Context, anyhow, ensure};
use axum::{Extension, Router};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::task::JoinHandle;

/// The mode of the Unix socket: only the user of this process may connect.
const SOCKET_MODE: u32 = 0o600;
/// Connections that wait in the kernel, up to its own limit. A client past them tries again only after a second.
const BACKLOG: u32 = 4096;
/// Time to receive a request's head.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// Time for a whole exchange. A reload compiles plugins before its answer.
const EXCHANGE_MAX: Duration = Duration::from_secs(150);
/// Time for server-sent events. A browser connects again by itself.
const LASTING_MAX: Duration = Duration::from_secs(3600);

/// The served addresses. Dropping it closes them; requests that were received are still answered.
#[derive(Default)]
pub(crate) struct Admin {
    served: Vec<Served>,
    token_file: TokenFile,
}

struct Served {
    address: AdminAddress,
    listener: AdminListener,
    routes: Router,
    _kept: Kept,
    /// `None` while the address is paused.
    accepting: Option<JoinHandle<()>>,
}

/// A listening socket.
struct AdminListener {
    fd: OwnedFd,
    /// The name of a Unix socket, which is removed when this is dropped.
    name: Option<afterbay_sockets::Listener>,
}

/// An address that is bound and not yet served.
pub(crate) struct Bound {
    address: AdminAddress,
    listener: AdminListener,
    kept: Kept,
}

impl Admin {
    /// Binds the addresses of a configuration that are not served yet. Continues the sockets that an earlier process left.
    pub(crate) async fn bind(
        &self,
        config: &config::Admin,
        store: &FdStore,
        inherited: &mut Inherited,
    ) -> anyhow::Result<Vec<Bound>> {
        let mut bound = Vec::new();
        for address in &config.listen {
            if self.served.iter().all(|served| served.address != *address) {
                let name = FdName::admin(&address.to_string());
                let left = inherited.take(&name).and_then(|fds| fds.into_iter().next());
                let listener = match left.and_then(|fd| AdminListener::adopt(address, fd)) {
                    Some(listener) => listener,
                    None => AdminListener::bind(address)
                        .await
                        .with_context(|| format!("admin.listen: {address}"))?,
                };
                let kept = store.keep(name, &[listener.fd.as_fd()]);
                bound.push(Bound { address: address.clone(), listener, kept });
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
        for Bound { address, mut listener, kept } in bound {
            let shown = match &listener.http()? {
                HttpListener::Tcp(tcp) if token_file.is_none() => {
                    format!("http://{}, read-only", tcp.local_addr()?)
                }
                HttpListener::Tcp(tcp) => format!("http://{}", tcp.local_addr()?),
                HttpListener::Unix(_) => address.to_string(),
            };
            tracing::info!(target: "afterbay", "admin: {shown}");
            if let Some(name) = &mut listener.name {
                name.claim();
            }
            let token_file = self.token_file.clone();
            let access = Access { address: address.clone(), token_file, socket: socket.clone() };
            let routes = routes(state.clone(), access);
            let mut served = Served { address, listener, routes, _kept: kept, accepting: None };
            served.accept()?;
            self.served.push(served);
        }
        Ok(())
    }

    /// Accepts no further connection: connections wait in the kernel, for this process or for the next one.
    pub(crate) fn pause(&mut self) {
        self.served.iter_mut().for_each(Served::stop);
    }

    /// Accepts connections again after [`Admin::pause`].
    pub(crate) fn resume(&mut self) {
        for served in &mut self.served {
            if let Err(error) = served.accept() {
                tracing::error!(target: "afterbay", "admin: {}: {error}", served.address);
            }
        }
    }
}

impl Served {
    fn accept(&mut self) -> std::io::Result<()> {
        let (listener, routes) = (self.listener.http()?, self.routes.clone());
        let bounds = ServerBounds {
            connections: descriptors::for_admin(descriptors::limit()),
            is_probe: |request| matches!(request.uri().path(), "/healthz" | "/readyz" | "/metrics"),
            head: HEAD_MAX,
            exchange: EXCHANGE_MAX,
            lasting: LASTING_MAX,
        };
        self.accepting = Some(tokio::spawn(async move {
            serve(listener, bounds, |peer| routes.clone().layer(Extension(peer))).await;
        }));
        Ok(())
    }

    fn stop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

impl AdminListener {
    async fn bind(address: &AdminAddress) -> anyhow::Result<AdminListener> {
        match address {
            AdminAddress::Tcp(tcp) => {
                let socket = if tcp.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
                socket.set_reuseaddr(true)?;
                socket.bind(*tcp)?;
                let listener = socket.listen(BACKLOG)?.into_std()?;
                Ok(AdminListener { fd: listener.into(), name: None })
            }
            AdminAddress::Unix(path) => {
                let name = bind_socket(path)?;
                Ok(AdminListener { fd: name.descriptor()?, name: Some(name) })
            }
        }
    }

    /// Continues the listening socket of an earlier process. `None` if the descriptor is no socket of this address.
    fn adopt(address: &AdminAddress, fd: OwnedFd) -> Option<AdminListener> {
        let name = afterbay_sockets::Listener::adopt(fd).ok()?;
        let fd = name.descriptor().ok()?;
        match (address, name.endpoint()) {
            (AdminAddress::Unix(path), Endpoint::Ipc(bound)) if path == bound => {
                Some(AdminListener { fd, name: Some(name) })
            }
            (AdminAddress::Tcp(tcp), Endpoint::Tcp { host, port }) => {
                let is_it = *host == tcp.ip().to_string() && (tcp.port() == 0 || tcp.port() == *port);
                is_it.then_some(AdminListener { fd, name: None })
            }
            _ => None,
        }
    }

    /// A further descriptor of the socket, on the runtime.
    fn http(&self) -> std::io::Result<HttpListener> {
        let fd = self.fd.try_clone()?;
        Ok(match self.name {
            Some(_) => HttpListener::Unix(UnixListener::from_std(fd.into())?),
            None => HttpListener::Tcp(TcpListener::from_std(fd.into())?),
        })
    }
}

/// Binds a Unix socket. Replaces a socket that nobody listens on, but no other file.
fn bind_socket(path: &Path) -> anyhow::Result<afterbay_sockets::Listener> {
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    ensure!(!is_file, "is a file, and not a socket");
    let name = afterbay_sockets::Listener::bind(&Endpoint::Ipc(path.to_owned()), SOCKET_MODE, None);
    name.map_err(|error| match error {
        BindError::InUse { .. } => anyhow!("another process listens there"),
        error => error.into(),
    })
}

//! Checks `[replicate]`.

use crate::check::Check;
use crate::checked::Replicate;
use crate::location::Located;
use crate::{bounds, scrape, written};

impl Check<'_> {
    /// Returns `None` without the table, and if its servers are missing. The problems are reported.
    pub(crate) fn replicate(&self, written: Option<&written::Replicate>) -> Option<Replicate> {
        let written = written?;
        let Located { value, location } = written.nats.as_ref()?;
        let nats = match nats_servers(value) {
            Ok(servers) => servers,
            Err(why) => {
                self.source.report(location, why);
                Vec::new()
            }
        };
        Some(Replicate { nats, credentials: self.path(&written.credentials) })
    }
}

/// The URLs of the servers of one NATS cluster in a text like `nats://a:4222,nats://b:4222`.
///
/// # Errors
/// A URL is wrong, or there are too many. The error is a sentence that shows no password.
pub fn nats_servers(text: &str) -> Result<Vec<String>, String> {
    let servers: Vec<String> = text.split(',').map(|server| server.trim().to_owned()).collect();
    if servers.len() > bounds::NATS_SERVERS_MAX {
        return Err(format!("{} servers, must be 1 to {}", servers.len(), bounds::NATS_SERVERS_MAX));
    }
    for server in &servers {
        if let Err(why) = scrape::check_nats(server) {
            let shown = scrape::shown(server);
            return Err(format!("{shown:?} {why}, must be like \"nats://127.0.0.1:4222\""));
        }
    }
    Ok(servers)
}

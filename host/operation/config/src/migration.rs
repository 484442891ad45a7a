//! Checks `[stream.migration]`.

use crate::check::{Check, value};
use crate::checked::Migration;
use crate::location::Located;
use crate::written;

impl Check<'_> {
    pub(crate) fn migration(&self, written: &written::Migration) -> Option<Migration> {
        let front_end = written.front_end.as_ref().and_then(|Located { value, location }| {
            let address = value.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
            let is_address = |address: &&str| {
                address.rsplit_once(':').is_some_and(|(host, port)| {
                    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
                    is_port && !host.is_empty() && !host.contains(['/', '@', ' ', '?'])
                })
            };
            if address.filter(is_address).is_none() {
                let why = format!("{value:?} must be http://HOST:PORT, like \"http://127.0.0.1:30000\"");
                self.source.report(location, why);
            }
            address.map(str::to_owned)
        });
        let api_key_file = self.path(&written.api_key_file);
        let resample = value(&written.resample).unwrap_or(false);
        Some(Migration { front_end: front_end?, api_key_file, resample })
    }

    /// Checks that what a migration needs is there, and that its stream is the only leg.
    pub(crate) fn migrations(&self, written: &written::Config) {
        for stream in &written.streams {
            let Some(migration) = &stream.migration else { continue };
            let report = |why: &str| self.source.report(&migration.location, why);
            if written.clients.is_none() {
                report("needs [clients]: its key_file signs what Afterbay sends to the engine");
            }
            let name = stream.name.as_ref().map(|name| &name.value);
            let is_before =
                |other: &written::Stream| other.after.iter().any(|after| Some(&after.value) == name);
            if written.streams.iter().any(is_before) || !stream.after.is_empty() {
                report("is not possible where the detokenizer's output is a stream, too");
            }
        }
    }
}

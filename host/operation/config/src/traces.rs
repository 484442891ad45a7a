//! Checks `[traces]`.

use crate::check::Check;
use crate::checked::Traces;
use crate::location::Located;
use crate::{bounds, scrape, written};

impl Check<'_> {
    /// Returns `None` without the table, and if its endpoint is missing. The problems are reported.
    pub(crate) fn traces(&self, written: Option<&written::Traces>) -> Option<Traces> {
        let written = written?;
        let Located { value: endpoint, location } = written.endpoint.as_ref()?;
        let checked = match endpoint.split_once('?') {
            Some(_) => Err("has a query"),
            None => scrape::check(endpoint),
        };
        if let Err(why) = checked {
            let shown = scrape::shown(endpoint);
            let like = "must be like \"http://127.0.0.1:4318\"";
            self.source.report(location, format!("{shown:?} {why}, {like}"));
        }
        let (least, most) = bounds::TRACES_SAMPLE;
        let sample = match &written.sample {
            Some(Located { value, location }) if !(least..=most).contains(value) => {
                self.source.report(location, format!("{value}, must be {least} to {most}"));
                most
            }
            Some(Located { value, .. }) => *value,
            None => most,
        };
        Some(Traces { endpoint: endpoint.clone(), sample })
    }
}

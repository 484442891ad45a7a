//! Checks `[stream.signals]`.

use crate::check::{Check, value};
use crate::checked::{LoadSnapshot, Signals};
use crate::location::Located;
use crate::{bounds, written};

impl Check<'_> {
    pub(crate) fn signals(&self, written: &written::Signals) -> Signals {
        let default = Signals::default();
        Signals {
            load_snapshot: self.load_snapshot(&written.load_snapshot),
            dp_rank: value(&written.dp_rank).and_then(|rank| u32::try_from(rank).ok()),
            stale_after: value(&written.stale_after).unwrap_or(default.stale_after),
        }
    }

    /// A file that does not exist yet is accepted: the scheduler may start later.
    fn load_snapshot(&self, written: &Option<Located<String>>) -> LoadSnapshot {
        let Some(Located { value, location }) = written else { return LoadSnapshot::Auto };
        match value.as_str() {
            "auto" => LoadSnapshot::Auto,
            "none" => LoadSnapshot::Off,
            path if path.contains('/') => LoadSnapshot::Path(self.dir.join(path)),
            id => {
                let most = bounds::INSTANCE_ID_BYTES_MAX;
                let is_plain = id.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
                if id.is_empty() || id.len() > most || !is_plain {
                    let ids = format!("an instance id (1 to {most} of letters, digits, . _ -)");
                    self.source.report(
                        location,
                        format!("{value:?} must be \"auto\", \"none\", a path with a /, or {ids}"),
                    );
                }
                LoadSnapshot::Instance(value.clone())
            }
        }
    }
}

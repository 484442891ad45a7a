//! Checks `[usage]`.

use crate::check::Check;
use crate::checked::{Journal, Usage};
use crate::location::Located;
use crate::{disk, written};

impl Check<'_> {
    /// Returns `None` without a journal. The problems are reported.
    pub(crate) fn usage(&self, written: Option<&written::Usage>, journal: Option<&Journal>) -> Option<Usage> {
        let journal = journal?;
        let Some(written) = written else { return Some(Usage::of_journal(&journal.dir)) };
        let Some(dir) = self.path(&written.dir) else {
            return Some(Usage { dir: Usage::dir_of(&journal.dir), kept_days: None });
        };
        if let Some(Located { location, .. }) = &written.dir {
            let is_stream = dir.parent() == Some(&*journal.dir)
                && dir.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."));
            let made = match is_stream || dir == journal.dir {
                true => Err(format!("{dir:?} is the journal's, name another directory")),
                false => disk::makeable_dir(&dir),
            };
            if let Err(message) = made {
                self.source.report(location, message);
            }
        }
        Some(Usage { dir, kept_days: None })
    }
}

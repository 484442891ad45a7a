//! Which process may take over from which: one with the same formats.

use crate::hand_over::message::{Formats, Hello};

/// The versions of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The version of Afterbay.
    pub afterbay: String,
    /// The version of each format that the process reads and writes: on disk, in memory, and in a hand-over.
    pub formats: Formats,
}

impl Versions {
    /// The reason why a process with this `hello` may not take over from the process with these versions: it could not read what
    /// this one has written.
    pub(crate) fn refuse(&self, hello: &Hello) -> Option<String> {
        let (name, ours) = self.formats.iter().find(|(name, ours)| hello.formats.get(*name) != Some(ours))?;
        let theirs = hello.formats.get(name).copied().unwrap_or(0);
        Some(format!(
            "afterbay {} cannot take over from afterbay {}: its {name} format is {theirs}, that of the running one {ours}: restart \
             instead",
            hello.afterbay, self.afterbay
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_takes_over_only_with_the_same_formats_whatever_its_version() {
        let formats = |journal| Formats::from([("journal".to_owned(), journal), ("store".to_owned(), 1)]);
        let versions = Versions { afterbay: "0.2.9".to_owned(), formats: formats(2) };
        let hello = |afterbay: &str, formats| Hello {
            afterbay: afterbay.to_owned(),
            formats,
            descriptors: 1024,
            streams: Vec::new(),
        };
        for afterbay in ["0.2.8", "0.2.9", "1.0.0-rc.1"] {
            assert_eq!(versions.refuse(&hello(afterbay, formats(2))), None, "{afterbay}");
        }
        for (other, found) in [(formats(1), 1), (formats(3), 3), (Formats::new(), 0)] {
            let why = format!(
                "afterbay 0.3.0 cannot take over from afterbay 0.2.9: its journal format is {found}, that of the running one 2: \
                 restart instead"
            );
            assert_eq!(versions.refuse(&hello("0.3.0", other)), Some(why));
        }
    }
}

//! Which process may take over from which: the protocol, the formats on disk and in memory, and the version of Afterbay.

use crate::message::{Formats, Hello};

/// The protocol that this crate speaks.
pub const PROTOCOL: u32 = 1;
/// The oldest protocol that this crate still speaks.
pub(crate) const PROTOCOL_OLDEST: u32 = 1;

/// The versions of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The version of Afterbay: three numbers with dots.
    pub afterbay: String,
    /// The version of each format that the process writes.
    pub formats: Formats,
}

impl Versions {
    /// The reason why a process with this `hello` may not take over from the process with these versions. An older Afterbay could
    /// not read what this one has written.
    pub(crate) fn refuse(&self, hello: &Hello) -> Option<String> {
        let (ours, theirs) = (&self.afterbay, &hello.afterbay);
        let pair = format!("afterbay {theirs} cannot take over from afterbay {ours}");
        if hello.protocol < PROTOCOL {
            let found = hello.protocol;
            return Some(format!("{pair}: it speaks hand-over protocol {found}, the running one {PROTOCOL}"));
        }
        if hello.protocol_oldest > PROTOCOL {
            let oldest = hello.protocol_oldest;
            return Some(format!(
                "{pair}: the oldest hand-over protocol that it speaks is {oldest}, and the running one speaks {PROTOCOL}: restart \
                 instead"
            ));
        }
        match (numbers(theirs), numbers(ours)) {
            (None, _) => return Some(format!("{pair}: {theirs:?} is no version")),
            (Some(theirs), Some(ours)) if theirs < ours => {
                return Some(format!("{pair}: it is older, and a downgrade needs a stop and a start"));
            }
            _ => {}
        }
        self.formats.iter().find_map(|(name, ours)| {
            let theirs = hello.formats.get(name).copied().unwrap_or(0);
            (theirs < *ours)
                .then(|| format!("{pair}: it reads {name} format {theirs}, the running one writes {ours}"))
        })
    }
}

/// The three numbers of a version. A suffix (`-rc.1`, `+build`) does not count.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let end = version.find(['-', '+']).unwrap_or(version.len());
    let mut numbers = version[..end].split('.').map(|number| number.parse().ok());
    let version = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(afterbay: &str, journal: u32) -> Versions {
        Versions { afterbay: afterbay.to_owned(), formats: Formats::from([("journal".to_owned(), journal)]) }
    }

    fn hello(afterbay: &str, journal: u32) -> Hello {
        let Versions { afterbay, formats } = versions(afterbay, journal);
        let (protocol, protocol_oldest) = (PROTOCOL, PROTOCOL_OLDEST);
        Hello { protocol, protocol_oldest, afterbay, formats, descriptors: 1024, streams: Vec::new() }
    }

    #[test]
    fn the_same_and_every_later_version_may_take_over() {
        for later in ["0.2.9", "0.2.9-rc.1", "0.2.10", "0.3.0", "1.0.0+build"] {
            assert_eq!(versions("0.2.9", 2).refuse(&hello(later, 2)), None, "{later}");
        }
        assert_eq!(versions("0.2.9", 2).refuse(&hello("0.2.9", 3)), None);
        let mut later = hello("1.0.0", 2);
        later.protocol = PROTOCOL + 7;
        assert_eq!(versions("0.2.9", 2).refuse(&later), None);
    }

    #[test]
    fn a_downgrade_is_refused_with_both_versions() {
        let refused = |hello: &Hello| versions("0.2.9", 2).refuse(hello).unwrap();
        assert_eq!(
            refused(&hello("0.2.8", 2)),
            "afterbay 0.2.8 cannot take over from afterbay 0.2.9: it is older, and a downgrade needs a stop and a start"
        );
        assert_eq!(
            refused(&hello("0.3.0", 1)),
            "afterbay 0.3.0 cannot take over from afterbay 0.2.9: it reads journal format 1, the running one writes 2"
        );
        assert!(
            refused(&Hello { formats: Formats::new(), ..hello("0.3.0", 2) }).contains("journal format 0")
        );
        assert!(refused(&hello("new", 2)).ends_with("\"new\" is no version"));
    }

    #[test]
    fn a_protocol_that_one_of_both_does_not_speak_is_refused() {
        let refused = |protocol, protocol_oldest| {
            let hello = Hello { protocol, protocol_oldest, ..hello("0.3.0", 2) };
            versions("0.2.9", 2).refuse(&hello).unwrap()
        };
        assert!(refused(0, 0).contains("speaks hand-over protocol 0, the running one 1"));
        assert!(
            refused(9, 2)
                .contains("oldest hand-over protocol that it speaks is 2, and the running one speaks 1")
        );
    }
}

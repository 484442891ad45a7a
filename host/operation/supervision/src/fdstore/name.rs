//! The names of kept descriptors. A name is stable over restarts: the next process finds a descriptor by it.

use std::fmt;

/// The longest [`FdName`], in bytes. The protocol allows 255; the rest is for the number of each descriptor.
pub(crate) const NAME_BYTES_MAX: usize = 240;

/// The most descriptors of one name.
pub(crate) const MEMBERS_MAX: usize = 8;

/// The name of one or more descriptors that belong together: 1 to `NAME_BYTES_MAX` bytes of printable ASCII without `:`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FdName(String);

impl FdName {
    /// A name of any allowed text.
    pub(crate) fn new(text: &str) -> Option<FdName> {
        let is_allowed = (1..=NAME_BYTES_MAX).contains(&text.len()) && text.chars().all(is_allowed);
        is_allowed.then(|| FdName(text.to_owned()))
    }

    /// The stream's listening socket.
    pub fn listener(stream: &str) -> FdName {
        FdName::encoded(format!("{}listener", FdName::of_stream(stream)))
    }

    /// A sender's connection to the stream. The `id` is unique among all connections that the stream ever accepts.
    pub fn sender(stream: &str, id: u64) -> FdName {
        FdName::encoded(format!("{}{id}", FdName::senders(stream)))
    }

    /// The stream's connection to the reader of one sink.
    pub fn sink(stream: &str, sink: &str) -> FdName {
        FdName::encoded(format!("{}sink/{sink}", FdName::of_stream(stream)))
    }

    /// The socket that the stream's scheduler connects to for aborts.
    pub fn abort(stream: &str) -> FdName {
        FdName::encoded(format!("{}abort", FdName::of_stream(stream)))
    }

    /// The listening socket of an admin address.
    pub fn admin(address: &str) -> FdName {
        FdName::encoded(format!("admin/{address}"))
    }

    /// The lock of the journal, in a hand-over.
    pub fn journal_lock() -> FdName {
        FdName::encoded("journal/lock".to_owned())
    }

    /// The beginning of every name of the stream.
    pub fn of_stream(stream: &str) -> String {
        format!("stream/{stream}/")
    }

    /// The beginning of the names of the stream's senders.
    pub fn senders(stream: &str) -> String {
        format!("{}sender/", FdName::of_stream(stream))
    }

    /// The `id` of [`FdName::sender`]. None for every other name.
    pub fn sender_id(&self) -> Option<u64> {
        let (before, id) = self.0.rsplit_once('/')?;
        before.ends_with("/sender").then_some(())?;
        id.parse().ok()
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Replaces characters that are not allowed by `%` and their bytes in hexadecimal. A text that is then too long is
    /// replaced by a hash of it.
    fn encoded(text: String) -> FdName {
        let mut name = String::with_capacity(text.len());
        for c in text.chars() {
            if is_allowed(c) && c != '%' {
                name.push(c);
            } else {
                let mut bytes = [0; 4];
                c.encode_utf8(&mut bytes).bytes().for_each(|byte| name.push_str(&format!("%{byte:02X}")));
            }
        }
        if name.len() > NAME_BYTES_MAX {
            // FNV-1a: the next process, perhaps of a later version, must come to the same name.
            let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
            name = format!("{}/%{hash:016X}", name.split('/').next().unwrap_or_default());
        }
        FdName(name)
    }

    /// The name in the supervisor's store of descriptor `index` of `count`. The supervisor keeps no order within a name.
    pub(crate) fn numbered(&self, index: usize, count: usize) -> String {
        format!("{}.{index}-{count}", self.0)
    }

    /// The words of a message that stores descriptor `index` of `count`.
    pub(crate) fn stored(&self, index: usize, count: usize) -> String {
        format!("FDSTORE=1\nFDNAME={}", self.numbered(index, count))
    }

    /// The name, the index and the count that [`FdName::numbered`] was made of.
    pub(crate) fn from_numbered(text: &str) -> Option<(FdName, usize, usize)> {
        let (name, number) = text.rsplit_once('.')?;
        let (index, count) = number.split_once('-')?;
        let (index, count) = (index.parse().ok()?, count.parse().ok()?);
        (index < count).then_some(())?;
        let name = FdName::new(name)?;
        (name.numbered(index, count) == text).then_some((name, index, count))
    }
}

impl fmt::Display for FdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_allowed(c: char) -> bool {
    (c.is_ascii_graphic() || c == ' ') && c != ':'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_240_bytes_of_printable_ascii_without_a_colon() {
        for text in ["a", "stream/decode-0/sender/7", &"a".repeat(240)] {
            assert_eq!(FdName::new(text).unwrap().as_str(), text);
        }
        for text in ["", &"a".repeat(241), "a:b", "a\n", "ä"] {
            assert_eq!(FdName::new(text), None, "{text}");
        }
    }

    #[test]
    fn every_address_has_a_name_of_its_own() {
        let long = "/run/ä".repeat(60);
        let addresses =
            ["127.0.0.1:7070", "127.0.0.1%3A7070", "[::1]:7070", "unix:/run/a.sock", &long, &long[1..]];
        let names: std::collections::BTreeSet<FdName> = addresses.into_iter().map(FdName::admin).collect();
        assert_eq!(names.len(), addresses.len());
        for name in names {
            assert_eq!(FdName::new(name.as_str()), Some(name.clone()));
        }
    }

    #[test]
    fn a_senders_name_has_its_id() {
        assert_eq!(FdName::sender("decode", 17).sender_id(), Some(17));
        assert!(FdName::sender("decode", 17).as_str().starts_with(&FdName::senders("decode")));
        assert_eq!(FdName::listener("decode").sender_id(), None);
        assert_eq!(FdName::sink("decode", "17").sender_id(), None);
    }

    #[test]
    fn the_number_of_a_descriptor_is_read_back() {
        let name = FdName::listener("a.0-2");
        assert_eq!(FdName::from_numbered(&name.numbered(1, 2)), Some((name.clone(), 1, 2)));
        for text in ["listener", "a.2-2", "a.0", "a.0-0", "a.01-2", ".0-1", "a.-1-2"] {
            assert_eq!(FdName::from_numbered(text), None, "{text}");
        }
    }
}

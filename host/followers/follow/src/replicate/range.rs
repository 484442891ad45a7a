//! A message of the copy: a range of a segment's bytes, and the position of the range in its headers.

use afterbay_journal::{SegmentId, is_instance, is_stream_name};
use async_nats::HeaderMap;
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Subjects of all messages.
pub(crate) const SUBJECTS: &str = "afterbay.>";

/// Characters of a name that stay as they are in a subject. NATS gives `.`, `*`, `>` and blanks a meaning.
const IN_SUBJECT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_');

const SEGMENT: &str = "Afterbay-Segment";
const OFFSET: &str = "Afterbay-Offset";
const BEGUN: &str = "Afterbay-Begun";
const SIZE: &str = "Afterbay-Size";
const PREVIOUS: &str = "Afterbay-Previous";
const AFTER: &str = "Afterbay-After";

/// A range of a segment's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub segment: SegmentId,
    /// Offset of the first byte in the segment.
    pub offset: u64,
    /// Time when the segment was begun, Unix nanoseconds.
    pub begun_unix_ns: u64,
    /// Size of the segment, if nothing follows this range.
    pub size: Option<u64>,
    /// Segment before this one, in the first range of a segment. `None` if the journal begins here.
    pub previous: Option<SegmentId>,
    /// Names of the streams that precede this stream, in the first range of a segment.
    pub after: Vec<String>,
    pub bytes: Bytes,
}

/// Subject of a stream's messages.
pub(crate) fn subject(instance: &str, stream: &str) -> String {
    format!("afterbay.{}.{}", token(instance), token(stream))
}

/// A name as one token of a subject.
pub(crate) fn token(name: &str) -> String {
    utf8_percent_encode(name, &IN_SUBJECT).to_string()
}

/// Instance and stream of a subject. `None` if Afterbay has no such subject: the names become the name of a directory.
pub(crate) fn parse_subject(subject: &str) -> Option<(String, String)> {
    let (instance, stream) = subject.strip_prefix("afterbay.")?.split_once('.')?;
    let decode = |token: &str| percent_decode_str(token).decode_utf8().ok().map(|text| text.into_owned());
    let instance = decode(instance).filter(|name| is_instance(name))?;
    let stream = decode(stream).filter(|name| is_stream_name(name))?;
    // One way to write a subject, so that one stream has one subject.
    (self::subject(&instance, &stream) == subject).then_some((instance, stream))
}

impl Range {
    /// End of the range in the segment.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// Identifies the message, so that NATS stores a message once that is published again within its window of duplicates. The
    /// checksum tells other bytes at the same offset apart, after a loss of power.
    fn id(&self, instance: &str, stream: &str) -> String {
        let Range { segment, offset, bytes, .. } = self;
        let checksum = crc32fast::hash(bytes);
        format!("{instance}/{stream}/{segment}/{offset}+{}/{checksum:08x}", bytes.len())
    }

    /// The message.
    pub fn to_message(&self, instance: &str, stream: &str) -> PublishMessage {
        let mut headers = HeaderMap::new();
        headers.insert(SEGMENT, self.segment.to_string());
        headers.insert(OFFSET, self.offset.to_string());
        headers.insert(BEGUN, self.begun_unix_ns.to_string());
        if let Some(size) = self.size {
            headers.insert(SIZE, size.to_string());
        }
        if let Some(previous) = self.previous {
            headers.insert(PREVIOUS, previous.to_string());
        }
        if !self.after.is_empty() {
            headers.insert(AFTER, self.after.join(" "));
        }
        let message = PublishMessage::build().headers(headers).payload(self.bytes.clone());
        message.message_id(self.id(instance, stream))
    }

    /// Reads a message. `None` if Afterbay did not write it.
    pub fn from_message(headers: &HeaderMap, bytes: Bytes) -> Option<Range> {
        let text = |name: &str| headers.get(name).map(|value| value.as_str());
        let number = |name: &str| text(name)?.parse::<u64>().ok();
        let range = Range {
            segment: SegmentId::parse(text(SEGMENT)?)?,
            offset: number(OFFSET)?,
            begun_unix_ns: number(BEGUN)?,
            size: number(SIZE),
            previous: text(PREVIOUS).and_then(SegmentId::parse),
            after: text(AFTER).unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
            bytes,
        };
        // Offsets in a segment have 32 bits.
        let most = range.offset.checked_add(range.bytes.len() as u64)?.max(range.size.unwrap_or(0));
        (most <= u64::from(u32::MAX)).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::FrameNo;

    #[test]
    fn every_name_of_a_stream_is_one_token_of_the_subject_and_comes_back() {
        for (instance, stream) in [("node-7-0a1b2c3d", "decode-0"), ("a_b", "v1.2"), ("h", "0..")] {
            let subject = subject(instance, stream);
            assert_eq!(subject.split('.').count(), 3, "{subject}");
            assert_eq!(parse_subject(&subject), Some((instance.to_owned(), stream.to_owned())));
        }
        for foreign in
            ["afterbay", "afterbay.a", "afterbay.a.b.c", "other.a.b", "afterbay.%ff.b", "afterbay..b"]
        {
            assert_eq!(parse_subject(foreign), None, "{foreign}");
        }
        for hostile in ["%2E%2E", "%2Fetc", "a%2F..%2Fb", "%00", "%41"] {
            assert_eq!(parse_subject(&format!("afterbay.a.{hostile}")), None, "{hostile}");
        }
        assert_eq!(parse_subject("afterbay.a%2Eb.c"), None);
    }

    #[test]
    fn a_range_is_read_back_from_its_message_and_a_position_past_32_bits_is_refused() {
        let segment = SegmentId { first: FrameNo(7), sequence: 3 };
        let range = Range {
            segment,
            offset: 128,
            begun_unix_ns: 5,
            size: Some(200),
            previous: Some(SegmentId::default()),
            after: vec!["decode-0".into(), "decode-1".into()],
            bytes: Bytes::from_static(b"records"),
        };
        let read = |range: &Range| {
            let message = range.to_message("i", "s").outbound_message("afterbay.i.s");
            Range::from_message(&message.headers.unwrap(), message.payload)
        };
        assert_eq!(read(&range), Some(range.clone()));
        let far = Range { offset: u64::from(u32::MAX), ..range.clone() };
        assert_eq!(read(&far), None);
        assert_eq!(read(&Range { offset: u64::MAX, ..range.clone() }), None);
        assert_eq!(Range::from_message(&HeaderMap::new(), Bytes::new()), None);
        // Other bytes at the same offset are another message.
        let other = Range { bytes: Bytes::from_static(b"RECORDS"), ..range.clone() };
        assert_ne!(other.id("i", "s"), range.id("i", "s"));
    }
}

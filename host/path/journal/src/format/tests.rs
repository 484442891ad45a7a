//! Tests of headers, records and checksums.

use super::*;
use crate::position::FrameNo;

fn header() -> SegmentHeader {
    SegmentHeader {
        salt: 0x1234_5678,
        segment: SegmentId { first: FrameNo(7), sequence: 3 },
        next_request: 11,
        begun_unix_ns: 13,
        previous_end: 17,
        previous_has_summary: true,
    }
}

#[test]
fn a_header_is_read_while_one_copy_is_valid() {
    let mut bytes = Vec::new();
    header().encode(&mut bytes);
    for byte in 0..HEADER_BYTES {
        let mut spoilt = bytes.clone();
        spoilt[byte] ^= 1;
        assert_eq!(SegmentHeader::decode(&spoilt), HeaderRead::Whole(header()));
    }
    (bytes[20], bytes[84]) = (!bytes[20], !bytes[84]);
    assert_eq!(SegmentHeader::decode(&bytes), HeaderRead::Damaged);
    assert_eq!(SegmentHeader::decode(&[]), HeaderRead::Damaged);
}

#[test]
fn a_record_is_valid_only_in_its_segment_at_its_offset() {
    let mut bytes = Vec::new();
    record(&mut bytes, RecordKind::TAKEN, 5, 6, |out| out.extend_from_slice(b"payload"));
    add_checksums(&mut bytes, 99, 1000);
    let head = bytes.first_chunk().unwrap();
    let (read, crc) = RecordHead::decode(head, 99, 1000).unwrap();
    assert_eq!(read, RecordHead { payload: 7, kind: RecordKind::TAKEN, number: 5, time: 6 });
    assert_eq!(checksum(crc, b"payload").to_le_bytes(), bytes[HEAD_BYTES + 7..]);
    assert_eq!(RecordHead::decode(head, 98, 1000), None);
    assert_eq!(RecordHead::decode(head, 99, 1001), None);
}

#[test]
fn a_frames_head_gets_its_checksum_with_the_records_before_it() {
    let mut bytes = Vec::new();
    record(&mut bytes, RecordKind::CLOSE, 1, 0, |out| out.push(1));
    let at = bytes.len();
    RecordHead { payload: 3, kind: RecordKind::FRAME, number: 2, time: 3 }.encode(&mut bytes);
    let crc = add_checksums(&mut bytes, 5, 128).unwrap();
    let (head, read) = RecordHead::decode(bytes[at..].first_chunk().unwrap(), 5, 128 + at as u64).unwrap();
    assert_eq!((head.number, read), (2, crc));
}

#[test]
fn numbers_are_widened_around_the_segments_own() {
    for around in [1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, 1 << 40] {
        for distance in [0i64, 1, 1000, -1, -1000, (1 << 31) - 1, -(1 << 31)] {
            let Some(number) = u64::checked_add_signed(around, distance) else { continue };
            assert_eq!(widen(number as u32, around), number, "{around} {distance}");
        }
    }
}

#[test]
fn a_count_larger_than_the_input_is_none() {
    assert_eq!(ByteReader(&[255, 255, 255, 255, 0]).count(1), None);
    assert_eq!(ByteReader(&[1, 0, 0, 0, 0]).count(1), Some(1));
    assert_eq!(ByteReader(&[1, 0, 0, 0, 0]).count(8), None);
    assert_eq!(ByteReader(&[9, 0, b'x']).text(), None);
}

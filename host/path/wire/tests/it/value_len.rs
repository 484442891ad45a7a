//! Measures msgpack values without the crate under test. The black-box tests use this file too.

/// The length of the msgpack value at the start of `bytes`, for the types of the samples.
pub fn value_len(bytes: &[u8]) -> usize {
    let inside = |header: usize, items: usize| (0..items).fold(header, |at, _| at + value_len(&bytes[at..]));
    match bytes[0] {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 1,
        fix @ 0x80..=0x8f => inside(1, 2 * usize::from(fix & 15)),
        fix @ 0x90..=0x9f => inside(1, usize::from(fix & 15)),
        fix @ 0xa0..=0xbf => 1 + usize::from(fix & 31),
        0xcc | 0xd0 => 2,
        0xcd | 0xd1 => 3,
        0xca | 0xce | 0xd2 => 5,
        0xcb | 0xcf | 0xd3 => 9,
        0xc4 | 0xd9 => 2 + usize::from(bytes[1]),
        0xc5 | 0xda => 3 + usize::from(u16::from_be_bytes([bytes[1], bytes[2]])),
        0xc7 => 3 + usize::from(bytes[1]),
        0xc8 => 4 + usize::from(u16::from_be_bytes([bytes[1], bytes[2]])),
        0xdc => inside(3, usize::from(u16::from_be_bytes([bytes[1], bytes[2]]))),
        other => panic!("{other:#04x} is in no sample"),
    }
}

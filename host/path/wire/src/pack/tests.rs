//! msgpack values: skipped whole, written in the shortest form, noticed when cut.

use super::*;

/// A value for each first byte, followed by nothing.
fn values() -> impl Iterator<Item = Vec<u8>> {
    (0..=255u8).filter(|&byte| byte != 0xc1).map(|byte| {
        let mut value = vec![byte];
        match byte {
            0x81..=0x8f => value.extend(vec![0xc0; 2 * usize::from(byte & 0x0f)]),
            0x91..=0x9f => value.extend(vec![0xc0; usize::from(byte & 0x0f)]),
            0xa0..=0xbf => value.extend(vec![b'x'; usize::from(byte & 0x1f)]),
            0xc4 | 0xd9 => value.extend([3, 1, 2, 3]),
            0xc5 | 0xda => value.extend([0, 3, 1, 2, 3]),
            0xc6 | 0xdb => value.extend([0, 0, 0, 3, 1, 2, 3]),
            0xc7 => value.extend([3, 9, 1, 2, 3]),
            0xc8 => value.extend([0, 3, 9, 1, 2, 3]),
            0xc9 => value.extend([0, 0, 0, 3, 9, 1, 2, 3]),
            0xcc | 0xd0 => value.push(1),
            0xcd | 0xd1 => value.extend([1; 2]),
            0xca | 0xce | 0xd2 => value.extend([1; 4]),
            0xcb | 0xcf | 0xd3 => value.extend([1; 8]),
            0xd4..=0xd8 => value.extend(vec![9; 1 + (1 << (byte - 0xd4))]),
            0xdc => value.extend([0, 2, 0xc0, 0xc0]),
            0xdd => value.extend([0, 0, 0, 2, 0xc0, 0xc0]),
            0xde => value.extend([0, 1, 0xc0, 0xc0]),
            0xdf => value.extend([0, 0, 0, 1, 0xc0, 0xc0]),
            _ => (),
        }
        value
    })
}

#[test]
fn every_type_is_skipped_whole_and_noticed_when_cut() {
    for value in values() {
        assert_eq!(skip(&value, 0), Ok(value.len()), "{value:02x?}");
        for end in 0..value.len() {
            assert!(matches!(skip(&value[..end], 0), Err(PackError::Cut { .. })), "{value:02x?} to {end}");
        }
        let longer = [&value[..], &[0xc0]].concat();
        assert_eq!(skip(&longer, 0), Ok(value.len()), "{value:02x?}");
    }
    assert_eq!(skip(&[0x92, 0xc0, 0xc1], 0), Err(PackError::Unused { at: 2 }));
}

#[test]
fn the_tables_by_first_byte_agree_with_what_is_read() {
    for value in values() {
        let width = WIDTHS[value[0] as usize] as usize;
        assert!(width == 0 || width == value.len(), "{value:02x?}");
        assert_eq!(one_byte(value[0]), value.len() == 1 && !matches!(value[0], 0x80 | 0x90));
        let types = match item(&value).unwrap() {
            PackValue::Nil => NIL,
            PackValue::Int(_) | PackValue::Big(_) => INT,
            PackValue::Str(_) => STR,
            PackValue::Ext(..) => EXT,
            PackValue::Array(..) => LIST,
            PackValue::Map(..) => MAP,
            _ => OTHER,
        };
        assert_eq!(TYPES[value[0] as usize], types, "{value:02x?}");
        if let PackValue::Str(text) = item(&value).unwrap() {
            assert_eq!(str_bytes(&value), Some(text));
        }
    }
    assert_eq!((WIDTHS[0xc1], one_byte(0xc1)), (0, false));
}

/// The start of each cell, and the end of the last one.
fn starts(bytes: &[u8], count: u32) -> Result<(Vec<usize>, bool), PackError> {
    let mut starts = Vec::new();
    let (cells, end) = cells(bytes, 0, count, &mut starts)?;
    let found: Vec<_> = (0..count).map(|row| cells.span(&starts, row, row + 1)).collect();
    assert_eq!(found.last().map_or(0, |last| last.1), end);
    assert!(found.windows(2).all(|pair| pair[0].1 == pair[1].0));
    Ok((found.into_iter().map(|(start, _)| start).collect(), matches!(cells, CellSpans::Uniform { .. })))
}

#[test]
fn cells_of_one_width_are_not_indexed_and_others_are() {
    for value in values() {
        let three = value.repeat(3);
        let container = matches!(value[0], 0x80..=0x9f | 0xdc..=0xdf);
        let long_header = matches!(value[0], 0xc6 | 0xdb | 0xc8 | 0xc9);
        let expected = vec![0, value.len(), 2 * value.len()];
        assert_eq!(starts(&three, 3), Ok((expected, !container && !long_header)), "{value:02x?}");
        for other in values().step_by(7) {
            let both = [&value[..], &other, &value].concat();
            let (found, _) = starts(&both, 3).unwrap();
            assert_eq!(found, [0, value.len(), value.len() + other.len()], "{value:02x?} {other:02x?}");
        }
    }
}

#[test]
fn cells_that_are_cut_are_noticed() {
    for value in values() {
        for others in [[&value[..]; 2], [&[0xc0][..], &[0xcc, 1]]] {
            let whole = [&others.concat()[..], &value].concat();
            for end in 0..whole.len() {
                assert!(starts(&whole[..end], 3).is_err(), "{value:02x?} to {end}");
            }
        }
    }
}

#[test]
fn equal_headers_of_extensions_have_equal_types() {
    // Both values have 17 bytes: ids, and another extension of that length.
    let ids = [&[0xc7, 14, 1, 0, 0, 0, 2, 0xa1, b'q'][..], &[0; 8]].concat();
    let mut other = ids.clone();
    other[2] = 3;
    assert!(!starts(&[&ids[..], &other].concat(), 2).unwrap().1);
    assert!(starts(&[&ids[..], &ids].concat(), 2).unwrap().1);
    assert_eq!((id_items(&ids), id_items(&other)), (Some(IdItems::I64(&[0; 8])), None));
}

#[test]
fn integers_are_written_shortest_and_read_back() {
    let edges = [7, 8, 15, 16, 31, 32, 62].map(|bits| 1i64 << bits);
    let mut ints: Vec<i64> = edges.iter().flat_map(|&edge| [edge - 1, edge, -edge, -edge - 1]).collect();
    ints.extend([0, 127, 128, -32, -33, i64::MIN, i64::MAX]);
    for value in ints {
        let mut out = Vec::new();
        write::int(&mut out, value);
        assert_eq!(int(&out), Some(value));
        assert_eq!(skip(&out, 0), Ok(out.len()));
        let shortest = match value {
            -32..=127 => 1,
            -128..=255 => 2,
            -32768..=65535 => 3,
            -2147483648..=4294967295 => 5,
            _ => 9,
        };
        assert_eq!(out.len(), shortest, "{value}");
    }
    assert_eq!(item(&[0xcf, 0xff, 0, 0, 0, 0, 0, 0, 0]), Some(PackValue::Big(0xff00_0000_0000_0000)));
    assert_eq!(int(&[0xcf, 0xff, 0, 0, 0, 0, 0, 0, 0]), None);
}

#[test]
fn lengths_are_written_shortest_and_read_back() {
    for len in [0, 1, 4, 15, 16, 17, 31, 32, 255, 256, 65535, 65536, 70000] {
        let read = |write: fn(&mut Vec<u8>, usize), body: usize| {
            let mut out = Vec::new();
            write(&mut out, len);
            let header = out.len();
            out.extend(vec![0xc0; body * len]);
            assert_eq!(skip(&out, 0), Ok(out.len()), "{len}");
            header
        };
        let by = |fix: usize, short: bool| match len {
            _ if len < fix => 1,
            0..=255 if short => 2,
            0..=65535 => 3,
            _ => 5,
        };
        assert_eq!(read(write::array, 1), by(16, false));
        assert_eq!(read(write::map, 2), by(16, false));
        assert_eq!(read(write::bin, 1), by(0, true));
        let fixed = matches!(len, 1 | 2 | 4 | 8 | 16);
        assert_eq!(read(|out, len| write::ext(out, 7, len), 1), if fixed { 2 } else { 1 + by(0, true) });
        let mut text = Vec::new();
        write::str(&mut text, &"x".repeat(len));
        assert_eq!((text.len() - len, str_bytes(&text).map(<[u8]>::len)), (by(32, true), Some(len)));
    }
}

#[test]
fn ids_are_read_in_both_forms() {
    for as_ext in [true, false] {
        for ids in [vec![], vec![1], vec![i64::MIN, -1, 1 << 40], (0..9000).collect()] {
            let mut out = Vec::new();
            write::ids(&mut out, &ids, as_ext);
            assert_eq!(skip(&out, 0), Ok(out.len()));
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            assert_eq!(id_items(&out), Some(IdItems::I64(&bytes)));
        }
    }
    for wrong in [
        &b"\xc7\x0d\x01\0\0\0\x02\xa1q1234567"[..],
        b"\xc7\x0b\x01\0\0\0\x02\xa1i12345",
        b"\xc7\x0e\x01\0\0\0\x02\xa1d12345678",
        b"\xc7\x02\x01\0\0",
        b"\x92\xa1f\xc4\x00",
        b"\x92\xa1q\xc4\x031\x32\x33",
        b"\x92\xa1q\x01",
        b"\x93\xa1q\xc4\x00\xc0",
        b"\x90",
    ] {
        assert_eq!(id_items(wrong), None, "{wrong:02x?}");
    }
}

#[test]
fn ids_of_32_bits_are_read_in_both_forms() {
    let items = [-1_i32, 7, i32::MAX].map(i32::to_le_bytes).concat();
    for (code, first) in [(b'i', -1), (b'I', i64::from(u32::MAX))] {
        let ext = [&[0xc7, 18, 1, 0, 0, 0, 2, 0xa1, code][..], &items].concat();
        let list = [&[0x92, 0xa1, code, 0xc4, 12][..], &items].concat();
        for cell in [ext, list] {
            let (read, mut ids) = (id_items(&cell).unwrap(), Vec::new());
            read.push_to(&mut ids);
            assert_eq!((read.count(), &ids[..]), (3, &[first, 7, i64::from(i32::MAX)][..]));
        }
    }
}

#[test]
fn a_value_nested_a_million_deep_ends_where_it_ends() {
    let deep = [&vec![0x91; 1_000_000][..], &[0xc0, 0xc0]].concat();
    assert_eq!(skip(&deep, 0), Ok(deep.len() - 1));
    assert!(matches!(skip(&deep[..1_000_000], 0), Err(PackError::Cut { .. })));
}

#[test]
fn bytes_that_are_not_ascii_are_counted_at_every_place_and_length() {
    for length in [0, 1, 239, 240, 241, 480, 600] {
        let mut bytes = vec![0x7f; length];
        assert_eq!(non_ascii(&bytes), 0);
        for at in 0..length {
            bytes[at] = 0x80;
            assert_eq!(non_ascii(&bytes), at + 1, "{length} bytes");
        }
    }
}

//! Pickled batches in the shape of SGLang 0.5.14, cell by cell.

use bytes::Bytes;

/// A batch of one-token rows of these requests with this count. `cells` replaces all cells of a column.
pub fn pickled(rids: &[&str], count: u8, cells: &[(&str, Vec<Vec<u8>>)]) -> Bytes {
    let mut out = b"\x80\x04csglang.srt.managers.io_struct\nBatchTokenIDOutput\n)\x81}(".to_vec();
    let usual = |name: &str, rid: &str| match name {
        "rids" => [&[0x8c, rid.len() as u8][..], rid.as_bytes()].concat(),
        "finished_reasons" => b"N".to_vec(),
        "decoded_texts" => b"\x8c\x00".to_vec(),
        "read_offsets" => b"K\x00".to_vec(),
        "prompt_tokens" => b"K\x05".to_vec(),
        "completion_tokens" => vec![b'K', count],
        _ => b"](K\x01e".to_vec(),
    };
    for name in [
        "rids",
        "finished_reasons",
        "decoded_texts",
        "decode_ids",
        "read_offsets",
        "output_ids",
        "prompt_tokens",
        "completion_tokens",
    ] {
        let other = cells.iter().find(|(column, _)| *column == name).map(|(_, cells)| cells.concat());
        let cells = other.unwrap_or_else(|| rids.iter().flat_map(|rid| usual(name, rid)).collect());
        out.extend([0x8c, name.len() as u8]);
        out.extend([name.as_bytes(), b"](", &cells, b"e"].concat());
    }
    out.extend(b"ub.");
    out.into()
}

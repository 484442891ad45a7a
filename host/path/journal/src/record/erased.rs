//! The erasure of content in the payload of an OUTCOME.

use super::outcome::take_tokens;
use crate::format::ByteReader;
use crate::outcome::Verdict;

/// The byte that texts are overwritten with.
const FILLER: u8 = b'x';

/// Overwrites what the actions on some rows say, in the payload of an OUTCOME: ids by 0, texts by [`FILLER`]. Everything keeps
/// its length. Returns `None` if the payload is no OUTCOME.
pub(crate) fn erase_outcome(payload: &mut [u8], is_erased: impl Fn(u32) -> bool) -> Option<()> {
    let bytes = payload.len();
    let mut spans = Vec::new();
    let mut at = ByteReader(payload);
    let passage = at.u8()?;
    let rows = at.u32()? as usize;
    let [finished, gaps, actions] = [at.u32()?, at.u32()?, at.u32()?];
    at.take(rows.checked_mul(4)?)?;
    take_tokens(&mut at, rows)?;
    if matches!(passage, 2 | 3) {
        at.text()?;
    }
    for _ in 0..finished {
        at.take(12)?;
        at.text()?;
    }
    at.take((gaps as usize).checked_mul(20)?)?;
    for _ in 0..actions {
        let row = at.u32()?;
        let verdict = super::outcome::verdict(at.u8()?);
        at.u32()?;
        at.text()?;
        let text = at.text()?;
        let text_end = bytes - at.0.len();
        let ids = at.count(8)?.checked_mul(8)?;
        at.take(ids)?;
        if !is_erased(row) {
            continue;
        }
        let ids_end = bytes - at.0.len();
        // A text that is not UTF-8 has another length than its bytes; the writer writes none.
        let kept = verdict.text_that_stays(&text).min(text.len());
        spans.push((text_end.checked_sub(text.len() - kept)?..text_end, FILLER));
        if verdict != Verdict::Release {
            spans.push((ids_end - ids..ids_end, 0));
        }
    }
    for (span, byte) in spans {
        payload.get_mut(span)?.fill(byte);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{HEAD_BYTES, RecordHead, add_checksums};
    use crate::outcome::{Outcome, Passage, PluginAction};
    use crate::position::{FrameNo, RequestNo};
    use crate::record::RecordBody;
    use crate::replacement::StoredReplacement;
    use crate::request::JournalRequest;

    fn action(row: u32, verdict: Verdict, text: &str, ids: &[i64]) -> PluginAction<'static> {
        let (plugin, text) = ("p".into(), text.to_owned().into());
        PluginAction { row, plugin, verdict, text, ids: ids.to_vec().into(), forwarded: 1 }
    }

    #[test]
    fn the_notes_texts_and_ids_of_one_row_are_overwritten_and_those_of_others_stay() {
        let new_text = StoredReplacement::with_text("secret").unwrap();
        let actions = [
            action(0, Verdict::Annotate, "secret", &[]),
            action(0, Verdict::Release, "secret", &[2]),
            action(1, Verdict::Annotate, "of another", &[7]),
            action(2, Verdict::Replace, &new_text, &[5, 6]),
            action(2, Verdict::Route, "sink", &[]),
            action(2, Verdict::Drop, crate::outcome::SWALLOWED, &[]),
        ];
        let requests = [1, 2, 1].map(|number| JournalRequest { number: RequestNo(number), slot: 0 });
        let written = Outcome {
            requests: (&requests).into(),
            tokens: (&[1, 2, 1]).into(),
            actions: (&actions).into(),
            ..Outcome::new(FrameNo(9), 5, Passage::Barrier("why".into()))
        };
        let mut bytes = Vec::new();
        super::super::put_outcome(&mut bytes, &written);
        add_checksums(&mut bytes, 1, 0);
        let (head, _) = RecordHead::decode(bytes.first_chunk().unwrap(), 1, 0).unwrap();
        let payload = &mut bytes[HEAD_BYTES..][..head.payload as usize];
        erase_outcome(payload, |row| row != 1).unwrap();
        let Some(RecordBody::Outcome(read)) = RecordBody::decode(&head, payload, 1) else { panic!() };
        let said: Vec<(&str, &[i64])> = read.actions.iter().map(|it| (&*it.text, &*it.ids)).collect();
        assert_eq!(
            said,
            [
                ("xxxxxx", &[][..]),
                ("xxxxxx", &[2]),
                ("of another", &[7]),
                ("text: xxxxxx", &[0, 0]),
                ("sink", &[]),
                (crate::outcome::SWALLOWED, &[])
            ]
        );
        assert_eq!(
            (&read.requests, &read.passage),
            (&crate::record::as_read(&written).unwrap().requests, &Passage::Barrier("why".into()))
        );
    }
}

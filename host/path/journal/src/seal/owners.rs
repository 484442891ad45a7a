//! Finds whose each byte of a payload is: which erasure overwrites the byte. It asks the erasure itself, so that both agree.

use std::ops::Range;

/// A payload, taken apart.
pub(super) struct OwnedBytes {
    /// The payload as it is once everything in it is erased.
    pub rest: Vec<u8>,
    /// The bytes that an erasure overwrites, as runs, each with its owner.
    pub runs: Vec<(Range<usize>, usize)>,
}

/// Takes a payload apart. `rest` is the payload without the content of all `owners`, and `erase` returns the payload without the
/// content of some. `None`: an erasure of one owner moves bytes of others, or fails.
///
/// Asks once for each bit of an owner's index: the owners with this bit are erased, and the bytes that are then overwritten are
/// theirs.
pub(super) fn owned_bytes(
    payload: &[u8],
    rest: Vec<u8>,
    owners: usize,
    mut erase: impl FnMut(&dyn Fn(usize) -> bool) -> Option<Vec<u8>>,
) -> Option<OwnedBytes> {
    if rest.len() != payload.len() {
        return None;
    }
    let content = differences(payload, &rest);
    let mut owner_of: Vec<Vec<u32>> = content.iter().map(|run| vec![0; run.len()]).collect();
    let bits = usize::BITS - owners.saturating_sub(1).leading_zeros();
    for bit in 0..bits {
        let some = erase(&|owner| owner >> bit & 1 == 1)?;
        if some.len() != payload.len() {
            return None;
        }
        let mut before = 0;
        for (run, owner_of) in content.iter().zip(&mut owner_of) {
            if some[before..run.start] != payload[before..run.start] {
                return None;
            }
            note_erased(&payload[run.clone()], &rest[run.clone()], &some[run.clone()], 1 << bit, owner_of)?;
            before = run.end;
        }
        if some[before..] != payload[before..] {
            return None;
        }
    }
    let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
    for (run, owner_of) in content.iter().zip(&owner_of) {
        let mut start = run.start;
        for of_one in owner_of.chunk_by(|one, next| one == next) {
            runs.push((start..start + of_one.len(), of_one[0] as usize));
            start += of_one.len();
        }
    }
    let exist = runs.iter().all(|(_, owner)| *owner < owners);
    exist.then_some(OwnedBytes { rest, runs })
}

/// The runs of bytes in which two texts of one length differ.
fn differences(one: &[u8], other: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in one.iter().zip(other).enumerate().filter(|(_, (one, other))| one != other) {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// Adds `bit` to the owner of each byte that was erased. `None`: a byte is neither erased nor as before.
fn note_erased(payload: &[u8], rest: &[u8], some: &[u8], bit: u32, owner_of: &mut [u32]) -> Option<()> {
    // Most runs are of one owner.
    if some == payload {
        return Some(());
    }
    if some == rest {
        owner_of.iter_mut().for_each(|owner| *owner |= bit);
        return Some(());
    }
    for (at, owner) in owner_of.iter_mut().enumerate() {
        match some[at] {
            byte if byte == rest[at] => *owner |= bit,
            byte if byte == payload[at] => {}
            _ => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of the owners 0, 1, 2, … in turn.
    fn without(text: &str, is_erased: &dyn Fn(usize) -> bool) -> Vec<u8> {
        let words = text.split(' ').enumerate();
        let words = words.map(|(owner, word)| match is_erased(owner) {
            true => "x".repeat(word.len()),
            false => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ").into_bytes()
    }

    #[test]
    fn each_byte_is_of_the_owner_whose_erasure_overwrites_it() {
        let text = "one two three four five six";
        let owned =
            owned_bytes(text.as_bytes(), without(text, &|_| true), 6, |some| Some(without(text, some)))
                .unwrap();
        let words: Vec<(&str, usize)> =
            owned.runs.iter().map(|(run, owner)| (&text[run.clone()], *owner)).collect();
        assert_eq!(words, [("one", 0), ("two", 1), ("three", 2), ("four", 3), ("five", 4), ("si", 5)]);
        assert_eq!(owned.rest, b"xxx xxx xxxxx xxxx xxxx xxx");
    }

    #[test]
    fn an_erasure_that_moves_bytes_or_changes_the_length_gives_no_owners() {
        let text = "one two";
        let moved = |some: &dyn Fn(usize) -> bool| {
            let mut bytes = without(text, some);
            bytes.rotate_left(1);
            Some(bytes)
        };
        assert!(owned_bytes(text.as_bytes(), without(text, &|_| true), 2, moved).is_none());
        assert!(
            owned_bytes(text.as_bytes(), without(text, &|_| true), 2, |_| Some(b"one".to_vec())).is_none()
        );
        assert!(owned_bytes(text.as_bytes(), b"short".to_vec(), 1, |_| None).is_none());
    }
}

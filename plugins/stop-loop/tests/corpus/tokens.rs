//! A tokenizer in the manner of the large models: words with their leading blank, digits, runs of punctuation
//! and of white space. A rare word is cut into pieces of three letters. An id is a hash of its text.

/// The way in which a model cuts numbers.
#[derive(Clone, Copy, PartialEq)]
pub enum Digits {
    /// One digit is a token, as in Qwen.
    Single,
    /// Up to three digits are a token, as in Llama 3.
    Groups,
}

/// The longest run of one sign that is a token.
const RUN_MAX: usize = 16;

pub fn tokens(text: &str, digits: Digits) -> Vec<u32> {
    let bytes = text.as_bytes();
    let (mut ids, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let end = piece(bytes, at, digits);
        ids.push(id(&bytes[at..end]));
        at = end;
    }
    ids
}

fn run(bytes: &[u8], from: usize, most: usize, is: impl Fn(u8) -> bool) -> usize {
    from + bytes[from..].iter().take(most).take_while(|byte| is(**byte)).count()
}

fn piece(bytes: &[u8], at: usize, digits: Digits) -> usize {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte >= 128;
    let is_sign = |byte: u8| byte.is_ascii_punctuation();
    let blank = usize::from(bytes[at] == b' ');
    let next = bytes.get(at + blank).copied().unwrap_or(0);
    if is_letter(next) {
        let from = at + blank;
        let word = run(bytes, from, usize::MAX, is_letter);
        let is_common = bytes[from + 1..word].iter().all(u8::is_ascii_lowercase) && word - from <= 9;
        return if is_common { word } else { word.min(from + 3) };
    }
    if next.is_ascii_digit() && blank == 0 {
        return run(bytes, at, if digits == Digits::Single { 1 } else { 3 }, |byte| byte.is_ascii_digit());
    }
    if is_sign(next) {
        // A run of one sign is cut by its length. Two different signs are a token together.
        let from = at + blank;
        let same = run(bytes, from, RUN_MAX, |byte| byte == next);
        let signs = run(bytes, from, 2, is_sign);
        return same.max(signs);
    }
    let breaks = run(bytes, at, usize::MAX, |byte| byte == b'\n');
    if breaks > at {
        return breaks.min(at + 4);
    }
    run(bytes, at, RUN_MAX, |byte| byte == b' ' || byte == b'\t').max(at + 1)
}

fn id(text: &[u8]) -> u32 {
    let hash = text.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    (hash >> 20) as u32 % 151_000
}

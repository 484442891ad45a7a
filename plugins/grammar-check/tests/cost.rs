//! What the README says of costs, natively: `cargo test --release -p grammar-check --test cost -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::time::Instant;

use afterbay_plugin::{FinishKind, TokenId};
use grammar_check::{Compiler, GrammarText, Matcher, Tokenizer, Vocabulary};

/// The 256 bytes, made-up words of 2 to 10 bytes, and one special token, as many ids as Llama 3 has.
struct MadeUp {
    words: Vec<Vec<u8>>,
}

const SIZE: usize = 128_256;

impl MadeUp {
    fn new() -> Self {
        let mut seed = 1_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        while words.len() < SIZE - 1 {
            let mut word = if random(2) == 0 { vec![b' '] } else { vec![] };
            word.extend((0..2 + random(8)).map(|_| b'a' + random(26) as u8));
            words.push(word);
        }
        words.push(Vec::new());
        Self { words }
    }
}

impl Tokenizer for MadeUp {
    fn size(&self) -> u32 {
        SIZE as u32
    }

    fn token_bytes(&self, first: TokenId, count: u32) -> Vec<Vec<u8>> {
        self.words[first as usize..][..count as usize].to_vec()
    }

    fn special(&self) -> Vec<TokenId> {
        vec![SIZE as TokenId - 1]
    }

    fn special_of(&self, _: &str) -> Option<TokenId> {
        None
    }
}

/// What the process has in memory, in kB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4
}

#[test]
#[ignore = "a measurement, to be run alone and in release"]
fn cost_of_opening_and_of_a_token() {
    let made_up = MadeUp::new();
    let begun = Instant::now();
    let vocabulary = Vocabulary::read(&made_up).unwrap();
    println!("vocabulary of {SIZE}: {:?}", begun.elapsed());
    let schema = r#"{"type": "object", "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}},
        "nested": {"type": "object", "properties": {"x": {"type": "number"}, "k": {"enum": ["aa", "bb", "cc"]}},
        "required": ["x", "k"], "additionalProperties": false}},
        "required": ["name", "age", "tags", "nested"], "additionalProperties": false}"#;
    let words = |id: usize| String::from_utf8_lossy(&made_up.words[256 + id % 100_000]).into_owned();
    // A long string: few tokens of much text. Many short ones: tokens of a byte or two.
    let long: Vec<TokenId> = (0..400).map(|id| 256 + id).collect();
    let mut tags = String::new();
    for id in 0..100 {
        tags += &format!("{}\"{}\"", if id > 0 { ", " } else { "" }, words(id * 7).trim());
    }
    let bytes = |text: &str| text.bytes().map(TokenId::from).collect::<Vec<_>>();
    let text = [
        bytes("{\"name\": \""),
        long,
        bytes("\", \"age\": 42, \"tags\": ["),
        bytes(&tags),
        bytes("], \"nested\": {\"x\": 1.5, \"k\": \"bb\"}}"),
    ]
    .concat();
    let length: usize = text.iter().map(|id| vocabulary.bytes(*id).len()).sum();
    let mut compiler = Compiler::new(&vocabulary).unwrap();
    let lark = "start: (WORD | \" \" | /[^a-z ]/)*\nWORD: /[a-z]+/".to_owned();
    for (name, grammar) in
        [("JSON schema", GrammarText::JsonSchema(schema.into())), ("Lark", GrammarText::Lark(lark))]
    {
        let begun = Instant::now();
        let grammar = compiler.compile(&grammar).unwrap();
        println!("{name}: compiled in {:?}", begun.elapsed());
        let before = resident();
        let begun = Instant::now();
        let mut matchers: Vec<Matcher> = (0..2_000).map(|_| grammar.matcher(256, None)).collect();
        let (took, grown) = (begun.elapsed() / 2_000, (resident() - before) * 1024 / 2_000);
        println!("{name}: a request is opened in {took:?}, with {grown} bytes");
        for round in 0..2 {
            let mut matchers = matchers.split_off(matchers.len() - 1_000);
            let (before, begun) = (resident(), Instant::now());
            // A row of each request in turn, as batches have them.
            for id in &text[..text.len() - 1] {
                for matcher in &mut matchers {
                    matcher.push(&vocabulary, &[*id]).unwrap();
                }
            }
            let tokens = 1_000 * (text.len() - 1);
            let (took, grown) = (begun.elapsed().as_nanos() as usize / tokens, (resident() - before) * 1024);
            println!(
                "{name}: round {round}: {took} ns a token, {} bytes a token kept ({} tokens of {length} bytes)",
                grown as usize / tokens,
                text.len()
            );
            let begun = Instant::now();
            for matcher in &mut matchers {
                matcher.end(&vocabulary, &text[text.len() - 1..], FinishKind::Length).unwrap();
            }
            println!("{name}: a last row: {:?}", begun.elapsed() / 1_000);
            let begun = Instant::now();
            drop(matchers);
            println!("{name}: and to be forgotten: {:?}", begun.elapsed() / 1_000);
        }
    }
}

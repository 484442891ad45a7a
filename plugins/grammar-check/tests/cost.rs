//! Measures the costs of the README, natively: `cargo test --release -p grammar-check --test cost -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::time::Instant;

use afterbay_plugin::{FinishKind, TokenId};
use grammar_check::{Compiler, GrammarText, Matcher, Tokenizer, Vocabulary};

/// A vocabulary as large as that of Llama 3: the 256 bytes, made-up words of 2 to 10 bytes, and one special token.
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

/// The resident memory of the process in kB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4
}

#[test]
#[ignore = "a measurement: run it alone and in release"]
fn cost_of_opening_and_of_a_token() {
    let made_up = MadeUp::new();
    let start = Instant::now();
    let vocabulary = Vocabulary::read(&made_up).unwrap();
    println!("vocabulary of {SIZE}: {:?}", start.elapsed());
    let schema = r#"{"type": "object", "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}},
        "nested": {"type": "object", "properties": {"x": {"type": "number"}, "k": {"enum": ["aa", "bb", "cc"]}},
        "required": ["x", "k"], "additionalProperties": false}},
        "required": ["name", "age", "tags", "nested"], "additionalProperties": false}"#;
    let words = |id: usize| String::from_utf8_lossy(&made_up.words[256 + id % 100_000]).into_owned();
    // One long string of few long tokens, and many short strings of tokens of a byte or two.
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
    let mut compiler = Compiler::new(&vocabulary);
    for properties in [3, 12, 50, 200] {
        let property = |index: usize| {
            format!(
                r#""property_{index}": {{"type": "string", "description": "The property of number {index}", "maxLength": 99}}"#
            )
        };
        let list = (0..properties).map(property).collect::<Vec<_>>().join(", ");
        let schema =
            format!(r#"{{"type": "object", "properties": {{{list}}}, "additionalProperties": false}}"#);
        let length = schema.len();
        let schema = GrammarText::JsonSchema(schema);
        let start = Instant::now();
        for _ in 0..20 {
            compiler.compile(&schema).unwrap();
        }
        println!("JSON schema of {length} bytes: compiled in {:?}", start.elapsed() / 20);
    }
    for pattern in [r"^[a-z0-9]+(-[a-z0-9]+)*$", r"^\\d{4}-\\d{2}-\\d{2}$", "^(?!-)[a-z-]{1,63}$"] {
        let schema = GrammarText::JsonSchema(format!(r#"{{"pattern": "{pattern}"}}"#));
        let start = Instant::now();
        for _ in 0..20 {
            compiler.compile(&schema).unwrap();
        }
        println!("JSON schema with the pattern {pattern}: compiled in {:?}", start.elapsed() / 20);
    }
    for regex in
        ["(yes|no)/[0-9]{2}", r"[\w.+-]+@[\w-]+\.[\w.-]+", r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z\s*){1,20}"]
    {
        let start = Instant::now();
        let compiled = compiler.compile_brought(&GrammarText::Regex(regex.into()));
        println!("regex {regex}: compiled in {:?}, {:?}", start.elapsed(), compiled.err());
    }
    let lark = "start: (WORD | \" \" | /[^a-z ]/)*\nWORD: /[a-z]+/".to_owned();
    for (name, grammar) in [
        ("JSON schema", GrammarText::JsonSchema(schema.into())),
        ("regex", GrammarText::Regex("(?s:.*)".into())),
        ("Lark", GrammarText::Lark(lark)),
    ] {
        let start = Instant::now();
        let grammar = compiler.compile(&grammar).unwrap();
        println!("{name}: compiled in {:?}", start.elapsed());
        let before = resident();
        let start = Instant::now();
        let mut matchers: Vec<Matcher> = (0..2_000).map(|_| grammar.matcher(256, None)).collect();
        let (took, grown) = (start.elapsed() / 2_000, (resident() - before) * 1024 / 2_000);
        println!("{name}: a request is opened in {took:?}, with {grown} bytes");
        for round in 0..2 {
            let mut matchers = matchers.split_off(matchers.len() - 1_000);
            let (before, start) = (resident(), Instant::now());
            // One row of each request in turn, like in batches.
            for id in &text[..text.len() - 1] {
                for matcher in &mut matchers {
                    matcher.push(&vocabulary, &[*id]).unwrap();
                }
            }
            let tokens = 1_000 * (text.len() - 1);
            let (took, grown) = (start.elapsed().as_nanos() as usize / tokens, (resident() - before) * 1024);
            println!(
                "{name}: round {round}: {took} ns a token, {} bytes a token stored ({} tokens of {length} bytes)",
                grown as usize / tokens,
                text.len()
            );
            let start = Instant::now();
            for matcher in &mut matchers {
                matcher.end(&vocabulary, &text[text.len() - 1..], FinishKind::Length).unwrap();
            }
            println!("{name}: a last row takes {:?}", start.elapsed() / 1_000);
            let start = Instant::now();
            drop(matchers);
            println!("{name}: freed in {:?}", start.elapsed() / 1_000);
        }
    }
}

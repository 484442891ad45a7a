//! Rows joined where the crate allows it give the text of single rows, for any ids and any joins.

use afterbay_text::{TextEnd, TextProgress, Vocabulary};
use proptest::prelude::*;
use proptest::sample::Index;
use tokenizers::Tokenizer;

use crate::detokenizer::{Finish, Request, Row};
use crate::{FIXTURES, fixture, vocabulary};

const TEXTS: [&str; 10] = [
    "日本語のテキスト",
    "中文分词器把汉字",
    "한국어 문장 ",
    "emoji 🙂🙃👍🏽 ",
    "🏳️‍🌈 flags 🇯🇵",
    "def f(x): return x\n",
    "plain ascii words here ",
    "𠮷野家\n鱻 🦀",
    "a \u{fffd} b\u{fffd}",
    "שלום Привет é",
];

/// A part of a request's ids, resolved against a vocabulary.
#[derive(Clone, Debug)]
enum Part {
    Text {
        text: usize,
        from: Index,
        to: Index,
    },
    /// Tokens that are not text by themselves: parts of characters.
    Pieces(Vec<Index>),
    Any(Vec<Index>),
    Special(u32),
    Unknown(i64),
}

fn part() -> impl Strategy<Value = Part> {
    let text = (0..TEXTS.len(), any::<Index>(), any::<Index>());
    prop_oneof![
        8 => text.prop_map(|(text, from, to)| Part::Text { text, from, to }),
        3 => proptest::collection::vec(any::<Index>(), 1..6).prop_map(Part::Pieces),
        3 => proptest::collection::vec(any::<Index>(), 1..4).prop_map(Part::Any),
        1 => (0_u32..3).prop_map(Part::Special),
        1 => prop_oneof![Just(-101), Just(1 << 40), 0_i64..2000].prop_map(Part::Unknown),
    ]
}

struct Reader {
    name: &'static str,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    pieces: Vec<u32>,
}

impl Reader {
    fn new(name: &'static str) -> Reader {
        let tokenizer = Tokenizer::from_file(fixture(name).join("tokenizer.json")).unwrap();
        let size = tokenizer.get_vocab_size(true) as u32;
        let is_piece = |id: &u32| {
            let text = tokenizer.decode(&[*id], true).unwrap();
            text.is_empty() || text.contains('\u{fffd}')
        };
        let pieces = (0..size).filter(is_piece).collect();
        Reader { name, vocabulary: vocabulary(name), tokenizer, pieces }
    }

    fn ids(&self, parts: &[Part]) -> Vec<i64> {
        let size = self.tokenizer.get_vocab_size(true);
        let of = |part: &Part| -> Vec<i64> {
            match part {
                Part::Text { text, from, to } => {
                    let ids = self.tokenizer.encode(TEXTS[*text], false).unwrap().get_ids().to_vec();
                    let (from, to) = (from.index(ids.len()), to.index(ids.len()));
                    ids[from.min(to)..=from.max(to)].iter().map(|id| i64::from(*id)).collect()
                }
                Part::Pieces(places) => places.iter().map(|at| i64::from(*at.get(&self.pieces))).collect(),
                Part::Any(places) => places.iter().map(|at| at.index(size) as i64).collect(),
                Part::Special(id) => vec![i64::from(*id)],
                Part::Unknown(id) => vec![*id],
            }
        };
        parts.iter().flat_map(of).collect()
    }

    fn text(&self, rows: &[Row], skip: bool, read_offset: usize) -> String {
        let mut request = Request::new(&self.tokenizer, skip, read_offset);
        rows.iter().map(|row| request.take(row)).collect()
    }
}

/// Joins the rows of a backlog as the outbox does. `waits` has the length of each backlog.
fn join(rows: &[Row], endings: &[TextEnd], waits: &[usize]) -> Vec<Row> {
    let mut sent: Vec<Row> = Vec::new();
    let (mut at, mut waits) = (0, waits.iter().cycle());
    while at < rows.len() {
        let to = (at + waits.next().unwrap()).min(rows.len());
        while at < to {
            // The longest run that may be joined: at least one row.
            let unbroken = (at..to).take_while(|row| endings[*row] != TextEnd::Broken);
            let may_end = |row: &usize| endings[*row] == TextEnd::Whole || rows[*row].finish.is_some();
            let end = unbroken.filter(may_end).last().map_or(at + 1, |last| last + 1);
            sent.push(Row {
                decode_ids: rows[at..end].iter().flat_map(|row| row.decode_ids.clone()).collect(),
                finish: rows[end - 1].finish,
            });
            at = end;
        }
    }
    sent
}

#[derive(Clone, Debug)]
struct Case {
    prompt: Vec<Part>,
    parts: Vec<Part>,
    /// The numbers of ids per row, repeated.
    lengths: Vec<usize>,
    waits: Vec<usize>,
    finish: Finish,
    skip: bool,
    /// Whether the prompt's tail is included.
    prompt_fed: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let lengths = prop_oneof![3 => Just(vec![1]), 1 => proptest::collection::vec(0_usize..5, 1..5)
        .prop_filter("some ids", |lengths| lengths.iter().any(|length| *length > 0))];
    let finish = prop_oneof![
        Just(Finish::Length),
        any::<bool>().prop_map(|no_stop_trim| Finish::StopToken { no_stop_trim })
    ];
    let parts = |most| proptest::collection::vec(part(), 1..most);
    let waits = proptest::collection::vec(1_usize..40, 1..6);
    (parts(3), parts(8), lengths, waits, finish, any::<bool>(), any::<bool>()).prop_map(
        |(prompt, parts, lengths, waits, finish, skip, prompt_fed)| Case {
            prompt,
            parts,
            lengths,
            waits,
            finish,
            skip,
            prompt_fed,
        },
    )
}

fn check(reader: &Reader, case: &Case) -> (usize, usize) {
    let (mut prompt, ids) = (reader.ids(&case.prompt), reader.ids(&case.parts));
    prompt.drain(..prompt.len().saturating_sub(5));
    let (mut rows, mut rest, mut lengths) = (Vec::new(), &ids[..], case.lengths.iter().cycle());
    while !rest.is_empty() {
        let (ids, then) = rest.split_at((*lengths.next().unwrap()).min(rest.len()));
        rows.push(Row { decode_ids: ids.to_vec(), finish: None });
        rest = then;
    }
    let mut progress = TextProgress::default();
    if case.prompt_fed {
        rows[0].decode_ids.splice(0..0, prompt.iter().copied());
    }
    let endings: Vec<TextEnd> =
        rows.iter().map(|row| progress.advance(&reader.vocabulary, &row.decode_ids)).collect();
    if !case.prompt_fed {
        rows[0].decode_ids.splice(0..0, prompt.iter().copied());
    }
    rows.last_mut().unwrap().finish = Some(case.finish);
    let joined = join(&rows, &endings, &case.waits);
    let singly = reader.text(&rows, case.skip, prompt.len());
    let together = reader.text(&joined, case.skip, prompt.len());
    let of = |rows: &[Row]| rows.iter().map(|row| row.decode_ids.clone()).collect::<Vec<_>>();
    assert_eq!(
        singly,
        together,
        "{}: rows {:?} {endings:?} joined {:?}",
        reader.name,
        of(&rows),
        of(&joined)
    );
    (rows.len(), joined.len())
}

/// The number of cases per vocabulary. `TEXT_CASES` overrides it, for a longer search.
fn cases() -> u32 {
    std::env::var("TEXT_CASES").map_or(150, |cases| cases.parse().unwrap())
}

#[test]
fn rows_joined_where_they_may_be_give_the_text_of_single_rows() {
    for (name, _) in FIXTURES {
        let reader = Reader::new(name);
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            cases: cases(),
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let counts = std::cell::Cell::new((0, 0));
        let result = runner.run(&case(), |case| {
            let (rows, joined) = check(&reader, &case);
            counts.set((counts.get().0 + rows, counts.get().1 + joined));
            Ok(())
        });
        if let Err(error) = result {
            panic!("{name}: {error}");
        }
        println!("{name}: {} rows went as {}", counts.get().0, counts.get().1);
    }
}

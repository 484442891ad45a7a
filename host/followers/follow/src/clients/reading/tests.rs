//! Parts of rows, and their texts.

use super::*;

fn parts(text: &mut Text) -> Vec<Part> {
    std::iter::from_fn(|| text.take(true)).collect()
}

fn part(from: u64, ids: &[i64], text: Option<&str>, missing: u64) -> Part {
    Part { from, ids: ids.to_vec(), text: text.map(str::to_owned), missing }
}

#[test]
fn rows_become_one_part_and_tokens_that_are_missing_begin_another() {
    let mut text = Text::new(None);
    text.add(0, vec![1], None, 0);
    text.add(1, vec![2, 3], None, 0);
    text.add(5, vec![], None, 2);
    text.add(5, vec![6], None, 0);
    assert_eq!(parts(&mut text), [part(0, &[1, 2, 3], None, 0), part(5, &[6], None, 2)]);
    assert_eq!(text.take(true), None);
}

#[test]
fn the_text_of_rows_goes_before_that_of_a_tokenizer_and_the_two_are_not_mixed() {
    let mut text = Text::new(None);
    text.add(0, vec![1], Some("a".to_owned()), 0);
    text.add(1, vec![2], Some("b".to_owned()), 0);
    text.add(2, vec![3], None, 0);
    assert_eq!(parts(&mut text), [part(0, &[1, 2], Some("ab"), 0), part(2, &[3], None, 0)]);
    // A row without an id and without a text is no part.
    text.add(3, vec![], Some(String::new()), 0);
    assert_eq!(parts(&mut text), []);
}

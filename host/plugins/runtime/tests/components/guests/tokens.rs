//! A model's tokens, as the host gives them.

use std::sync::Arc;

use afterbay_runtime::{Action, EncodeError, Grants, TokenId, Tokens};

use super::*;

/// `a` and `b`, and one special token.
struct Letters;

impl Tokens for Letters {
    fn size(&self) -> u32 {
        3
    }

    fn bytes(&self, id: TokenId) -> &[u8] {
        match id {
            0 => b"a",
            1 => b"b",
            _ => b"",
        }
    }

    fn special(&self) -> &[TokenId] {
        &[2]
    }

    fn end_of_text(&self) -> &[TokenId] {
        &[2]
    }

    fn encode(&self, text: &str) -> Result<Vec<TokenId>, EncodeError> {
        match text.len() {
            0..4 => Ok(text.bytes().map(|letter| TokenId::from(letter - b'a')).collect()),
            _ => Err(EncodeError::TooLong(3)),
        }
    }
}

fn note(text: &str, ids: &[TokenId]) -> String {
    let grants = Grants { tokenizer: Some(Arc::new(Letters)), ..Grants::default() };
    let component = host().load("tokens", &guest("tokens"), granted(grants)).unwrap();
    let mut plugin = component.instantiate(&format!(r#"{{"text": "{text}"}}"#)).unwrap();
    let columns =
        Columns { requests: &[4], output_ids: ids, output_ends: &[ids.len() as u32], ..Columns::default() };
    match plugin.process(&columns).unwrap().remove(0).action {
        Action::Annotate(note) => note,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_text_and_its_ids_go_both_ways_and_a_special_token_has_no_bytes() {
    assert_eq!(note("bab", &[1, 2, 0, 77, -1]), r#""ba" Ok(true) 3 1"#);
}

#[test]
fn a_text_that_is_too_long_is_refused_with_the_limit() {
    assert_eq!(note("abab", &[]), r#""" Err(EncodeError::TooLong(3)) 3 1"#);
}

#[test]
fn a_component_without_the_tokenizer_grant_is_refused_by_name() {
    let error = host().load("mine", &guest("tokens"), limits()).unwrap_err().to_string();
    assert_eq!(error, "plugin \"mine\": wants tokenizer, which it is not granted: add it to grant");
}

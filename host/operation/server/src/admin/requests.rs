//! `/v1/requests`, `/v1/requests/{rid}` and `/v1/requests/{rid}/erase`.

use super::{AdminState, Change};
use crate::refusal::Refusal;
use afterbay_http::ClientAddress;
use afterbay_journal::reader::RequestState;
use afterbay_journal::stored_rid;
use afterbay_journal_view::index::{Cursor, PAGE_MAX, Page, Search};
use afterbay_journal_view::parse_time;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::Uri;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};

/// Entries of an answer, if the question does not say.
const PAGE: usize = 100;

/// The question of `/v1/requests`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Question {
    stream: Option<String>,
    rid: Option<String>,
    state: Option<String>,
    finish: Option<String>,
    plugin: Option<String>,
    model: Option<String>,
    lora: Option<String>,
    session: Option<String>,
    tenant: Option<String>,
    since: Option<String>,
    until: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
}

/// A field of a question. A form that was not filled in sends empty fields.
pub(super) fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// The time of this field, Unix nanoseconds. The error is a sentence.
pub(super) fn time(name: &str, text: Option<String>) -> Result<Option<u64>, String> {
    let read = given(text).map(|text| parse_time(&text).map_err(|error| format!("{name}: {error}")));
    read.transpose()
}

/// The most entries of an answer. The error is a sentence.
pub(super) fn limit(asked: Option<usize>) -> Result<usize, String> {
    match asked.unwrap_or(PAGE) {
        limit if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        limit => Err(format!("limit: is {limit}, must be 1 to {PAGE_MAX}")),
    }
}

impl Question {
    /// The error is a sentence.
    fn search(self) -> Result<Search, String> {
        let state = match given(self.state).as_deref() {
            None => None,
            Some("live") => Some(RequestState::Live),
            Some("finished") => Some(RequestState::Finished),
            Some("abandoned") => Some(RequestState::Abandoned),
            Some(other) => return Err(format!("state: is {other:?}, must be live, finished or abandoned")),
        };
        let after = given(self.after).map(|text| {
            text.parse::<Cursor>().map_err(|()| format!("after: is {text:?}, must be the next of a page"))
        });
        let attributes =
            [("model", self.model), ("lora", self.lora), ("session", self.session), ("tenant", self.tenant)];
        let attributes = attributes.into_iter().filter_map(|(name, of)| Some((name.to_owned(), given(of)?)));
        Ok(Search {
            attributes: attributes.collect(),
            stream: given(self.stream),
            rid_prefix: given(self.rid),
            state,
            finish: given(self.finish),
            plugin: given(self.plugin),
            since_unix_ns: time("since", self.since)?,
            until_unix_ns: time("until", self.until)?,
            after: after.transpose()?,
            limit: limit(self.limit)?,
        })
    }
}

pub(super) async fn list(
    State(admin): State<AdminState>,
    question: Result<Query<Question>, QueryRejection>,
) -> Result<Json<Value>, Refusal> {
    let search = question.map_err(|rejection| rejection.body_text()).and_then(|Query(asked)| asked.search());
    let search = search.map_err(|why| Refusal::bad_request("query", why))?;
    let Page { requests, next, known, kept, is_complete } = admin.requests.page(search).await?;
    let next = next.map(|next| next.to_string());
    Ok(Json(
        json!({"requests": requests, "next": next, "known": known, "kept": kept, "complete": is_complete}),
    ))
}

pub(super) async fn one(State(admin): State<AdminState>, uri: Uri) -> Result<Json<Value>, Refusal> {
    admin.requests.life(rid_of(&uri, 0)).await.map(Json)
}

/// The body of an erasure.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Erase {
    /// Every stream if there is none.
    stream: Option<String>,
}

/// 200 with a report, also if frames are named that may still hold content.
pub(super) async fn erase(
    State(admin): State<AdminState>,
    Extension(caller): Extension<ClientAddress>,
    uri: Uri,
    Change(Erase { stream }): Change<Erase>,
) -> Result<Json<Value>, Refusal> {
    admin.erasures.erase(caller, rid_of(&uri, 1), stream).await.map(Json)
}

/// The rid in a path, as the journal stores it, before `after` further parts. The part has any bytes, percent-encoded.
fn rid_of(uri: &Uri, after: usize) -> String {
    let encoded = uri.path().rsplit('/').nth(after).unwrap_or_default();
    let bytes: Vec<u8> = percent_encoding::percent_decode_str(encoded).collect();
    stored_rid(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(query: &str) -> Result<Search, String> {
        let uri: Uri = format!("/v1/requests?{query}").parse().unwrap();
        let question = Query::<Question>::try_from_uri(&uri).map_err(|rejection| rejection.body_text());
        question.and_then(|Query(question)| question.search())
    }

    #[test]
    fn a_rid_of_any_bytes_is_read_from_its_encoded_path() {
        let long = ["r".repeat(4096), "r".repeat(4097)];
        let hostile = [
            "a/b/../c",
            "..",
            "%2e%2e",
            "a\0b",
            "\"><script>",
            "a b?c=d&e#f",
            "é\u{202e}",
            "\r\nSet-Cookie: a=b",
        ];
        let hostile = hostile.into_iter().chain(long.iter().map(String::as_str)).map(str::as_bytes);
        for rid in hostile.chain([&b"\xff\xfe"[..], b"%"]) {
            let encoded: String = rid.iter().map(|byte| format!("%{byte:02X}")).collect();
            let uri: Uri = format!("/v1/requests/{encoded}").parse().unwrap();
            assert_eq!(rid_of(&uri, 0), stored_rid(rid));
            let uri: Uri = format!("/v1/requests/{encoded}/erase").parse().unwrap();
            assert_eq!(rid_of(&uri, 1), stored_rid(rid));
        }
    }

    #[test]
    fn a_question_is_taken_or_refused_with_the_value_and_the_limit() {
        let taken = search("stream=a&rid=r&state=live&finish=&limit=1000&after=5.6.a").unwrap();
        assert_eq!(
            (taken.stream.as_deref(), taken.rid_prefix.as_deref(), taken.limit),
            (Some("a"), Some("r"), 1000)
        );
        assert_eq!((taken.state, taken.finish), (Some(RequestState::Live), None));
        assert_eq!(taken.after.map(|after| after.to_string()).as_deref(), Some("5.6.a"));
        assert_eq!(search("").unwrap().limit, PAGE);
        let times = search("since=2026-11-20T14:00:00Z&until=1970-01-01T00:00:01Z").unwrap();
        let expected = (Some(1_795_183_200_000_000_000), Some(1_000_000_000));
        assert_eq!((times.since_unix_ns, times.until_unix_ns), expected);
        let attributes = search("tenant=acme&model=&lora=sql").unwrap().attributes;
        assert_eq!(
            attributes,
            [("lora", "sql"), ("tenant", "acme")].map(|(name, value)| (name.into(), value.into()))
        );
        for (query, words) in [
            ("limit=0", "limit: is 0, must be 1 to 1000"),
            ("limit=1001", "limit: is 1001, must be 1 to 1000"),
            ("limit=x", "limit"),
            ("state=dead", "state: is \"dead\", must be live, finished or abandoned"),
            ("after=yesterday", "after: is \"yesterday\""),
            ("since=monday", "since: \"monday\" is no time"),
            ("begun=10m", "begun"),
        ] {
            let why = search(query).unwrap_err();
            assert!(why.contains(words), "{query}: {why}");
        }
    }
}

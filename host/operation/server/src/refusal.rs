//! The refusal of a call to the admin address, made where the reason is known.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::fmt;

/// A refused call: the status of the answer, a word for programs, and a sentence.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) why: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, why: impl ToString) -> Refusal {
        Refusal { status, code, why: why.to_string() }
    }

    pub(crate) fn bad_request(code: &'static str, why: impl ToString) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, code, why)
    }

    pub(crate) fn forbidden(code: &'static str, why: impl ToString) -> Refusal {
        Refusal::new(StatusCode::FORBIDDEN, code, why)
    }

    pub(crate) fn not_found(code: &'static str, why: impl ToString) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, code, why)
    }

    pub(crate) fn conflict(code: &'static str, why: impl ToString) -> Refusal {
        Refusal::new(StatusCode::CONFLICT, code, why)
    }

    pub(crate) fn unavailable(code: &'static str, why: impl ToString) -> Refusal {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, code, why)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let answer = Json(json!({"code": self.code, "error": self.why}));
        let mut refused = (self.status, answer).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            refused.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        refused
    }
}

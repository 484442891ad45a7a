//! The dashboard: `GET /` and its files under `/ui`.

use super::refusal;
use crate::dashboard::{CONTENT_SECURITY_POLICY, File, PAGE};
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

pub(super) async fn page(headers: HeaderMap) -> Response {
    file(Path(PAGE.to_owned()), headers).await
}

/// 200 with the file, 304 if the browser has it, or 404.
pub(super) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(file) = crate::dashboard::file(&name) else {
        return refusal(StatusCode::NOT_FOUND, "unknown", &format!("the dashboard has no file {name:?}"));
    };
    let mut response = match is_known(file, &headers) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, file.content_type)], file.bytes).into_response(),
    };
    let answer = response.headers_mut();
    if let Ok(etag) = HeaderValue::from_str(&file.etag) {
        answer.insert(header::ETAG, etag);
    }
    const FIXED: [(HeaderName, &str); 6] = [
        // The browser asks each time whether its copy is that of this binary: an upgrade changes all files at once.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    answer.extend(FIXED.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

fn is_known(file: &File, headers: &HeaderMap) -> bool {
    let known = headers.get(header::IF_NONE_MATCH).and_then(|known| known.to_str().ok()).unwrap_or_default();
    known.split(',').any(|etag| etag.trim().trim_start_matches("W/") == file.etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_of(response: &Response, name: HeaderName) -> &str {
        response.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[tokio::test]
    async fn a_file_is_sent_once_and_then_only_if_it_has_changed() {
        let sent = page(HeaderMap::new()).await;
        assert_eq!(sent.status(), StatusCode::OK);
        assert_eq!(header_of(&sent, header::CONTENT_TYPE), "text/html; charset=utf-8");
        let etag = sent.headers()[header::ETAG].clone();
        let asking = |etag: HeaderValue| HeaderMap::from_iter([(header::IF_NONE_MATCH, etag)]);
        let known = page(asking(etag)).await;
        assert_eq!((known.status(), header_of(&known, header::CONTENT_TYPE)), (StatusCode::NOT_MODIFIED, ""));
        assert_eq!(page(asking("\"other\"".parse().unwrap())).await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn every_file_has_the_headers_that_keep_other_pages_and_inline_code_out() {
        for name in [PAGE, "app.js", "style.css", "icon.svg"] {
            let sent = file(Path(name.to_owned()), HeaderMap::new()).await;
            assert_eq!(sent.status(), StatusCode::OK, "{name}");
            let policy = header_of(&sent, header::CONTENT_SECURITY_POLICY);
            assert!(
                policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
                "{policy}"
            );
            assert!(!policy.contains("unsafe"), "{policy}");
            assert_eq!(header_of(&sent, header::X_CONTENT_TYPE_OPTIONS), "nosniff");
            assert_eq!(header_of(&sent, header::REFERRER_POLICY), "no-referrer");
        }
        for name in ["", "none.js", "../Cargo.toml"] {
            let refused = file(Path(name.to_owned()), HeaderMap::new()).await;
            assert_eq!(refused.status(), StatusCode::NOT_FOUND, "{name}");
        }
    }
}

//! The dashboard: one page, its style and its modules, as bytes in the binary. `GET /` has the page, `/ui/NAME` its files; the page
//! expects the API at `/v1`.

use crate::refusal::Refusal;
use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// The name of the page itself.
const PAGE: &str = "index.html";

macro_rules! assets {
    ($($name:literal)*) => { [$(($name, include_bytes!(concat!("../../assets/", $name)).as_slice())),*] };
}

const ASSETS: [(&str, &[u8]); 15] = assets![
    "index.html"
    "style.css"
    "icon.svg"
    "api.js"
    "app.js"
    "chart.js"
    "dom.js"
    "format.js"
    "history.js"
    "live.js"
    "now.js"
    "plugins.js"
    "request.js"
    "requests.js"
    "steps.js"
];

/// The policies under which a browser may show a file: the page has its own files and its own server, and no inline script or style.
const POLICIES: [(HeaderName, &str); 6] = [
    // An upgrade changes all files at once, so a browser keeps none.
    (header::CACHE_CONTROL, "no-store"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

pub(super) async fn page() -> Response {
    file(Path(PAGE.to_owned())).await
}

/// 200 with the file, or 404.
pub(super) async fn file(Path(name): Path<String>) -> Response {
    let Some((_, bytes)) = ASSETS.iter().find(|(known, _)| *known == name) else {
        let why = format!("the dashboard has no file {name:?}");
        return Refusal::not_found("unknown", why).into_response();
    };
    let content_type = match name.rsplit_once('.') {
        Some((_, "html")) => "text/html; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "js")) => "text/javascript; charset=utf-8",
        _ => "image/svg+xml",
    };
    let mut response = ([(header::CONTENT_TYPE, content_type)], *bytes).into_response();
    response.headers_mut().extend(POLICIES.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    fn header_of(response: &Response, name: HeaderName) -> &str {
        response.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[tokio::test]
    async fn every_file_has_the_headers_that_keep_other_pages_and_inline_code_out() {
        let kinds = [
            (PAGE, "text/html"),
            ("app.js", "text/javascript"),
            ("style.css", "text/css"),
            ("icon.svg", "image/svg"),
        ];
        for (name, kind) in kinds {
            let sent = file(Path(name.to_owned())).await;
            assert_eq!(sent.status(), StatusCode::OK, "{name}");
            assert!(header_of(&sent, header::CONTENT_TYPE).starts_with(kind), "{name}");
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
            let refused = file(Path(name.to_owned())).await;
            assert_eq!(refused.status(), StatusCode::NOT_FOUND, "{name}");
        }
    }

    fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
        ASSETS.iter().map(|(name, bytes)| (*name, std::str::from_utf8(bytes).unwrap_or_default()))
    }

    #[test]
    fn every_file_of_the_directory_is_in_the_binary_with_its_kind() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
        let mut names: Vec<String> = Vec::new();
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        let mut known: Vec<&str> = ASSETS.iter().map(|(name, _)| *name).collect();
        names.sort();
        known.sort_unstable();
        assert_eq!(names, known);
    }

    #[test]
    fn the_page_is_small_and_names_no_other_site() {
        let bytes: usize = ASSETS.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes < 120_000, "{bytes} bytes");
        for (name, text) in texts() {
            // The namespace of SVG is a name, not an address.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("://") && !text.contains("\"//"), "{name}");
        }
    }

    #[test]
    fn no_text_becomes_markup_or_code() {
        for (name, text) in texts().filter(|(name, _)| name.ends_with(".js")) {
            for bad in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "DOMParser",
                "createContextualFragment",
                "srcdoc",
                "setHTML",
                "localStorage.setItem(\"token",
            ] {
                assert!(!text.contains(bad), "{name} has {bad}");
            }
        }
        let (_, page) = texts().find(|(name, _)| *name == PAGE).unwrap_or_default();
        assert!(!page.contains("style=") && !page.contains("<style") && !page.contains(" on"), "{page}");
    }
}

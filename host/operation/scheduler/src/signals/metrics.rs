//! Scrapes SGLang's `/metrics` with one GET, bounded in size.

use afterbay_http::{ExchangeError, HttpTarget, StatusCode, get, header};
use bytes::Bytes;

use crate::signals::bounds::METRICS_BYTES_MAX;
use crate::signals::hub::ReadFailure;

/// Returns the body of a scrape.
pub(crate) async fn scrape(target: &HttpTarget) -> Result<Bytes, ReadFailure> {
    let request = get(&target.path).header(header::ACCEPT, "text/plain");
    let answer = target.exchange(request, Bytes::new(), METRICS_BYTES_MAX).await;
    let status = match &answer {
        Ok(answer) => Some(answer.status),
        Err(error) => error.status(),
    };
    if let Some(status) = status.filter(|status| *status != StatusCode::OK) {
        return Err(ReadFailure::Invalid(format!("the answer is {status}, expected 200 OK")));
    }
    answer.map(|answer| answer.body).map_err(|error| match error {
        ExchangeError::Lost(_) | ExchangeError::BrokenOff { .. } => {
            ReadFailure::Unavailable(error.to_string())
        }
        _ => ReadFailure::Invalid(error.to_string()),
    })
}

//! The sending half of a registry's client: blobs and tagged manifests.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use afterbay_http::CountedBody;
use bytes::Bytes;
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
};
use reqwest::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use reqwest::{Body, Client, Response, StatusCode, Url};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::oci::bounds::MANIFEST_BYTES_MAX;
use crate::oci::digest::sha256;
use crate::oci::error::TransferError;
use crate::oci::registry::{Registry, client, is_loopback};

/// The time between two looks at an upload.
const TICK: Duration = Duration::from_millis(100);
/// The header of an answer with the digest of the stored file.
const DIGEST: &str = "docker-content-digest";

/// A blob that is sent.
pub(crate) struct Blob<'b> {
    /// The component, or its description, for messages.
    pub(crate) what: &'static str,
    pub(crate) bytes: &'b Bytes,
    pub(crate) digest: &'b str,
    /// The time in which the registry must take something, or answer after the last byte.
    pub(crate) stall: Duration,
}

impl Registry<'_> {
    /// Sends a blob, unless the registry has it. Returns whether the blob was sent. `progress` gets the number of bytes that the
    /// connection has taken.
    pub(crate) async fn push_blob(
        &mut self,
        blob: &Blob<'_>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<bool, TransferError> {
        let url = self.url(&format!("blobs/{}", blob.digest));
        // Any other answer has no words, as it has no body. The upload's answer has them.
        if self.answer(|client| client.head(&url)).await?.status() == StatusCode::OK {
            return Ok(false);
        }
        let url = self.url("blobs/uploads/");
        let begun = self.answer(|client| client.post(&url).header(CONTENT_LENGTH, 0)).await?;
        if begun.status() != StatusCode::ACCEPTED {
            return Err(self.refused(begun.status(), begun).await);
        }
        let place = self.place(&begun, blob.digest)?;
        let stored = self.send_blob(place, blob, progress).await?;
        match stored.status() {
            StatusCode::CREATED => Ok(true),
            status => Err(self.refused(status, stored).await),
        }
    }

    /// The URL at which the registry takes a blob.
    fn place(&self, begun: &Response, digest: &str) -> Result<Url, TransferError> {
        let location = begun.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let place = location.and_then(|location| begun.url().join(location).ok());
        let mut place = place.ok_or_else(|| self.says("it names no valid URL for the upload".to_owned()))?;
        if place.scheme() != "https" && !is_loopback(self.host()) {
            let host = place.host_str().unwrap_or_default();
            return Err(self.says(format!("its URL for the upload, on {host}, is not on https")));
        }
        place.query_pairs_mut().append_pair("digest", digest);
        Ok(place)
    }

    async fn send_blob(
        &mut self,
        place: Url,
        blob: &Blob<'_>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Response, TransferError> {
        let Blob { what, bytes, stall, .. } = *blob;
        // The time to the answer includes that of the upload, so the client has no limit for it.
        let uploads = client(Client::builder())?;
        let sent = Arc::new(AtomicU64::new(0));
        let put = |_: &Client| {
            sent.store(0, Ordering::Relaxed);
            let body = CountedBody::new(bytes.clone(), Arc::clone(&sent));
            let put = uploads.put(place.clone()).header(CONTENT_TYPE, "application/octet-stream");
            put.body(Body::wrap(body))
        };
        let registry = self.host().to_owned();
        let own = Url::parse(&self.url("")).is_ok_and(|own| own.origin() == place.origin());
        let sending = async {
            match own {
                true => self.answer(put).await,
                // Another host gets no credentials: the URL has what that host needs.
                false => put(&uploads).send().await.map_err(|error| self.error(error)),
            }
        };
        let stalled =
            |sent| TransferError::Stalled { registry, what, sent, bytes: bytes.len() as u64, stall };
        watched(sending, &sent, stall, progress).await.unwrap_or_else(|sent| Err(stalled(sent)))
    }

    /// The digest of the manifest that the tag names. `None` if the registry shows none.
    pub(crate) async fn tagged(&mut self, tag: &str) -> Result<Option<String>, TransferError> {
        let url = self.url(&format!("manifests/{tag}"));
        let any = [
            OCI_IMAGE_MEDIA_TYPE,
            OCI_IMAGE_INDEX_MEDIA_TYPE,
            IMAGE_MANIFEST_MEDIA_TYPE,
            IMAGE_MANIFEST_LIST_MEDIA_TYPE,
        ]
        .join(", ");
        let response = self.answer(|client| client.get(&url).header(ACCEPT, &any)).await?;
        if response.status() != StatusCode::OK {
            return Ok(None);
        }
        let manifest = self.body("the manifest of the tag", response, MANIFEST_BYTES_MAX as u64).await?;
        Ok(Some(sha256(&manifest)))
    }

    /// Stores the manifest under the tag.
    pub(crate) async fn push_manifest(
        &mut self,
        tag: &str,
        manifest: &Bytes,
        digest: &str,
    ) -> Result<(), TransferError> {
        let url = self.url(&format!("manifests/{tag}"));
        let stored = self
            .answer(|client| {
                client.put(&url).header(CONTENT_TYPE, OCI_IMAGE_MEDIA_TYPE).body(manifest.clone())
            })
            .await?;
        if stored.status() != StatusCode::CREATED {
            return Err(self.refused(stored.status(), stored).await);
        }
        let received = stored.headers().get(DIGEST).and_then(|digest| digest.to_str().ok());
        match received.filter(|received| *received != digest) {
            Some(received) => Err(TransferError::Digest {
                what: "the manifest in the registry",
                received: received.to_owned(),
                pinned: digest.to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// Waits for an upload. Returns the number of bytes sent if the number did not grow for `stall`.
async fn watched<T>(
    sending: impl Future<Output = T>,
    sent: &AtomicU64,
    stall: Duration,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<T, u64> {
    tokio::pin!(sending);
    let mut ticks = interval(TICK.min(stall));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last, mut since) = (0, Instant::now());
    loop {
        tokio::select! {
            done = &mut sending => return Ok(done),
            _ = ticks.tick() => {
                let now = sent.load(Ordering::Relaxed);
                progress(now);
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() >= stall {
                    return Err(now);
                }
            }
        }
    }
}

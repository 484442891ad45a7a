//! The object store of a URL. Credentials, region and endpoint come from the environment.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};

/// Retries of one request: back-off with jitter by the library. A longer outage is the archive's own matter.
const RETRIES_MAX: usize = 3;
/// Time after which a request is not repeated any more.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Makes the client. Nothing is requested.
///
/// # Errors
/// A variable of the environment is missing or wrong, or the directory of a `file://` URL cannot be made.
pub(crate) fn open(url: &str) -> Result<(Arc<dyn ObjectStore>, Path), String> {
    // An error means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { max_retries: RETRIES_MAX, retry_timeout: RETRY_MAX, ..RetryConfig::default() };
    let not_made = |error: object_store::Error| format!("{url}: {error}");
    let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("{url}: no scheme"))?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let store: Arc<dyn ObjectStore> = match scheme {
        "s3" => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
            Arc::new(builder.build().map_err(not_made)?)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
            Arc::new(builder.build().map_err(not_made)?)
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(retry);
            Arc::new(builder.build().map_err(not_made)?)
        }
        "file" => {
            std::fs::create_dir_all(rest).map_err(|error| format!("{url}: {error}"))?;
            // Segments are removed once their rows are in the archive, so the rows must be durable.
            let store = LocalFileSystem::new_with_prefix(rest).map_err(not_made)?.with_fsync(true);
            return Ok((Arc::new(store), Path::default()));
        }
        other => return Err(format!("{url}: scheme {other:?}")),
    };
    let prefix = Path::parse(prefix).map_err(|error| not_made(error.into()))?;
    Ok((store, prefix))
}

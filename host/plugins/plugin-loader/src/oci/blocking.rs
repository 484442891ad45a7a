//! A transfer for a caller that blocks.

use std::future::Future;
use std::time::Duration;

use crate::oci::error::TransferError;

/// Carries out a transfer with this registry, which must end within `within`. Blocks.
pub(crate) fn blocking<T: Send>(
    registry: &str,
    within: Duration,
    transfer: impl Future<Output = Result<T, TransferError>> + Send,
) -> Result<T, TransferError> {
    // A thread of its own: the caller's thread may be in a runtime, where no second one can run.
    std::thread::scope(|scope| {
        let working = std::thread::Builder::new().name("oci".to_owned()).spawn_scoped(scope, || {
            let client = |error: std::io::Error| TransferError::Client(error.to_string());
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(client)?;
            let done = runtime.block_on(async {
                let done = tokio::time::timeout(within, transfer).await;
                done.unwrap_or_else(|_| Err(TransferError::Slow { registry: registry.to_owned(), within }))
            });
            // Does not wait for a host name that is still being resolved.
            runtime.shutdown_background();
            done
        });
        match working.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(TransferError::Client("its thread panicked".to_owned())),
            Err(error) => Err(TransferError::Client(error.to_string())),
        }
    })
}

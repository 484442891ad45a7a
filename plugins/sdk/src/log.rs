//! Lines in Afterbay's log. Outside of WebAssembly the [testing](crate::testing) harness records them.

use crate::{Level, RequestId};

/// Writes a line to Afterbay's log under the plugin's name and, if given, the request's rid. A line is cut at
/// 4 KiB. Lines beyond 100 a second are counted and dropped. The macros [`debug!`](crate::debug),
/// [`info!`](crate::info), [`warn!`](crate::warn) and [`error!`](crate::error) are shorter.
pub fn log(level: Level, request: Option<RequestId>, message: &str) {
    #[cfg(target_arch = "wasm32")]
    crate::abi::afterbay::plugin::log::log(level, request, message);
    #[cfg(not(target_arch = "wasm32"))]
    crate::stand_in::record_line(level, request, message);
}

/// The panic hook. The host reports an instance's last error line together with its trap.
#[cfg(target_arch = "wasm32")]
pub(crate) fn panicked(panic: &std::panic::PanicHookInfo<'_>) {
    let text = panic.payload_as_str().unwrap_or("(no text)");
    let message = match panic.location() {
        Some(location) => format!("panicked at {location}: {text}"),
        None => format!("panicked: {text}"),
    };
    log(Level::Error, None, &message);
}

/// Logs at level debug, formatted as by `format!`. A leading `request: ID,` adds the request's rid to the
/// line.
///
/// ```
/// # let request = 7;
/// afterbay_plugin::debug!("{} rules", 3);
/// afterbay_plugin::debug!(request: request, "matched {}", "a");
/// ```
#[macro_export]
macro_rules! debug {
    ($($line:tt)+) => { $crate::__log!(Debug, $($line)+) };
}

/// Logs at level info; see [`debug!`](crate::debug).
#[macro_export]
macro_rules! info {
    ($($line:tt)+) => { $crate::__log!(Info, $($line)+) };
}

/// Logs at level warn; see [`debug!`](crate::debug).
#[macro_export]
macro_rules! warn {
    ($($line:tt)+) => { $crate::__log!(Warn, $($line)+) };
}

/// Logs at level error; see [`debug!`](crate::debug).
#[macro_export]
macro_rules! error {
    ($($line:tt)+) => { $crate::__log!(Error, $($line)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log {
    ($level:ident, request: $request:expr, $($format:tt)+) => {
        $crate::log($crate::Level::$level, ::std::option::Option::Some($request), &::std::format!($($format)+))
    };
    ($level:ident, $($format:tt)+) => {
        $crate::log($crate::Level::$level, ::std::option::Option::None, &::std::format!($($format)+))
    };
}

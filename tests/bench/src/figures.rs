//! Medians and percentiles of what was measured.

use std::time::Duration;

/// The median; NaN of nothing.
pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The percentile of sorted waits in milliseconds, with `share` from 0 to 1; NaN of nothing.
pub(crate) fn percentile_ms(waits: &[Duration], share: f64) -> f64 {
    let last = waits.len().saturating_sub(1) as f64;
    waits.get((last * share) as usize).map_or(f64::NAN, |wait| wait.as_secs_f64() * 1e3)
}

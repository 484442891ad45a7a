//! A simulated scheduler and a simulated slow reader.

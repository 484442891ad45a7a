//! Requests of the journal as OpenTelemetry traces.

//! PULL and PUSH over ipc and tcp, on mio; the reader's credit page.

//! The Metal capability shim for macOS guests: raises, per process, the GPU families that the paravirtual
//! Metal device reports, where graphs cannot be forwarded to the host.

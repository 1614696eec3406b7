//! Ferry's wire protocol and its message channel.

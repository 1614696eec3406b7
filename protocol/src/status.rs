//! Outcomes, as both sides name them.

use bytemuck::{Pod, Zeroable};

/// The outcome of a request. An open set: a newer side may send numbers that this one does not know.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// What the number means, in a few words.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    _ => "unknown status",
                }
            }
        }
    };
}

statuses! {
    /// Done.
    OK = 0, "ok";
    /// No version that both sides speak.
    VERSION = 1, "no common protocol version";
    /// A message that cannot be parsed: wrong size, reserved bits, trailing bytes.
    MALFORMED = 2, "malformed message";
    /// A call code that is not in the table, or not in the negotiated version.
    UNKNOWN_CALL = 3, "unknown call";
    /// A buffer, stream, graph or device that is not there, or not any more.
    STALE_HANDLE = 4, "no such object";
    /// A tensor or graph that fails validation.
    INVALID = 5, "invalid tensor or graph";
    /// An operation or type that the host's ggml does not have or that cannot be forwarded.
    UNSUPPORTED = 6, "not supported by the host";
    /// The host is out of memory, or a quota is used up.
    NO_MEMORY = 7, "out of memory";
    /// ggml reported a failure.
    FAILED = 8, "the host's back-end failed";
    /// A limit of the protocol would be exceeded.
    LIMIT = 9, "limit exceeded";
    /// The worker is gone and everything that it held with it.
    SESSION_LOST = 10, "session lost";
    /// The daemon could not start a worker, or may not.
    REFUSED = 11, "refused";
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.text() {
            "unknown status" => write!(f, "unknown status {}", self.0),
            text => f.write_str(text),
        }
    }
}

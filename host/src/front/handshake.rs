//! The handshake's first half, the same for every transport: HELLO in, WELCOME out.

use ferry_protocol::calls::CallCode;
use ferry_protocol::cursor;
use ferry_protocol::frame::Header;
use ferry_protocol::hello::{self, Hello, WelcomeHeader};
use ferry_protocol::status::Status;

/// What a guest is answered, and the log line if it was turned away.
pub struct Answer {
    /// The header to send.
    pub header: Header,
    /// The payload to send.
    pub payload: Vec<u8>,
    /// Why the guest was turned away.
    pub rejected: Option<String>,
}

impl Answer {
    /// Turns a guest away with `text`.
    pub fn rejection(request: Header, status: Status, text: String) -> Self {
        let payload = text.clone().into_bytes();
        Self { header: request.reply(status), payload, rejected: Some(format!("{status}: {text}")) }
    }
}

/// Answers a HELLO with the `welcome` that the probe made.
pub fn answer(request: Header, payload: &[u8], welcome: &[u8]) -> Answer {
    if request.call != CallCode::HELLO {
        let text = format!("{} before a session was opened", request.call);
        return Answer::rejection(request, Status::UNKNOWN_CALL, text);
    }
    let hello: Hello = match cursor::only(payload, "a HELLO") {
        Ok(hello) => hello,
        Err(error) => return Answer::rejection(request, Status::MALFORMED, error.to_string()),
    };
    if hello.magic != hello::MAGIC {
        return Answer::rejection(request, Status::MALFORMED, "this is not a Ferry guest".to_owned());
    }
    if let Some(version) = hello::negotiate(hello.version_min, hello.version_max) {
        let payload = with_version(welcome, version);
        return Answer { header: request.reply(Status::OK), payload, rejected: None };
    }
    let range = WelcomeHeader {
        magic: hello::MAGIC,
        version: ferry_protocol::VERSION_MIN,
        version_max: ferry_protocol::VERSION_MAX,
        devices: 0,
    };
    let (min, max) = (hello.version_min, hello.version_max);
    Answer {
        header: request.reply(Status::VERSION),
        payload: bytemuck::bytes_of(&range).to_vec(),
        rejected: Some(format!("{}: the guest speaks versions {min} to {max}", Status::VERSION)),
    }
}

/// The probe's WELCOME, which the supervisor has parsed, with the version that this guest and this daemon have in common.
fn with_version(welcome: &[u8], version: u16) -> Vec<u8> {
    let (header, devices) = welcome.split_at(size_of::<WelcomeHeader>());
    let header = WelcomeHeader { version, ..bytemuck::pod_read_unaligned(header) };
    [bytemuck::bytes_of(&header), devices].concat()
}

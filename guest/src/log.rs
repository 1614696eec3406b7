//! The plug-in's log: through ggml's own, which the program may have redirected, or to standard error.

use crate::ffi::base;
use std::sync::atomic::{AtomicBool, Ordering};

/// Levels, as in `enum ggml_log_level`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub enum Level {
    /// For who looks for a fault.
    Debug = 1,
    /// Something does not work, the program goes on.
    Warn = 3,
    /// Something that was started failed.
    Error = 4,
}

/// Writes a line, with the plug-in's name in front.
pub fn line(level: Level, text: &str) {
    let line = format!("ferry: {text}\n");
    if !base::log(level as i32, &line) && !matches!(level, Level::Debug) {
        eprint!("{line}");
    }
}

/// Writes a line the first time that it is called with this `once`.
pub fn line_once(once: &AtomicBool, level: Level, text: &str) {
    if !once.swap(true, Ordering::Relaxed) {
        line(level, text);
    }
}

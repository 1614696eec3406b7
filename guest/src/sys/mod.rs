//! The operating system, where its safe wrappers end.

pub mod fork;

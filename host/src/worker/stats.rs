//! What a worker counted, for people and tests: a claim that something was forwarded is checked here, since a silent
//! fallback to the guest's own CPU looks perfect.

use serde::Serialize;
use std::io::Write;
use std::path::Path;

/// A worker's counters.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Stats {
    /// The guest's process, as it said itself; 0 if it did not.
    pub client_pid: u32,
    /// This process.
    pub worker_pid: u32,
    /// Messages received.
    pub messages: u64,
    /// Graphs defined anew.
    pub graphs_defined: u64,
    /// Graphs patched.
    pub graphs_patched: u64,
    /// Graphs computed.
    pub graphs: u64,
    /// Nodes of the graphs that were computed, each time that they were.
    pub nodes: u64,
    /// Bytes of payload received.
    pub bytes_in: u64,
    /// Bytes copied from and into regions.
    pub bytes_shared: u64,
    /// Bytes of payload sent.
    pub bytes_out: u64,
    /// Times that the worker woke the guest.
    pub doorbells: u64,
    /// Times that the worker slept.
    pub waits: u64,
    /// Calls that were refused or failed.
    pub failures: u64,
}

impl Stats {
    /// Appends the counters to `path` as one line of JSON, in one write: workers share the file.
    pub fn append_to(&self, path: &Path) -> std::io::Result<()> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(line.as_bytes())
    }
}

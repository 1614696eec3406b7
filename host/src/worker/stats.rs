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
    /// Graphs that the back-end was asked the best order of.
    pub optimizations: u64,
    /// Graphs that it would have in another order.
    pub reorderings: u64,
    /// Events recorded.
    pub events: u64,
    /// Graphs computed.
    pub graphs: u64,
    /// Nodes of the graphs that were computed, each time that they were.
    pub nodes: u64,
    /// Bytes of payload received.
    pub bytes_in: u64,
    /// Bytes copied from and into regions.
    pub bytes_shared: u64,
    /// Bytes of weights that were in the model store: neither in `bytes_in` nor in `bytes_shared`.
    pub bytes_from_store: u64,
    /// Bytes of payload sent.
    pub bytes_out: u64,
    /// Bytes of all buffers that the guest has.
    pub buffer_bytes: u64,
    /// The most that it had.
    pub buffer_bytes_max: u64,
    /// Bytes of this process's memory at the end, in RAM and its own: without what it shares with the guest. The driver's
    /// context is in it, and with a CPU back-end the buffers are.
    pub own_bytes: u64,
    /// Times that the worker woke the guest.
    pub doorbells: u64,
    /// Times that the worker slept.
    pub waits: u64,
    /// Calls that were refused or failed.
    pub failures: u64,
}

impl Stats {
    /// Looks how much memory this process has.
    pub fn measure_memory(&mut self) {
        self.own_bytes = own_bytes().unwrap_or_default();
    }

    /// Appends the counters to `path` as one line of JSON, in one write: workers share the file.
    pub fn append_to(&self, path: &Path) -> std::io::Result<()> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(line.as_bytes())
    }
}

/// Anonymous memory and files that this process has in RAM, as Linux tells; shared memory is neither.
fn own_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = |field: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    Some((kib("RssAnon:")? + kib("RssFile:")?) << 10)
}
